"""Decides what the runs of one commit mean: the verdict table, and the rule that a hunt judges by.

    | bad end  | completes   | same crash | other crash | hangs twice | setup failed |
    |----------|-------------|------------|-------------|-------------|--------------|
    | deviates | by the rule | –          | skip        | skip        | skip         |
    | crashes  | good        | bad        | skip        | skip        | skip         |

A bad end that hangs is a crash whose signature is the hang, so there a hang is the "same crash".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bisector.compare import deviations, has_drifted, is_within, largest_differences
from bisector.model import (
    EXACT,
    METRICS,
    Crash,
    Deviation,
    Hunt,
    Role,
    Run,
    RunResult,
    Status,
    Tolerances,
    Trajectory,
    Verdict,
)

HANG = Crash("Hang", "", "the run passed its time-out twice")
SIGNAL_TO_NOISE = 4.0  # ends closer than this many times the noise are not told apart
FRACTION_OF_ENDS = 0.25  # a limit is at most this part of the ends' difference


@dataclass(frozen=True, slots=True)
class Rule:
    """What separates good from bad in one hunt: limits per metric (`limits` on one step's difference,
    `drift` on the mean signed difference), or a crash's signature."""

    limits: Mapping[str, float]
    drift: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, math.inf))
    crash: Crash | None = None
    whole: int = 0  # steps of a whole run, where the runs to be judged are stopped before

    def agrees(self, observed: Trajectory, anchor: Trajectory) -> bool:
        """Whether `observed` is on the anchor's side: within the limits at every step and on the mean.

        UnclearError where both are prefixes of runs, and the rest would decide.
        """
        if self.has_left(observed, anchor):
            return False
        if self.whole and has_drifted(observed, anchor, self.drift):
            raise UnclearError
        return True

    def has_left(self, observed: Trajectory, anchor: Trajectory) -> bool:
        """Whether `observed` has left the anchor's side, whatever the rest of the runs would be."""
        return not is_within(observed, anchor, self.limits) or has_drifted(
            observed, anchor, self.drift, self.whole
        )


class UnclearError(Exception):
    """The steps that were run do not tell; whole runs would. Never leaves the core."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What the two ends showed: the trajectories to go by, and how far repeated runs differ."""

    good: Trajectory
    bad: Trajectory
    noise: Mapping[str, float]


def make_rule(ends: Ends, tolerances: Tolerances, *, exact: bool, whole: int = 0) -> Rule | None:
    """Return the rule for ends that did not crash, or None where they cannot be told apart.

    A metric drives the hunt where the ends deviate in it by at least four times its noise. Its limit is
    the step tolerance or a quarter of the ends' largest difference, whichever is smaller, so that a
    small first change is not swallowed by a larger later one. For the other metrics the tolerance is the
    limit, and `exact` makes every limit zero. Where runs of one commit differ, no limit is below twice
    that noise (the largest of a few differences is soon surpassed), or a quarter of the ends' difference.
    `whole` is the number of steps of a whole run where the ends were stopped before.
    """
    largest = largest_differences(ends.bad, ends.good)
    drivers = {
        metric
        for metric in deviating_metrics(ends, EXACT if exact else tolerances, whole)
        if largest[metric] > 0 and largest[metric] >= SIGNAL_TO_NOISE * ends.noise[metric]
    }
    if not drivers:
        return None
    wanted = {
        metric: 0.0
        if exact
        else min(tolerances.step[metric], largest[metric] * FRACTION_OF_ENDS)
        if metric in drivers
        else tolerances.step[metric]
        for metric in METRICS
    }
    floor = {
        metric: min(2 * ends.noise[metric], largest[metric] * FRACTION_OF_ENDS)
        if metric in drivers
        else 2 * ends.noise[metric]
        for metric in METRICS
    }
    return Rule(
        limits={metric: max(wanted[metric], floor[metric]) for metric in METRICS},
        drift={
            metric: math.inf if exact else max(tolerances.drift[metric], floor[metric])
            for metric in METRICS
        },
        whole=whole,
    )


def make_class_rule(ends: Ends, tolerances: Tolerances, *, exact: bool) -> Rule:
    """Return the rule for what lies between ends that agree: the class's tolerances, or every bit; where runs of
    one commit differ, no limit is below twice that noise."""
    floor = {metric: 2 * ends.noise[metric] for metric in METRICS}
    wanted = EXACT if exact else tolerances
    return Rule(
        limits={metric: max(wanted.step[metric], floor[metric]) for metric in METRICS},
        drift={
            metric: math.inf if exact else max(wanted.drift[metric], floor[metric])
            for metric in METRICS
        },
    )


def deviating_metrics(ends: Ends, tolerances: Tolerances, whole: int = 0) -> set[str]:
    """Return the metrics in which the bad end leaves the good one; both where the steps differ."""
    found: set[str] = set()
    for deviation in end_deviations(ends, tolerances, whole):
        found |= {deviation.metric} if deviation.metric else set(METRICS)
    return found


def end_deviations(ends: Ends, tolerances: Tolerances, whole: int = 0) -> list[Deviation]:
    """Return the bad end's deviations; a value that is non-finite in the same way at both is none."""
    largest = largest_differences(ends.bad, ends.good)
    return [
        deviation
        for deviation in deviations(ends.bad, ends.good, tolerances, whole)
        if deviation.metric is None or largest[deviation.metric] > 0
    ]


def judge(results: Sequence[RunResult], anchor: Trajectory, rule: Rule) -> Verdict | None:
    """Return the verdict on a commit from its runs, oldest first; None: run it (once more).

    `anchor` is the trajectory of the last change before the commit, at first the good end's.
    """
    hangs = 0
    for result in results:
        if result.status is Status.TIMED_OUT:
            hangs += 1
            continue
        verdict = _judge_one(result, anchor, rule)
        if verdict:
            return verdict
    if hangs < 2:
        return None
    return Verdict.BAD if rule.crash == HANG else Verdict.SKIP


def _judge_one(result: RunResult, anchor: Trajectory, rule: Rule) -> Verdict | None:
    """Return one run's verdict; None for one that was stopped before it told anything of this anchor."""
    match result.status:
        case Status.STOPPED_EARLY if len(result.trajectory) < len(anchor):
            left = rule.has_left(result.trajectory, anchor[: len(result.trajectory)])
            return Verdict.BAD if left else None
        case Status.COMPLETED | Status.STOPPED_EARLY:
            if rule.crash or rule.agrees(result.trajectory, anchor):
                return Verdict.GOOD
            return Verdict.BAD
        case Status.CRASHED if rule.crash and result.crash:
            same = result.crash.signature == rule.crash.signature
            return Verdict.BAD if same else Verdict.SKIP
        case _:
            return Verdict.SKIP


def skip_reason(results: Sequence[RunResult]) -> str:
    """Return in a few words why a commit could not be judged."""
    last = results[-1]
    if last.status is Status.TIMED_OUT:
        return "hangs: passed its time-out twice"
    if last.crash:
        return f"{last.crash.type}: {last.crash.message}"
    return last.reason


@dataclass(frozen=True, slots=True)
class Unstable:
    """An end that did two different things; `reason` says which."""

    reason: str


def read_end(
    results: Sequence[RunResult],
) -> list[Trajectory] | Crash | RunResult | Unstable | None:
    """Return what one end does: the trajectories of its runs, its crash, the result that says why it
    could not be set up, or that it is unstable; None: run it (once more)."""
    settled = [result for result in results if result.status is not Status.TIMED_OUT]
    hangs = len(results) - len(settled)
    if any(result.status is Status.SETUP_FAILED for result in settled):
        return next(r for r in settled if r.status is Status.SETUP_FAILED)
    if hangs >= 2:
        return HANG if not settled else Unstable("hung in two runs and ended in another")
    if len(settled) < 2:
        return None
    crashes = {result.crash.signature: result.crash for result in settled if result.crash}
    trajectories = [result.trajectory for result in settled if result.crash is None]
    if crashes and trajectories:
        return Unstable(f"completed in one run and crashed in another ({_places(crashes)})")
    if len(crashes) > 1:
        return Unstable(f"crashed in different ways ({_places(crashes)})")
    return trajectories or next(iter(crashes.values()))


def end_results(runs: Sequence[Run], sha: str, hunt: Hunt) -> list[RunResult]:
    """Return what to read one end from: its runs; a recalled one of the bad end needs no second."""
    found = [r for r in runs if r.sha == sha and r.role in (Role.END, Role.NOISE)]
    twice = [r.result for r in found if r.is_recalled and sha == hunt.bad]
    return [*(r.result for r in found), *twice]


def trusted(hunt: Hunt, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs that count: no recalled one where a fresh run of an end gives something else."""
    if all(_holds(sha, runs) for sha in (hunt.good, hunt.bad)):
        return runs
    return tuple(run for run in runs if not run.is_recalled)


def _holds(end: str, runs: Sequence[Run]) -> bool:
    """Whether a fresh run of an end gives what the recalled one did, or there are not both."""
    its = [r for r in runs if r.sha == end and r.role is Role.END]
    stored = next((r.result.trajectory for r in its if r.is_recalled), None)
    fresh = next((r.result for r in its if not r.is_recalled), None)
    if stored is None or fresh is None:
        return True
    steps = min(len(stored), len(fresh.trajectory))
    differences = largest_differences(stored[:steps], fresh.trajectory[:steps])
    return fresh.has_trained and steps > 0 and not any(differences.values())


def _places(crashes: Mapping[tuple[str, str], Crash]) -> str:
    return ", ".join(f"{c.type} in {c.place or 'no checkout frame'}" for c in crashes.values())


def measure_noise(hunt: Hunt, runs: Iterable[Run]) -> dict[str, float]:
    """Return each metric's largest difference between runs of one commit that trained, as far as both went.

    All commits count, since the runs of the ends may agree by chance; the ends alone where everything is tested,
    which weighs no runs.
    """
    noise = dict.fromkeys(METRICS, 0.0)
    repeats: dict[str, list[RunResult]] = {}
    for run in runs:
        counts = (
            run.role in (Role.END, Role.NOISE) if hunt.probe_all else run.role is not Role.REVERT
        )
        if counts and run.result.has_trained:
            repeats.setdefault(run.sha, []).append(run.result)
    for results in repeats.values():
        for one, other in combinations(results, 2):
            found = largest_differences(*as_far(one, other))
            noise = {metric: max(noise[metric], found[metric]) for metric in METRICS}
    return noise


def as_far(one: RunResult, other: RunResult) -> tuple[Trajectory, Trajectory]:
    """Return what two runs showed; over the steps that both have where one was stopped before the other."""
    shorter = min(one, other, key=lambda result: len(result.trajectory))
    steps = len(shorter.trajectory) if shorter.status is Status.STOPPED_EARLY else None
    return one.trajectory[:steps], other.trajectory[:steps]


def furthest(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return those that go on for as long as any does: a run that repeats an end is stopped before."""
    most = max(map(len, trajectories), default=0)
    return [each for each in trajectories if len(each) == most]
