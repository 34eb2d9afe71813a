"""The planted regressions are real: each moves its config's trajectory, and no harmless commit does."""

import importlib.util
import json
from pathlib import Path

import pytest
from driving import bisector, only_hunt
from planting import REGRESSIONS, Regression, harmless, make_history
from synthetic import git

from bisector.demonstrating import make_history as write_history
from bisector.session import Options, Session

PLANTED = pytest.mark.parametrize("planted", REGRESSIONS, ids=lambda r: r.name.replace(" ", "-"))


def installed(path: str) -> str:
    spec = importlib.util.find_spec("trl")
    assert spec
    assert spec.origin
    return (Path(spec.origin).parent.parent / path).read_text()


@PLANTED
def test_what_a_regression_replaces_occurs_once(planted: Regression) -> None:
    assert installed(planted.edit.path).count(planted.edit.old) == 1


def test_a_third_of_the_harmless_commits_touch_the_syntax_of_what_is_opened(tmp_path: Path) -> None:
    planted = REGRESSIONS[0]
    shas = make_history(tmp_path / "repo", commits=60, regression=planted, at=31, seed=1)
    assert len(shas) == 61
    subjects = git(tmp_path / "repo", "log", "--reverse", "--format=%s").splitlines()[1:]
    assert subjects[30] == planted.edit.subject
    syntax = [s for s in subjects if s.startswith(("Add a helper", "Reword"))]
    assert len(syntax) == 59 // 3
    own = git(tmp_path / "repo", "log", "--format=%s", "--", planted.edit.path).splitlines()
    assert any(s.startswith("Add a helper") for s in own)


def test_a_seed_gives_one_history() -> None:
    assert list(harmless(50, "a.py", 3)) == list(harmless(50, "a.py", 3))
    assert list(harmless(50, "a.py", 3)) != list(harmless(50, "a.py", 4))


@pytest.mark.trains
def test_a_hunt_names_the_planted_commit_among_twelve(tmp_path: Path) -> None:
    planted = REGRESSIONS[0]
    shas = make_history(tmp_path / "repo", commits=12, regression=planted, at=7, seed=5)
    args = ("--repo", "repo", "--suite", "tiny", "--config", planted.config, "--json")
    done = bisector(tmp_path, "hunt", shas[0], shas[-1], *args)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    entry = only_hunt(done.stdout)
    assert (entry["outcome"], entry["culprit"]["sha"]) == ("culprit", shas[7])


@pytest.mark.trains
@pytest.mark.slow
@PLANTED
def test_a_regression_moves_its_trajectory_beyond_tolerance(
    tmp_path: Path, planted: Regression
) -> None:
    shas = write_history(tmp_path / "repo", Session(Options()), [planted.edit])
    args = ("--repo", "repo", "--suite", "tiny", "--config", planted.config, "--json")
    done = bisector(tmp_path, "probe", shas[1], "--against", shas[0], *args)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"


@pytest.mark.trains
@pytest.mark.slow
@pytest.mark.parametrize("config", ["dpo_default", "sft_default"])
def test_harmless_commits_leave_every_bit(tmp_path: Path, config: str) -> None:
    """All forty together: if one moved something, so would most likely their sum."""
    planted = next(r for r in REGRESSIONS if r.config == config)
    edits = list(harmless(40, planted.edit.path, seed=2))
    shas = write_history(tmp_path / "repo", Session(Options()), edits)
    args = ("--repo", "repo", "--suite", "tiny", "--config", config, "--state", "state")
    done = bisector(tmp_path, "probe", shas[-1], "--against", shas[0], *args, "--json")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    runs = [_steps(tmp_path, run["run"]) for run in _status(tmp_path)["runs"]]
    assert len(runs) == 2
    assert runs[0] == runs[1]


def _status(folder: Path) -> dict[str, list[dict[str, str]]]:
    return dict(json.loads(bisector(folder, "status", "--state", "state", "--json").stdout))


def _steps(folder: Path, run: str) -> list[dict[str, float]]:
    done = bisector(folder, "show", run, "--state", "state", "--format", "json")
    return list(json.loads(done.stdout)["steps"])
