"""The README's words are true: commands, options, settings and the example of a script."""

import re
import subprocess
from pathlib import Path

import pytest
from driving import bisector, hunt
from synthetic import git

from bisector.config import load_settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = (text for text in blocks if containing in text)
    return str(found)


@pytest.mark.parametrize(
    "command",
    [
        *("hunt", "probe", "record", "compare", "show", "status", "doctor", "demo"),
        *("watch", "accept", "pause", "resume", "notify-test"),
    ],
)
def test_every_command_exists_and_explains_itself(tmp_path: Path, command: str) -> None:
    done = bisector(tmp_path, command, "--help", COLUMNS="80")
    assert done.returncode == 0
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    for option in re.findall(r"--[a-z-]+", " ".join(re.findall(rf"bisector {command}.*", README))):
        assert option in done.stdout, option


def test_make_knows_the_two_commands() -> None:
    for target in re.findall(r"^make (\S+)", block("sh", "make demo"), re.MULTILINE):
        subprocess.run(["make", "-n", "-C", ROOT, target], check=True, capture_output=True)


def test_the_settings_shown_are_understood(tmp_path: Path) -> None:
    (tmp_path / "bisector.toml").write_text(block("toml", "[train]"))
    assert load_settings(tmp_path / "bisector.toml").train.python == "/opt/trl/bin/python"


def test_the_example_of_a_script_can_be_hunted(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    script = block("python", "metrics.jsonl")
    git(repo, "init", "-q", "-b", "main")
    moved = script.replace("1 / step", "1.01 / step")
    for number, text in enumerate([script, script, moved, moved]):
        (repo / "train.py").write_text(text + f"\n# {number}\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", f"commit {number}")
    (tmp_path / "toy.toml").write_text(block("toml", "[class.mine]"))
    entry = hunt(tmp_path, "main~3", "main", "--config", "mine_default")
    assert entry["culprit"]["subject"] == "commit 2"
    assert hunt(tmp_path, "main~3", "main", "--config", "mine_accumulated")["outcome"] == "culprit"
