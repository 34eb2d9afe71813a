"""Follows the changes of one range, from the good end to the bad end, and drops those that were undone.

    good · · · c₁ · · · c₂ · · · c₃ · · · bad        each cₖ left the trajectory of the one before it

Where c₂ is back on the good end's trajectory, c₁ and c₂ are a change and its revert: transient. The
oldest link that remains is the answer; the chain ends as soon as a link is on the bad end's trajectory.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bisector import search
from bisector.judge import Rule, judge
from bisector.model import Link, RunResult, Status, Trajectory, Verdict
from bisector.search import Probes, Reading


@dataclass(frozen=True, slots=True)
class Anchored:
    """A link, and the trajectory that it left."""

    link: Link
    anchor: Trajectory


@dataclass(frozen=True, slots=True)
class Chain:
    """What is left to explain the bad end, oldest first, and what was undone on the way."""

    links: tuple[Anchored, ...]
    transient: tuple[Anchored, ...]


@dataclass(frozen=True, slots=True)
class Tested:
    """What is known of positions 0, the good end, to `length`, the bad end.

    `results` has each tested position's runs, oldest first; `skipped` are the positions that the user ruled
    out, `in_flight` those that are being tested, and `width` is how many may be at once.
    """

    length: int
    results: Mapping[int, Sequence[RunResult]]
    skipped: Collection[int] = ()
    in_flight: Collection[int] = ()
    width: int = 1


def follow(tested: Tested, rule: Rule) -> Probes | Chain:
    """Return the commits to test next, or the whole chain."""
    last = trajectory_of(tested.results[tested.length])
    anchors = [trajectory_of(tested.results[0])]
    found: list[Anchored] = []
    transient: list[Anchored] = []
    start = 0
    while not found or not _is_explained(anchors[-1], last, rule):
        step = search.narrow(
            start,
            tested.length,
            _read(tested, anchors[-1], rule),
            width=tested.width,
            in_flight=tested.in_flight,
        )
        if isinstance(step, Probes):
            return replace(step, found=tuple(anchored.link for anchored in found))
        found.append(Anchored(step, anchors[-1]))
        anchors.append(trajectory_of(tested.results[step.child]))
        start = step.child
        back = _earlier_anchor(anchors, rule)
        if back is not None:
            transient += found[back:]
            del found[back:], anchors[back + 1 :]
    return Chain(tuple(found), tuple(transient))


def _read(tested: Tested, anchor: Trajectory, rule: Rule) -> list[Reading]:
    """Return the verdicts on what was tested, against the trajectory of the last change."""
    readings = [Reading(position, Verdict.SKIP) for position in tested.skipped]
    for position, results in tested.results.items():
        if 0 < position < tested.length and position not in tested.skipped:
            verdict = judge(results, anchor, rule)
            if verdict:
                readings.append(Reading(position, verdict))
    return readings


def trajectory_of(results: Sequence[RunResult]) -> Trajectory:
    """Return the trajectory of the first completed run; empty where there is none (a crash)."""
    return next((r.trajectory for r in results if r.status is Status.COMPLETED), ())


def _is_explained(anchor: Trajectory, last: Trajectory, rule: Rule) -> bool:
    return rule.crash is not None or rule.agrees(last, anchor)


def _earlier_anchor(anchors: Sequence[Trajectory], rule: Rule) -> int | None:
    if rule.crash:
        return None
    newest = anchors[-1]
    return next((i for i, anchor in enumerate(anchors[:-1]) if rule.agrees(newest, anchor)), None)
