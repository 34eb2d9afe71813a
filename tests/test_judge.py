import math
from dataclasses import replace

import pytest
from test_plan import CONFIG, ENVIRONMENT

from bisector.judge import HANG, Ends, Rule, Unstable, judge, make_rule, measure_noise, read_end
from bisector.model import Crash, Hunt, Role, Run, RunResult, Status, Step, Tolerances, Verdict

LIMITS = {"loss": 0.1, "grad_norm": 0.1}
GOOD = (Step(1, 1.0, 1.0),)
MOVED = (Step(1, 2.0, 1.0),)
CRASH = Crash("KeyError", "trl/x.py:f", "'a'")

completes = RunResult(Status.COMPLETED, GOOD)
moves = RunResult(Status.COMPLETED, MOVED)
crashes = RunResult(Status.CRASHED, crash=CRASH)
crashes_elsewhere = RunResult(Status.CRASHED, crash=Crash("KeyError", "trl/y.py:g", "'a'"))
hangs = RunResult(Status.TIMED_OUT)
refused = RunResult(Status.SETUP_FAILED, reason="asks for x")

HUNT = Hunt("h", "r", "a", "b", 2, CONFIG, ENVIRONMENT)
DEVIATES = Rule(LIMITS)
CRASHES = Rule({}, crash=CRASH)
HANGS = Rule({}, crash=HANG)


@pytest.mark.parametrize(
    ("rule", "results", "verdict"),
    [
        (DEVIATES, [completes], Verdict.GOOD),
        (DEVIATES, [moves], Verdict.BAD),
        (DEVIATES, [crashes], Verdict.SKIP),
        (DEVIATES, [hangs], None),
        (DEVIATES, [hangs, hangs], Verdict.SKIP),
        (DEVIATES, [hangs, completes], Verdict.GOOD),
        (DEVIATES, [refused], Verdict.SKIP),
        (DEVIATES, [], None),
        (CRASHES, [completes], Verdict.GOOD),
        (CRASHES, [moves], Verdict.GOOD),
        (CRASHES, [crashes], Verdict.BAD),
        (CRASHES, [crashes_elsewhere], Verdict.SKIP),
        (CRASHES, [hangs], None),
        (CRASHES, [hangs, hangs], Verdict.SKIP),
        (CRASHES, [refused], Verdict.SKIP),
        (HANGS, [hangs], None),
        (HANGS, [hangs, hangs], Verdict.BAD),
        (HANGS, [crashes], Verdict.SKIP),
        (HANGS, [completes], Verdict.GOOD),
    ],
)
def test_the_verdict_table(rule: Rule, results: list[RunResult], verdict: Verdict | None) -> None:
    assert judge(results, GOOD, rule) is verdict


def test_the_message_of_a_crash_is_not_its_signature() -> None:
    other = RunResult(Status.CRASHED, crash=Crash("KeyError", "trl/x.py:f", "another key"))
    assert judge([other], GOOD, CRASHES) is Verdict.BAD


def test_a_missing_step_has_left_good() -> None:
    longer = (*GOOD, Step(2, 1.0, 1.0))
    assert judge([completes], longer, DEVIATES) is Verdict.BAD


TOLERANCES = Tolerances({"loss": 1.0, "grad_norm": 1.0}, {"loss": 0.5, "grad_norm": 0.5})
SILENT = {"loss": 0.0, "grad_norm": 0.0}


def test_the_limit_of_a_driver_is_a_quarter_of_the_ends_difference_or_the_tolerance() -> None:
    small = make_rule(Ends(GOOD, (Step(1, 2.6, 1.0),), SILENT), TOLERANCES, exact=False)
    large = make_rule(Ends(GOOD, (Step(1, 99.0, 1.0),), SILENT), TOLERANCES, exact=False)
    assert small is not None
    assert large is not None
    assert small.limits == {"loss": pytest.approx(0.4), "grad_norm": 1.0}
    assert large.limits == {"loss": 1.0, "grad_norm": 1.0}


def test_no_limit_is_below_the_noise() -> None:
    noise = {"loss": 0.3, "grad_norm": 2.0}
    rule = make_rule(Ends(GOOD, (Step(1, 2.2, 1.0),), noise), TOLERANCES, exact=False)
    assert rule is not None
    assert rule.limits == pytest.approx({"loss": 0.3, "grad_norm": 4.0})
    assert make_rule(Ends(GOOD, (Step(1, 2.1, 1.0),), noise), TOLERANCES, exact=False) is None


def test_exact_has_no_limit_but_the_noise() -> None:
    barely = (Step(1, 1.0 + 1e-9, 1.0),)
    rule = make_rule(Ends(GOOD, barely, SILENT), TOLERANCES, exact=True)
    assert rule is not None
    assert rule.limits == SILENT
    assert make_rule(Ends(GOOD, GOOD, SILENT), TOLERANCES, exact=True) is None


def test_an_end_is_read_from_two_runs_or_two_hangs() -> None:
    assert read_end([completes]) is None
    assert read_end([completes, moves]) == [GOOD, MOVED]
    assert read_end([crashes, crashes]) == CRASH
    assert read_end([hangs]) is None
    assert read_end([hangs, completes]) is None
    assert read_end([hangs, completes, completes]) == [GOOD, GOOD]
    assert read_end([hangs, hangs]) == HANG
    assert read_end([refused]) == refused
    assert isinstance(read_end([completes, crashes]), Unstable)
    assert isinstance(read_end([crashes, crashes_elsewhere]), Unstable)
    assert isinstance(read_end([hangs, completes, hangs]), Unstable)


def test_noise_is_the_largest_difference_between_runs_of_one_commit_as_far_as_both_went() -> None:
    def noise(*told: tuple[str, Role, RunResult], probe_all: bool = False) -> dict[str, float]:
        runs = [Run(f"r{n}", "h", *each, n, "e") for n, each in enumerate(told)]
        return measure_noise(replace(HUNT, probe_all=probe_all), runs)

    strays = RunResult(Status.STOPPED_EARLY, MOVED)
    longer = RunResult(Status.STOPPED_EARLY, (*GOOD, Step(2, 1.0, 1.0)))
    shorter = RunResult(Status.COMPLETED, (*GOOD, Step(2, 1.0, 1.0)))
    moved = {"loss": 1.0, "grad_norm": 0.0}
    end, search, confirm = Role.END, Role.SEARCH, Role.CONFIRM
    assert noise(("a", end, completes), ("a", end, completes), ("b", end, moves)) == SILENT
    assert noise(("a", end, completes), ("a", end, moves)) == moved
    assert noise(("c", search, longer), ("c", confirm, strays)) == moved
    assert noise(("c", search, longer), ("c", confirm, strays), probe_all=True) == SILENT
    assert noise(("a", end, longer), ("a", end, RunResult(Status.STOPPED_EARLY, GOOD))) == SILENT
    assert noise(("a", end, shorter), ("a", end, completes))["loss"] == math.inf
    assert noise(("b", end, moves), ("b", Role.REVERT, completes)) == SILENT
