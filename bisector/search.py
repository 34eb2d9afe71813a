"""Decides which commits to test next, from the verdicts so far; knows positions only, no git, no floats.

A range is the positions `start` … `end`: the first is known good, the last known bad. Nothing is remembered
between calls, so the answer depends on the verdicts alone and a restart needs no state.

    start · · · good ]  c · · c · · · c · ·  [ bad · · · end       c: the candidates that are left

Why the end is sound where most commits are never run: a run's footprint is all that it read of the checkout.
A commit that does not touch it leaves every read as it was, so the run would go the same way, step by step,
and end the same. A verdict therefore holds from its run on until the next commit that touches the run's own
footprint, and back to the last one that did. `narrow` closes a link only where the good side's verdict reaches
up to the commit before the bad side's: no commit in between touches what the newest good run read. That other
commits touch nothing that run knows of is used only to choose what to probe: a file that exists, and matters,
only in the middle of the range is in the footprint of the run that met it, and the candidates grow by it.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType

from bisector.model import Link, Trajectory, Verdict

NO_WEIGHTS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Reading:
    """The verdict on the commit at `position`, which was run.

    `marks` are the positions, ascending, of all commits that touch what the run read; None: not known, so
    that the verdict holds for this commit alone.
    """

    position: int
    verdict: Verdict
    marks: Sequence[int] | None = None

    @cached_property
    def first(self) -> int:
        """Return the oldest position that gives the same."""
        if self.marks is None:
            return self.position
        index = bisect_right(self.marks, self.position) - 1
        return self.marks[index] if index >= 0 else 0

    def last(self, end: int) -> int:
        """Return the newest position up to `end` that gives the same."""
        if self.marks is None:
            return self.position
        index = bisect_right(self.marks, self.position)
        return min(self.marks[index] - 1, end) if index < len(self.marks) else end


@dataclass(frozen=True, slots=True)
class Probes:
    """Test the commits at `positions`, those in flight among them; the answer lies after `good` and no
    later than `bad`, where `left` commits can matter."""

    positions: tuple[int, ...]
    good: int
    bad: int
    left: int
    found: tuple[Link, ...] = ()  # earlier links of the chain, not yet confirmed
    anchor: Trajectory = ()  # what the commits are compared with


def narrow(
    start: int,
    end: int,
    readings: Sequence[Reading],
    *,
    width: int = 1,
    in_flight: Collection[int] = (),
    weights: Mapping[int, float] = NO_WEIGHTS,
) -> Probes | Link:
    """Return the next positions to test, `width` at once, or the link that the verdicts have closed.

    `start` is good and `end` is bad, whether or not a reading says so. One at a time it asks for at most
    ⌈log₂ n⌉ + Σ 2⌈log₂(1 + s)⌉ positions, with n the candidates and s the length of each stretch of
    neighbouring skips that was met; several at once cut what is left into `width` + 1 parts. Between the
    link's ends are only skips, and commits between two skips that are taken to belong to one stretch.

    `weights` say how likely positions are to hold the change; the parts are then equally likely, not equally
    large, and the search may take one position more than the bound.
    """
    inside = [r for r in readings if start <= r.position <= end]
    good, bad = _bounds(start, end, inside)
    between = _Between(good.last(end), bad.first, inside, good.marks)
    if not between.unknown:
        return Link(between.good, between.bad)
    wanted = [p for p in sorted(set(in_flight)) if between.good < p < between.bad]
    if between.skips and len(wanted) < width:
        beside = _beside_stretch(between, _Budget(start, end, inside, width))
        if beside is None:
            return Link(between.good, between.bad)
        wanted += [beside] if beside not in wanted else []
    likely = [weights.get(p, 1.0) for p in between.unknown]
    found = _cut(between.unknown, wanted, width - len(wanted), likely, weights.get(bad.first, 1.0))
    if width == 1 and found and weights:
        asked = sum(start < r.position < end for r in inside)
        found = [_within_bound(between.unknown, found[0], search_bound(end - start) + 1 - asked)]
    wanted += found
    return Probes(tuple(wanted), between.good, between.bad, len(between.unknown) + 1)


def search_bound(commits: int, width: int = 1) -> int:
    """Return the rounds that `commits` candidates need where nothing is skipped: ⌈log_{width + 1} n⌉."""
    rounds, reach = 0, 1
    while reach < commits:
        rounds, reach = rounds + 1, reach * (width + 1)
    return rounds


# Bounds


def _bounds(start: int, end: int, readings: Sequence[Reading]) -> tuple[Reading, Reading]:
    """Return the readings that bound the answer: the oldest bad one, and the newest good one before it."""
    goods = [r for r in readings if r.verdict is Verdict.GOOD and r.position < end]
    bads = [r for r in readings if r.verdict is Verdict.BAD and r.position > start]
    goods = goods if any(r.position == start for r in goods) else [Reading(start, _GOOD), *goods]
    bads = bads if any(r.position == end for r in bads) else [*bads, Reading(end, _BAD)]
    bad = min(bads, key=lambda r: (r.first, r.position))
    before = [r for r in goods if r.position < bad.position]
    good = max(before, key=lambda r: (r.last(end), r.position))
    if good.last(end) < bad.first:
        return good, bad
    # Two runs that must be equal differ: what they read is no evidence, so only they themselves count.
    bad = min(bads, key=lambda r: r.position)
    good = max((r for r in goods if r.position < bad.position), key=lambda r: r.position)
    return Reading(good.position, _GOOD), Reading(bad.position, _BAD)


_GOOD, _BAD = Verdict.GOOD, Verdict.BAD


class _Between:
    """What lies between the bounds: `items` are the skipped and the unknown positions, ascending."""

    def __init__(
        self, good: int, bad: int, readings: Sequence[Reading], marks: Sequence[int] | None
    ) -> None:
        self.good, self.bad = good, bad
        skipped = [r for r in readings if r.verdict is Verdict.SKIP and good < r.position < bad]
        self.skips = sorted(r.position for r in skipped)
        everything = range(good + 1, bad)
        some = everything if marks is None else marks[_after(marks, good) : bisect_left(marks, bad)]
        self.unknown: Sequence[int] = some
        self.items: Sequence[int] = some
        if skipped:
            covered = [(r.first, r.last(bad - 1)) for r in skipped]
            self.unknown = _uncovered(some, covered) or _uncovered(everything, covered)
            self.items = sorted({*self.unknown, *self.skips})


def _after(marks: Sequence[int], position: int) -> int:
    return bisect_right(marks, position)


def _uncovered(positions: Sequence[int], covered: Sequence[tuple[int, int]]) -> list[int]:
    return [p for p in positions if not any(first <= p <= last for first, last in covered)]


# Where to cut


def _cut(
    unknown: Sequence[int], taken: Sequence[int], count: int, likely: Sequence[float], last: float
) -> list[int]:
    """Return `count` unknown positions that, with those taken already, leave parts as alike as can be.

    `likely` are the weights of the unknown positions, and `last` is that of the bad one behind them.
    """
    reach = [0.0, *accumulate(likely), sum(likely) + last]
    edges = [-1, *(bisect_left(unknown, p) for p in sorted(taken)), len(unknown)]
    free = [b - a - 1 for a, b in pairwise(edges)]
    cuts = [0] * len(free)
    sizes = [reach[b + 1] - reach[a + 1] for a, b in pairwise(edges)]
    parts = [(-sizes[i], i) for i, n in enumerate(free) if n > 0]
    heapq.heapify(parts)
    for _ in range(max(count, 0)):
        if not parts:
            break
        _, i = heapq.heappop(parts)
        cuts[i] += 1
        if cuts[i] < free[i]:
            heapq.heappush(parts, (-sizes[i] / (cuts[i] + 1), i))
    found = []
    for edge, room, k, size in zip(edges, free, cuts, sizes, strict=False):
        index = edge
        for j in range(1, k + 1):
            until = reach[edge + 1] + j * size / (k + 1)
            likeliest = bisect_right(reach, until * (1 + 1e-12)) - 2
            index = min(max(likeliest, index + 1), edge + room - k + j)
            found.append(unknown[index])
    return [p for p in found if p not in taken]


def _within_bound(unknown: Sequence[int], position: int, left: int) -> int:
    """Return the position nearest the given one behind which, and up to which, `left` - 1 probes are enough."""
    most = 1 << max(left - 1, 0)  # candidates that so many probes tell apart
    index, count = bisect_left(unknown, position), len(unknown)
    lowest, highest = count - most, most - 1
    if lowest > highest:
        return unknown[(count + 1) // 2 - 1]
    return unknown[min(max(index, lowest, 0), highest, count - 1)]


# A stretch of skips around the middle, with what is known of it:
#
#     good · · · [first s s s middle s s last] · · · bad
#
# Step away to the right by as much as is known of it, which doubles it, then to the left, then halve the two
# gaps. As soon as the stretch lies outside the bounds, or far from the middle, the plain search goes on.


def _beside_stretch(between: _Between, budget: "_Budget") -> int | None:
    """Return the position to test where skips are between the bounds; None: what is left is one stretch."""
    items, count = between.items, len(between.items)
    skips = [bisect_left(items, p) for p in between.skips]
    middle = (count + 1) // 2 - 1
    first, last = _stretch(skips, middle)
    width = last - first + 1
    is_left_open = last + width >= count
    if not (is_left_open or first - width <= middle <= last + width):
        return items[middle]
    if last + width < count:
        return items[last + width]
    if first - width >= 0:
        return items[first - width]
    if first > 0:
        return items[(first - 1) // 2]
    if last < count - 1:
        return items[(last + count) // 2]
    gap, left = max((b - a, a) for a, b in pairwise(skips))
    return items[left + gap // 2] if gap > 1 and budget.allows(gap) else None


def _stretch(skips: Sequence[int], middle: int) -> tuple[int, int]:
    """Return the first and last of the skips that are taken for one stretch, of the stretch nearest `middle`."""
    return min(stretches(skips), key=lambda s: max(s[0] - middle, middle - s[1]))


def stretches(skips: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of each stretch of skips, which are ascending.

    Two stretches are one if no more lies between them than the longer one's length.
    """
    found: list[tuple[int, int]] = []
    for index in skips:
        found.append((index, index))
        while len(found) > 1 and _is_one(found[-2], found[-1]):
            last = found.pop()[1]
            found[-1] = found[-1][0], last
    return found


def _is_one(left: tuple[int, int], right: tuple[int, int]) -> bool:
    longer = max(last - first + 1 for first, last in (left, right))
    return right[0] - left[1] <= longer


class _Budget:
    """How much of the bound is spent; neighbouring skips are taken as one stretch."""

    def __init__(self, start: int, end: int, readings: Sequence[Reading], width: int) -> None:
        self._commits, self._width = end - start, width
        self._asked = sorted(
            {r.position: r.verdict for r in readings if start < r.position < end}.items()
        )

    def allows(self, gap: int) -> bool:
        """Whether the bound allows halving a gap inside a stretch."""
        total, length, previous = search_bound(self._commits), 0, 0
        for position, verdict in self._asked:
            if verdict is not Verdict.SKIP:
                total, length = total + 2 * length.bit_length(), 0
            else:
                length = length + position - previous if length else 1
            previous = position
        bound = (total + 2 * length.bit_length()) * self._width
        return len(self._asked) + (gap - 1).bit_length() + 2 * (gap > 2) <= bound
