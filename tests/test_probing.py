"""`probe` and `record` through the command line, and as the script of `git bisect run`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driving import BISECTOR, assert_two_sentences, bisector
from synthetic import git, make_repository

TOY = ("--repo", "repo", "--suite", "toy.toml")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    broken = {"code": "raise ImportError('no')"}
    make_repository(folder / "repo", [{}] * 6 + [broken] + [{"loss": 0.5}] * 6)
    return folder


@pytest.mark.parametrize(
    ("commit", "code", "verdict"),
    [("main~12", 0, "good"), ("main~8", 0, "good"), ("main", 1, "bad"), ("main~6", 125, "skip")],
)
def test_the_exit_code_is_git_bisects(place: Path, commit: str, code: int, verdict: str) -> None:
    done = bisector(place, "probe", commit, *TOY, "--against", "main~12", "--json")
    assert done.returncode == code, done.stderr
    (found,) = json.loads(done.stdout)["probes"]
    assert found["verdict"] == verdict
    assert bool(found["deviations"]) == (verdict == "bad")
    assert ("ImportError" in found["reason"]) == (verdict == "skip")


@pytest.mark.parametrize(
    "args",
    [
        ("probe",),
        ("probe", "main", "--agianst", "main~12"),
        ("probe", "nowhere", *TOY, "--against", "main~12"),
        ("probe", "main", *TOY, "--against", "nowhere"),
        ("probe", "main", *TOY, "--config", "absent"),
        ("probe", "main", *TOY),
        ("probe", "main", "--suite", "absent.toml"),
        ("probe", "main", *TOY, "--against", "main~6"),
    ],
)
def test_whatever_is_no_verdict_is_at_least_128(place: Path, args: tuple[str, ...]) -> None:
    done = bisector(place, *args)
    assert done.returncode >= 128
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["git", "msgspec", "typer"])
def test_a_failure_of_our_own_is_no_verdict_either(
    place: Path, tmp_path: Path, module: str
) -> None:
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("raise RuntimeError('broken installation')")
    done = bisector(place, "probe", "main", *TOY, PYTHONPATH=str(tmp_path))
    assert done.returncode >= 128
    done = bisector(place, "hunt", "main~1", "main", *TOY, PYTHONPATH=str(tmp_path))
    assert done.returncode not in (0, 1, 125)


def test_an_answer_that_could_not_be_written_is_no_verdict(place: Path) -> None:
    command = [*BISECTOR, "probe", "main~12", *TOY, "--against", "main~12"]
    for out in ("| true", "> /dev/full"):
        script = f'{{ "$@"; echo "rc=$?" >&2; }} {out}'
        done = subprocess.run(
            ["bash", "-c", script, "x", *command],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert int(done.stderr.rpartition("rc=")[2]) >= 128, done.stderr
        assert "Traceback" not in done.stderr


def test_an_option_before_the_command_is_no_verdict(place: Path) -> None:
    assert bisector(place, "--state", "x", "probe", "main").returncode >= 128


def test_without_a_reference_it_says_how_to_get_one_and_record_makes_it(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo", [{}] * 2 + [{"loss": 0.5}])
    done = bisector(tmp_path, "probe", "main", *TOY)
    assert_two_sentences(done, 129, "has no reference", "bisector record", "--against")
    recorded = bisector(tmp_path, "record", "main~1", *TOY)
    assert recorded.returncode == 0, recorded.stderr
    (path,) = map(Path, recorded.stdout.split())
    written = json.loads(path.read_text())
    assert list(written) == ["config", "env", "steps"]
    assert written["env"]["trl"] == git(tmp_path / "repo", "rev-parse", "main~1")
    assert written["steps"][0] == {"step": 1, "loss": 1.0, "grad_norm": 2.0}
    assert bisector(tmp_path, "probe", "main~1", *TOY).returncode == 0
    assert bisector(tmp_path, "probe", "main", *TOY).returncode == 1
    assert bisector(tmp_path, "probe", "main", *TOY, "--against", path).returncode == 1


def test_a_reference_of_another_device_is_refused(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo", [{}] * 2)
    bisector(tmp_path, "record", "main", *TOY)
    (path,) = (tmp_path / "state" / "references").rglob("toy.json")
    changed = json.loads(path.read_text())
    changed["env"]["gpu"] = "NVIDIA H100 80GB HBM3"
    path.write_text(json.dumps(changed))
    done = bisector(tmp_path, "probe", "main", *TOY)
    assert_two_sentences(done, 129, "NVIDIA H100", "--against")


def test_record_refuses_a_commit_that_does_not_train_and_an_unknown_class(place: Path) -> None:
    done = bisector(place, "record", "main~6", *TOY)
    assert done.returncode == 1
    assert "did not train" in done.stderr
    assert "ImportError" in done.stderr
    assert_two_sentences(bisector(place, "record", "main", "tou", *TOY), 1, "'tou'")


def bisect(place: Path, *script: str) -> "subprocess.CompletedProcess[str]":
    git(place / "repo", "bisect", "start", "main", "main~12")
    try:
        return subprocess.run(
            ["git", "bisect", "run", *script],
            cwd=place / "repo",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    finally:
        git(place / "repo", "bisect", "reset")


def probe_script(place: Path, *more: str) -> list[str]:
    return [
        *BISECTOR,
        *("probe", "HEAD", "--suite", f"{place}/toy.toml", "--state", f"{place}/state"),
        *more,
    ]


def test_git_bisect_run_finds_the_culprit_with_it(place: Path) -> None:
    shas = git(place / "repo", "rev-list", "--reverse", "main").split()
    good = shas[0]
    done = bisect(place, *probe_script(place, "--against", good))
    # commit 6 cannot be tested, so git names the two that it cannot tell apart
    assert shas[7] in done.stdout
    assert "skip" in done.stdout


@pytest.mark.parametrize("more", [["--agianst", "main"], ["--config", "absent"], []])
def test_git_bisect_run_stops_at_a_mistake_instead_of_concluding(
    place: Path, more: list[str]
) -> None:
    done = bisect(place, *probe_script(place, *more))
    assert done.returncode != 0
    assert "is the first bad commit" not in done.stdout


def test_git_bisect_run_stops_at_a_fault_of_our_own(place: Path, tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "__init__.py").write_text("raise RuntimeError('broken installation')")
    script = ["env", f"PYTHONPATH={tmp_path}", sys.executable, "-m", "bisector", "probe", "HEAD"]
    done = bisect(place, *script)
    assert done.returncode != 0
    assert "is the first bad commit" not in done.stdout


def test_a_reference_of_another_length_is_refused(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo", [{}] * 2)
    suite = tmp_path / "toy.toml"
    suite.write_text(suite.read_text() + "args = { max_steps = 5 }\n")
    recorded = bisector(tmp_path, "record", "main", *TOY)
    (path,) = map(Path, recorded.stdout.split())
    written = json.loads(path.read_text())
    assert bisector(tmp_path, "probe", "main", *TOY, "--against", path).returncode == 0
    short = tmp_path / "short.json"
    short.write_text(json.dumps({**written, "steps": written["steps"][:-1]}))
    done = bisector(tmp_path, "probe", "main", *TOY, "--against", short)
    assert_two_sentences(done, 129, "short.json ends at step 4", "toy at step 5")


def test_no_commit_is_bad_against_a_stored_run_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("1.0")
    reads = {"code": f"plan['loss'] = float(open({str(outside)!r}).read())"}
    make_repository(tmp_path / "repo", [reads, reads, {**reads, "norm": 9.0}])
    against = (*TOY, "--against", "main~2")
    assert bisector(tmp_path, "probe", "main~1", *against).returncode == 0
    outside.write_text("1.5")
    for commit, words in (("main~1", "run again as r"), ("main~2", "stored run r")):
        done = bisector(tmp_path, "probe", commit, *against)
        assert done.returncode == 0, done.stdout
        assert words in done.stdout
    assert bisector(tmp_path, "probe", "main", *against).returncode == 1


def test_references_go_to_a_folder(place: Path) -> None:
    done = bisector(place, "record", "main~12", *TOY, "--output", "toy.toml")
    assert_two_sentences(done, 1, "toy.toml is a file")
    assert done.stdout == ""
