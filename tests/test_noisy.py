"""Hunts whose runs do not repeat: one reading may be wrong, the answer may not."""

import json
import random
from pathlib import Path

import pytest
from driving import bisector, hunt
from synthetic import make_repository
from test_plan import culprit, pursue

from bisector import bayes
from bisector.bayes import Confirm, Found, NoCulprit, Undecided
from bisector.model import Outcome, Verdict
from bisector.search import Probes, Reading


def search(commits: int, first_bad: int | None, noise: float, seed: int) -> tuple[object, int]:
    """Search a range whose runs read wrongly at the rate `noise`; return the answer and the readings."""
    rng = random.Random(seed)

    def read(position: int) -> Reading:
        is_bad = (first_bad is not None and position >= first_bad) != (rng.random() < noise)
        return Reading(position, Verdict.BAD if is_bad else Verdict.GOOD)

    readings = [read(position) for position in (0, commits) for _ in range(3)]
    fresh: list[Reading] = []
    while True:
        step = bayes.search(0, commits, readings, fresh)
        if isinstance(step, Probes):
            readings += [read(position) for position in step.positions]
        elif isinstance(step, Confirm):
            sides = [step.link.parent] * step.parent + [step.link.child] * step.child
            fresh += [read(position) for position in sides]
        else:
            return step, len(readings) + len(fresh) - 6


@pytest.mark.parametrize(("noise", "most"), [(0.0, 17), (0.05, 24), (0.1, 32)])
def test_the_right_commit_of_1024_is_found_among_wrong_readings(noise: float, most: float) -> None:
    rng, right, taken = random.Random(1), 0, 0
    for seed in range(60):
        first_bad = rng.randint(1, 1024)
        answer, count = search(1024, first_bad, noise, seed)
        assert isinstance(answer, Found | Undecided | NoCulprit)
        right += isinstance(answer, Found) and answer.link.child == first_bad
        taken += count
    assert right >= 58
    assert taken / 60 <= most


def test_a_range_without_culprit_accuses_nobody() -> None:
    for seed in range(200):
        answer, _ = search(128, None, 0.1, seed)
        assert not isinstance(answer, Found)


def test_what_cannot_be_judged_stays_a_set() -> None:
    readings = [Reading(p, Verdict.GOOD) for p in (0, 0, 0, 3, 3, 3, 3, 3)]
    readings += [Reading(p, Verdict.BAD) for p in (8, 8, 8, 6, 6, 6, 6, 6)]
    readings += [Reading(p, Verdict.SKIP) for p in (4, 5)]
    answer = bayes.search(0, 8, readings)
    assert isinstance(answer, Found)
    assert (answer.link.parent, answer.link.child) == (3, 6)


def test_one_run_in_ten_that_strays_does_not_hide_the_culprit() -> None:
    named, refused = 0, 0
    for seed in range(150):
        rng = random.Random(seed)

        def behaviour(moved: float, rng: random.Random = rng) -> float:
            return moved if rng.random() > 0.1 else 1.0 - moved

        good = [lambda: behaviour(0.0)] * 12
        bad = [lambda: behaviour(1.0)] * 12
        conclusion, _ = pursue([*good, *bad])
        assert culprit(conclusion) in (12, None), (seed, conclusion.reason)
        named += culprit(conclusion) == 12
        refused += conclusion.outcome is Outcome.CONTRADICTION
    assert named >= 75, (named, refused)


def test_the_answer_says_how_sure_it_is() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        good = [lambda rng=rng: rng.gauss(0.0, 2e-3)] * 10  # type: ignore[misc]
        bad = [lambda rng=rng: rng.gauss(0.4, 2e-3)] * 10  # type: ignore[misc]
        conclusion, _ = pursue([*good, *bad])
        if conclusion.culprit:
            assert any("probability 0.99" in note for note in conclusion.notes)
            return
    raise AssertionError("none of 50 hunts named a culprit")


def test_which_configs_repeat_is_shown(tmp_path: Path) -> None:
    plans = [{}, {}, {"loss": 0.5}]
    shas = make_repository(tmp_path / "repo", plans)
    hunt(tmp_path, shas[0], shas[2])
    done = bisector(tmp_path, "noise", "--json")
    (found,) = json.loads(done.stdout)["noise"]
    assert (found["config"], found["gpu"], found["exact"]) == ("toy", "cpu", True)
    assert found["pairs"] >= 2
    assert found["largest"] == {"loss": 0.0, "grad_norm": 0.0}
    assert "repeats bit for bit" in bisector(tmp_path, "noise").stdout
    assert "no commit was run twice" in bisector(tmp_path, "noise", "--config", "other").stdout


STRAYS = """
import pathlib
count = pathlib.Path({count!r})
number = len(count.read_text())
count.write_text("x" * (number + 1))
plan["loss"] = (0.5 - plan["loss"] if number % 9 == 7 else plan["loss"]) + number % 3 * 1e-4
"""


def test_trainings_that_never_repeat_and_stray_now_and_then_are_hunted_in_processes(
    tmp_path: Path,
) -> None:
    count = tmp_path / "count"
    count.touch()
    code = STRAYS.format(count=str(count))
    plans = [{"code": code, "loss": 0.5 if number >= 9 else 0.0} for number in range(16)]
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1], "--jobs", "1", "--max-runs", "80")
    assert entry["culprit"]["sha"] == shas[9]
    assert any("probability 0.99" in note for note in entry["notes"])
    assert entry["noise"]["loss"] > 0
    (found,) = json.loads(bisector(tmp_path, "noise", "--json").stdout)["noise"]
    assert not found["exact"]
    assert found["largest"]["loss"] > 0.4
