"""The bad end without the culprit: made beside the repository, run once, and standing for nothing else."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from driving import bisector, hunt
from synthetic import SUITE, git

from bisector import bulletin, looking
from bisector.model import Event, Role
from bisector.repo import Repository
from bisector.report import Report
from bisector.session import Options, Session
from bisector.store import Store
from bisector.telling import Tell

TRAIN = """
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
value = sum(float(line) for line in open(os.path.join(here, "values.txt")) if line.strip())
exec(open(os.path.join(here, "code.py")).read())
out = sys.argv[sys.argv.index("--output_dir") + 1]
with open(os.path.join(out, "metrics.jsonl"), "w") as file:
    for step in range(1, 6):
        file.write(json.dumps({"step": step, "loss": value, "grad_norm": 1.0}) + "\\n")
"""
LINES = ["1.0", *[""] * 8, "2.0", *[""] * 8, "3.0"]


def values(*changes: tuple[int, str]) -> str:
    lines = list(LINES)
    for place, text in changes:
        lines[place] = text
    return "\n".join(lines) + "\n"


def commit(repo: Path, message: str, **files: str | bytes) -> str:
    for name, text in files.items():
        path = repo / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", message)
    return git(repo, "rev-parse", "HEAD")


def make(folder: Path, *changes: Mapping[str, str]) -> list[str]:
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main")
    suite = SUITE.replace('canonical = "toy"', 'canonical = "toy"\nfootprint = true')
    (folder / "toy.toml").write_text(suite)
    base = {"train_py": TRAIN, "values_txt": values(), "code_py": ""}
    return [commit(repo, str(n), **each) for n, each in enumerate([base, *changes])]


def listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# What is checked out


def test_a_commit_is_taken_back_beside_later_changes_and_the_repository_is_only_read(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    commit(repo, "0", values_txt=values(), old_txt="moved\n" * 20, data=b"\0\1", keep_txt="k\n")
    (repo / "keep.txt").chmod(0o755)
    (repo / "data").write_bytes(b"\0\xff")
    git(repo, "mv", "old.txt", "new.txt")
    culprit = commit(repo, "1", values_txt=values((0, "9.0")), added__here_txt="x")
    text = values((0, "9.0"), (18, "4.0"))
    bad = commit(repo, "2", values_txt=text, later_txt="l", new_txt="moved\n" * 20 + "more\n")
    (repo / "values.txt").write_text("in progress")
    git(repo, "add", "values.txt")
    before = listing(repo)
    target = tmp_path / "out" / "r1"
    target.parent.mkdir()
    assert Repository(str(repo), tmp_path).checkout_without(bad, culprit, target)
    found = listing(target)
    assert set(found) == {"values.txt", "old.txt", "data", "keep.txt", "later.txt"}
    assert found["values.txt"].decode() == values((18, "4.0"))
    assert found["old.txt"].decode() == "moved\n" * 20 + "more\n"
    assert found["data"] == b"\0\1"
    assert not os.access(target / "keep.txt", os.X_OK)
    assert listing(repo) == before
    assert [path.name for path in target.parent.iterdir()] == ["r1"]


def test_what_changed_again_later_conflicts_and_leaves_nothing(tmp_path: Path) -> None:
    change = [{"values_txt": values((0, text))} for text in ("9.0", "8.0")]
    shas = make(tmp_path, *change)
    before = listing(tmp_path / "repo")
    target = tmp_path / "out" / "r1"
    target.parent.mkdir()
    assert not Repository(str(tmp_path / "repo"), tmp_path).checkout_without(
        shas[2], shas[1], target
    )
    assert list(target.parent.iterdir()) == []
    assert listing(tmp_path / "repo") == before


def test_a_merge_is_taken_back_against_its_first_parent(tmp_path: Path) -> None:
    shas = make(tmp_path, {"values_txt": values((18, "4.0"))})
    repo = tmp_path / "repo"
    git(repo, "checkout", "-q", "-b", "side", shas[0])
    commit(repo, "side", values_txt=values((0, "9.0")), side_txt="s")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = git(repo, "rev-parse", "HEAD")
    bad = commit(repo, "later", later_txt="l")
    target = tmp_path / "out"
    assert Repository(str(repo), tmp_path).checkout_without(bad, merge, target)
    assert (target / "values.txt").read_text() == values((18, "4.0"))
    assert not (target / "side.txt").exists()


def test_a_worktree_of_a_repository_with_a_strange_name_will_do(tmp_path: Path) -> None:
    folder = tmp_path / 'a: "b"'
    shas = make(folder, {"values_txt": values((0, "9.0"))}, {"later_txt": "l"})
    git(folder / "repo", "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), shas[2])
    target = tmp_path / "out"
    assert Repository(str(tmp_path / "tree"), tmp_path).checkout_without(shas[2], shas[1], target)
    assert (target / "values.txt").read_text() == values()


# What is made of it


def run_of_revert(entry: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = (probe for probe in entry["probes"] if probe["role"] == "revert")
    return dict(found)


def test_reverting_the_culprit_restores_the_trajectory(tmp_path: Path) -> None:
    shas = make(tmp_path, {"a_txt": ""}, {"values_txt": values((0, "9.0"))}, {"b_txt": ""})
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["culprit"]["sha"], entry["reverted"]) == (shas[2], "restores")
    run = run_of_revert(entry)
    assert (run["sha"], run["without"], run["verdict"]) == (shas[3], shas[2], "good")
    assert (run["status"], run["steps"]) == ("stopped_early", 3) or run["status"] == "completed"
    assert entry["runs"] == sum(p["status"] != "setup_failed" for p in entry["probes"])
    assert entry["candidates"] == 1
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert f"reverting it at {shas[3][:10]} restores the trajectory" in shown
    assert hunt(tmp_path, shas[0], shas[-1]) == entry
    found = looking.find(Session(Options(state=str(tmp_path / "state"))), entry["hunt"])
    assert isinstance(found, Report)
    tell = Tell(Event.CULPRIT, "key", "text", hunt=entry["hunt"])
    message = bulletin.compose(tell, bulletin.About("r", "main", "toy"), 0.0, found=found)
    said = [text for label, text in message["details"] if label == "reverted"]
    assert said == [f"reverting it at {shas[3][:10]} restores the trajectory"]


def test_reverting_one_of_two_changes_does_not_and_the_words_say_what_else(tmp_path: Path) -> None:
    two = values((0, "9.0"), (18, "9.0"))
    shas = make(tmp_path, {"values_txt": values((0, "9.0"))}, {"values_txt": two})
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["culprit"]["sha"], entry["others"][0]["sha"]) == (shas[1], shas[2])
    assert entry["reverted"] == "does_not_restore"
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert f"reverting it at {shas[2][:10]} does not: the later changes named here" in shown


def test_something_else_that_holds_it_is_said(tmp_path: Path) -> None:
    """The same change stands in a second place from the next commit on, where it changes nothing more."""
    first = {"values_txt": values((0, "9.0"))}
    second = {"code_py": "value = 14.0\n"}
    shas = make(tmp_path, first, second)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["culprit"]["sha"], entry["others"]) == (shas[1], [])
    assert entry["reverted"] == "does_not_restore"
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert "does not: something else also holds it" in shown


def test_a_crash_trains_again_without_its_culprit_or_the_obstacle_is_said(tmp_path: Path) -> None:
    shas = make(tmp_path, {"code_py": "raise KeyError('gone')\n"}, {"a_txt": ""})
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["culprit"]["sha"], entry["reverted"]) == (shas[1], "restores")
    shown = bisector(tmp_path, "show", entry["hunt"], COLUMNS="200").stdout
    assert f"reverting it at {shas[2][:10]} makes it train again" in shown
    shas = make(
        tmp_path / "b",
        {"values_txt": values((0, "9.0"))},
        {"code_py": "if value < 10: raise TypeError('needs nine')\n"},
    )
    entry = hunt(tmp_path / "b", shas[0], shas[-1])
    assert (entry["outcome"], entry["reverted"]) == ("culprit", "")
    (note,) = (note for note in entry["notes"] if "with it reverted" in note)
    assert note.endswith("TypeError: needs nine")


def test_a_run_of_a_revert_stands_for_no_other_run(tmp_path: Path) -> None:
    shas = make(tmp_path, {"a_txt": ""}, {"values_txt": values((0, "9.0"))}, {"b_txt": ""})
    done = bisector(
        tmp_path,
        *("hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "toy.toml", "--thorough"),
    )
    assert "restores the trajectory" in done.stdout, done.stderr
    store = Store(tmp_path / "state")
    (run,) = (run for run, _ in store.recent_runs(50) if run.role is Role.REVERT)
    assert run.result.footprint is None
    digest = store.db.execute("SELECT config FROM runs WHERE id = ?", (run.id,)).fetchone()[0]
    question = digest, run.environment
    everything = [
        *store.runs_answering(*question, run.sha),
        *store.newest_runs(*question, 100),
        *(each for each, _ in store.runs_after(0, [digest], {run.sha})),
        *(each for each, _ in store.runs_at([digest], [run.sha])),
    ]
    assert len(everything) > 4
    assert run.id not in {each.id for each in everything}
    newest = store.completed_run(run.sha, *question)
    assert newest
    assert newest.role is not Role.REVERT
    assert newest.result.trajectory[0].loss == pytest.approx(14.0)
    store.close()
    entry = hunt(tmp_path, shas[1], shas[-1], "--thorough")
    assert (entry["culprit"]["sha"], entry["reverted"]) == (shas[2], "restores")
    assert any(probe["reused"] for probe in entry["probes"])
    assert not run_of_revert(entry)["reused"]
    assert json.dumps(entry["notes"]) == "[]"
