"""Runs one config at one checkout in a child, and says what the run showed; decides nothing about it.

The child is `worker.py supervise`, which outlives neither this process nor its training. A process killed
from outside is infrastructure, not an observation; so is a full disk.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from bisector.contents import Footprint
from bisector.errors import InfraError
from bisector.model import Config, Crash, Declared, RunResult, Status, Trajectory
from bisector.series import parse_lines, parse_trainer_state

WORKER = Path(__file__).with_name("worker.py")
TRACER = Path(__file__).with_name("tracer.py")
LOG_LIMIT = 4_000_000  # bytes of one run's output that are kept from its beginning
TAIL_LINES = 20
METRICS_LIMIT = 2_000_000  # bytes read of what a training logged, some 25,000 steps
RECORD_LIMIT = 100_000  # bytes read of what the recorder wrote
FOOTPRINT_LIMIT = 20_000_000  # bytes of what one process wrote of its reads
INCOMPLETE = "footprint-incomplete"  # what the tracer leaves where it could not follow
KINDS = tuple(field.name for field in fields(Footprint))
OUT_OF_MEMORY = (
    "OutOfMemory",
    "OutOfMemoryError",
)  # of the machine's doing as much as the commit's
PATIENCE = 60.0  # seconds that a run waits for another's step
FULL_DISK = 50_000_000  # bytes free under which a failed training is the disk's fault
THREADS = 1
CLI = "import sys\nfrom trl.cli import main\nsys.exit(main())\n"
INHERITED = (
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)


class KilledError(InfraError):
    """A process of the run was killed; perhaps by a person, perhaps for memory, perhaps by itself."""


class SupervisorKilledError(KilledError):
    """Not the training was killed but what watches it: rarely the commit's doing."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make. `scratch` is a directory that does not exist yet."""

    run: str
    config: Config
    checkout: Path
    declared: Declared
    scratch: Path
    log: Path
    hub: Path
    assets: Path | None  # what `{tiny}` stands for
    python: str
    devices: str  # CUDA indexes, comma-separated; empty: the CPU
    timeout: float
    mark: Mapping[str, str]  # variables by which every process of the run can be found
    is_led: bool = False  # it waits after each step until it is allowed the next


class Supervisor(Protocol):
    """What stands between bisector and a training; it ends all that came of the training."""

    is_warm: bool

    def begin(self, specification: Mapping[str, object]) -> None:
        """Have the training start; whether that worked shows when it has ended."""

    def poll(self) -> int | None:
        """Return the supervisor's exit code, or None while it runs."""

    def ask_to_stop(self) -> None:
        """Have the training end, with what it has shown."""

    def let_go(self) -> None:
        """Have everything end, if it has not."""

    def end(self) -> None:
        """Have everything end, and wait for that."""


class ColdSupervisor:
    """`worker.py supervise` in a process of its own."""

    is_warm = False

    def __init__(self, scratch: Path) -> None:
        with (scratch / "supervisor.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER), "supervise", str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def begin(self, specification: Mapping[str, object]) -> None:
        """Send the specification."""
        self._write(json.dumps(specification).encode() + b"\n")

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Write the byte that asks for it."""
        self._write(b"s")

    def _write(self, text: bytes) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # killed already; poll says so
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def let_go(self) -> None:
        """Close its standard input."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Close its standard input, and kill it if that is not heard."""
        self.let_go()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def base_variables(python: str) -> dict[str, str]:
    """Return the part of a training's environment variables that is the same for every run here."""
    count = str(THREADS)
    return {
        "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
    }


class Running:
    """A run in progress, by default in a process of its own."""

    def __init__(self, job: Job, supervisor: Supervisor | None = None) -> None:
        self.job = job
        self._output = job.scratch / "output"
        self._result = job.scratch / "result.json"
        self._kills = _memory_kills()
        self._stop_at: int | None = None
        self._progressed = time.monotonic()
        self._size = 0
        self.seen: Trajectory = ()  # the steps logged when `look` was called last
        job.scratch.mkdir(parents=True)
        # starts while the rest is prepared
        self._supervisor = supervisor or ColdSupervisor(job.scratch)
        for name in ("output", "home", "work", "tmp", "front", "record"):
            (job.scratch / name).mkdir()
        _write_front(job)
        self._go = job.scratch / "record" / "go"
        if job.is_led:
            self._go.touch()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self._supervisor.begin(self._specification())

    @property
    def is_warm(self) -> bool:
        """Whether the training is forked from a process that had imported what it needs."""
        return self._supervisor.is_warm

    def _specification(self) -> dict[str, object]:
        job = self.job
        return {
            "argv": command(job.config, job, self._output),
            "env": _variables(job),
            "cwd": str(job.scratch / "work"),
            "log": str(job.log),
            "log_limit": LOG_LIMIT,
            "timeout": job.timeout,
            "result": str(self._result),
            "scratch": str(job.scratch),
        }

    def poll(self) -> RunResult | None:
        """Return what the run showed, or None while it runs; InfraError where that is nothing."""
        code = self._supervisor.poll()
        if code is None:
            return None
        self._supervisor.let_go()
        if not self._result.exists():
            _check_disk(self.job)
            if code > 0:
                text = _read_text(self.job.scratch / "supervisor.log", RECORD_LIMIT)
                last = "".join(text.strip().splitlines()[-1:]) or "its folder is gone"
                raise InfraError(f"The supervisor failed: {last}.", "Run it again.")
            raise SupervisorKilledError(
                "The run's supervisor was killed.", "The run is made again."
            )
        result = json.loads(self._result.read_text())
        if self._stop_at is not None and not result["cancelled"]:
            shown = _read_stopped(self.job, result, self._output, self._stop_at)
        else:
            shown = _read_result(self.job, result, self._output, _memory_kills() > self._kills)
        return replace(shown, warm=self.is_warm)

    def steps(self) -> int:
        """Return how many steps the run has logged so far."""
        logged = _read_text(self.job.scratch / "record" / "metrics.jsonl", METRICS_LIMIT)
        return logged.count("\n")

    def look(self) -> None:
        """Read the steps that were logged since the last look."""
        folder = self._output if self.job.config.script else self.job.scratch / "record"
        path = folder / "metrics.jsonl"
        try:
            size = path.stat().st_size
        except OSError:
            return
        if size != self._size:
            self._size = size
            self.seen = parse_lines(_read_text(path, METRICS_LIMIT))
            self._progressed = time.monotonic()

    @property
    def is_patient(self) -> bool:
        """Whether the run may still wait for another; it must not pass its time-out for that."""
        return time.monotonic() - self._progressed < min(PATIENCE, self.job.timeout / 4)

    def allow(self, steps: int) -> None:
        """Let the run go on after so many steps."""
        if self.job.is_led and self._go.exists():
            os.truncate(self._go, steps)

    def stop(self, steps: int) -> None:
        """Have the run end; it will have shown its first `steps` steps."""
        if self._stop_at is None:
            self._stop_at = steps
            self._supervisor.ask_to_stop()

    def cancel(self) -> None:
        """End the run and everything below it; nothing is observed."""
        self._supervisor.end()


def command(config: Config, job: Job, output: Path) -> list[str]:
    """Return the users' command: `trl <method>` with the config's arguments, or the script with them."""
    args = ["--output_dir", str(output)]
    for key, value in config.args.items():
        args += [f"--{key}", value.replace("{tiny}", str(job.assets))]
    if config.script:
        return [job.python, str(job.checkout / config.script), *args]
    assert config.method
    return [job.python, str(job.scratch / "front" / "trl"), config.method, *config.launch, *args]


def variables_of_place(python: str, scratch: Path, hub: Path, devices: str) -> dict[str, str]:
    """Return the variables of a training that depend on the place where it runs, not on the commit."""
    return {
        **base_variables(python),
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "HF_HOME": str(scratch / "home" / "hf"),
        "HF_HUB_CACHE": str(hub),
        "HF_DATASETS_CACHE": str(scratch / "datasets"),
        "CUDA_VISIBLE_DEVICES": devices,
    }


def _variables(job: Job) -> dict[str, str]:
    scratch = job.scratch
    paths = [scratch / "front", job.checkout, job.checkout / "src"]
    return {
        **variables_of_place(job.python, scratch, job.hub, job.devices),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path.is_dir()),
        "BISECTOR_RUN_DIR": str(scratch / "record"),
        "BISECTOR_CHECKOUT": str(job.checkout),
        **job.mark,
    }


def _write_front(job: Job) -> None:
    """Write what stands before the installed packages: recorder, metadata of the checkout, `trl`."""
    front = job.scratch / "front"
    (front / "bisector_worker.py").symlink_to(WORKER)
    (front / "bisector_tracer.py").symlink_to(TRACER)
    (front / "sitecustomize.py").write_text("import bisector_worker\nbisector_worker.record()\n")
    (front / "trl").write_text(CLI)
    declared = job.declared
    if declared.name:
        stem = re.sub(r"[-_.]+", "_", declared.name)
        info = front / f"{stem}-{declared.version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {declared.name}", f"Version: {declared.version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in declared.requirements]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "top_level.txt").write_text(f"{declared.name}\n")
    prepared = job.hub / "datasets"
    if prepared.is_dir():
        shutil.copytree(prepared, job.scratch / "datasets")


def _read_result(
    job: Job, result: Mapping[str, object], output: Path, is_out_of_memory: bool
) -> RunResult:
    tail = _tail(job.log)
    seconds = float(str(result["seconds"]))
    if result["cancelled"]:
        raise SupervisorKilledError("The run was ended from outside.", "The run is made again.")
    trajectory = _read_trajectory(job, output)
    if result["timed_out"]:
        reason = f"passed its time-out of {job.timeout:.0f} s at step {len(trajectory)}"
        return RunResult(Status.TIMED_OUT, trajectory, None, reason, seconds, tail)
    crash = _read_crash(job, int(str(result["exit"])), tail, is_out_of_memory)
    if crash:
        reason = f"{crash.type}: {crash.message}"
        kept = None if crash.type in OUT_OF_MEMORY else _read_footprint(job)
        return RunResult(Status.CRASHED, trajectory, crash, reason, seconds, tail, kept)
    refusal = _check_facts(job)
    if refusal:
        return RunResult(Status.SETUP_FAILED, (), None, refusal, seconds, tail)
    footprint = _read_footprint(job)
    if not trajectory:
        crash = Crash("NoMetrics", "", "the training ended without logging a step")
        return RunResult(Status.CRASHED, (), crash, crash.message, seconds, tail, footprint)
    return RunResult(Status.COMPLETED, trajectory, None, "", seconds, tail, footprint)


def _read_stopped(job: Job, result: Mapping[str, object], output: Path, steps: int) -> RunResult:
    seconds, tail = float(str(result["seconds"])), _tail(job.log)
    refusal = _check_facts(job)
    if refusal:
        return RunResult(Status.SETUP_FAILED, (), None, refusal, seconds, tail)
    shown = _read_trajectory(job, output)[:steps]
    footprint = _read_footprint(job)
    return RunResult(Status.STOPPED_EARLY, shown, None, "", seconds, tail, footprint)


def _read_footprint(job: Job) -> Footprint | None:
    """Return what the run read of its checkout; None where that is not known whole, or not asked for."""
    record = job.scratch / "record"
    if (job.config.script and not job.config.has_footprint) or (record / INCOMPLETE).exists():
        return None
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    texts = [_read_text(file, FOOTPRINT_LIMIT) for file in record.glob("footprint-*")]
    try:
        for line in "".join(texts).splitlines():
            kind, path = json.loads(line)
            found[kind].add(path)
    except (ValueError, KeyError):
        return None
    is_cut = any(len(text) >= FOOTPRINT_LIMIT for text in texts)
    return (
        Footprint(**{kind: frozenset(paths) for kind, paths in found.items()})
        if texts and not is_cut
        else None
    )


def _read_trajectory(job: Job, output: Path) -> Trajectory:
    recorded = job.scratch / "record" / "metrics.jsonl"
    own = [output / "metrics.jsonl", *sorted(output.glob("**/trainer_state.json"))]
    for path in own if job.config.script else [recorded, *own]:
        text = _read_text(path, METRICS_LIMIT)
        if text:
            return (parse_lines if path.suffix == ".jsonl" else parse_trainer_state)(text)
    return ()


def _read_text(path: Path, limit: int) -> str:
    """Return at most `limit` bytes of a regular file; a training may leave anything in its place."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_records(job: Job) -> list[dict[str, Any]]:
    texts = [_read_text(f, RECORD_LIMIT) for f in (job.scratch / "record").glob("crash-*.json")]
    return [json.loads(text) for text in texts if text.endswith("}")]


def _read_crash(job: Job, code: int, tail: str, is_out_of_memory: bool) -> Crash | None:
    if code == 0:
        return None
    none: dict[str, Any] = {}
    record = min(_read_records(job), key=lambda record: float(record["time"]), default=none)
    _check_disk(job)
    killed = {code, record.get("returncode")} & {-signal.SIGKILL, -signal.SIGTERM}
    if killed or re.search(r"exitcode\s*: -9\b", tail):
        if is_out_of_memory:
            return Crash("OutOfMemory", "", "the kernel killed the training for memory")
        raise KilledError("The training was killed from outside.", "The run is made again.")
    if code < 0:
        return Crash(signal.Signals(-code).name, "", f"the training died of signal {-code}")
    if record and not record.get("returncode"):
        return Crash(record["type"], record["place"], record["message"])
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "no output")
    return Crash(f"Exit {code}", "", last.strip())


def _check_disk(job: Job) -> None:
    """Blame a full disk before the commit; what a training says of it is no evidence."""
    if shutil.disk_usage(job.log.parent).free < FULL_DISK:
        raise InfraError("The disk is full.", "Free space under the state directory; run it again.")


def _check_facts(job: Job) -> str:
    """Return why a run that ended well is not the run that was asked for; empty if it is."""
    text = _read_text(job.scratch / "record" / "facts.json", RECORD_LIMIT)
    if job.config.script or not text:
        return ""
    facts = json.loads(text)
    trl, wanted = facts["trl"], job.config.num_processes
    if trl and not Path(trl).is_relative_to(job.checkout):
        return f"trl was imported from {trl}, not from the checkout"
    if facts["world_size"] != wanted:
        return f"launch options ignored: {facts['world_size']} process(es) trained, not {wanted}"
    return ""


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - 16_384, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.replace("\r", "\n").splitlines()[-TAIL_LINES:])


def _memory_kills() -> int:
    """Return how often the kernel has killed for memory since boot."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
