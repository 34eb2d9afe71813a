"""Old and new code crossed with old and new environment, where not all of it could be run."""

import pytest

from bisector.model import RunResult, Status, Step, Tolerances
from bisector.twobytwo import CELLS, Cause, decide

LIMITS = Tolerances({"loss": 1e-3, "grad_norm": 1e-1}, {"loss": 1e-5, "grad_norm": 1e-3})
GONE = None


def ran(loss: float | None) -> RunResult:
    if loss is GONE:
        return RunResult(Status.SETUP_FAILED, reason="no such version")
    return RunResult(Status.COMPLETED, tuple(Step(n, loss, 1.0, None) for n in range(1, 6)))


@pytest.mark.parametrize(
    ("losses", "cause", "words"),
    [
        (
            (GONE, GONE, 1.0, 1.0),
            Cause.UNKNOWN,
            "the code does not move it here; whether the environment does cannot be told",
        ),
        (
            (GONE, GONE, 1.0, 2.0),
            Cause.CODE,
            "the code moved it; whether the environment does cannot be told",
        ),
        (
            (1.0, GONE, 2.0, GONE),
            Cause.ENVIRONMENT,
            "the environment moved it; whether the code does cannot be told",
        ),
        ((GONE, 1.0, GONE, GONE), Cause.UNKNOWN, "too little of it can be run here"),
        (
            (1.0, GONE, 2.0, 2.0),
            Cause.ENVIRONMENT,
            "the environment moved it, and the code does not matter",
        ),
    ],
)
def test_nothing_is_said_of_an_axis_that_could_not_be_run(
    losses: tuple[float | None, ...], cause: Cause, words: str
) -> None:
    results = {cell: [ran(loss)] for cell, loss in zip(CELLS, losses, strict=True)}
    found = decide(results, LIMITS)
    assert found.cause is cause
    assert found.reason.startswith(words)
    assert "no such version" in found.reason


@pytest.mark.parametrize(
    ("losses", "cause", "words"),
    [
        ((1.0, 1.0007, 1.0007, 1.0014), Cause.COMBINATION, "each by less than the tolerance"),
        ((1.0, 1.0004, 1.0004, 1.0008), Cause.NEITHER, "neither"),
        ((1.0, 1.5, 0.5, 1.0), Cause.BOTH, "old and new agree all the same"),
        ((1.0, 1.5, 1.0, 1.0), Cause.COMBINATION, "old and new agree all the same"),
    ],
)
def test_the_new_code_in_the_new_environment_is_held_against_the_old_in_the_old(
    losses: tuple[float, ...], cause: Cause, words: str
) -> None:
    def swinging(loss: float) -> RunResult:
        signs = (1, -1, 1, -1, 0)  # no drift
        steps = (Step(n, 1 + sign * (loss - 1), 1.0) for n, sign in enumerate(signs, 1))
        return RunResult(Status.COMPLETED, tuple(steps))

    results = {cell: [swinging(loss)] for cell, loss in zip(CELLS, losses, strict=True)}
    found = decide(results, LIMITS)
    assert found.cause is cause
    assert words in found.reason
