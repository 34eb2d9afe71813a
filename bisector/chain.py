"""Follows the changes of one range, from the good end to the bad end, and drops those that were undone.

    good · · · c₁ · · · c₂ · · · c₃ · · · bad        each cₖ left the trajectory of the one before it

Where c₂ is back on the good end's trajectory, c₁ and c₂ are a change and its revert: transient. The
oldest link that remains is the answer; the chain ends as soon as a link is on the bad end's trajectory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bisector import search
from bisector.judge import Rule, judge
from bisector.model import Link, RunResult, Status, Trajectory, Verdict
from bisector.search import Probe

ResultsAt = Callable[[int], Sequence[RunResult]]


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


def follow(
    length: int, results_at: ResultsAt, is_skipped: Callable[[int], bool], rule: Rule
) -> Probe | Chain:
    """Return the next commit to test, or the whole chain.

    Positions run from 0, the good end, to `length`, the bad end; `results_at` gives a position's runs,
    oldest first, and `is_skipped` whether the user ruled it out.
    """
    last = trajectory_of(results_at(length))
    anchors = [trajectory_of(results_at(0))]
    found: list[Anchored] = []
    transient: list[Anchored] = []
    start = 0
    while not found or not _is_explained(anchors[-1], last, rule):

        def verdict_at(position: int, anchor: Trajectory = anchors[-1]) -> Verdict | None:
            if position == length:
                return Verdict.BAD
            return (
                Verdict.SKIP if is_skipped(position) else judge(results_at(position), anchor, rule)
            )

        step = search.narrow(start, length, verdict_at)
        if isinstance(step, Probe):
            return replace(step, found=tuple(anchored.link for anchored in found))
        found.append(Anchored(step, anchors[-1]))
        anchors.append(trajectory_of(results_at(step.child)))
        start = step.child
        back = _earlier_anchor(anchors, rule)
        if back is not None:
            transient += found[back:]
            del found[back:], anchors[back + 1 :]
    return Chain(tuple(found), tuple(transient))


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
