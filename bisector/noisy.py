"""The search of a hunt whose runs do not repeat: each run of a commit is one reading, which may be wrong; pure.

What the ends do is taken from the run of each that differs least from its others, and how far runs differ from the
middle one of those differences, so that one run in four that strays does not hide the change. The other runs of the
ends, six at most, are what the rates of wrong readings are told by. See `bayes` for the rest.
"""

from collections.abc import Sequence
from statistics import median

from bisector import bayes
from bisector.bayes import Confirm, Found, NoCulprit, Undecided
from bisector.chain import Anchored, Chain, Tested
from bisector.compare import largest_differences
from bisector.judge import Ends, Rule, judge
from bisector.model import METRICS, RunResult, Trajectory, Verdict
from bisector.search import Probes, Reading

Step = Probes | Confirm | Found | NoCulprit | Undecided


def typical_ends(good: Sequence[Trajectory], bad: Sequence[Trajectory]) -> Ends:
    """Return the run of each end that differs least from its others, and by how much those differ from it."""
    middles = [_middle(runs) for runs in (good, bad)]
    noise = {
        metric: max(
            median(largest_differences(other, middle)[metric] for other in _others(runs, middle))
            for runs, middle in zip((good, bad), middles, strict=True)
        )
        for metric in METRICS
    }
    return Ends(middles[0], middles[1], noise)


def _others(runs: Sequence[Trajectory], one: Trajectory) -> list[Trajectory]:
    """Return all runs but one that showed the same as `one`."""
    left = list(runs)
    left.remove(one)
    return left or [one]


def _middle(runs: Sequence[Trajectory]) -> Trajectory:
    def apart(run: Trajectory) -> float:
        return sum(sum(largest_differences(run, other).values()) for other in runs)

    return min(runs, key=apart)


def ask(tested: Tested, ends: Ends, rule: Rule, repeats: Sequence[Sequence[RunResult]]) -> Step:
    """Return what to do next; `repeats` are all runs of the good end, and all of the bad one."""
    readings = [
        _read(tested, position, result, ends, rule)
        for position, runs in zip((0, tested.length), repeats, strict=True)
        for result in _without_middle(runs, (ends.good, ends.bad)[position > 0])
    ]
    readings += [
        _read(tested, position, result, ends, rule)
        for position, results in tested.results.items()
        if 0 < position < tested.length
        for result in results
    ]
    readings += [Reading(position, Verdict.SKIP) for position in tested.skipped]
    fresh = [
        _read(tested, position, result, ends, rule)
        for position, results in tested.fresh.items()
        for result in results
    ]
    return bayes.search(
        *(0, tested.length, readings, fresh),
        width=tested.width,
        in_flight=list(tested.in_flight),
        weights=tested.weights,
    )


def _without_middle(runs: Sequence[RunResult], middle: Trajectory) -> list[RunResult]:
    left = list(runs)
    its = next(i for i, run in enumerate(left) if run.trajectory == middle)
    del left[its]
    return left


def _read(tested: Tested, position: int, result: RunResult, ends: Ends, rule: Rule) -> Reading:
    """Return one run's reading; a run that says nothing is a skip."""
    verdict = judge([result], ends.good, rule)
    return tested.reading(position, verdict or Verdict.SKIP)


def as_chain(found: Found, ends: Ends) -> Chain:
    """Return the chain of the one change that was found."""
    return Chain((Anchored(found.link, ends.good),), ())


def words(step: Found | NoCulprit | Undecided) -> str:
    """Return how sure the answer is, and what that rests on."""
    rates = (
        f"{step.readings} readings; a good commit is taken to read bad {step.rates.false_bad:.0%} of the time, "
        f"a bad one good {step.rates.false_good:.0%}"
    )
    if isinstance(step, Found):
        return f"probability {step.probability:.4f} after {rates}"
    if isinstance(step, NoCulprit):
        return (
            f"with probability {step.probability:.4f} nothing in the range changed, after {rates}"
        )
    return f"too little is told apart after {rates}"
