"""The nouns of what a run read of its checkout, and of what a commit changes in it; paths are relative."""

from dataclasses import dataclass

ROOT = "."  # the checkout itself


@dataclass(frozen=True, slots=True)
class Footprint:
    """All that a run read of its checkout, in all its processes.

    `code` was run or imported, `data` opened in any other way, whether or not it was there; `listed` are
    directories that code listed, `roots` those on the import path, and `sought` holds DIR/NAME for each module
    NAME that was looked for in a package's directory DIR.
    """

    code: frozenset[str] = frozenset()
    data: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    sought: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file that a commit adds (`old_mode` empty), deletes (`new_mode` empty) or changes; modes are git's."""

    path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str
    lines: int = 0  # added and removed; 0 where it is no text


@dataclass(frozen=True, slots=True)
class CommitChange:
    """What a commit changes against its first parent: files, and the entries of directories, which may be
    directories themselves, that were not there before or are not there any more."""

    files: tuple[FileChange, ...]
    entries: frozenset[str]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that were replaced, without context: `removed` from line `old` on, `added` from line `new` on.

    Where none were removed, or none added, its line is the one behind which the others stand.
    """

    old: int
    removed: tuple[str, ...]
    new: int
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """A file's hunks between two commits, in order. `old` is empty for one that was added, `new` for one that
    was deleted; where they differ it was renamed."""

    old: str
    new: str
    hunks: tuple[Hunk, ...]
