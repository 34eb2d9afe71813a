"""`compare` on real H100 recordings whose verdict and cause are known."""

import json
from pathlib import Path

import pytest
from driving import assert_two_sentences, bisector

RECORDINGS = Path(__file__).parent / "recordings"
REFERENCE = Path(__file__).parent.parent / "references" / "sft.json"
A, B, C = (RECORDINGS / f"sft-2026-{name}.json" for name in ("04-30-a", "04-30-b", "06-04"))


def test_a_fresh_environment_that_changed_nothing_agrees(tmp_path: Path) -> None:
    done = bisector(tmp_path, "compare", A, B, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["agree"], found["deviations"], found["first_deviating_step"]) == (True, [], None)
    assert found["largest_difference"]["loss"] == pytest.approx(2.5e-5, abs=1e-6)
    assert found["largest_difference"]["grad_norm"] == pytest.approx(4.6e-3, abs=1e-4)
    differing = {line["key"] for line in found["environment"] if line["differs"]}
    assert differing == {"accelerate", "torch", "transformers", "trl", "python"}


def test_another_normalisation_of_the_loss_differs_from_step_1(tmp_path: Path) -> None:
    done = bisector(tmp_path, "compare", B, C, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["class"], found["first_deviating_step"]) == ("sft", 1)
    steps = [d for d in found["deviations"] if d["kind"] == "step"]
    assert {d["metric"] for d in steps} == {"loss"}
    assert max(abs(d["observed"] - d["reference"]) for d in steps) == pytest.approx(
        5.7e-3, abs=1e-4
    )
    drifts = {d["metric"]: d for d in found["deviations"] if d["kind"] == "drift"}
    assert drifts["loss"]["observed"] - drifts["loss"]["reference"] == pytest.approx(
        3.5e-3, abs=1e-4
    )
    mean = drifts["grad_norm"]["observed"] - drifts["grad_norm"]["reference"]
    assert mean == pytest.approx(1.8e-2, abs=1e-3)


def test_the_same_recording_is_equal(tmp_path: Path) -> None:
    done = bisector(tmp_path, "compare", C, REFERENCE)
    assert done.returncode == 0
    assert done.stdout.startswith("agree over 50 steps")


def test_people_see_every_deviation_and_both_environments_in_eighty_columns(tmp_path: Path) -> None:
    done = bisector(tmp_path, "compare", B, C, COLUMNS="80")
    assert done.stdout.startswith("differ: 52 deviations, first at step 1")
    assert sum("loss at step" in line for line in done.stdout.splitlines()) == 50
    assert all(len(line.rstrip()) <= 80 for line in done.stdout.splitlines())
    transformers = next(
        line for line in done.stdout.splitlines() if line.startswith("transformers")
    )
    assert transformers.split() == ["transformers", "5.7.0", "5.10.0.dev0", "differs"]


def test_another_device_is_warned_of(tmp_path: Path) -> None:
    other = json.loads(A.read_text())
    other["env"]["gpu"] = "cpu"
    (tmp_path / "cpu.json").write_text(json.dumps(other))
    done = bisector(tmp_path, "compare", A, tmp_path / "cpu.json")
    assert done.returncode == 0
    assert "different devices" in done.stdout


def test_a_class_can_be_named_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    assert bisector(tmp_path, "compare", B, C, "--class", "sft_fa2").returncode == 3
    assert_two_sentences(bisector(tmp_path, "compare", B, C, "--class", "sfd"), 1, "'sfd'", "sft")
    other = json.loads(A.read_text())
    other["config"]["name"] = "mine"
    (tmp_path / "mine.json").write_text(json.dumps(other))
    done = bisector(tmp_path, "compare", tmp_path / "mine.json", A)
    assert_two_sentences(done, 1, "'mine'", "--class")
