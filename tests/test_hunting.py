import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from synthetic import make_repository


def run_bisector(folder: Path, *args: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bisector", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **kwargs,
    )


def test_a_hunt_names_the_commit_that_moved_the_loss(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 11 + [{"loss": 0.5}] * 6)
    done = run_bisector(
        tmp_path, "hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "toy.toml", "--json"
    )
    assert done.returncode == 0, done.stderr
    (hunt,) = json.loads(done.stdout)["hunts"]
    assert hunt["outcome"] == "culprit"
    assert hunt["culprit"]["sha"] == shas[11]
    assert hunt["confirmed"]
    assert hunt["explained"]
