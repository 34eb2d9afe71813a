"""Reads what a run left behind, and says what it showed; decides nothing about it.

A process killed from outside is infrastructure, not an observation; so is a full disk.
"""

import json
import re
import shutil
import signal
import stat
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bisector.contents import Footprint
from bisector.errors import InfraError, KilledError, SupervisorKilledError
from bisector.job import Job
from bisector.model import Crash, RunResult, Status, Trajectory
from bisector.series import parse_lines, parse_trainer_state

TAIL_LINES = 20
METRICS_LIMIT = 2_000_000  # bytes read of what a training logged, some 25,000 steps
RECORD_LIMIT = 100_000  # bytes read of what the recorder wrote
FOOTPRINT_LIMIT = 20_000_000  # bytes of what one process wrote of its reads
INCOMPLETE = "footprint-incomplete"  # what the tracer leaves where it could not follow
KINDS = tuple(field.name for field in fields(Footprint))
OUT_OF_MEMORY = ("OutOfMemory", "OutOfMemoryError")  # as much the machine's doing as the commit's
FULL_DISK = 50_000_000  # bytes free under which a failed training is the disk's fault


def read_ended(
    job: Job, result: Mapping[str, object], output: Path, is_out_of_memory: bool
) -> RunResult:
    """Return what a run showed that ended by itself or was timed out; KilledError where that is nothing."""
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


def read_stopped(job: Job, result: Mapping[str, object], output: Path, steps: int) -> RunResult:
    """Return what a run showed that was stopped after so many steps."""
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
    texts = [read_text(file, FOOTPRINT_LIMIT) for file in record.glob("footprint-*")]
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
        text = read_text(path, METRICS_LIMIT)
        if text:
            return (parse_lines if path.suffix == ".jsonl" else parse_trainer_state)(text)
    return ()


def read_text(path: Path, limit: int) -> str:
    """Return at most `limit` bytes of a regular file; a training may leave anything in its place."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_records(job: Job) -> list[dict[str, Any]]:
    texts = [read_text(f, RECORD_LIMIT) for f in (job.scratch / "record").glob("crash-*.json")]
    return [json.loads(text) for text in texts if text.endswith("}")]


def _read_crash(job: Job, code: int, tail: str, is_out_of_memory: bool) -> Crash | None:
    if code == 0:
        return None
    none: dict[str, Any] = {}
    record = min(_read_records(job), key=lambda record: float(record["time"]), default=none)
    check_disk(job)
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


def check_disk(job: Job) -> None:
    """Blame a full disk before the commit; what a training says of it is no evidence."""
    if shutil.disk_usage(job.log.parent).free < FULL_DISK:
        raise InfraError("The disk is full.", "Free space under the state directory; run it again.")


def _check_facts(job: Job) -> str:
    """Return why a run that ended well is not the run that was asked for; empty if it is."""
    text = read_text(job.scratch / "record" / "facts.json", RECORD_LIMIT)
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


def count_memory_kills() -> int:
    """Return how often the kernel has killed for memory since boot."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
