"""Runs the command line as users do: a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

BISECTOR = [sys.executable, "-m", "bisector"]


def bisector(
    folder: Path, *args: object, timeout: float = 300, **env: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*BISECTOR, *map(str, args)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **env},
    )


def hunt(
    folder: Path, good: str, bad: str, *args: object, code: int = 0, **env: str
) -> dict[str, Any]:
    """Hunt in `folder/repo` with the toy suite; return the one entry of the document."""
    done = bisector(
        folder, "hunt", good, bad, "--repo", "repo", "--suite", "toy.toml", "--json", *args, **env
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return only_hunt(done.stdout)


def only_hunt(text: str) -> dict[str, Any]:
    (entry,) = json.loads(text, parse_constant=_refuse)["hunts"]
    return dict(entry)


def _refuse(literal: str) -> None:
    raise AssertionError(f"{literal} is no JSON")


def assert_two_sentences(done: "subprocess.CompletedProcess[str]", code: int, *words: str) -> None:
    """One line says what is wrong, one what to do, and nothing else of ours is printed."""
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert all(line[-1] in ".!?" for line in lines), lines
    for word in words:
        assert word in done.stderr


def processes_with(mark: str) -> list[int]:
    """Return the live processes whose command line or environment holds `mark`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.name == str(os.getpid()):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state != "Z" and mark.encode() in text:
            found.append(int(entry.name))
    return found


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
