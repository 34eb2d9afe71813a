"""Follows the changes of one range, from the good end to the bad end, and drops those that were undone.

    good · · · c₁ · · · c₂ · · · c₃ · · · bad        each cₖ left the trajectory of the one before it

Where c₂ is back on the good end's trajectory, c₁ and c₂ are a change and its revert: transient. So is c₁ where any
run after it is back there, even if c₁ is on the bad end's trajectory: another change has led there again. The
oldest link that remains is the answer; the chain ends as soon as a link is on the bad end's trajectory.

A hunt for what fixed a deviation follows the same chain backwards in time, from the newest commit to the oldest,
so its answer is the last fix that is known of: every newer commit that was tested is as the newest one is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bisector import search
from bisector.judge import Rule, judge
from bisector.model import Link, RunResult, Status, Trajectory, Verdict
from bisector.search import Probes, Reading

HANGS = 2  # after so many a commit is not run again


@dataclass(frozen=True, slots=True)
class Anchored:
    """A link, and the trajectory that it left."""

    link: Link
    anchor: Trajectory
    is_mend: bool = False  # of a crash: it is the link's child that trains


@dataclass(frozen=True, slots=True)
class Chain:
    """What is left to explain the bad end, oldest first, and what was undone on the way."""

    links: tuple[Anchored, ...]
    transient: tuple[Anchored, ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """What is known of positions 0, the good end, to `length`, the bad end.

    `results` has each tested position's runs, oldest first; `skipped` are the positions that the user ruled
    out, `in_flight` those that are being tested, and `width` is how many may be at once. `fresh` has the
    runs of the confirmation, which go as far as the ends where a probe was stopped before. `marks` has, for
    positions whose runs' footprints are known, the positions that touch them, and `weights` how likely a
    position is to hold the change. Where positions run backwards in time, from what is fixed, the link nearest to
    the start is the answer, whatever lies behind it.
    """

    length: int
    results: Mapping[int, Sequence[RunResult]]
    skipped: Collection[int] = ()
    in_flight: Collection[int] = ()
    width: int = 1
    fresh: Mapping[int, Sequence[RunResult]] = field(default_factory=dict)
    marks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    is_backwards: bool = False

    def longest(self, position: int) -> RunResult:
        """Return the run that shows most of what a position does: its own, or one that it must be equal to."""
        place = self._run_at(position)
        return longest([*self.results.get(place, ()), *self.fresh.get(place, ())])

    def reading(self, position: int, verdict: Verdict) -> Reading:
        """Return a verdict with the positions that touch what says so."""
        return Reading(position, verdict, self.marks.get(self._run_at(position)))

    def _run_at(self, position: int) -> int:
        """Return the position whose run stands for another; the same where nothing does."""
        if position in self.results or position in self.fresh:
            return position
        for place, marks in self.marks.items():
            known = Reading(place, Verdict.GOOD, marks)
            if known.first <= position <= known.last(self.length):
                return place
        return position


def follow(tested: Tested, rule: Rule) -> Probes | Chain:
    """Return the commits to test next, or the whole chain."""
    last = tested.longest(tested.length).trajectory
    anchors = [tested.longest(0)]
    found: list[Anchored] = []
    transient: list[Anchored] = []
    start = 0
    while True:
        if found and _is_end(anchors, last, rule):
            undone = None if tested.is_backwards else _return(tested, start, anchors, rule)
            if undone is None:
                return Chain(tuple(found), tuple(transient))
            start, kept = undone
            transient += found[kept:]
            del found[kept:], anchors[kept + 1 :]
        anchor = anchors[-1].trajectory
        if found and _is_short(anchors[-1], last):  # what it does after its last step matters now
            left = tested.length - start
            return Probes((start,), start, tested.length, left, _links(found), anchor)
        step = search.narrow(
            start,
            tested.length,
            _read(tested, start, anchor, rule),
            width=tested.width,
            in_flight=tested.in_flight,
            weights=tested.weights,
        )
        if isinstance(step, Probes):
            return replace(step, found=_links(found), anchor=anchor)
        found.append(Anchored(step, anchor))
        anchors.append(tested.longest(step.child))
        start = step.child
        back = _earlier_anchor(anchors, rule)
        if back is not None:
            transient += found[back:]
            del found[back:], anchors[back + 1 :]


def _return(
    tested: Tested, start: int, anchors: Sequence[RunResult], rule: Rule
) -> tuple[int, int] | None:
    """Return the newest place after the last link that was found to be back on an earlier trajectory, and on which
    of the anchors: the links since then were undone, wherever that was. Several probes at once can show it."""
    *earlier, newest = anchors
    for position in sorted(tested.results, reverse=True):
        if not start < position < tested.length or position in tested.skipped:
            continue
        results = tested.results[position]
        if not rule.crash and judge(results, newest.trajectory, rule) is not Verdict.BAD:
            continue
        for back, anchor in enumerate(earlier):
            if judge(results, anchor.trajectory, rule) is Verdict.GOOD:
                return position, back
    return None


def survey(tested: Tested, rule: Rule, *, do_ends_differ: bool) -> Probes | Chain:
    """Return all commits that can matter and have no run yet, or the chain with every change that came and went.

    Where the ends agree all changes are transient.
    """
    standing = _standing(tested)
    wanted = _unanswered(tested, standing)
    if wanted:
        return Probes(tuple(wanted), 0, tested.length, len(wanted))
    changes = _changes(tested, rule, standing)
    if not do_ends_differ:
        return Chain((), tuple(changes))
    step = follow(tested, rule)
    if isinstance(step, Probes):
        return step
    every = {found.link: found for found in (*step.transient, *changes)}
    for found in step.links:
        every.pop(found.link, None)
    return replace(step, transient=tuple(sorted(every.values(), key=lambda f: f.link.child)))


def _standing(tested: Tested) -> list[int | None]:
    """Return for each position the tested one whose runs say what it does; None: nothing does yet."""
    found: list[int | None] = [None] * (tested.length + 1)
    settled = [place for place, results in tested.results.items() if _is_settled(results)]
    for place in settled:
        known = tested.reading(place, Verdict.GOOD)
        reach = range(known.first, known.last(tested.length) + 1)
        found[reach.start : reach.stop] = [place] * len(reach)
    for place in settled:
        found[place] = place
    return found


def _is_settled(results: Sequence[RunResult]) -> bool:
    hangs = sum(result.status is Status.TIMED_OUT for result in results)
    return len(results) > hangs or hangs >= HANGS


def _unanswered(tested: Tested, standing: Sequence[int | None]) -> list[int]:
    """Return the positions to run: those that touch what any run read, and the first of each stretch of others
    that nothing vouches for; all where it is not known what the good end read."""
    skipped = set(tested.skipped)
    left = [p for p, place in enumerate(standing) if place is None and p not in skipped]
    if 0 not in tested.marks:
        return left
    touching = {mark for marks in tested.marks.values() for mark in marks}
    others = set(left)
    return [p for p in left if p in touching or p - 1 not in others]


def _changes(tested: Tested, rule: Rule, standing: Sequence[int | None]) -> list[Anchored]:
    """Return every change in the order of positions, each against the trajectory of the change before it."""
    found: list[Anchored] = []
    last, anchor, is_broken = 0, tested.longest(0).trajectory, False
    skipped = set(tested.skipped)
    for position, place in enumerate(standing):
        if place is None or position in skipped:
            continue
        verdict = judge(tested.results[place], anchor, rule)
        if verdict in (None, Verdict.SKIP):
            continue
        if (verdict is Verdict.BAD) is not is_broken:
            found.append(Anchored(Link(last, position), anchor, is_mend=is_broken))
            if rule.crash:
                is_broken = not is_broken
            else:
                anchor = tested.longest(position).trajectory
        last = position
    return found


def _read(tested: Tested, start: int, anchor: Trajectory, rule: Rule) -> list[Reading]:
    """Return the verdicts on what was tested, against the trajectory of the last change, at `start`."""
    readings = [Reading(position, Verdict.SKIP) for position in tested.skipped]
    readings.append(tested.reading(start, Verdict.GOOD))
    readings.append(tested.reading(tested.length, Verdict.BAD))
    for position, results in tested.results.items():
        if start < position < tested.length and position not in tested.skipped:
            verdict = judge(results, anchor, rule)
            if verdict:
                readings.append(tested.reading(position, verdict))
    return readings


def _links(found: Sequence[Anchored]) -> tuple[Link, ...]:
    return tuple(anchored.link for anchored in found)


def longest(results: Sequence[RunResult]) -> RunResult:
    """Return the first of the runs that showed the most steps without crash; one without steps if none did."""
    shown = [r for r in results if r.has_trained]
    return max(shown, key=lambda r: len(r.trajectory), default=RunResult(Status.CRASHED))


def _is_short(run: RunResult, whole: Trajectory) -> bool:
    """Whether a run was stopped before it got as far as the ends."""
    return run.status is Status.STOPPED_EARLY and len(run.trajectory) < len(whole)


def _is_end(anchors: Sequence[RunResult], last: Trajectory, rule: Rule) -> bool:
    """Whether the chain ends at its newest link: on the bad end's trajectory, and perhaps on no earlier one."""
    if not _is_explained(anchors[-1], last, rule):
        return False
    *earlier, _, newest = anchors
    steps = len(newest.trajectory)
    return not _is_short(newest, last) or not any(
        rule.agrees(newest.trajectory, anchor.trajectory[:steps]) for anchor in earlier
    )


def _is_explained(run: RunResult, last: Trajectory, rule: Rule) -> bool:
    """Whether the bad end does what the newest link does, in the steps that are known of that."""
    if _is_short(run, last):
        last = last[: len(run.trajectory)]
    return rule.crash is not None or rule.agrees(last, run.trajectory)


def _earlier_anchor(anchors: Sequence[RunResult], rule: Rule) -> int | None:
    """Return the anchor that the newest is back on; None too where too little is known of the newest."""
    *earlier, newest = anchors
    if rule.crash or _is_short(newest, earlier[0].trajectory):
        return None
    return next(
        (i for i, a in enumerate(earlier) if rule.agrees(newest.trajectory, a.trajectory)), None
    )
