"""Decides which commits to test next where a run's verdict may be wrong, and when enough is known; pure.

One hypothesis for each position that can hold the change, and one that none does: then everything is on the
good side, the bad end too. Each run is one reading; a position may be read again and again.

    start · · · · · [ c ] · · · · · · end        up to c - 1 a run reads bad at the rate of false bad,
     good side          bad side                 from c on it reads good at the rate of false good

Neither rate is known: six runs of the ends tell them badly, and a rate taken for certain that is wrong by half
costs wrong accusations. So a grid of pairs of rates is carried along and summed over with every hypothesis; the
search's own readings tell the rates better with each probe. Positions between two neighbours that were read have
the same likelihood, so the cost is that of the readings, not of the range.

Sources. M. Burnashev, K. Zigangirov, "An interval estimation problem for controlled observations" (1974): keep
the posterior over the position, and ask where it parts into halves. M. Ben-Or, A. Hassidim, "The Bayesian
learner is optimal for noisy binary search" (2008): doing so takes the least number of questions, log₂ n divided
by what one answer can tell, and a term for the confidence; and rates that differ move the cut away from the half.
git_bayesect (S. Jain, 2026) sums over unknown rates too, by a Beta prior on either side independent of the other,
and has no hypothesis that nothing changed. What is added here: the rates of the two sides are likely to be alike
and never reach one half, which saves probes; "no culprit"; sets that skips leave; and a confirmation.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from bisector.model import Link, Verdict
from bisector.search import NO_WEIGHTS, Probes, Reading, search_bound, stretches

CONFIDENCE = 0.995  # the probability at which an answer is given
READY = 0.85  # the probability at which a commit and its parent are confirmed
NO_CULPRIT = 0.1  # the probability, before anything was read, that nothing in the range changed
MARGIN = 2  # how many more fresh runs of either side of a link have to be on it than are not
# Of wrong verdicts, equally likely; at one half a run says nothing, so that coins accuse nobody.
RATES = (0.001, 0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5)
ALIKE = 0.5  # the probability that false bad and false good are equally frequent
USEFUL = 0.05  # a run in flight goes on while the answer is this likely on either side of it


class Counts(NamedTuple):
    """Readings: wrong and right ones of positions on the good side, then of positions on the bad side."""

    false_bad: float = 0
    right_good: float = 0
    false_good: float = 0
    right_bad: float = 0


NOTHING = Counts()


class Rates(NamedTuple):
    """How often a run of a good position reads bad, and of a bad one good."""

    false_bad: float
    false_good: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Run the sides of a link afresh, so many times each."""

    link: Link
    parent: int
    child: int


@dataclass(frozen=True, slots=True)
class Found:
    """The change lies in `link`; what it names alone has been confirmed."""

    link: Link
    probability: float
    rates: Rates
    readings: int


@dataclass(frozen=True, slots=True)
class NoCulprit:
    """Nothing in the range changed: what was seen at the bad end is false bad."""

    probability: float
    rates: Rates
    readings: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """The limit of readings is reached; `leading` are the likeliest links, with their probabilities."""

    leading: tuple[tuple[Link, float], ...]
    no_culprit: float
    rates: Rates
    readings: int


Answer = Found | NoCulprit | Undecided


def limit_of(commits: int) -> int:
    """Return after how many readings of a range of `commits` candidates, its ends' included, the search gives up."""
    return 28 + 8 * search_bound(commits)


def search(
    start: int,
    end: int,
    readings: Sequence[Reading],
    fresh: Sequence[Reading] = (),
    *,
    width: int = 1,
    in_flight: Sequence[int] = (),
    weights: Mapping[int, float] = NO_WEIGHTS,
    known: Counts = NOTHING,
) -> Probes | Confirm | Answer:
    """Return the positions to read next, the link to confirm, or the answer.

    `readings` has one for each run, those of `start` and `end` among them, which tell the rates; `fresh` are
    those of confirmations, and count like any other. `in_flight` may name a position more than once. `known` are
    readings from elsewhere that tell the rates alone. A link is confirmed when on both its sides more fresh runs
    are where they belong than are not, by `MARGIN`; until then no commit is accused.
    """
    belief = Belief(start, end, (*readings, *fresh), weights, known)
    if belief.no_culprit >= CONFIDENCE:
        return NoCulprit(belief.no_culprit, belief.rates, belief.count)
    link, probability = belief.leading(1)[0] if belief.peak >= READY else (Link(start, end), 0.0)
    if probability >= CONFIDENCE and not link.is_single:
        return Found(link, probability, belief.rates, belief.count)
    if probability >= READY and link.is_single and belief.count < belief.limit:
        missing = _missing(link, fresh)
        if probability >= CONFIDENCE and not any(missing):
            return Found(link, probability, belief.rates, belief.count)
        return Confirm(link, *(missing if any(missing) else _doubtful_side(belief, link)))
    if belief.count >= belief.limit:
        leading = tuple(belief.leading(5))
        return Undecided(leading, belief.no_culprit, belief.rates, belief.count)
    positions = _next_positions(belief, width, in_flight)
    if not positions:
        return Undecided(tuple(belief.leading(5)), belief.no_culprit, belief.rates, belief.count)
    return Probes(positions, *belief.span, len(belief.candidates))


def _missing(link: Link, fresh: Sequence[Reading]) -> tuple[int, int]:
    """Return how many fresh runs the parent and the child of a link still need."""
    sides = {link.parent: Verdict.GOOD, link.child: Verdict.BAD}
    lead = dict.fromkeys(sides, 0)
    for reading in fresh:
        if reading.position in sides and reading.verdict is not Verdict.SKIP:
            lead[reading.position] += 1 if reading.verdict is sides[reading.position] else -1
    parent, child = (max(MARGIN - lead[position], 0) for position in (link.parent, link.child))
    return parent, child


def _doubtful_side(belief: "Belief", link: Link) -> tuple[int, int]:
    """Return one run more, of the side beyond which the change is likelier to be."""
    before = belief.up_to(bisect_left(belief.candidates, link.child) - 1)
    after = 1 - belief.up_to(bisect_left(belief.candidates, link.child))
    return (1, 0) if before > after else (0, 1)


# The posterior


@lru_cache(maxsize=1 << 18)
def evidence(counts: Counts) -> float:
    """Return the probability of readings, summed over the grid of rates."""
    bads: list[float] = [(r**counts.false_bad) * (1 - r) ** counts.right_good for r in RATES]
    goods: list[float] = [(r**counts.false_good) * (1 - r) ** counts.right_bad for r in RATES]
    alike = sum(bad * good for bad, good in zip(bads, goods, strict=True)) / len(RATES)
    apart = sum(bads) * sum(goods) / len(RATES) ** 2
    return ALIKE * alike + (1 - ALIKE) * apart


@dataclass(frozen=True, slots=True)
class Segment:
    """Candidates `first` … `last` (indices) between two neighbours that were read, and what was read if one
    of them is the change."""

    first: int
    last: int
    counts: Counts
    weight: float


class Belief:
    """What the readings say of each position, and of none."""

    def __init__(
        self,
        start: int,
        end: int,
        readings: Sequence[Reading],
        weights: Mapping[int, float] = NO_WEIGHTS,
        known: Counts = NOTHING,
    ) -> None:
        judged = [r for r in readings if r.verdict is not Verdict.SKIP]
        self._start, self._end, self._judged, self._known = start, end, judged, known
        self.count = len(readings)
        self.candidates = _candidates(start, end, judged)
        self.limit = limit_of(len(self.candidates))
        skips = [r for r in readings if r.verdict is Verdict.SKIP]
        self._dark = _unjudgeable(self.candidates, skips, {r.position for r in judged}, end)
        likely = [weights.get(p, 1.0) for p in self.candidates] if weights else None
        prior = likely or [1.0] * len(self.candidates)
        self._reach = [0.0, *accumulate(prior)]  # [i]: of the first i candidates
        self._segments, none = self._weigh()
        total = none + sum(segment.weight for segment in self._segments)
        self.no_culprit = none / total
        self._none, self._total = none, total

    def _weigh(self) -> tuple[list[Segment], float]:
        bads, goods = dict[int, int](), dict[int, int]()
        for reading in self._judged:
            seen = bads if reading.verdict is Verdict.BAD else goods
            seen[reading.position] = seen.get(reading.position, 0) + 1
        read = sorted({*bads, *goods})
        all_bad, all_good = sum(bads.values()), sum(goods.values())
        segments, before, bad, good = [], 0, 0, 0
        for position in [*read, None]:
            until = (
                len(self.candidates)
                if position is None
                else bisect_right(self.candidates, position)
            )
            if until > before:
                counts = self._count(bad, good, all_good - good, all_bad - bad)
                share = (self._reach[until] - self._reach[before]) / self._reach[-1]
                weight = (1 - NO_CULPRIT) * share * evidence(counts)
                segments.append(Segment(before, until - 1, counts, weight))
                before = until
            if position is not None:
                bad, good = bad + bads.get(position, 0), good + goods.get(position, 0)
        return segments, NO_CULPRIT * evidence(self._count(all_bad, all_good, 0, 0))

    def _count(self, *counts: int) -> Counts:
        return Counts(*(a + b for a, b in zip(counts, self._known, strict=True)))

    @cached_property
    def rates(self) -> Rates:
        """Return the mean of each rate, over all that is possible."""
        bad = good = 0.0
        none = self._count(*_none_counts(self._judged))
        for weight, counts in [(self._none, none), *((s.weight, s.counts) for s in self._segments)]:
            of_one = weight / (evidence(counts) * self._total)
            bad += of_one * evidence(counts._replace(false_bad=counts.false_bad + 1))
            good += of_one * evidence(counts._replace(false_good=counts.false_good + 1))
        return Rates(bad, good)

    @property
    def peak(self) -> float:
        """Return the probability of the likeliest candidates that no reading has told apart."""
        return max(segment.weight for segment in self._segments) / self._total

    @property
    def span(self) -> tuple[int, int]:
        """Return the positions between which the change lies at 0.99."""
        low, high = (self.position_at(f * (1 - self.no_culprit)) for f in (0.005, 0.995))
        return max(low - 1, self._start), high

    # Cumulative probabilities: of a change at a position or before it

    def up_to(self, index: int) -> float:
        """Return the probability that the change is one of the first `index` + 1 candidates."""
        total = 0.0
        for segment in self._segments:
            if segment.last <= index:
                total += segment.weight
            elif segment.first <= index:
                total += self._part(segment, segment.first, index)
        return total / self._total

    def position_at(self, probability: float) -> int:
        """Return the oldest candidate up to which the change lies with that probability, else the last."""
        return self.candidates[self.index_at(probability)]

    def index_at(self, probability: float) -> int:
        """Return the index of the oldest candidate up to which the change lies with that probability."""
        left = probability * self._total
        for segment in self._segments:
            if segment.weight >= left:
                low, high = self._reach[segment.first], self._reach[segment.last + 1]
                wanted = low + (high - low) * (left / segment.weight if segment.weight else 0.0)
                index = bisect_left(self._reach, wanted * (1 - 1e-12)) - 1
                return min(max(index, segment.first), segment.last)
            left -= segment.weight
        return len(self.candidates) - 1

    def _part(self, segment: Segment, first: int, last: int) -> float:
        whole = self._reach[segment.last + 1] - self._reach[segment.first]
        return segment.weight * (self._reach[last + 1] - self._reach[first]) / whole

    # What can be told apart

    def is_dark(self, index: int) -> bool:
        """Whether the candidate cannot be judged, or is taken to lie in a stretch that cannot."""
        return any(first <= index <= last for first, last in self._dark)

    @property
    def dark(self) -> Sequence[tuple[int, int]]:
        """Return the stretches of candidates, first and last index, that cannot be judged."""
        return self._dark

    def leading(self, count: int) -> list[tuple[Link, float]]:
        """Return the likeliest links, each of candidates that no probe can tell apart, likeliest first."""
        best = sorted(self._segments, key=lambda segment: -segment.weight)[:count]
        found = [group for segment in best for group in self._groups(segment, count)]
        return sorted(found, key=lambda group: -group[1])[:count]

    def _groups(self, segment: Segment, count: int) -> list[tuple[Link, float]]:
        """Return the likeliest groups of one segment.

        A group ends with each candidate that can be judged: whether the change is there or before it is told
        by reading it.
        """
        dark = [(a, b) for a, b in self._dark if b >= segment.first and a <= segment.last]
        groups, index = [], segment.first
        edges = iter(dark)
        stretch = next(edges, None)
        while index <= segment.last:
            first = index
            while stretch and stretch[1] < index:
                stretch = next(edges, None)
            if stretch and stretch[0] <= index:
                index = min(stretch[1] + 1, segment.last)
            groups.append((self._part(segment, first, index) / self._total, first, index))
            index += 1
        groups.sort(key=lambda group: (-group[0], group[1]))
        return [
            (Link(self.candidates[first] - 1, self.candidates[last]), probability)
            for probability, first, last in groups[:count]
        ]


def _none_counts(judged: Sequence[Reading]) -> tuple[int, int, int, int]:
    bad = sum(reading.verdict is Verdict.BAD for reading in judged)
    return bad, len(judged) - bad, 0, 0


def _candidates(start: int, end: int, judged: Sequence[Reading]) -> Sequence[int]:
    """Return the positions that touch what any run read; all of the range where that is not known."""
    if not judged or any(reading.marks is None for reading in judged):
        return range(start + 1, end + 1)
    marks = {mark for reading in judged for mark in reading.marks or ()}
    return sorted(p for p in marks if start < p <= end) or range(start + 1, end + 1)


def _unjudgeable(
    candidates: Sequence[int], skips: Sequence[Reading], judged: Collection[int], end: int
) -> list[tuple[int, int]]:
    """Return the stretches of candidates (indices) that cannot be judged, those taken for one among them."""
    found: set[int] = set()
    for skip in skips:
        if skip.position not in judged:
            low = bisect_left(candidates, skip.first)
            high = bisect_right(candidates, skip.last(end))
            found.update(range(low, high))
    parts = []
    for first, last in stretches(sorted(found)):
        inside = sorted(p for p in judged if candidates[first] <= p <= candidates[last])
        edges = [first - 1, *(bisect_right(candidates, p) - 1 for p in inside), last + 1]
        parts += [(a + 1, b - 1) for a, b in pairwise(edges) if b - a > 1]
    return parts


# Where to read next


def _next_positions(belief: Belief, width: int, in_flight: Sequence[int]) -> tuple[int, ...]:
    """Return `width` positions, some perhaps more than once: those in flight that still tell something, and
    those that part what is possible into parts as likely as one another."""
    best = _best_part(belief.rates)
    some = 1 - belief.no_culprit
    parts = [best] if width == 1 else [n / (width + 1) for n in range(1, width + 1)]
    wanted = [p for part in parts if (p := _near(belief, min(part, some * 0.999))) is not None]
    kept = [p for p in in_flight if _is_useful(belief, p)][:width]
    for position in kept:
        if wanted:
            wanted.remove(min(wanted, key=lambda p: abs(p - position)))
    return tuple(sorted([*kept, *wanted]))


def _is_useful(belief: Belief, position: int) -> bool:
    index = bisect_right(belief.candidates, position) - 1
    return index >= 0 and USEFUL < belief.up_to(index) < 1 - USEFUL


def _near(belief: Belief, part: float) -> int | None:
    """Return the position whose reading tells most, near the one up to which the change lies with
    probability `part`; None: no position that can be judged tells anything."""
    index = belief.index_at(part)
    tried = {index, max(index - 1, 0)}
    if any(belief.is_dark(i) for i in tried):
        tried |= set(_steps_away(belief, index))
    scored = [
        (told * _odds(belief, i), -abs(i - index), i)
        for i in tried
        if not belief.is_dark(i) and (told := information(belief.up_to(i), belief.rates)) > 1e-9
    ]
    return belief.candidates[max(scored)[2]] if scored else None


def _steps_away(belief: Belief, index: int) -> list[int]:
    """Return candidates beside the stretches that cannot be judged, at distances that double."""
    found, count = [], len(belief.candidates)
    for first, last in belief.dark:
        step = 1
        while step < count:
            found += [i for i in (first - step, last + step) if 0 <= i < count]
            step *= 2
    return found


def _odds(belief: Belief, index: int) -> float:
    """Return how likely a candidate can be judged: beside a stretch of s that cannot, d / (d + s)."""
    odds = 1.0
    for first, last in belief.dark:
        away = first - index if index < first else index - last
        odds = min(odds, away / (away + last - first + 1))
    return odds


def information(part: float, rates: Rates) -> float:
    """Return the bits that one reading tells about the side it is on, where it is bad with probability
    `part`: those of a channel that errs at these rates."""
    bad = part * (1 - rates.false_good) + (1 - part) * rates.false_bad
    noise = part * entropy(rates.false_good) + (1 - part) * entropy(rates.false_bad)
    return entropy(bad) - noise


def entropy(p: float) -> float:
    """Return the bits of a choice between two, of probabilities p and 1 - p."""
    return -sum(x * math.log2(x) for x in (p, 1 - p) if x > 0)


def _best_part(rates: Rates) -> float:
    """Return the probability of being bad at which a reading tells most: where `information` is level."""
    bad, good = rates
    slope = (entropy(good) - entropy(bad)) / (1 - bad - good)
    level = 1 / (1 + 2**slope)  # of reading bad
    return min(max((level - bad) / (1 - bad - good), 0.05), 0.95)
