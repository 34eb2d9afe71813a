"""Runs inside the training environment: supervises one training, records it, describes its environment.

Run by path, never imported by bisector: `worker.py supervise DIR` starts the training command of a run
(DIR names it for `ps`) and ends all that came of it; `worker.py describe` and `worker.py fetch` look at and fill the environment.
Every Python process of a training imports this file through `sitecustomize` and calls `record`, which
writes per-step values and crashes beside the output; it changes nothing that is computed.

Only the cheap part of the standard library is imported at the top, since every process of a training
pays for it; the rest, and the training stack, where it is needed.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

TYPE_CHECKING = False  # `typing`, like `importlib.abc`, takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import IO, Any, NoReturn, Protocol

    class Child(Protocol):
        """What supervision needs of the training's first process; `subprocess.Popen` has it."""

        pid: int
        stdout: IO[bytes] | None

        @property
        def returncode(self) -> int | None:
            """Return the exit code once the process was waited for."""

        def wait(self) -> int:
            """Return the exit code, negative for a signal."""


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_LIMIT = 2000  # characters of a crash's message that are kept
STOP_GRACE = 10.0  # seconds that a training has to end when it is asked to stop
LOG_TAIL = 256  # chunks of at most 4 KiB kept once the log is full
SUPERVISOR = "BISECTOR_SUPERVISOR"  # the supervisor's process number, told to a training
FOLDER = "BISECTOR_RUN_DIR"  # where a training leaves metrics.jsonl, facts.json, crash-*.json, footprint-*


# Supervision: one process between bisector and the training. It ends everything below it when the
# training ends, passes its time-out, or when bisector is gone (its end of our standard input closes).


def supervise() -> None:
    """Run the command of the specification on standard input's first line; write the result file."""
    supervise_run(json.loads(sys.stdin.buffer.readline()), _start)


def supervise_run(spec: dict[str, Any], start: Callable[[dict[str, Any]], Child]) -> None:
    """Have `start` start the specified command, watch it to its end, and write the result file.

    Specification: argv, env, cwd, log, log_limit (bytes), timeout (seconds), result. Result: exit (an
    exit code, negative for a signal), timed_out, cancelled, stopped, seconds. The child must lead a
    session and die with this process, and standard input is bisector's end: a byte asks for a stop.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: os.close(0))
    started = time.monotonic()
    spec["env"][SUPERVISOR] = str(os.getpid())
    child = start(spec)
    with open(spec["log"], "wb") as file:
        log = _Log(file, spec["log_limit"])
        ended = _watch(child, log, started + spec["timeout"])
        _kill_descendants(child)
        log.drain(child.stdout)
        log.close()
    result = {
        "exit": child.returncode,
        "timed_out": ended == "timeout",
        "cancelled": ended == "cancelled",
        "stopped": ended == "stopped",
        "seconds": time.monotonic() - started,
    }
    _write_whole(spec["result"], json.dumps(result))


def _start(spec: dict[str, Any]) -> Child:
    import subprocess

    return subprocess.Popen(
        spec["argv"],
        env=spec["env"],
        cwd=spec["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def _watch(child: Child, log: _Log, deadline: float) -> str:
    """Copy output until the child ends ("exit"), time is up ("timeout") or bisector left ("cancelled").

    "stopped": bisector wrote a byte, the child was sent SIGTERM, and ended or had its time for that.
    """
    import select

    assert child.stdout
    process = os.pidfd_open(child.pid)
    sources: list[Any] = [process, 0, child.stdout]
    is_stopping = False
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return "stopped" if is_stopping else "timeout"
        try:
            ready, _, _ = select.select(sources, [], [], remaining)
        except (OSError, ValueError):  # standard input was closed by SIGTERM
            return "cancelled"
        if child.stdout in ready and not log.copy(child.stdout):
            sources.remove(child.stdout)
        if 0 in ready:
            if not os.read(0, 1):
                return "cancelled"
            is_stopping, deadline = True, time.monotonic() + STOP_GRACE
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        if process in ready:
            return "stopped" if is_stopping else "exit"


class _Log:
    """A log file of limited size: its beginning, and at the end of the run its last lines."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._left = file, limit
        self._tail: deque[bytes] = deque(maxlen=LOG_TAIL)
        self._dropped = False

    def copy(self, pipe: Any) -> bool:
        """Take what the pipe holds; False once it is closed."""
        chunk = os.read(pipe.fileno(), 4096)
        if self._left >= len(chunk):
            self._file.write(chunk)
            self._file.flush()
            self._left -= len(chunk)
        else:
            self._left = 0
            self._dropped |= len(self._tail) == LOG_TAIL
            self._tail.append(chunk)
        return bool(chunk)

    def drain(self, pipe: Any) -> None:
        """Take what is left; nothing writes any more."""
        os.set_blocking(pipe.fileno(), False)
        with suppress(BlockingIOError):
            while self.copy(pipe):
                pass

    def close(self) -> None:
        if self._dropped:
            self._file.write(b"\n... output left out ...\n")
        self._file.write(b"".join(self._tail))


def _kill_descendants(child: Child) -> None:
    """Kill what the training left. Orphans become our children, so this ends when we have none."""
    while pids := _children():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            if pid == child.pid:
                child.wait()
            else:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
    child.wait()


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _write_whole(path: str, text: str) -> None:
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w") as file:
        file.write(text)
    os.replace(partial, path)


# Recording, in every Python process of a training.


def record() -> None:
    """Write down steps and crashes of this process; called by `sitecustomize` before anything else."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    import bisector_tracer  # type: ignore[import-not-found]  # lies beside this file, under that name

    bisector_tracer.trace(folder, os.environ["BISECTOR_CHECKOUT"])
    if os.environ.get(SUPERVISOR) != str(os.getppid()):
        die_with_parent()  # the supervisor's own child does already
    sys.excepthook = lambda kind, error, trace: _record_crash(folder, kind, error, trace)
    trainer = sys.modules.get("transformers.trainer")
    if trainer:  # this process was forked from one that had imported it
        trainer.DEFAULT_CALLBACKS.append(_make_callback(folder))
    else:
        sys.meta_path.insert(0, _TrainerFinder(folder))


def _record_crash(
    folder: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, trace)
    if isinstance(error, KeyboardInterrupt):
        return
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    crash = {
        "time": time.time(),
        "type": type(root).__name__,
        "message": str(root).strip()[:MESSAGE_LIMIT].encode("utf-8", "replace").decode(),
        "place": _innermost_place(root.__traceback__) or _innermost_place(trace),
        "returncode": getattr(error, "returncode", None),
    }
    _write_whole(os.path.join(folder, f"crash-{os.getpid()}.json"), json.dumps(crash))


def _innermost_place(trace: TracebackType | None) -> str:
    """Return file and function of the innermost frame in the checkout; a line number would move."""
    import traceback

    checkout = os.environ.get("BISECTOR_CHECKOUT", "")
    place = ""
    for frame, _ in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        if checkout and name.startswith(checkout + os.sep):
            place = f"{os.path.relpath(name, checkout)}:{frame.f_code.co_name}"
    return place


class _TrainerFinder:
    """Adds the recording callback to transformers' default callbacks when its trainer is imported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        folder, run_module = self._folder, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            module.DEFAULT_CALLBACKS.append(_make_callback(folder))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _make_callback(folder: str) -> Any:
    from transformers.trainer_callback import TrainerCallback

    class Recorder(TrainerCallback):
        """Writes each logged step in full precision; the trainer would round it or drop a NaN."""

        logged = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            args.logging_nan_inf_filter = False
            if state.is_world_process_zero:
                trl = sys.modules.get("trl")
                facts = {"world_size": args.world_size, "trl": getattr(trl, "__file__", None)}
                _write_whole(os.path.join(folder, "facts.json"), json.dumps(facts))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.is_world_process_zero and logs and "loss" in logs:
                kept = {k: logs[k] for k in ("loss", "grad_norm", "num_tokens") if k in logs}
                line = {"step": state.global_step, **{k: float(v) for k, v in kept.items()}}
                with open(os.path.join(folder, "metrics.jsonl"), "a") as file:
                    file.write(json.dumps(line) + "\n")
                self.logged += 1
                _wait_for_go(os.path.join(folder, "go"), self.logged)

    return Recorder


def _wait_for_go(path: str, logged: int) -> None:
    """Wait for the go after this many steps: the file's size says how many have it. Without a file, go on."""
    with suppress(FileNotFoundError):
        while os.stat(path).st_size < logged:
            time.sleep(0.001)


# The environment.


def describe() -> None:
    """Print the interpreter, every installed distribution and the devices as JSON; imports no stack."""
    import importlib.metadata
    import platform

    packages: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-"), found.version)
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "packages": packages,
                "processor": _processor(),
                "trl": _installed_trl(),
            }
        )
    )


def _installed_trl() -> str:
    """Return the directory of the installed trl; empty if there is none."""
    import importlib.metadata

    try:
        return str(importlib.metadata.distribution("trl").locate_file("trl"))
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    import platform

    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def fetch() -> None:
    """Download model, data set and kernel of the arguments on standard input (JSON) into the caches.

    The data set is prepared as well, since `datasets` finds no raw download offline. Prints what was
    fetched and at which revision.
    """
    args = json.load(sys.stdin)
    from huggingface_hub import HfApi, snapshot_download

    fetched = {}
    model, revision = args.get("model_name_or_path"), args.get("model_revision")
    if model and not os.path.isdir(model):
        path = snapshot_download(model, revision=revision)
        fetched[model] = os.path.basename(path)
    data = args.get("dataset_name")
    if data and not os.path.isdir(data):
        from datasets import load_dataset

        load_dataset(data, name=args.get("dataset_config"))
        fetched[data] = HfApi().dataset_info(data).sha
    kernel, _, version = args.get("attn_implementation", "").partition("@")
    if "/" in kernel:
        path = snapshot_download(kernel, revision=version or None)
        fetched[kernel] = os.path.basename(path)
    print(json.dumps(fetched))


def _main() -> NoReturn:
    {"supervise": supervise, "describe": describe, "fetch": fetch}[sys.argv[1]]()
    sys.exit(0)


if __name__ == "__main__":
    _main()
