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
import re
import sys
from collections.abc import Mapping, Sequence
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
MOVES = ("os.rename", "os.link", "os.truncate", "ctypes.dlopen", "sqlite3.connect")
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec")
BLIND = "IES"  # options with which Python leaves out `sitecustomize`, or where it lies
OWN = ("PYTHONPATH", "BISECTOR_CHECKOUT")  # variables of every training that name the checkout
SEPARATORS = re.compile(r"[\s'\"`=:;,|&<>(){}]+")  # of the paths in what a child is given
MOST_LINKS = 40  # on the way to one file, as the kernel has it


def trace(folder: str, checkout: str) -> None:
    """Begin to write down, in `folder`, what this process and its forks read under `checkout`."""
    tracer = _Tracer(folder, checkout)
    sys.addaudithook(tracer.hear)
    sys.meta_path.insert(0, _Seeker(tracer))


class _Tracer:
    def __init__(self, folder: str, checkout: str) -> None:
        self._folder, self._checkout = folder, checkout
        self._front = os.path.join(os.path.dirname(folder), "front")
        self._installed = tuple({sys.prefix + os.sep, sys.base_prefix + os.sep})
        self._seen: set[tuple[str, str]] = set()

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take one audit event."""
        try:
            if event == "open":
                self._take_file(args[0], "code" if _is_code_read(_caller()) else "data")
            elif event in ("os.listdir", "os.scandir"):
                self._take_listing("." if args[0] is None else args[0], _module(_caller()))
            elif event in MOVES:
                for path in args[:2]:
                    self._take_moved(path)
            elif event in STARTS:
                self._follow(args)
            elif event == "os.system":
                self._follow(("/bin/sh", [args[0]], None))
            elif event == "os.putenv":
                self._keep_tracing(*map(os.fsdecode, args))
        except BaseException:
            self.give_up()

    def seek(self, name: str, path: Sequence[str] | None) -> None:
        """Take a search for a module: in the directories of its package, or on the import path."""
        try:
            for folder in list(sys.path if path is None else path):
                if not isinstance(folder, str):
                    continue
                if folder.startswith(self._installed) and not self._is_inside(folder):
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

    def _take_listing(self, given: Any, lister: str) -> None:
        """Take a listing: what `importlib.metadata` lists is a place of distributions, as the import path is."""
        if lister not in IMPORTERS:
            self._take(given, "roots" if lister in FINDERS else "listed")

    def _take_moved(self, given: Any) -> None:
        """Take a file that is not opened by Python; how an address (`file:…?mode=ro`) names it is not followed."""
        if isinstance(given, str) and given.startswith("file:"):
            self.give_up()
        else:
            self._take_file(given, "data")

    def _take_file(self, given: Any, kind: str) -> None:
        """Take a file. A directory of the checkout that is opened, moved or linked cannot be followed further."""
        real = self._take(given, kind)
        if real and os.path.isdir(real):
            self.give_up()

    def _take(self, given: Any, kind: str) -> str:
        """Take a path: every link in the checkout on the way to it, and where it really leads, which is returned;
        empty where that is not in the checkout."""
        if not isinstance(given, str | bytes | os.PathLike):
            return ""
        path = os.path.join(os.getcwd(), os.fsdecode(given))
        if path.startswith(self._installed) and not self._is_inside(path):
            return ""
        *links, real = _ways(path)
        for each in links:
            self._note("data", each)
        self._note(kind, real)
        return real if self._is_inside(real) else ""

    def _note(self, kind: str, path: str) -> None:
        if self._is_inside(path):
            found = kind, os.path.relpath(path, self._checkout)
            if found not in self._seen:
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

    def _follow(self, args: Sequence[Any]) -> None:
        """Take the start of a process, which is traced too where it is a Python that loads `sitecustomize`."""
        program, words, folder, variables = args if len(args) == 4 else (*args[:2], None, args[2])
        listed = [words] if isinstance(words, str | bytes | os.PathLike) else list(words or ())
        given = [os.fsdecode(each) for each in (program, *listed)]
        env = dict(os.environ if variables is None else variables)
        known = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        is_python = os.path.basename(given[0]).startswith("python")
        if is_python and self._reaches(known) and not _is_blind(given[2:]):
            return
        inside = os.path.abspath(os.fsdecode(folder or "."))
        words = [inside, *(word for text in given for word in SEPARATORS.split(text))]
        given += [text for name, text in known.items() if is_python or name not in OWN]
        if any(self._checkout in text for text in given) or any(
            self._is_inside(_ways(os.path.join(inside, word))[-1]) for word in words
        ):
            self.give_up()

    def _reaches(self, variables: Mapping[str, str]) -> bool:
        """Whether a Python that is started with these variables is traced."""
        is_recorded = variables.get("BISECTOR_RUN_DIR") == self._folder
        paths = variables.get("PYTHONPATH", "").split(os.pathsep)
        return is_recorded and paths[0] == self._front and not variables.get("PYTHONHOME")

    def _keep_tracing(self, name: str, value: str) -> None:
        """Take a variable of this process that is set: children may inherit it without an event of their own.

        What is unset is not looked at: `datasets` clears all variables for a moment.
        """
        is_kept = {
            "PYTHONPATH": value.partition(os.pathsep)[0] == self._front,
            "PYTHONHOME": False,
            "BISECTOR_RUN_DIR": value == self._folder,
            "BISECTOR_CHECKOUT": value == self._checkout,
        }
        if not is_kept.get(name, True):
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
    is_loading = back is not None and back.f_code.co_name == "get_code"
    return _module(frame) in IMPORTERS and is_loading and _module(back) in IMPORTERS


def _is_blind(words: Sequence[str]) -> bool:
    """Whether a Python that is started with these words leaves out what traces it."""
    for word in words:
        if not word.startswith("-") or word.startswith(("--", "-c", "-m")):
            return False
        if not word.startswith(("-W", "-X")) and set(word) & set(BLIND):
            return True
    return False


def _ways(path: str) -> list[str]:
    """Return the links on the way of an absolute path, and at last where it really leads."""
    left, here, links = path.split(os.sep)[::-1], "", []
    while left:
        name = left.pop()
        if name == "..":
            here = os.path.dirname(here)
        elif name not in ("", "."):
            here = f"{here}/{name}"
            try:
                target = os.readlink(here)
            except OSError:
                continue
            links.append(here)
            if len(links) > MOST_LINKS:
                raise OSError("too many links")
            here = "" if target.startswith(os.sep) else os.path.dirname(here)
            left += target.split(os.sep)[::-1]
    return [*links, here or os.sep]
