"""Hunts in memory: a history is a list of what each commit's training does."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisector.case import Case, Start
from bisector.model import (
    CONFLICTS,
    Conclusion,
    Config,
    Crash,
    Environment,
    Hunt,
    Outcome,
    Role,
    Run,
    RunResult,
    Status,
    Step,
    Tolerances,
)
from bisector.plan import Conclude, expected_runs, next_actions, runs_left

TOLERANCES = Tolerances({"loss": 1e-3, "grad_norm": 1e-1}, {"loss": 1e-5, "grad_norm": 1e-3})
CONFIG = Config(
    "toy", "toy", "toy", True, None, "t.py", {}, (), 1, (), TOLERANCES, (), False, "digest"
)
ENVIRONMENT = Environment("e", "3.11", {}, "cpu", 0, 1, {}, "")

Behaviour = (
    float | str | Callable[[], float | str]
)  # a size of change, a crash's type, "hang", or a flake


def training(behaviour: Behaviour, steps: int = 5) -> RunResult:
    if isinstance(behaviour, RunResult):
        return behaviour
    if callable(behaviour):
        behaviour = behaviour()
    if behaviour == "hang":
        return RunResult(Status.TIMED_OUT)
    if behaviour == "conflicts":
        return RunResult(Status.SETUP_FAILED, reason=CONFLICTS)
    if behaviour == "unmet":
        return RunResult(Status.SETUP_FAILED, reason="asks for x>=2")
    if isinstance(behaviour, str):
        return RunResult(Status.CRASHED, crash=Crash(behaviour, "trl/x.py:f", "message"))
    numbers = range(1, steps + 1)
    return RunResult(
        Status.COMPLETED, tuple(Step(n, 1 + behaviour / n, 2 + behaviour) for n in numbers)
    )


def pursue(
    history: Sequence[Behaviour],
    *,
    exact: bool = False,
    skip: Sequence[int] = (),
    max_runs: int | None = None,
    runs: Sequence[Run] = (),
    reverted: Behaviour = "conflicts",
) -> tuple[Conclusion, list[Run]]:
    """Run a hunt to its end, one run at a time; `reverted` is what the bad end does without the culprit."""
    commits = tuple(f"{n:040d}" for n in range(len(history)))
    hunt = Hunt(
        "h",
        "r",
        commits[0],
        commits[-1],
        len(commits) - 1,
        CONFIG,
        ENVIRONMENT,
        exact,
        False,
        tuple(commits[n] for n in skip),
    )
    made = list(runs)
    while True:
        action = next_actions([Case(hunt, commits, tuple(made), max_runs)], [])[0]
        if isinstance(action, Conclude):
            return action.conclusion, made
        is_revert = action.role is Role.REVERT
        result = training(reverted if is_revert else history[int(action.sha)])
        made.append(Run(f"r{len(made)}", "h", action.sha, action.role, result, len(made), "e"))


def culprit(conclusion: Conclusion) -> int | None:
    return int(conclusion.culprit.sha) if conclusion.culprit else None


def numbers(changes: Sequence[object]) -> list[int]:
    return [int(change.sha) for change in changes]  # type: ignore[attr-defined]


def test_one_change_is_the_culprit_and_its_parent_was_run_again() -> None:
    conclusion, runs = pursue([0.0] * 7 + [0.5] * 6)
    assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 7)
    assert conclusion.confirmed
    assert conclusion.explained
    confirmed = [int(run.sha) for run in runs if run.role is Role.CONFIRM]
    assert sorted(confirmed) == [6, 6, 7, 7]
    assert len([run for run in runs if run.role is not Role.REVERT]) <= expected_runs(12) - 1


def test_equal_ends_are_not_reproduced_after_four_runs() -> None:
    conclusion, runs = pursue([0.0] * 9)
    assert conclusion.outcome is Outcome.NOT_REPRODUCED
    assert len(runs) == 4


def test_a_change_and_its_revert_are_not_reproduced() -> None:
    assert pursue([0.0, 0.0, 1.0, 1.0, 0.0])[0].outcome is Outcome.NOT_REPRODUCED


@pytest.mark.parametrize("first", [0.02, 0.2, 0.6])
def test_a_small_first_change_is_not_swallowed_by_a_larger_second_one(first: float) -> None:
    conclusion, _ = pursue([0.0] * 5 + [first] * 7 + [5.0] * 9)
    assert culprit(conclusion) == 5
    assert numbers(conclusion.others) == [12]
    assert conclusion.explained


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_two_changes_are_both_named_wherever_they_are(data: st.DataObject) -> None:
    first = data.draw(st.integers(1, 30))
    second = data.draw(st.integers(first + 1, 40))
    end = data.draw(st.integers(second, 41))
    conclusion, _ = pursue([0.0] * first + [0.3] * (second - first) + [0.9] * (end - second + 1))
    assert (culprit(conclusion), numbers(conclusion.others)) == (first, [second])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_after_a_change_and_its_revert_the_last_change_is_the_culprit(data: st.DataObject) -> None:
    marks = data.draw(st.lists(st.integers(1, 40), min_size=3, max_size=3, unique=True))
    on, off, last = sorted(marks)
    history = [0.0] * on + [1.0] * (off - on) + [0.0] * (last - off) + [2.0] * (45 - last)
    conclusion, _ = pursue(history)
    assert culprit(conclusion) == last
    assert conclusion.others == ()
    assert numbers(conclusion.transient) in ([], [on, off])


def test_a_drift_below_every_steps_limit_is_found() -> None:
    conclusion, _ = pursue([0.0] * 6 + [4e-4] * 5)
    assert culprit(conclusion) == 6
    assert conclusion.culprit is not None
    assert conclusion.culprit.deviation.kind == "drift"
    assert conclusion.culprit.deviation.step is None


def test_ten_commits_that_cannot_be_imported_hide_the_culprit() -> None:
    conclusion, _ = pursue([0.0] * 20 + ["ImportError"] * 10 + [1.0] * 12)
    assert conclusion.outcome is Outcome.SUSPECTS
    assert conclusion.culprit is None
    assert numbers(conclusion.suspects) == list(range(20, 31))
    assert {s.why for s in conclusion.suspects} == {"skipped", "untested"}


def test_commits_that_cannot_be_judged_away_from_the_culprit_disturb_nothing() -> None:
    history: list[Behaviour] = [0.0] * 20 + [1.0] * 20
    for position, behaviour in ((20 - 3, "ImportError"), (10, "hang"), (30, "unmet")):
        history[position] = behaviour
    assert culprit(pursue(history)[0]) == 20


def test_commits_the_user_rules_out_are_never_run() -> None:
    conclusion, runs = pursue([0.0] * 8 + [1.0] * 8, skip=[8])
    assert conclusion.outcome is Outcome.SUSPECTS
    assert numbers(conclusion.suspects) == [8, 9]
    assert 8 not in {int(run.sha) for run in runs}


def test_a_bad_end_that_crashes_is_hunted_by_its_signature() -> None:
    history: list[Behaviour] = [0.0] * 6 + ["KeyError"] * 7
    history[3] = "TypeError"
    conclusion, _ = pursue(history)
    assert culprit(conclusion) == 6
    assert conclusion.crash is not None
    assert conclusion.crash.type == "KeyError"


def test_a_bad_end_that_hangs_is_hunted_too() -> None:
    conclusion, _ = pursue([0.0] * 6 + ["hang"] * 4)
    assert culprit(conclusion) == 6


@pytest.mark.parametrize(
    "history",
    [["X", 0.0, 1.0], ["X", "X", "X"], ["X", "X", "Y"], [0.0, 0.0, "unmet"], ["unmet", 0.0, 0.0]],
)
def test_ends_that_cannot_be_trained_are_the_environments(history: list[Behaviour]) -> None:
    conclusion, _ = pursue(history)
    assert conclusion.outcome is Outcome.ENVIRONMENT
    assert conclusion.reason


def test_an_end_that_crashes_once_and_completes_once_is_a_contradiction() -> None:
    made = [
        Run("r0", "h", f"{0:040d}", Role.END, training(0.0), 0, "e"),
        Run("r1", "h", f"{3:040d}", Role.END, training("X"), 1, "e"),
    ]
    conclusion, _ = pursue([0.0, 0.0, 1.0, 1.0], runs=made)
    assert conclusion.outcome is Outcome.CONTRADICTION
    assert "bad end" in conclusion.reason


def test_a_confirmation_on_the_wrong_side_accuses_nobody() -> None:
    def turncoat() -> Behaviour:
        calls.append(1)
        return "X" if len(calls) == 1 else 0.0

    calls: list[int] = []
    conclusion, _ = pursue([0.0, 0.0, turncoat, "X", "X"])
    assert conclusion.outcome is Outcome.CONTRADICTION
    assert conclusion.culprit is None
    assert "run again good" in conclusion.reason


def test_a_probe_that_strays_is_weighed_and_tells_no_change_that_was_undone() -> None:
    calls: list[int] = []

    def stray() -> float:
        calls.append(1)
        return 1.0 if len(calls) == 1 else 0.0

    for place in range(1, 12):
        calls.clear()
        history: list[Behaviour] = [0.0] * 12 + [1.0]
        history[place] = stray
        conclusion, runs = pursue(history)
        assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 12)
        assert not conclusion.transient
        assert not conclusion.others
        if len([run for run in runs if int(run.sha) == place]) > 1:
            assert any("readings" in note for note in conclusion.notes)


@pytest.mark.parametrize("undone", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("crash", ["", "X"])
def test_a_change_that_a_later_run_shows_undone_is_no_culprit(undone: int, crash: str) -> None:
    history: list[Behaviour] = [0.0] * 5 + [crash or 1.0] * 2 + [0.0] * 5 + [crash or 1.0] * 4
    made = [Run("r0", "h", f"{undone:040d}", Role.SEARCH, training(0.0), 0, "e")]
    conclusion, _ = pursue(history, runs=made)
    assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 12)
    assert set(numbers(conclusion.transient)) <= {5}


def test_noise_asks_for_two_more_runs_of_each_end_and_sets_the_least_limit() -> None:
    rng = random.Random(3)

    def noisy(size: float) -> Callable[[], float]:
        return lambda: size + rng.uniform(-0.004, 0.004)

    conclusion, runs = pursue([noisy(0.0)] * 9 + [noisy(1.0)] * 8)
    assert sum(run.role is Role.NOISE for run in runs) == 4
    assert culprit(conclusion) == 9
    assert 0 < conclusion.noise["loss"] < 0.01


def test_ends_closer_than_four_times_the_noise_are_not_told_apart() -> None:
    rng = random.Random(4)
    conclusion, _ = pursue([lambda: rng.uniform(0, 0.3)] * 12)
    assert conclusion.outcome is Outcome.NOT_REPRODUCED
    assert "four times" in conclusion.reason


def test_exact_names_changes_far_below_tolerance() -> None:
    history = [0.0] * 4 + [1e-6] * 5 + [3e-6] * 4
    assert pursue(history)[0].outcome is Outcome.NOT_REPRODUCED
    conclusion, _ = pursue(history, exact=True)
    assert (culprit(conclusion), numbers(conclusion.others)) == (4, [9])


def test_without_exact_a_change_below_the_limit_is_mentioned() -> None:
    conclusion, _ = pursue([0.0] * 4 + [1e-6] * 4 + [1.0] * 8)
    assert culprit(conclusion) == 8
    assert any("below the limit" in note for note in conclusion.notes)


@pytest.mark.parametrize("budget", [5, 6, 8, 9])
def test_a_budget_is_never_passed_and_what_is_left_is_named(budget: int) -> None:
    conclusion, runs = pursue([0.0] * 20 + [1.0] * 20, max_runs=budget)
    assert conclusion.outcome is Outcome.BUDGET
    assert len(runs) <= budget
    assert 20 in numbers(conclusion.suspects)


def test_a_larger_budget_goes_on_where_the_smaller_one_stopped() -> None:
    history = [0.0] * 20 + [1.0] * 20
    _, made = pursue(history, max_runs=7)
    conclusion, runs = pursue(history, max_runs=30, runs=made)
    assert culprit(conclusion) == 20
    assert runs[: len(made)] == made
    assert len(runs) == len(pursue(history)[1])


def test_a_change_already_found_stays_a_suspect_when_the_budget_ends() -> None:
    history = [0.0] * 6 + [0.5] * 20 + [2.5] * 8
    whole, runs = pursue(history)
    assert (culprit(whole), numbers(whole.others)) == (6, [26])
    executed = [run for run in runs if run.role is not Role.REVERT]
    for budget in range(8, len(executed)):
        conclusion, made = pursue(history, max_runs=budget)
        assert len(made) <= budget
        if conclusion.culprit:
            assert culprit(conclusion) == 6
            assert conclusion.confirmed
            assert not conclusion.explained, "the later change was not confirmed"
        else:
            assert conclusion.outcome is Outcome.BUDGET
            assert 6 in numbers(conclusion.suspects)


def test_small_changes_that_add_up_are_answered_against_what_they_add_up_from() -> None:
    def swinging(size: float) -> RunResult:
        numbers = range(1, 7)
        steps = tuple(Step(n, 1 + size * (-1) ** n, 2.0) for n in numbers)
        return RunResult(Status.COMPLETED, steps)

    sizes = [0.0] * 4 + [9e-4] * 4 + [1.8e-3] * 4 + [1.0] * 4
    conclusion, _ = pursue([swinging(size) for size in sizes])
    assert culprit(conclusion) == 8
    assert conclusion.culprit is not None
    assert conclusion.culprit.deviation.limit == 1e-3
    assert numbers(conclusion.others) == [12]


def test_a_change_that_was_undone_behind_skips_names_nobody() -> None:
    history = [0.0] * 8 + ["X"] * 3 + [1.0] * 6 + [0.0] * 8 + [2.0] * 5
    for start in range(1, 8):
        conclusion, _ = pursue(history[start:])
        assert culprit(conclusion) == 25 - start
        hidden = set(range(8 - start, 12 - start))
        assert not hidden & set(numbers(conclusion.transient))


def test_a_drift_after_another_change_is_named_too() -> None:
    conclusion, _ = pursue([0.0] * 4 + [1.0] * 9 + [1.0004] * 3)
    assert (culprit(conclusion), numbers(conclusion.others)) == (4, [13])
    conclusion, _ = pursue([0.0] * 3 + [4e-4] * 3 + [5.0] * 3)
    assert (culprit(conclusion), numbers(conclusion.others)) == (3, [6])


def test_clear_changes_are_found_in_noise_above_the_tolerance() -> None:
    right = 0
    for seed in range(100):
        rng = random.Random(seed)
        good = [lambda rng=rng: rng.gauss(0.0, 2e-3)] * 10  # type: ignore[misc]
        bad = [lambda rng=rng: rng.gauss(0.4, 2e-3)] * 10  # type: ignore[misc]
        conclusion, _ = pursue([*good, *bad])
        assert culprit(conclusion) in (10, None), "a wrong accusation"
        right += culprit(conclusion) == 10
    assert right >= 90


@pytest.mark.parametrize(("odds", "fewer_than"), [(0.5, 15), (0.1, 5)])
def test_a_trainer_that_flips_between_two_values_accuses_almost_nobody(
    odds: float, fewer_than: int
) -> None:
    named = 0
    for seed in range(1000):
        rng = random.Random(seed)
        conclusion, _ = pursue([lambda rng=rng: float(rng.random() < odds)] * 20)  # type: ignore[misc]
        named += conclusion.culprit is not None
    assert named < fewer_than


def test_the_ends_of_all_hunts_run_before_any_is_searched() -> None:
    commits = tuple(f"{n:040d}" for n in range(9))

    def case(name: str, runs: tuple[Run, ...]) -> Case:
        hunt = Hunt(name, "r", commits[0], commits[-1], 8, CONFIG, ENVIRONMENT)
        return Case(hunt, commits, runs)

    ends = tuple(
        Run(f"{n}{sha}", "one", sha, Role.END, training(size), n, "e")
        for n in range(2)
        for sha, size in ((commits[0], 0.0), (commits[-1], 1.0))
    )
    actions = next_actions([case("one", ends), case("two", ())], [])
    assert [(a.hunt, a.role) for a in actions if isinstance(a, Start)] == [("two", Role.END)] * 2


def test_runs_in_flight_are_not_started_again() -> None:
    commits = tuple(f"{n:040d}" for n in range(9))
    hunt = Hunt("h", "r", commits[0], commits[-1], 8, CONFIG, ENVIRONMENT)
    for asked, times in ((hunt, 1), (replace(hunt, thorough=True), 2)):
        case = Case(asked, commits, ())
        first = [a for a in next_actions([case], []) if isinstance(a, Start)]
        assert sorted(a.sha for a in first) == [*[commits[0]] * times, *[commits[8]] * times]
        assert len(next_actions([case], first[:-1])) == 1


def test_the_second_runs_of_the_ends_wait_until_it_is_known_where_the_ends_part() -> None:
    commits = tuple(f"{n:040d}" for n in range(9))
    hunt = Hunt("h", "r", commits[0], commits[-1], 8, CONFIG, ENVIRONMENT)
    good = Run("r", "h", commits[0], Role.END, training(0.0), 0, "e")
    case = Case(hunt, commits, (good,))
    running = Start("h", commits[-1], Role.END)
    assert next_actions([case], [running]) == []
    assert runs_left(case) == expected_runs(8) - 1


def test_a_commit_is_confirmed_twice_and_once_cold_whichever_ends_first() -> None:
    commits = tuple(f"{n:040d}" for n in range(2))
    hunt = Hunt("h", "r", *commits, 1, CONFIG, ENVIRONMENT)
    ends = tuple(
        Run(f"{n}{sha}", "h", sha, Role.END, training(size), n, "e")
        for n in range(2)
        for sha, size in zip(commits, (0.0, 1.0), strict=True)
    )
    first = [a for a in next_actions([Case(hunt, commits, ends)], []) if isinstance(a, Start)]
    assert [(a.sha, a.is_cold) for a in first] == [
        (commits[0], True),
        (commits[0], False),
        (commits[1], True),
        (commits[1], False),
    ]
    for warm in (True, False):
        ended = Run("c", "h", commits[0], Role.CONFIRM, replace(training(0.0), warm=warm), 9.0, "e")
        case = Case(hunt, commits, (*ends, ended))
        assert next_actions([case], [first[0], *first[2:]]) == []
        assert next_actions([case], first[2:]) == [replace(first[1], is_cold=warm)]


def test_the_runs_left_are_known_from_the_start_and_shrink() -> None:
    commits = tuple(f"{n:040d}" for n in range(33))
    hunt = Hunt("h", "r", commits[0], commits[-1], 32, CONFIG, ENVIRONMENT)
    assert runs_left(Case(hunt, commits, ())) == expected_runs(32) == 4 + 5 + 4 + 1


def test_planning_over_a_hundred_thousand_commits_takes_well_under_a_second() -> None:
    commits = tuple(f"{n:040d}" for n in range(100_001))
    hunt = Hunt("h", "r", commits[0], commits[-1], 100_000, CONFIG, ENVIRONMENT)
    ends = tuple(
        Run(f"{n}{sha}", "h", sha, Role.END, training(size), n, "e")
        for n in range(2)
        for sha, size in ((commits[0], 0.0), (commits[-1], 1.0))
    )
    began = time.process_time()
    (action,) = next_actions([Case(hunt, commits, ends)], [])
    assert isinstance(action, Start)
    assert int(action.sha) == 50_000
    assert time.process_time() - began < 1


HISTORY = [0.0] * 7 + [0.5] * 6


@pytest.mark.parametrize(
    ("reverted", "word"),
    [
        (0.0, "restores"),
        (0.5, "does_not_restore"),
        (0.2, "does_not_restore"),
        ("conflicts", "conflicts"),
        ("unmet", ""),
        ("KeyError", ""),
        ("hang", ""),
    ],
)
def test_the_bad_end_is_run_once_without_the_culprit(reverted: Behaviour, word: str) -> None:
    conclusion, runs = pursue(HISTORY, reverted=reverted)
    (run,) = (run for run in runs if run.role is Role.REVERT)
    assert run is runs[-1]
    assert int(run.sha) == 12
    assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 7)
    assert conclusion.reverted == word
    said = [note for note in conclusion.notes if "with it reverted" in note]
    assert len(said) == (word == "")


def test_a_revert_of_one_of_two_changes_does_not_restore_and_a_crash_trains_again() -> None:
    conclusion, _ = pursue([0.0] * 5 + [0.6] * 7 + [5.0] * 9, reverted=4.4)
    assert (culprit(conclusion), conclusion.reverted) == (5, "does_not_restore")
    crash: list[Behaviour] = [0.0] * 6 + ["KeyError"] * 7
    words = [pursue(crash, reverted=b)[0].reverted for b in (0.0, 3.0, "KeyError", "TypeError")]
    assert words == ["restores", "restores", "does_not_restore", ""]


def test_a_culprit_at_the_end_is_not_reverted_and_neither_is_one_without_a_run_left() -> None:
    conclusion, runs = pursue([0.0] * 7 + [0.5], reverted=0.0)
    assert (culprit(conclusion), conclusion.reverted) == (7, "")
    assert not [run for run in runs if run.role is Role.REVERT]
    needed = len(pursue(HISTORY, reverted=0.0)[1]) - 1
    conclusion, runs = pursue(HISTORY, reverted=0.0, max_runs=needed)
    assert (culprit(conclusion), conclusion.reverted, len(runs)) == (7, "", needed)
    assert "no run was left to revert it at 0000000000" in conclusion.notes
