"""Hunts for what fixed a deviation: the same search, backwards in time."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from driving import bisector, hunt
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import make_repository
from test_footprint import BASE, LINK, SUITE, commit_each
from test_plan import CONFIG, Behaviour, culprit, numbers, training

from bisector.case import Case
from bisector.contents import Footprint
from bisector.model import Conclusion, Environment, Hunt, Outcome, Role, Run, RunResult
from bisector.plan import Conclude, next_actions

ENVIRONMENT = Environment("e", "3.11", {}, "cpu", 0, 1, {}, "")
READ = Footprint(code=frozenset({"a.py"}))


def pursue(
    history: Sequence[Behaviour],
    *,
    fixed: bool = True,
    marks: Sequence[int] | None = None,
    skip: Sequence[int] = (),
    max_runs: int | None = None,
) -> tuple[Conclusion, list[Run]]:
    """Run a hunt to its end; `history` is oldest first, and `marks` are the commits that touch what runs read."""
    commits = tuple(f"{n:040d}" for n in range(len(history)))
    line = commits[::-1] if fixed else commits
    skipped = tuple(commits[n] for n in skip)
    ends = line[0], line[-1]
    asked = Hunt("h", "r", *ends, len(line) - 1, CONFIG, ENVIRONMENT, skip=skipped, fixed=fixed)
    known = {}
    if (
        marks is not None
    ):  # position p of a range that runs backwards is between n - p and n - p + 1
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
            result = _with_footprint(result)
        made.append(Run(f"r{len(made)}", "h", action.sha, action.role, result, len(made), "e"))


def _with_footprint(result: RunResult) -> RunResult:
    return replace(result, footprint=READ)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_hunt_backwards_names_the_boundary_that_one_forwards_names(data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 40))
    at = data.draw(st.integers(1, length - 1))
    size: Behaviour = data.draw(st.sampled_from([0.5, 4e-4, "KeyError", float("nan")]))
    innocent = data.draw(st.sets(st.integers(1, length - 1), max_size=length))
    marks = sorted({at, *innocent}) if data.draw(st.booleans()) else None
    back, back_runs = pursue([size] * at + [0.0] * (length - at), marks=marks)
    forth, forth_runs = pursue([0.0] * at + [size] * (length - at), fixed=False, marks=marks)
    assert culprit(back) == culprit(forth) == at
    assert back.culprit
    assert forth.culprit
    assert back.culprit.parent == forth.culprit.parent == f"{at - 1:040d}"
    if isinstance(size, float) and math.isfinite(size):
        assert back.culprit.deviation == forth.culprit.deviation
    assert back.candidates == forth.candidates == (length - 1 if marks is None else len(marks))
    assert max(len(back_runs), len(forth_runs)) <= 9 + len(marks or range(length)).bit_length()


def test_the_last_fix_is_named_and_everything_tested_after_it_is_as_the_newest() -> None:
    for length in range(1, 9):
        history = [1.0] * length + [0.0] * 3 + [1.0] * 4 + [0.0] * (9 - length)
        conclusion, runs = pursue(history)
        found = culprit(conclusion)
        assert found in (length, length + 7)
        tested = {int(run.sha) for run in runs}
        assert all(history[n] == 0.0 for n in tested if n >= found)


def test_another_deviation_on_the_way_that_came_and_went_is_told_apart() -> None:
    history = [1.0] * 6 + [0.0] * 5 + [3.0] * 6 + [0.0] * 4
    conclusion, _ = pursue(history)
    assert culprit(conclusion) == 6
    assert numbers(conclusion.transient) in ([], [17, 11])


def test_a_fix_in_two_steps_names_the_last_one_first() -> None:
    conclusion, _ = pursue([5.0] * 6 + [1.0] * 5 + [0.0] * 6)
    assert culprit(conclusion) == 11
    assert conclusion.culprit
    assert conclusion.culprit.deviation.observed == pytest.approx(2.0), "the older one's"
    assert numbers(conclusion.others) == [6]
    assert conclusion.explained


def test_what_hides_behind_skips_may_be_any_commit_from_the_first_skipped_to_the_first_good() -> (
    None
):
    conclusion, _ = pursue([1.0] * 8 + ["ImportError"] * 4 + [0.0] * 6)
    assert conclusion.outcome is Outcome.SUSPECTS
    assert numbers(conclusion.suspects) == [8, 9, 10, 11, 12]
    assert conclusion.suspects[-1].why == "untested"
    assert "first at which it is gone" in conclusion.suspects[-1].reason


@pytest.mark.parametrize("size", [0.0, 1.0])
def test_ends_that_agree_are_not_reproduced(size: float) -> None:
    conclusion, runs = pursue([size] * 9)
    assert (conclusion.outcome, len(runs)) == (Outcome.NOT_REPRODUCED, 4)
    assert "at both or at neither" in conclusion.reason


def test_a_newest_commit_that_crashes_is_the_environments() -> None:
    conclusion, _ = pursue([0.0] * 4 + ["KeyError"] * 3)
    assert conclusion.outcome is Outcome.ENVIRONMENT
    assert conclusion.reason.startswith("newest commit: KeyError")


def test_a_budget_names_what_may_have_fixed_it() -> None:
    conclusion, _ = pursue([1.0] * 9 + [0.0] * 9, max_runs=6)
    assert conclusion.outcome is Outcome.BUDGET
    left = numbers(conclusion.suspects)
    assert left == sorted(left)
    assert 9 in left
    assert 0 not in left


def test_the_command_names_the_fix_and_says_what_was_before(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{"loss": 0.5}] * 5 + [{}] * 4)
    entry = hunt(tmp_path, shas[0], shas[-1], "--fixed", "--jobs", 1)
    assert (entry["fixed"], entry["good"], entry["bad"]) == (True, shas[-1], shas[0])
    found = entry["culprit"]
    assert (found["sha"], found["parent"], found["pull_request"]) == (shas[5], shas[4], 5)
    assert (found["deviation"]["observed"], found["deviation"]["reference"]) == (1.5, 1.0)
    assert entry["confirmed"]
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert f"{shas[5][:10]} is the first commit at which the deviation is gone" in shown
    assert f"{shas[0][:10]} … {shas[-1][:10]}, 8 commits" in shown
    assert f"every commit tested from it on, up to {shas[-1][:10]}" in shown
    status = bisector(tmp_path, "status").stdout
    assert f"{shas[0][:8]}…{shas[-1][:8]}" in status
    forwards = hunt(tmp_path, shas[0], shas[-1], "--jobs", 1)
    assert (forwards["fixed"], forwards["culprit"]["sha"]) == (False, shas[5])
    assert forwards["hunt"] != entry["hunt"]


def test_a_crash_that_was_fixed_is_named(tmp_path: Path) -> None:
    plans = [{"code": "raise KeyError('gone')"}] * 3 + [{}] * 3
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1], "--fixed")
    assert entry["culprit"]["sha"] == shas[3]
    assert entry["crash"]["type"] == "KeyError"
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert "first commit at which the crash is gone" in shown


def test_footprints_spare_runs_backwards_too(tmp_path: Path) -> None:
    words = [{"docs/index.md": str(n)} for n in range(12)]
    changes = [{**BASE, "link": LINK + "place"}, *words]
    for position, value in ((3, "4.0"), (8, "2.0")):
        changes[position] = {"data/table.txt": value}
    shas = commit_each(tmp_path / "repo", changes)
    (tmp_path / "toy.toml").write_text(SUITE)
    backwards = hunt(tmp_path, shas[0], shas[-1], "--fixed")
    forwards = hunt(tmp_path, shas[0], shas[-1], "--again")
    assert (backwards["candidates"], forwards["candidates"]) == (2, 2)
    assert (backwards["culprit"]["sha"], backwards["others"][0]["sha"]) == (shas[8], shas[3])
    assert (forwards["culprit"]["sha"], forwards["others"][0]["sha"]) == (shas[3], shas[8])
    tested = {p["sha"] for p in backwards["probes"] if p["role"] == "search"}
    assert tested <= {*shas[2:4], *shas[7:9]}
