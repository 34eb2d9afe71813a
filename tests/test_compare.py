import dataclasses
import math
from collections.abc import Callable

import pytest

from bisector.compare import (
    deviations,
    has_data_changed,
    headline,
    is_within,
    largest_differences,
)
from bisector.config import load_suite, references_dir
from bisector.model import EXACT, Step, Tolerances, Trajectory
from bisector.references import load_reference

CLASSES = ("sft", "dpo", "sft_fa2")
SUITE = load_suite("h100")


def recorded(name: str) -> tuple[Trajectory, Tolerances]:
    reference = load_reference(references_dir() / f"{name}.json")
    return reference.trajectory, SUITE.canonical(name).tolerances


def mapped(trajectory: Trajectory, change: Callable[[Step], Step]) -> Trajectory:
    return tuple(change(step) for step in trajectory)


def with_value(trajectory: Trajectory, index: int, metric: str, value: float) -> Trajectory:
    changed = dataclasses.replace(trajectory[index], **{metric: value})
    return (*trajectory[:index], changed, *trajectory[index + 1 :])


@pytest.mark.parametrize("name", CLASSES)
def test_equal_trajectories_agree_even_exactly(name: str) -> None:
    trajectory, tolerances = recorded(name)
    assert deviations(trajectory, trajectory, tolerances) == []
    assert deviations(trajectory, trajectory, EXACT) == []


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_the_first_finding_at_every_step(
    name: str, metric: str, value: float
) -> None:
    trajectory, tolerances = recorded(name)
    for index in range(len(trajectory)):
        found = deviations(with_value(trajectory, index, metric, value), trajectory, tolerances)
        assert [(d.kind, d.metric, d.step) for d in found] == [("non_finite", metric, index + 1)]


@pytest.mark.parametrize("name", CLASSES)
def test_all_nan_is_flagged_even_against_itself(name: str) -> None:
    trajectory, tolerances = recorded(name)
    lost = mapped(trajectory, lambda s: Step(s.step, math.nan, math.nan))
    assert len(deviations(lost, trajectory, tolerances)) == 2 * len(trajectory)
    assert len(deviations(lost, lost, tolerances)) == 2 * len(trajectory)


MUTATIONS: dict[str, Callable[[Trajectory], Trajectory]] = {
    "a missing step": lambda t: (*t[:20], *t[21:]),
    "a repeated step": lambda t: (*t[:20], t[20], *t[20:]),
    "shifted step numbers": lambda t: mapped(t, lambda s: dataclasses.replace(s, step=s.step + 1)),
    "values shifted by a step": lambda t: tuple(
        dataclasses.replace(later, step=s.step) for s, later in zip(t, (*t[1:], t[0]), strict=True)
    ),
    "two swapped rows": lambda t: (*t[:20], t[21], t[20], *t[22:]),
    "two swapped values": lambda t: (
        *t[:20],
        dataclasses.replace(t[21], step=t[20].step),
        dataclasses.replace(t[20], step=t[21].step),
        *t[22:],
    ),
    "a truncated run": lambda t: t[:30],
    "a run that logged nothing": lambda t: (),
    "a flipped sign of one loss": lambda t: with_value(t, 7, "loss", -t[7].loss),
    "a flipped sign of one grad_norm": lambda t: with_value(t, 7, "grad_norm", -t[7].grad_norm),
    "every loss off by 0.2 %": lambda t: mapped(
        t, lambda s: dataclasses.replace(s, loss=s.loss * 1.002)
    ),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("mutation", list(MUTATIONS))
def test_a_mutation_is_flagged_in_both_directions(name: str, mutation: str) -> None:
    trajectory, tolerances = recorded(name)
    changed = MUTATIONS[mutation](trajectory)
    assert deviations(changed, trajectory, tolerances)
    assert deviations(trajectory, changed, tolerances)
    assert not is_within(changed, trajectory, {"loss": 0.0, "grad_norm": 0.0})


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_a_constant_drift_of_2e_5_a_step_is_seen_on_the_mean_alone(name: str) -> None:
    trajectory, tolerances = recorded(name)
    drifted = mapped(trajectory, lambda s: dataclasses.replace(s, loss=s.loss + 2e-5))
    (found,) = deviations(drifted, trajectory, tolerances)
    assert (found.kind, found.metric, found.step) == ("drift", "loss", None)
    assert found.observed - found.reference == pytest.approx(2e-5, rel=1e-6)


def test_a_drift_that_grows_by_2e_5_a_step_is_flagged() -> None:
    trajectory, tolerances = recorded("sft")
    drifted = mapped(trajectory, lambda s: dataclasses.replace(s, loss=s.loss + 2e-5 * s.step))
    assert {d.kind for d in deviations(drifted, trajectory, tolerances)} >= {"drift"}


def test_a_difference_equal_to_the_limit_is_no_deviation() -> None:
    limits = Tolerances({"loss": 0.25, "grad_norm": 0.25}, {"loss": 1.0, "grad_norm": 1.0})
    one, other = (Step(1, 1.0, 1.0),), (Step(1, 1.25, 1.25),)
    assert deviations(one, other, limits) == []
    assert len(deviations((Step(1, 1.0, 1.5),), other, limits)) == 0
    assert len(deviations((Step(1, 1.0, 1.6),), other, limits)) == 1


def test_the_headline_is_the_first_step_and_there_the_farthest_over_its_limit() -> None:
    limits = Tolerances({"loss": 0.1, "grad_norm": 1.0}, {"loss": 9.0, "grad_norm": 9.0})
    reference = tuple(Step(n, 1.0, 1.0) for n in (1, 2, 3))
    observed = (Step(1, 1.0, 1.0), Step(2, 1.3, 9.0), Step(3, 9.0, 1.0))
    found = headline(deviations(observed, reference, limits), limits.step)
    assert found is not None
    assert (found.metric, found.step) == ("grad_norm", 2)


def test_data_changed_says_yes_no_or_not_known() -> None:
    one = (Step(1, 1.0, 1.0, 10.0), Step(2, 1.0, 1.0, 20.0))
    other = (Step(1, 1.0, 1.0, 10.0), Step(2, 1.0, 1.0, 21.0))
    assert has_data_changed(one, one) is False
    assert has_data_changed(one, other) is True
    assert has_data_changed(one, (Step(1, 1.0, 1.0),)) is None


def test_a_value_lost_on_one_side_only_is_infinitely_far() -> None:
    one, other = (Step(1, math.nan, 1.0),), (Step(1, 1.0, 1.0),)
    assert largest_differences(one, other)["loss"] == math.inf
    assert largest_differences(one, one)["loss"] == 0.0
