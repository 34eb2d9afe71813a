"""Hunts that look inside: what moved between two commits, and what moved it back."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from driving import bisector, hunt
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_repository
from test_footprint import BASE, LINK, SUITE, commit_each
from test_plan import CONFIG, ENVIRONMENT, Behaviour, culprit, numbers, training

from bisector.case import Case, Start
from bisector.contents import Footprint
from bisector.model import Conclusion, Hunt, Outcome, Role, Run
from bisector.plan import Conclude, expected_runs_of_all, next_actions

READ = Footprint(code=frozenset({"a.py"}))


def pursue(
    history: Sequence[Behaviour],
    *,
    fixed: bool = False,
    exact: bool = False,
    marks: Sequence[int] | None = None,
    skip: Sequence[int] = (),
    max_runs: int | None = None,
) -> tuple[Conclusion, list[Run]]:
    commits = tuple(f"{n:040d}" for n in range(len(history)))
    line = commits[::-1] if fixed else commits
    asked = Hunt(
        *("h", "r", line[0], line[-1], len(line) - 1, CONFIG, ENVIRONMENT, exact),
        skip=tuple(commits[n] for n in skip),
        fixed=fixed,
        probe_all=True,
    )
    known = {}
    if marks is not None:
        places = [len(commits) - p for p in reversed(marks)] if fixed else marks
        known = {READ: tuple(places)}
    made: list[Run] = []
    while True:
        action = next_actions([Case(asked, line, tuple(made), max_runs, marks=known)], [])[0]
        if isinstance(action, Conclude):
            return action.conclusion, made
        is_revert = action.role is Role.REVERT
        result = training("conflicts" if is_revert else history[int(action.sha)])
        if marks is not None:
            result = replace(result, footprint=READ)
        made.append(Run(f"r{len(made)}", "h", action.sha, action.role, result, len(made), "e"))


def backs(conclusion: Conclusion) -> list[int | None]:
    return [int(c.back_to) if c.back_to else None for c in conclusion.transient]


@pytest.mark.parametrize("fixed", [False, True])
def test_what_moved_and_moved_back_is_named_where_the_ends_agree(fixed: bool) -> None:
    conclusion, runs = pursue([0.0] * 3 + [1.0] * 4 + [0.0] * 3, fixed=fixed)
    assert conclusion.outcome is Outcome.NOT_REPRODUCED
    assert conclusion.culprit is None
    assert numbers(conclusion.transient) == [3, 7]
    assert backs(conclusion) == [None, 0]
    assert "moved at 0000000000, back at 0000000000" in conclusion.reason
    confirmed = [int(run.sha) for run in runs if run.role is Role.CONFIRM]
    assert sorted(confirmed) == [2, 2, 3, 3, 6, 6, 7, 7]
    assert len(runs) == expected_runs_of_all(9) + 8


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_change_is_named_wherever_it_is_with_footprints_and_without(
    data: st.DataObject,
) -> None:
    length = data.draw(st.integers(2, 25))
    sizes = [0.0]
    for _ in range(length - 1):
        moves = data.draw(st.integers(0, 3)) == 0
        sizes.append(data.draw(st.sampled_from([0.0, 1.0, 5.0])) if moves else sizes[-1])
    changes = [n for n in range(1, length) if sizes[n] != sizes[n - 1]]
    innocent = data.draw(st.sets(st.integers(1, length - 1)))
    marks = sorted({*changes, *innocent}) if data.draw(st.booleans()) else None
    fixed = data.draw(st.booleans())
    conclusion, runs = pursue(sizes, fixed=fixed, marks=marks)
    named = [*numbers(conclusion.transient), *numbers(conclusion.others)]
    named += [culprit(conclusion)] if conclusion.culprit else []
    assert sorted(named) == changes
    assert (conclusion.outcome is Outcome.NOT_REPRODUCED) == (sizes[0] == sizes[-1])
    for change in conclusion.transient:
        at = int(change.sha)
        earlier = sizes[at] in sizes[:at]
        assert bool(change.back_to) == earlier
        if earlier:
            assert sizes[int(change.back_to)] == sizes[at]
    tested = {int(run.sha) for run in runs if run.role is Role.SEARCH}
    inside = set(range(1, length - 1))
    reach = inside if marks is None else {m - fixed for m in marks} & inside
    assert tested <= reach | {0, length - 1}
    assert marks is not None or tested == inside


def test_with_ends_that_differ_the_culprit_is_as_always_and_the_rest_is_told_too() -> None:
    conclusion, _ = pursue([0.0] * 2 + [3.0] * 2 + [0.0] * 4 + [1.0] * 3)
    assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 8)
    assert numbers(conclusion.transient) == [2, 4]
    assert backs(conclusion) == [None, 0]


def test_under_fixed_the_last_fix_is_the_answer_and_the_earlier_ones_are_told() -> None:
    conclusion, _ = pursue([1.0] * 3 + [0.0] * 3 + [1.0] * 3 + [0.0] * 3, fixed=True)
    assert (conclusion.outcome, culprit(conclusion)) == (Outcome.CULPRIT, 9)
    assert numbers(conclusion.transient) == [3, 6]
    assert backs(conclusion) == [None, 0]


def test_a_crash_that_came_and_went_before_the_last_one_is_told() -> None:
    history: list[Behaviour] = [0.0] * 2 + ["KeyError"] * 2 + [0.0] * 3 + ["KeyError"] * 2
    conclusion, _ = pursue(history)
    assert conclusion.outcome is Outcome.CULPRIT
    named = [culprit(conclusion), *numbers(conclusion.transient)]
    assert sorted(n for n in named if n is not None) == [2, 4, 7]


def test_tolerances_decide_and_exact_names_every_bit() -> None:
    history = [0.0] * 3 + [1e-6] * 3 + [0.0] * 3
    conclusion, _ = pursue(history)
    assert conclusion.transient == ()
    assert "so does every commit between them" in conclusion.reason
    assert any("below the limit" in note for note in conclusion.notes)
    assert numbers(pursue(history, exact=True)[0].transient) == [3, 6]


def test_what_cannot_be_judged_is_said_and_hides_changes() -> None:
    history: list[Behaviour] = [0.0] * 3 + ["ImportError"] + [1.0] * 3 + [0.0] * 3
    history[8] = "hang"
    conclusion, runs = pursue(history)
    assert numbers(conclusion.transient) == [7]
    assert sum(" could not be judged:" in note for note in conclusion.notes) == 2
    assert any("a change that was undone, after 0000000000" in note for note in conclusion.notes)
    assert len([run for run in runs if int(run.sha) == 8]) == 2
    conclusion, runs = pursue([0.0, 0.0, 1.0, 0.0, 0.0], skip=[2])
    assert conclusion.transient == ()
    assert 2 not in {int(run.sha) for run in runs}


def test_a_change_that_its_confirmation_refutes_is_not_named() -> None:
    calls: list[int] = []

    def turncoat() -> float:
        calls.append(1)
        return 1.0 if len(calls) == 1 else 0.0

    conclusion, _ = pursue([0.0, 0.0, turncoat, 0.0, 0.0])
    assert conclusion.transient == ()
    assert any("run again good" in note for note in conclusion.notes)
    assert "could not be told apart" in conclusion.reason


def test_a_budget_is_kept_and_says_what_was_not_tested_or_not_confirmed() -> None:
    history = [0.0] * 3 + [1.0] * 4 + [0.0] * 3
    whole = len(pursue(history)[1])
    for budget in range(5, whole):
        conclusion, runs = pursue(history, max_runs=budget)
        assert len(runs) <= budget
        assert conclusion.outcome is Outcome.BUDGET
        assert conclusion.suspects
        assert conclusion.transient == ()
    assert pursue(history, max_runs=whole)[0].outcome is Outcome.NOT_REPRODUCED


def test_all_places_are_asked_for_at_once_and_none_in_flight_is_ended() -> None:
    commits = tuple(f"{n:040d}" for n in range(9))
    asked = Hunt("h", "r", commits[0], commits[-1], 8, CONFIG, ENVIRONMENT, probe_all=True)
    ends = tuple(
        Run(f"{n}{sha}", "h", sha, Role.END, training(0.0), n, "e")
        for n in range(2)
        for sha in (commits[0], commits[-1])
    )
    first = [a for a in next_actions([Case(asked, commits, ends)], [], 2) if isinstance(a, Start)]
    assert [start.sha for start in first] == list(commits[1:-1])
    later = Run("x", "h", commits[4], Role.SEARCH, training(0.0), 9.0, "e")
    left = next_actions([Case(asked, commits, (*ends, later))], first[:3], 2)
    assert left == [start for start in first[3:] if start.sha != commits[4]]


def test_the_command_tells_what_moved_and_what_moved_it_back(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2 + [{"loss": 1.0}] * 2 + [{}] * 2)
    args = ("--repo", "repo", "--suite", "toy.toml", "--probe-all", "--jobs", 2)
    done = bisector(tmp_path, "hunt", shas[0], shas[-1], *args, COLUMNS="200")
    assert done.returncode == 3
    first, *rest = done.stdout.splitlines()
    assert f"moved at {shas[2][:10]}, back at {shas[4][:10]}" in first
    assert any(line.startswith("moved") and shas[2][:10] in line for line in rest)
    assert any(line.startswith("back") and f"as at {shas[0][:10]}" in line for line in rest)
    assert "at most 8 runs, and four more for each change" in done.stderr
    assert "toy: 4 places to test" in done.stderr
    entry = hunt(tmp_path, shas[0], shas[-1], "--probe-all", code=3)
    assert (entry["outcome"], entry["probe_all"], entry["fixed"]) == ("not_reproduced", True, False)
    assert [(c["sha"], c["back_to"]) for c in entry["transient"]] == [
        (shas[2], None),
        (shas[4], shas[0]),
    ]
    assert entry["transient"][0]["deviation"]["observed"] == 2.0
    assert {p["status"] for p in entry["probes"]} == {"completed"}
    bad = {p["sha"] for p in entry["probes"] if p["verdict"] == "bad"}
    assert bad == set(shas[2:4])
    plain = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert plain["hunt"] != entry["hunt"]
    assert plain["transient"] == []


def test_with_footprints_only_what_touches_is_tested(tmp_path: Path) -> None:
    words = [{"docs/index.md": str(n)} for n in range(12)]
    changes = [{**BASE, "link": LINK + "place"}, *words]
    for position, value in ((3, "4.0"), (8, "1.0")):
        changes[position] = {"data/table.txt": value}
    shas = commit_each(tmp_path / "repo", changes)
    (tmp_path / "toy.toml").write_text(SUITE)
    entry = hunt(tmp_path, shas[0], shas[-1], "--probe-all", code=3)
    assert [c["sha"] for c in entry["transient"]] == [shas[3], shas[8]]
    assert {p["sha"] for p in entry["probes"] if p["role"] == "search"} == {shas[3]}, (
        "the newest end says what the second one does"
    )
