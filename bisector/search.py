"""Decides which commit to test next, from the verdicts so far; knows positions only, no git, no floats.

A range is the positions `good` … `bad`: the first is known good, the last known bad. Every call replays
the search from its beginning, so the answer depends on the verdicts alone and a restart needs no state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from bisector.model import Link, Verdict

VerdictAt = Callable[[int], Verdict | None]


@dataclass(frozen=True, slots=True)
class Probe:
    """Test the commit at `position` next; the answer lies after `good` and no later than `bad`."""

    position: int
    good: int
    bad: int
    found: tuple[Link, ...] = ()  # earlier links of the chain, not yet confirmed


def narrow(good: int, bad: int, verdict_at: VerdictAt) -> Probe | Link:
    """Return the next position to test, or the link that the verdicts have closed.

    `verdict_at` gives a position's verdict, or None where it has not been tested. It asks for at most
    ⌈log₂ n⌉ + Σ 2⌈log₂(1 + s)⌉ positions, with n = bad − good and s the length of each stretch of
    neighbouring skips that was met. The link's ends have verdicts good and bad; between them are only
    skips, and commits between two skips that are taken to belong to the same stretch.
    """
    replay = _Replay(good, bad, verdict_at)
    while replay.bad - replay.good > 1:
        step = replay.advance()
        if step is not None:
            return step
    return Link(replay.good, replay.bad)


def search_bound(commits: int) -> int:
    """Return the most probes that a range of `commits` needs where nothing is skipped: ⌈log₂ n⌉."""
    return (commits - 1).bit_length()


class _UnknownError(Exception):
    """The replay met a position without a verdict."""


class _Replay:
    """The bounds so far, and which positions were asked for on the way."""

    def __init__(self, good: int, bad: int, verdict_at: VerdictAt) -> None:
        self.good, self.bad = good, bad
        self._commits = bad - good
        self._verdict_at = verdict_at
        self._asked: dict[int, Verdict] = {}
        self._position = good

    def advance(self) -> Probe | Link | None:
        """Take one step; None means that the bounds moved."""
        try:
            middle = (self.good + self.bad) // 2
            return self._cross_stretch(middle) if self._is_skip(middle) else None
        except _UnknownError:
            return Probe(self._position, self.good, self.bad)

    def _is_skip(self, position: int) -> bool:
        """Ask for one verdict; move a bound unless it is a skip."""
        self._position = position
        verdict = self._verdict_at(position)
        if verdict is None:
            raise _UnknownError
        self._asked[position] = verdict
        if verdict is Verdict.GOOD:
            self.good = max(self.good, position)
        elif verdict is Verdict.BAD:
            self.bad = min(self.bad, position)
        return verdict is Verdict.SKIP

    # A stretch of skips around the middle, with what is known of it:
    #
    #     good · · · [first s s s middle s s last] · · · bad
    #
    # Step away to the right by doubling, then to the left, beginning as wide as the right side was (so
    # the left side costs one probe where the two are alike), then halve the two gaps. As soon as the
    # stretch lies outside the bounds, the plain search goes on.

    def _cross_stretch(self, middle: int) -> Probe | Link | None:
        first = last = middle
        offset = 1
        while (at := middle + offset) < self.bad and self._is_skip(at):
            last, offset = at, 2 * offset + 1
        width = (offset + 1) // 2
        while self._encloses(middle) and (at := first - width) > self.good and self._is_skip(at):
            first, width = at, 2 * width
        while self._encloses(middle) and first - self.good > 1:
            at = (self.good + first) // 2
            first = at if self._is_skip(at) else first
        while self._encloses(middle) and self.bad - last > 1:
            at = (last + self.bad) // 2
            last = at if self._is_skip(at) else last
        while self._encloses(middle):
            left, gap = self._widest_gap()
            if gap == 1 or not self._has_budget(gap):
                break
            self._is_skip(left + gap // 2)
        return Link(self.good, self.bad) if self._encloses(middle) else None

    def _encloses(self, position: int) -> bool:
        return self.good < position < self.bad

    def _widest_gap(self) -> tuple[int, int]:
        """Return where the most untested neighbours between the bounds begin, and that gap's width."""
        inside = [self.good, *sorted(p for p in self._asked if self._encloses(p)), self.bad]
        width, left = max((b - a, a) for a, b in pairwise(inside))
        return left, width

    def _has_budget(self, gap: int) -> bool:
        """Whether the bound, with neighbouring skips taken as one stretch, allows halving `gap`."""
        total, length, previous = search_bound(self._commits), 0, None
        for position in sorted(self._asked):
            if self._asked[position] is not Verdict.SKIP:
                total, length = total + 2 * length.bit_length(), 0
            else:
                length = length + position - previous if length and previous is not None else 1
            previous = position
        return (
            len(self._asked) + (gap - 1).bit_length() + 2 * (gap > 2)
            <= total + 2 * length.bit_length()
        )
