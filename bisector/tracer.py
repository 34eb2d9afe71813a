"""Runs inside every Python process of a training: writes down what it reads of the checkout.

Each line of `footprint-PID` in the run's record is a JSON pair of a kind and a path relative to the checkout:

    code    run or imported as Python source      data    opened in any other way
    listed  a directory that code listed           roots   a directory of the import path
    sought  DIR/NAME: module NAME was looked for in package directory DIR

What the interpreter lists to find modules and distributions is not `listed`: `roots` and `sought` stand for it.
The hook never raises. Where it failed, or where a child process that it cannot follow was given something of
the checkout, it leaves the file `footprint-incomplete`, and the run has no footprint.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any

INCOMPLETE = "footprint-incomplete"
IMPORTERS = ("importlib._bootstrap_external", "_frozen_importlib_external", "zipimport")
FINDERS = (*IMPORTERS, "importlib.metadata", "importlib_metadata")
# What opens a script to run it, or a source to show a line of it in a message.
RUNNERS = ("runpy", "zipimport", "bisector_warm_worker", "traceback", "warnings")
MOVES = ("os.rename", "os.link", "os.symlink", "os.truncate", "ctypes.dlopen")
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec")
BLIND = ("-I", "-E", "-S")  # options with which Python leaves out `sitecustomize`, or where it lies


def trace(folder: str, checkout: str) -> None:
    """Begin to write down, in `folder`, what this process and its forks read under `checkout`."""
    tracer = _Tracer(folder, checkout)
    sys.addaudithook(tracer.hear)
    sys.meta_path.insert(0, _Seeker(tracer))


class _Tracer:
    def __init__(self, folder: str, checkout: str) -> None:
        self._folder, self._checkout = folder, checkout
        self._seen: set[tuple[str, str]] = set()

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take one audit event."""
        try:
            if event == "open":
                self._take(args[0], "code" if _is_code_read(_caller()) else "data")
            elif event in ("os.listdir", "os.scandir"):
                if _module(_caller()) not in FINDERS:
                    self._take("." if args[0] is None else args[0], "listed")
            elif event in MOVES:
                for path in args[:2]:
                    self._take(path, "data")
            elif event in STARTS:
                self._follow(event, args)
            elif event == "os.system" and self._checkout in os.fsdecode(args[0]) + os.getcwd():
                self.give_up()
        except BaseException:
            self.give_up()

    def seek(self, name: str, path: Sequence[str] | None) -> None:
        """Take a search for a module: in the directories of its package, or on the import path."""
        try:
            for folder in list(sys.path if path is None else path):
                if not isinstance(folder, str):
                    continue
                if self._checkout not in folder and os.path.isabs(folder):
                    continue
                if path is None:
                    self._take(folder, "roots")
                else:
                    self._take(os.path.join(folder, name.rpartition(".")[2]), "sought")
        except BaseException:
            self.give_up()

    def give_up(self) -> None:
        """Say that the footprint is not whole."""
        with suppress(OSError):  # nothing can be written any more: the run will not end well either
            os.close(os.open(os.path.join(self._folder, INCOMPLETE), os.O_CREAT | os.O_WRONLY))

    def _take(self, given: Any, kind: str) -> None:
        if not isinstance(given, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(given))
        if not self._is_inside(path):
            return
        for each in (path, os.path.realpath(path)):
            found = kind, os.path.relpath(each, self._checkout)
            if self._is_inside(each) and found not in self._seen:
                self._write(found)
                self._seen.add(found)

    def _is_inside(self, path: str) -> bool:
        return path == self._checkout or path.startswith(self._checkout + os.sep)

    def _write(self, found: tuple[str, str]) -> None:
        name = os.path.join(self._folder, f"footprint-{os.getpid()}")
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        try:
            os.write(file, json.dumps(found).encode() + b"\n")
        finally:
            os.close(file)

    def _follow(self, event: str, args: tuple[Any, ...]) -> None:
        """Take the start of a process, which is traced too where it is a Python that loads `sitecustomize`."""
        program, words, folder, variables = args if len(args) == 4 else (*args[:2], None, args[2])
        listed = [words] if isinstance(words, str | bytes | os.PathLike) else list(words or ())
        given = [os.fsdecode(word) for word in listed]
        given.append(os.path.abspath(os.fsdecode(folder or ".")))
        env = dict(os.environ if variables is None else variables)
        known = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        if os.path.basename(os.fsdecode(program)).startswith("python"):
            if known.get("BISECTOR_RUN_DIR") == self._folder and not set(given) & set(BLIND):
                return
            given.append(known.get("PYTHONPATH", ""))
        if any(self._checkout in text for text in given):
            self.give_up()


class _Seeker:
    """Finds nothing; hears of every module that is looked for, by `import` or by `find_spec`."""

    def __init__(self, tracer: _Tracer) -> None:
        self._tracer = tracer

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self._tracer.seek(name, path)
        return None


def _caller() -> FrameType | None:
    """Return the frame whose code caused the event; None where the interpreter did, for its main script."""
    try:
        return sys._getframe(2)
    except ValueError:
        return None


def _module(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "")) if frame else ""


def _is_code_read(frame: FrameType | None) -> bool:
    """Whether a file is opened to be run, or to show a line of it in a message.

    A loader's `get_data`, and `linecache`, serve other readers too.
    """
    while _module(frame) in ("tokenize", "linecache"):
        frame = frame.f_back if frame else None
    if frame is None or _module(frame) in RUNNERS:
        return True
    back = frame.f_back
    return _module(frame) in IMPORTERS and back is not None and back.f_code.co_name == "get_code"
