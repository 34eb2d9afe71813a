"""Says where else the blocks stand that a commit removed or added; pure. A hint beside the evidence, never a verdict.

Code bases that repeat blocks on purpose must change all copies alike. A block that was removed from one file and
still stands in another may have been forgotten there; one that was added may have come from there.
"""

import ast
import keyword
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple

from bisector.contents import FileDiff, Hunk

# Measured over 60 commits of TRL, in which 1,227 single lines and 674 longer runs of changed blocks stand in other
# files too. Lines of fewer than three words are `labels=labels,` and the like; single lines of three are
# `output_dir=self.tmp_dir,` and signatures; those that stand in more than five other files are idioms.
TELLING_WORDS = 3  # different words, Python's keywords left out
WORDS_OF_A_LONE_LINE = 4
FILES_OF_A_LONE_LINE = 5

_COMMENT = re.compile(r"""((?:[^'"#]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")*)#.*""")
_WORD = re.compile(r"[^\W\d]\w+")
_IMPORT = re.compile(r"(import|from)\s")
_TEST = re.compile(r"(^|/)(tests?/|test_|conftest\.)")

Side = Literal["removed", "added"]
SIDES: tuple[Side, Side] = ("removed", "added")


@dataclass(frozen=True, slots=True)
class Alike:
    """A block that the commit removed from, or added to, `file` at `line`, and that stands in `other` too.

    `changed` says whether the commit removed it, or added it, there as well. Lines count from 1. `other` and
    `other_line` are what they are at the commit, except where the block was removed there too.
    """

    file: str
    line: int
    block: Side
    other: str
    other_line: int
    changed: bool


class _Line(NamedTuple):
    text: str  # without indentation and comment
    number: int


class _Block(NamedTuple):
    side: Side
    path: str
    lines: tuple[_Line, ...]
    opposite: str = ""  # what the commit has on the other side of the same file


class _Match(NamedTuple):
    block: _Block
    start: int  # of the run in the block
    length: int
    other: str
    at: int  # the line of the run in the other file
    until: int

    @property
    def lines(self) -> tuple[_Line, ...]:
        return self.block.lines[self.start : self.start + self.length]


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit: its hunks, and all Python files before and after; `split` keeps the lines of texts."""

    diffs: Sequence[FileDiff]
    before: Mapping[str, str]
    after: Mapping[str, str]
    split: dict[str, tuple[_Line, ...]] = field(default_factory=dict)

    def files(self, side: Side) -> Mapping[str, str]:
        return self.before if side == "removed" else self.after

    def lines(self, text: str) -> tuple[_Line, ...]:
        if text not in self.split:
            self.split[text] = _normalize(text)
        return self.split[text]

    def block(self, diff: FileDiff, hunk: Hunk, side: Side) -> _Block:
        path = diff.old if side == "removed" else diff.new
        first, lines = (hunk.old, hunk.removed) if side == "removed" else (hunk.new, hunk.added)
        all_lines = self.lines(self.files(side).get(path, ""))
        within = (line for line in all_lines if first <= line.number < first + len(lines))
        return _Block(side, path, tuple(within))

    def diff_of(self, match: _Match) -> FileDiff | None:
        is_removed = match.block.side == "removed"
        return next(
            (d for d in self.diffs if match.other == (d.old if is_removed else d.new)), None
        )

    def has_changed(self, match: _Match) -> bool:
        """Whether the commit removed or added something of the match in the other file too."""
        diff = self.diff_of(match)
        blocks = (self.block(diff, hunk, match.block.side) for hunk in diff.hunks) if diff else ()
        return any(
            match.at <= line.number <= match.until for block in blocks for line in block.lines
        )


def find_alike(
    diffs: Sequence[FileDiff], before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[Alike, ...]:
    """Return where else a commit's blocks stand, what calls for a look first.

    `before` and `after` are all Python files at the parent and at the commit. A removed block is looked for in
    `before`, an added one in `after`, each in other files only, without regard to indentation, blank lines,
    comments and docstrings. It stands there if at least half of its telling lines do, in one run. What was only
    moved inside its file, or indented otherwise, is no change and not looked for.
    """
    change = _Change(diffs, before, after)
    found = [
        match
        for diff in diffs
        for block in _blocks(change, diff)
        for match in _select(_search(change, block, but=(diff.old, diff.new)))
    ]
    return tuple(_alike(change, match) for match in sorted(found, key=lambda m: _rank(change, m)))


# The commit's blocks


def _blocks(change: _Change, diff: FileDiff) -> Iterator[_Block]:
    """Yield the blocks of a file that have a telling line."""
    blocks = {side: [change.block(diff, hunk, side) for hunk in diff.hunks] for side in SIDES}
    whole = {side: "".join(_join(block.lines) for block in blocks[side]) for side in SIDES}
    for pair in zip(*blocks.values(), strict=True):
        for block, opposite in zip(pair, reversed(SIDES), strict=True):
            if any(_is_telling(line.text) for line in block.lines):
                yield block._replace(opposite=whole[opposite])


def _normalize(text: str) -> tuple[_Line, ...]:
    """Return the lines that say something to Python, without indentation and comments."""
    left_out = _docstring_lines(text)
    stripped = ((number, _strip(line)) for number, line in enumerate(text.split("\n"), 1))
    return tuple(
        _Line(line, number) for number, line in stripped if line and number not in left_out
    )


def _docstring_lines(text: str) -> set[int]:
    """Return the lines of strings that stand alone; none where the text is no Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return set()
    alone = (
        node
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return {n for node in alone for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _strip(line: str) -> str:
    """Return a line without indentation and comment; a `#` in a string that one line holds begins none."""
    comment = _COMMENT.fullmatch(line) if "#" in line else None
    return (comment[1] if comment else line).strip()


def _join(lines: Iterable[_Line]) -> str:
    return "".join(f"\n{line.text}" for line in lines) + "\n"


def _is_telling(text: str) -> bool:
    """Whether a line says enough to be recognised: no import, bracket, `else:` or `return`."""
    return not _IMPORT.match(text) and len(_words(text)) >= TELLING_WORDS


def _words(text: str) -> set[str]:
    return {word for word in _WORD.findall(text) if not keyword.iskeyword(word)}


# The search


def _search(change: _Change, block: _Block, *, but: Sequence[str]) -> list[_Match]:
    """Return the run of most telling lines that the block has in common with each file, if it is half of them."""
    telling = [line.text for line in block.lines if _is_telling(line.text)]
    found = []
    for path, text in change.files(block.side).items():
        if path not in but and any(line in text for line in telling):
            best = max(_runs(block, path, change.lines(text)), key=_weight, default=None)
            is_enough = best and 2 * _weight(best) >= len(telling)
            if best and is_enough and _join(best.lines) not in block.opposite:
                found.append(best)
    return found


def _runs(block: _Block, path: str, lines: Sequence[_Line]) -> Iterator[_Match]:
    """Yield the longest runs of lines that block and file have in common."""
    mine, theirs = [line.text for line in block.lines], [line.text for line in lines]
    places: dict[str, list[int]] = {}
    for index, text in enumerate(mine):
        places.setdefault(text, []).append(index)
    for at, text in enumerate(theirs):
        for start in places.get(text, ()):
            if start and at and mine[start - 1] == theirs[at - 1]:
                continue  # part of a run that began before
            pairs = zip(mine[start:], theirs[at : at + len(mine)], strict=False)
            length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            until = lines[at + length - 1].number
            yield _Match(block, start, length, path, lines[at].number, until)


def _weight(match: _Match) -> int:
    return sum(_is_telling(line.text) for line in match.lines)


def _select(matches: Sequence[_Match]) -> list[_Match]:
    """Return the matches that mean something: several telling lines, or a rare one of many words."""
    several = [match for match in matches if _weight(match) > 1]
    lone = [match for match in matches if _weight(match) == 1]
    if len(lone) > FILES_OF_A_LONE_LINE:
        return several
    return several + [match for match in lone if _most_words(match) >= WORDS_OF_A_LONE_LINE]


def _most_words(match: _Match) -> int:
    return max(len(_words(line.text)) for line in match.lines if _is_telling(line.text))


# What is said of it


def _alike(change: _Change, match: _Match) -> Alike:
    side, changed = match.block.side, change.has_changed(match)
    diff, other, line = change.diff_of(match), match.other, match.at
    if diff and side == "removed" and not changed:
        before = [hunk for hunk in diff.hunks if hunk.old < match.at]
        other = diff.new
        line += sum(len(hunk.added) - len(hunk.removed) for hunk in before)
    return Alike(match.block.path, match.lines[0].number, side, other, line, changed)


def _rank(change: _Change, match: _Match) -> tuple[object, ...]:
    """Order by what calls for a look: not in tests, unchanged, removed, much alike; then as the commit has them."""
    block = match.block
    is_test = any(_TEST.search(path) for path in (block.path, match.other))
    place = (block.path, match.lines[0].number, match.other)
    return is_test, change.has_changed(match), block.side == "added", -_weight(match), *place


# In words

_WORDS = {
    ("removed", False): ("removed from", "still in", ", unchanged"),
    ("removed", True): ("removed from", "and from", ""),
    ("added", False): ("added to", "was in", " before"),
    ("added", True): ("added to", "and to", ""),
}


def describe(found: Sequence[Alike], blocks: int = 3, places: int = 2) -> list[str]:
    """Return one line for each of the first `blocks` blocks, and one that counts the others; paths are not escaped.

    A pair of blocks that were both changed is said once.
    """
    groups: dict[tuple[str, int, Side, bool], list[str]] = {}
    said: set[tuple[str, str, Side]] = set()
    for each in found:
        if each.changed and (each.other, each.file, each.block) in said:
            continue
        said.add((each.file, each.other, each.block))
        key = (each.file, each.line, each.block, each.changed)
        groups.setdefault(key, []).append(f"{each.other}:{each.other_line}")
    lines = []
    for (file, line, side, changed), others in list(groups.items())[:blocks]:
        did, where, end = _WORDS[side, changed]
        more = f" and {len(others) - places} more" if len(others) > places else ""
        lines.append(f"{did} {file}:{line}; {where} {', '.join(others[:places])}{more}{end}")
    left = len(groups) - len(lines)
    return [*lines, f"and {left} more such block{'s' * (left > 1)}"] if left else lines
