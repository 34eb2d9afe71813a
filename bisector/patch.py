"""Reads what git prints of changes into nouns; pure, and opens nothing."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bisector.contents import FileChange, FileDiff, Hunk

ABSENT = "000000"  # git's mode of what is not there
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def parse_files(raw: str) -> list[tuple[str, str]]:
    """Read `git diff-tree -r --raw -z -M`: the old and the new path of each file, in order; one of the two is
    empty where the file was added or deleted. Changes of kind, a file that became a link, are told apart in two.
    """
    fields = iter(raw.split("\0"))
    found: list[tuple[str, str]] = []
    for field in fields:
        if not field.startswith(":"):
            continue
        old_mode, new_mode, _, _, status = field[1:].split()
        old = new = next(fields)
        if status[0] in "RC":
            new = next(fields)
        if status == "T":
            found += [(old, ""), ("", new)]
        else:
            found.append(("" if old_mode == ABSENT else old, "" if new_mode == ABSENT else new))
    return found


def parse_hunks(text: str) -> list[list[Hunk]]:
    """Read `git diff-tree -r -p -U0 -M`: the hunks of each file, in order; none where it is binary."""
    found: list[list[Hunk]] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("diff --git "):
            found.append([])
        elif header := _HUNK.match(line):
            old, removed, new, added = (1 if n is None else int(n) for n in header.groups())
            found[-1].append(_hunk(old, new, _body(lines, removed + added)))
    return found


def _body(lines: Iterator[str], count: int) -> list[str]:
    """Take so many lines of a hunk; what git says of a missing last newline is not counted."""
    found: list[str] = []
    while len(found) < count:
        line = next(lines)
        if not line.startswith("\\"):
            found.append(line)
    return found


def _hunk(old: int, new: int, body: Sequence[str]) -> Hunk:
    removed, added = (tuple(line[1:] for line in body if line[0] == sign) for sign in "-+")
    return Hunk(old, removed, new, added)


def pair(files: Sequence[tuple[str, str]], hunks: Sequence[Sequence[Hunk]]) -> list[FileDiff]:
    """Return each file with its hunks; both in git's order."""
    return [FileDiff(old, new, tuple(its)) for (old, new), its in zip(files, hunks, strict=True)]


def parse_blobs(listing: str) -> list[tuple[str, str]]:
    """Read `git ls-tree -r -z`: path and id of each plain Python file."""
    entries = (entry.partition("\t") for entry in listing.split("\0") if entry)
    return [
        (path, facts.split()[2])
        for facts, _, path in entries
        if facts.startswith("100") and path.endswith(".py")
    ]


def parse_batch(output: bytes) -> list[bytes | None]:
    """Read `git cat-file --batch`: the contents in the order asked for; None for what is missing."""
    found: list[bytes | None] = []
    start = 0
    while start < len(output):
        end = output.index(b"\n", start)
        *_, last = output[start:end].split()
        start = end + 1
        if not last.isdigit():
            found.append(None)
            continue
        found.append(output[start : start + int(last)])
        start += int(last) + 1
    return found


def parse_changes(text: str) -> dict[str, list[FileChange]]:
    """Read `git diff-tree --stdin --raw --numstat -z`: a commit's id, then for each file its modes, blobs and
    path, then for each file the lines that were added and removed, and its path."""
    found: dict[str, list[FileChange]] = {}
    fields = iter(text.split("\0"))
    files: list[FileChange] = []
    for field in fields:
        counted = re.match(r"(\d+|-)\t(\d+|-)\t", field)
        if counted:
            path, lines = field[counted.end() :], sum(int(n) for n in counted.groups() if n != "-")
            files[:] = [replace(f, lines=lines) if f.path == path else f for f in files]
            continue
        if field.startswith(":"):
            old_mode, new_mode, old_blob, new_blob, _ = field[1:].split()
            old_mode, new_mode = (m.replace(ABSENT, "") for m in (old_mode, new_mode))
            files.append(FileChange(next(fields), old_mode, new_mode, old_blob, new_blob))
        elif field:
            files = found.setdefault(field.strip(), [])
    return found


class Tree:
    """The files of one commit after another, as how many lie below each path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._below = Counter(place for path in paths for place in _upward(path))

    def follow(self, files: Sequence[FileChange]) -> frozenset[str]:
        """Take a commit's changes; return the paths that were not there before, or are not any more."""
        before: dict[str, int] = {}
        for file in files:
            more = (not file.old_mode) - (not file.new_mode)
            for place in _upward(file.path) if more else ():
                before.setdefault(place, self._below[place])
                self._below[place] += more
        found = {place for place, n in before.items() if bool(n) != bool(self._below[place])}
        # and what is there still, but as another kind: a file, a link, a directory
        for file in files:
            is_kept = bool(before.get(file.path, 1)) and bool(self._below[file.path])
            if is_kept and file.old_mode[:3] != file.new_mode[:3]:
                found.add(file.path)
        return frozenset(found)


def _upward(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
