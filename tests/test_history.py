"""Hunts over TRL's real history, suite `tiny`. They need a clone: TRL_REPOSITORY names it.

OLD_PYTHON names an interpreter with transformers 4.57, accelerate 1.12, datasets, torch, rich and jinja2.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from driving import bisector, only_hunt

pytestmark = [
    pytest.mark.trains,
    pytest.mark.slow,
    pytest.mark.skipif("TRL_REPOSITORY" not in os.environ, reason="TRL_REPOSITORY names no clone"),
]
needs_old = pytest.mark.skipif("OLD_PYTHON" not in os.environ, reason="OLD_PYTHON is not set")


def hunt_trl(
    folder: Path, good: str, bad: str, config: str, *args: str, code: int = 0
) -> dict[str, Any]:
    repository = ("--repo", os.environ["TRL_REPOSITORY"], "--suite", "tiny", "--config", config)
    done = bisector(folder, "hunt", good, bad, *repository, *args, "--json", timeout=3600)
    assert done.returncode == code, f"{done.returncode}\n{done.stderr}"
    return only_hunt(done.stdout)


def before_confirmation(entry: dict[str, Any]) -> int:
    return sum(probe["role"] != "confirm" for probe in entry["probes"])


@pytest.mark.parametrize(("good", "bad"), [("1fbe03509", "47d7c10e7"), ("9d706a146", "f2cd57710")])
def test_the_dropped_examples_of_dpo_are_found(tmp_path: Path, good: str, bad: str) -> None:
    entry = hunt_trl(tmp_path, good, bad, "dpo_default")
    assert entry["culprit"]["sha"].startswith("d5979f5325")
    assert entry["culprit"]["pull_request"] == 6321
    deviation = entry["culprit"]["deviation"]
    assert (deviation["metric"], deviation["step"], deviation["data_changed"]) == (
        "grad_norm",
        1,
        True,
    )
    assert before_confirmation(entry) <= 13


def test_sft_did_not_move_within_tolerance_in_the_same_range(tmp_path: Path) -> None:
    entry = hunt_trl(tmp_path, "1fbe03509", "47d7c10e7", "sft_default", code=3)
    assert (entry["outcome"], entry["runs"]) == ("not_reproduced", 4)
    assert any("--exact" in note for note in entry["notes"])


def test_exactly_every_change_of_the_order_of_1e_6_is_named(tmp_path: Path) -> None:
    entry = hunt_trl(tmp_path, "1fbe03509", "47d7c10e7", "sft_default", "--exact")
    changes = [entry["culprit"], *entry["others"]]
    assert entry["explained"]
    for change in changes:
        deviation = change["deviation"]
        assert abs(deviation["observed"] - deviation["reference"]) < 1e-5


def test_commits_that_do_not_start_here_are_the_environments(tmp_path: Path) -> None:
    entry = hunt_trl(tmp_path, "e4e5671e8", "1e61f6cc5", "sft_default", code=3)
    assert entry["outcome"] == "environment"
    assert entry["advice"]


@needs_old
def test_the_second_end_token_is_found_in_an_older_environment(tmp_path: Path) -> None:
    old = ("--python", os.environ["OLD_PYTHON"])
    entry = hunt_trl(tmp_path, "e4e5671e8", "1e61f6cc5", "sft_default", *old)
    assert entry["culprit"]["sha"].startswith("5cb390cd3")


@needs_old
def test_a_commit_that_cannot_be_imported_is_found_as_the_end_and_skipped_within(
    tmp_path: Path,
) -> None:
    old = ("--python", os.environ["OLD_PYTHON"])
    entry = hunt_trl(tmp_path, "bb147645f", "b7fa6bf17", "sft_default", *old)
    assert entry["culprit"]["sha"].startswith("b7fa6bf17")
    assert entry["crash"]["type"] == "NameError"
    entry = hunt_trl(tmp_path, "bb147645f", "c3ead5b55", "sft_default", *old, code=3)
    assert entry["outcome"] == "not_reproduced"
