"""What is told beside the answer of a hunt that is stored: where else the culprit's blocks stand."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from driving import bisector, hunt
from synthetic import SUITE, git

TRAINER = """
import json, sys
out = sys.argv[sys.argv.index("--output_dir") + 1]
with open(out + "/metrics.jsonl", "w") as file:
    for step in range(1, 6):
        weights = [1.0 / step, 2.0, {last}]
        loss = sum(weights) / len(weights)
        grad_norm = max(weights) - min(weights)
        line = {{"step": step, "loss": loss, "grad_norm": grad_norm}}
        print(json.dumps(line), file=file, flush=True)
"""


def make_history(repo: Path) -> list[str]:
    """Make a commit that moves the loss in `train.py`, and not in `other.py`, among others."""
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo.parent / "toy.toml").write_text(SUITE)
    (repo / "other.py").write_text("# a copy\n" + TRAINER.format(last="0.0"))
    for number in range(4):
        moved = TRAINER.format(last="0.0").replace("len(weights)", "(len(weights) + 1)")
        moved = moved.replace("max(weights)", "2 * max(weights)")
        (repo / "train.py").write_text(moved if number > 1 else TRAINER.format(last="0.0"))
        (repo / "notes").write_text(str(number))
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", f"commit {number}")
    return git(repo, "rev-list", "--reverse", "main").split()


def test_a_report_says_where_else_the_culprits_blocks_stand(tmp_path: Path) -> None:
    shas = make_history(tmp_path / "repo")
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[2]
    assert entry["culprit"]["alike"] == [
        {
            "file": "train.py",
            "line": 7,
            "block": "removed",
            "other": "other.py",
            "other_line": 8,
            "changed": False,
        }
    ]
    for form, shown in (("text", "other.py:8"), ("markdown", "other.py:8, unchanged")):
        done = bisector(tmp_path, "show", entry["hunt"], "--format", form, COLUMNS="80")
        assert "removed from train.py:7; still in" in done.stdout
        assert shown in done.stdout
        if form == "text":
            assert max(map(len, done.stdout.split("commit  ")[0].splitlines())) <= 80


def show_culprit(folder: Path, id_: str) -> dict[str, Any]:
    done = bisector(folder, "show", id_, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["hunts"][0]["culprit"]
    return found


def test_what_the_repository_says_of_an_answer_is_kept(tmp_path: Path) -> None:
    shas = make_history(tmp_path / "repo")
    entry = hunt(tmp_path, shas[0], shas[-1])
    shutil.rmtree(tmp_path / "repo" / ".git" / "objects")
    assert show_culprit(tmp_path, entry["hunt"]) == entry["culprit"]
    assert entry["culprit"]["subject"] == "commit 2"

    with closing(sqlite3.connect(tmp_path / "state" / "bisector.db")) as db, db:
        db.execute("UPDATE hunts SET account = NULL")  # as hunts of older versions are
    culprit = show_culprit(tmp_path, entry["hunt"])
    assert (culprit["alike"], culprit["subject"], culprit["sha"]) == ([], "", shas[2])


def test_a_run_and_a_hunt_without_culprit_are_shown_in_markdown(tmp_path: Path) -> None:
    shas = make_history(tmp_path / "repo")
    entry = hunt(tmp_path, shas[0], shas[1], code=3)
    done = bisector(tmp_path, "show", entry["hunt"], "--format", "markdown")
    assert done.stdout.startswith("**toy: not reproduced")
    assert "| 5 |" in done.stdout
    done = bisector(tmp_path, "show", entry["probes"][0]["run"], "--format", "markdown")
    assert done.stdout.startswith("**toy at ")
    assert "| step | loss | grad\\_norm | num\\_tokens |" in done.stdout
    assert "### Environment" in done.stdout
