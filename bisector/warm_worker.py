"""Runs inside the training environment: imports the training stack once, and forks trainings from there.

Run by path, never imported by bisector: `warm_worker.py SOCKET ROOT`. For each specification that comes
over the socket (see `worker.supervise_run`), with the descriptor that becomes its standard input, this
process forks a supervisor, and that the users' command: it enters `trl.cli:main` as `python trl ...` does.
Only the process that accelerate would start for a training of one process is a fork as well.

    template ── supervisor ── launcher (trl.cli:main) ── trainer (accelerate's command)

What is imported must be what a cold process would have imported: never trl, which is the commit's, and
never with CUDA touched, which no fork survives. The paths that libraries keep at their import, from the
environment variables or the working directory, lie below ROOT; a fork puts its own run's in their place, and nothing can be
made below ROOT any more.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path, PurePath
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

# All that `trl sft` and `trl dpo` import, trl apart; what an environment lacks is left out.
STACK = (
    "torch",
    "transformers.trainer",
    "datasets",
    "accelerate.commands.launch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.encoder_decoder",
    "transformers.modeling_outputs",
    "transformers.tokenization_utils_tokenizers",
    "peft",
    "rich.console",
)
PACKET = 1 << 20  # bytes; a specification has some 10,000
MARKER = "BISECTOR_OWNER"


def main() -> None:
    """Import the stack, say so, and fork for each specification until the socket closes."""
    control, root = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    worker = load_module("bisector_worker", Path(__file__).with_name("worker.py"))
    template = _Template(root)
    control.send(json.dumps({"names": sorted(template.names)}).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a supervisor
    while True:
        packet, received, *_ = socket.recv_fds(control, PACKET, 1)
        if not packet:
            return
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
        if os.fork() == 0:
            control.close()
            _supervise(worker, template, json.loads(packet), received[0])
            os._exit(0)  # nothing of the stack was used here
        os.close(received[0])


def load_module(name: str, path: Path) -> Any:
    """Return the module in a file, which `sys.modules` does not get to know."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Template:
    """This process once all is imported: what its forks must change, and what they must not find changed.

    `names` are the top-level modules that anything looked for: a checkout that brings one of its own
    would not be heard here.
    """

    def __init__(self, root: str) -> None:
        import gc

        self.root = root
        self.path = list(sys.path)
        before = dict(os.environ)
        asked = _AskedNames()
        sys.meta_path.insert(0, asked)
        for name in STACK:
            _import_if_there(name)
        sys.meta_path.remove(asked)
        torch = importlib.import_module("torch")
        assert not torch.cuda.is_initialized(), "a process that has touched CUDA cannot be forked"
        loaded = {name.partition(".")[0] for name in sys.modules}
        self.names = (loaded | asked.names | {"sitecustomize", "usercustomize"}) - {"__main__"}
        assert "trl" not in loaded, "trl is the commit's"
        self.variables = {k: v for k, v in os.environ.items() if before.get(k) != v}
        self.kept = list(_find_paths(root))
        _make_unusable(Path(root))
        gc.collect()
        gc.freeze()


class _AskedNames:
    """Notes every top-level module that is looked for, found or not; finds none."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        self.names.add(name.partition(".")[0])


def _import_if_there(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or "?"):
            raise


def _find_paths(root: str) -> Any:
    """Yield (namespace, name, value) of each path below root that a module, or an object in one, keeps."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if _is_below(root, value):
                yield vars(module), name, value
            elif not issubclass(type(value), (ModuleType, type)):
                inner = _own_namespace(value)
                yield from ((inner, k, v) for k, v in list(inner.items()) if _is_below(root, v))


def _own_namespace(value: object) -> dict[str, object]:
    """Return the object's attributes without asking its class, which may warn or import."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _is_below(root: str, value: object) -> bool:
    return issubclass(type(value), (str, PurePath)) and str(value).startswith(root)


def _make_unusable(root: Path) -> None:
    """Put a file in the directory's place: whoever still keeps a path below it fails."""
    import shutil

    os.chdir("/")
    shutil.rmtree(root)
    root.touch()


# The forks: supervisor, launcher, trainer.


def _supervise(worker: Any, template: _Template, spec: dict[str, Any], stdin: int) -> None:
    os.setsid()
    os.dup2(stdin, 0)
    os.close(stdin)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(0, str(os.getpid()).encode())
    _rename(os.environ[MARKER], spec["env"][MARKER])
    worker.supervise_run(spec, lambda spec: _Launcher(worker, template, spec))


def _rename(old: str, new: str) -> None:
    """Write another mark over this process's in /proc/PID/environ, by which what a run left is found.

    A fork keeps the variables that its ancestor was started with, whatever is in `os.environ`.
    """
    import ctypes

    assert len(old) == len(new)
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (
        int(fields[47]),
        int(fields[48]),
    )  # env_start and env_end; the third field is the first
    place = ctypes.string_at(start, end - start).find(f"{MARKER}={old}".encode())
    assert place >= 0
    ctypes.memmove(start + place, f"{MARKER}={new}".encode(), len(MARKER) + 1 + len(new))


class _Launcher:
    """The users' command, as a child of the supervisor; a `worker.Child`."""

    def __init__(self, worker: Any, template: _Template, spec: Mapping[str, Any]) -> None:
        reading, writing = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            os.setsid()
            worker.die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _redirect(writing)
            os.chdir(spec["cwd"])
            _launch(template, spec)
        os.close(writing)
        self.stdout = open(reading, "rb", buffering=0)  # noqa: SIM115 - the supervisor ends with it

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _redirect(output: int) -> None:
    """Have standard input empty, and both outputs in the pipe; the file objects stay as they are."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)


def _launch(template: _Template, spec: Mapping[str, Any]) -> NoReturn:
    """Be `python trl ...`; what accelerate starts is a fork that is made before trl is imported."""
    _move_paths(template, spec["scratch"])
    trainer = _Trainer(template)
    replaced = ModuleType("subprocess")
    vars(replaced).update(vars(subprocess))
    vars(replaced)["Popen"] = trainer.popen
    vars(importlib.import_module("accelerate.commands.launch"))["subprocess"] = replaced
    _enter(template, spec["argv"], spec["env"])


def _move_paths(template: _Template, scratch: str) -> None:
    for namespace, name, value in template.kept:
        namespace[name] = type(value)(scratch + str(value)[len(template.root) :])
    template.kept.clear()
    for name, text in template.variables.items():
        template.variables[name] = text.replace(template.root, scratch)


class _Trainer:
    """A fork that waits for the command which accelerate starts, and then becomes it.

    It is what `subprocess.Popen` returns to accelerate's launcher.
    """

    def __init__(self, template: _Template) -> None:
        reading, self._writing = os.pipe()
        self.args: Sequence[str] = ()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writing)
            with open(reading, "rb") as file:
                request = file.read()
            if not request:  # the launcher ended without it
                os._exit(0)
            command = json.loads(request)
            os.chdir(command["cwd"])
            _enter(template, command["argv"], command["env"])
        os.close(reading)

    def popen(self, command: Sequence[str], *args: Any, **options: Any) -> Any:
        """Start one `python script ...` here; any other command as `subprocess.Popen` does."""
        is_script = len(command) > 1 and command[0] == sys.executable and Path(command[1]).is_file()
        if not is_script or self.args or args or not options.keys() <= {"env"}:
            return subprocess.Popen(command, *args, **options)
        self.args = command
        env = dict(options.get("env") or os.environ)
        request = {"argv": list(command), "env": env, "cwd": os.getcwd()}
        with open(self._writing, "wb") as file:
            file.write(json.dumps(request).encode())
        return self

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _enter(template: _Template, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Be an interpreter that was started with this command, up to its exit.

    `__main__` stays the same module, since dill keeps it from its import on.
    """
    os.environ.clear()
    os.environ.update({**template.variables, **env})  # imports set some
    sys.argv, sys.orig_argv = list(argv[1:]), list(argv)
    sys.path[:] = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *template.path]
    importlib.invalidate_caches()
    _draw_seeds()
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    sys.path.insert(0, os.path.dirname(os.path.realpath(argv[1])))
    names = vars(sys.modules["__main__"])
    loader = importlib.machinery.SourceFileLoader("__main__", argv[1])
    kept = {"__name__": "__main__", "__builtins__": names["__builtins__"], "__loader__": loader}
    names.clear()
    none = dict.fromkeys(("__doc__", "__package__", "__spec__", "__cached__"))
    names.update({**none, **kept, "__annotations__": {}, "__file__": argv[1]})
    _exit(_run(argv[1], names))


def _run(path: str, names: dict[str, Any]) -> int:
    """Run a script; return the exit code that an interpreter would end with, after saying why."""
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, names)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _exit(code: int) -> NoReturn:
    """End as an interpreter does, but leave memory to the kernel.

    To take a million objects apart that a fork shares with others copies their pages first, which takes
    longer than most of what a short training does (0.6 s of 1.7 s, twice).
    """
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _draw_seeds() -> None:
    """Seed what a process seeds at its start: what draws without a seed must not repeat from fork to fork."""
    import random

    import datasets.fingerprint
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()
    datasets.fingerprint.fingerprint_rng.seed()


if __name__ == "__main__":
    del sys.path[0]  # this file's directory
    load_module("bisector_warm_worker", Path(__file__)).main()
