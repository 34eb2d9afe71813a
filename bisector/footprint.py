"""Decides which commits can matter to a run, from what it read of its checkout; pure.

A commit that does not touch a run's footprint leaves every read of it as it was, so the run would go the same
way, step by step. Whether that is so must never be said wrongly: what is in doubt touches.
"""

import ast
import math
import re
import warnings
from collections.abc import Collection
from functools import lru_cache
from posixpath import basename, dirname

from bisector.contents import ROOT, CommitChange, FileChange, Footprint

IMPORTABLE = (".py", ".pyc", ".so", ".pth", ".dist-info", ".egg-info", ".egg-link", ".egg", ".zip")
REGULAR = ("100644", "100755")
LINKS = (
    "120000",
    "160000",
)  # a link may become a package, or a directory, and no read of a link itself is seen


class Sieve:
    """Tells, for runs of one footprint, the commits that can matter from those that cannot."""

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint
        self._opened = footprint.code | footprint.data
        places = self._opened | footprint.listed | footprint.roots | footprint.sought
        self._above = {folder for place in places for folder in _ancestors(place)}
        inits = {dirname(path) for path in footprint.code if basename(path) == "__init__.py"}
        self._packages = inits | {dirname(module) for module in footprint.sought}

    def undecided(self, change: CommitChange) -> tuple[FileChange, ...] | None:
        """Return the Python files that alone decide: the commit touches if the code of one has changed.

        None: it touches in any case. Empty: it does not touch.
        """
        files = {file.path for file in change.files}
        if any(file.old_mode in LINKS or file.new_mode in LINKS for file in change.files):
            return None
        if any(self._has_read(entry, is_file=entry in files) for entry in change.entries):
            return None
        undecided = []
        for file in change.files:
            if self._is_code(file):
                undecided.append(file)
            elif self._is_read(file.path):
                return None
        return tuple(undecided)

    def _is_code(self, file: FileChange) -> bool:
        """Whether a file was read as Python code only, and is the same kind of file as before."""
        return (
            file.path.endswith(".py")
            and file.path in self._footprint.code
            and file.path not in self._footprint.data
            and file.old_mode == file.new_mode
            and file.new_mode in REGULAR
        )

    def _is_read(self, path: str) -> bool:
        """Whether a file was read, lies on the way to one that was, or may have been read unseen."""
        if path in self._opened or path in self._above or basename(path) == ".gitattributes":
            return True
        return not path.endswith(".py") and not self._packages.isdisjoint(_ancestors(path))

    def _has_read(self, entry: str, *, is_file: bool) -> bool:
        """Whether an opening, a listing or a search for a module sees that an entry of a directory is there or not."""
        footprint, folder, name = self._footprint, dirname(entry) or ROOT, basename(entry)
        module = _join(folder, name.partition(".")[0])
        if entry in self._opened or folder in footprint.listed or module in footprint.sought:
            return True
        if name.startswith("__init__."):
            return folder in footprint.sought or (dirname(folder) or ROOT) in footprint.roots
        return folder in footprint.roots and (not is_file or name.endswith(IMPORTABLE))


@lru_cache(maxsize=100_000)
def _ancestors(path: str) -> tuple[str, ...]:
    folder = dirname(path)
    return (folder, *_ancestors(folder)) if folder else ()


def _join(folder: str, name: str) -> str:
    return name if folder == ROOT else f"{folder}/{name}"


def is_same_code(old: bytes, new: bytes) -> bool:
    """Whether two Python sources differ in comments and formatting at most."""
    if _squeeze(old) != _squeeze(new):
        return False  # parsing would nearly always say so too, and takes fifty times as long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse(old)) == ast.dump(ast.parse(new))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False


def _squeeze(source: bytes) -> bytes:
    """Return source without what formatting changes: comments, white space, brackets, commas, kind of quotes."""
    return re.sub(rb"#[^\n]*|[\s\\,()]+", b"", source).replace(b"'", b'"')


def weigh(change: CommitChange, footprint: Footprint, method: str) -> float:
    """Return how likely a commit is to be the one, beside others that touch: the more, the more lines of what
    was read it changes, and four times as likely where it changes a file that is named after the method.

    Of TRL's last 500 commits those that moved a trajectory are found by one bit less so; see the benchmarks.
    """
    read = footprint.code | footprint.data
    files = [file for file in change.files if file.path in read]
    is_its_own = bool(method) and any(method in basename(file.path) for file in files)
    return (4.0 if is_its_own else 1.0) * math.log2(2 + sum(file.lines for file in files))


def positions_touching(
    undecided: Collection[tuple[int, tuple[FileChange, ...] | None]],
    same_code: Collection[tuple[str, str]],
) -> tuple[int, ...]:
    """Return the positions, ascending, of the commits that touch: `same_code` holds the pairs of blobs (old,
    new) with the same code."""
    return tuple(
        position
        for position, files in undecided
        if files is None or any((f.old_blob, f.new_blob) not in same_code for f in files)
    )
