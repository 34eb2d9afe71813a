"""Hunts whose runs stop at the step that decides, in memory, beside the same hunts with whole runs."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan import CONFIG, ENVIRONMENT, TOLERANCES

from bisector.case import Case, Start
from bisector.compare import parting
from bisector.model import (
    Conclusion,
    Hunt,
    Outcome,
    Role,
    Run,
    RunResult,
    Status,
    Step,
    Trajectory,
)
from bisector.plan import Cancel, Conclude, is_other_end, next_actions, stop_after

LENGTH = 20


def training(size: float = 0.0, since: int = 1, until: int = LENGTH) -> Trajectory:
    """Return a run whose loss is off by `size` from a step on, and up to another."""
    return tuple(Step(n, 1.0 + size * (since <= n <= until), 2.0) for n in range(1, LENGTH + 1))


class Workshop:
    """Trains step by step, `jobs` side by side, as slowly as `rng` says."""

    def __init__(self, history: Sequence[Trajectory], seed: int = 0, **options: bool) -> None:
        self.history, self.rng = history, Random(seed)
        self.commits = tuple(f"{n:040d}" for n in range(len(history)))
        config = replace(CONFIG, args={"max_steps": str(LENGTH)})
        ends = self.commits[0], self.commits[-1]
        hunt = Hunt("h", "r", *ends, len(history) - 1, config, ENVIRONMENT, **options)
        self.case = Case(hunt, self.commits, ())
        self.flying: list[tuple[Start, int]] = []

    def pursue(self, jobs: int) -> Conclusion:
        while True:
            starts = [start for start, _ in self.flying]
            for action in next_actions([self.case], starts, jobs):
                if isinstance(action, Conclude):
                    return action.conclusion
                if isinstance(action, Cancel):
                    self.flying = [f for f in self.flying if f[0] != action.start]
                elif len(self.flying) < jobs:
                    self.flying.append((action, 0))
            assert self.flying, "nothing to do, and no answer"
            self.train(self.rng.randrange(len(self.flying)))

    def train(self, index: int) -> None:
        start, steps = self.flying[index]
        shown = {s: self.history[int(s.sha)][:n] for s, n in self.flying}
        others = [shown[s] for s, _ in self.flying if is_other_end(start, s)]
        if any(len(other) < steps for other in others):
            return  # it waits for the other end
        so_far = self.history[int(start.sha)][: steps + 1]
        self.flying[index] = start, steps + 1
        stop = stop_after(self.case, start, so_far, others)
        if stop is not None:
            self.end(index, RunResult(Status.STOPPED_EARLY, so_far[:stop]))
        elif steps + 1 == LENGTH:
            self.end(index, RunResult(Status.COMPLETED, so_far))

    def end(self, index: int, result: RunResult) -> None:
        start, _ = self.flying.pop(index)
        number = len(self.case.runs)
        run = Run(f"r{number}", "h", start.sha, start.role, result, number, "e")
        self.case = replace(self.case, runs=(*self.case.runs, run))


def named(conclusion: Conclusion) -> tuple[object, ...]:
    return (
        conclusion.outcome,
        conclusion.culprit and int(conclusion.culprit.sha),
        [int(other.sha) for other in conclusion.others],
        conclusion.explained,
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_stopping_early_changes_no_answer_whoever_runs_beside_whom(data: st.DataObject) -> None:
    first = data.draw(st.integers(1, 15))
    second = data.draw(st.integers(first, 20))
    sizes = st.sampled_from([3e-3, 0.2, 1.0])
    one = training(data.draw(sizes), data.draw(st.integers(1, 3)))
    change, since = data.draw(sizes), data.draw(st.integers(1, 3))
    two = tuple(replace(s, grad_norm=s.grad_norm + 100 * change * (s.step >= since)) for s in one)
    last = data.draw(st.integers(second, 22))
    history = [training()] * first + [one] * (second - first) + [two] * (last - second + 1)
    whole = Workshop(history, thorough=True).pursue(1)
    for jobs in (1, 2, 3):
        shop = Workshop(history, seed=jobs)
        assert named(shop.pursue(jobs)) == named(whole)
        assert sum(len(run.result.trajectory) for run in shop.case.runs) < LENGTH * len(
            shop.case.runs
        )


def test_a_single_change_costs_three_steps_an_end_and_one_a_bad_probe() -> None:
    shop = Workshop([training()] * 9 + [training(0.5)] * 8)
    conclusion = shop.pursue(2)
    assert (conclusion.outcome, conclusion.compared_steps) == (Outcome.CULPRIT, 3)
    for run in shop.case.runs:
        is_bad_probe = run.role is Role.SEARCH and int(run.sha) >= 9
        ends = [r for r in shop.case.runs if (r.sha, r.role) == (run.sha, Role.END)]
        is_repeat = run in ends[1:]
        fresh = [r for r in shop.case.runs if (r.role, int(r.sha)) == (Role.CONFIRM, 9)]
        is_sure = run in fresh and len(run.result.trajectory) == 1
        assert len(run.result.trajectory) == (1 if is_bad_probe or is_repeat or is_sure else 3)
    assert sorted(len(r.result.trajectory) for r in fresh) == [1, 3]


def test_ends_that_never_part_run_whole() -> None:
    shop = Workshop([training()] * 5)
    assert shop.pursue(2).outcome is Outcome.NOT_REPRODUCED
    assert {run.result.status for run in shop.case.runs} == {Status.COMPLETED}


def test_a_drift_before_a_larger_change_is_looked_at_in_whole_runs() -> None:
    history = [training()] * 4 + [training(5e-5)] * 5 + [training(0.5)] * 4
    conclusion = Workshop(history).pursue(2)
    assert named(conclusion) == named(Workshop(history, thorough=True).pursue(1))
    assert conclusion.culprit
    assert int(conclusion.culprit.sha) == 4
    assert conclusion.compared_steps == LENGTH


def test_a_wobble_that_passes_is_no_drift() -> None:
    history = [training()] * 4 + [training(1.5e-4, until=1)] * 5 + [training(0.5)] * 4
    conclusion = Workshop(history).pursue(2)
    assert named(conclusion) == named(Workshop(history, thorough=True).pursue(1))
    assert conclusion.culprit
    assert int(conclusion.culprit.sha) == 9


def test_ends_part_at_the_first_step_that_says_so() -> None:
    base = training()
    assert parting(base, training(0.5, since=7), TOLERANCES, LENGTH) == 7
    assert parting(base, base, TOLERANCES, LENGTH) is None
    assert parting(base[:6], training(0.5, since=7), TOLERANCES, LENGTH) is None
    assert parting(base, training(float("nan"), since=3), TOLERANCES, LENGTH) == 1
    nan = tuple(replace(s, loss=float("nan")) if s.step >= 3 else s for s in base)
    assert parting(base, nan, TOLERANCES, LENGTH) == 3
    assert parting(nan, nan, TOLERANCES, LENGTH) is None
    assert parting(base, training(1.1e-4), TOLERANCES, LENGTH) == 4  # 4.4e-4 / 20 > 2e-5
    assert parting(base, training(1.1e-4), TOLERANCES, 0) is None
