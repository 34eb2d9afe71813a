"""Reads what git prints of changes into nouns; pure, and opens nothing."""

import re
from collections.abc import Iterator, Sequence

from bisector.contents import FileDiff, Hunk

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
