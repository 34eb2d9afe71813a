"""A hunt that is killed anywhere, again and again, ends in the same answer and leaves nothing behind."""

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from driving import BISECTOR, bisector, hunt, kill_all, only_hunt, processes_with
from synthetic import make_repository

# Each training starts a process that leaves its session and would outlive it.
TRAINING = """
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
time.sleep(0.15)
"""


def start(folder: Path, shas: list[str], *, is_read: bool = True) -> "subprocess.Popen[bytes]":
    args = ["hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "toy.toml", "--json"]
    return subprocess.Popen(
        [*BISECTOR, *args],
        cwd=folder,
        stdout=subprocess.PIPE if is_read else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def below(folder: Path, pid: int) -> list[int]:
    """Return the processes of this folder's runs, the command itself left out."""
    return [found for found in processes_with(f"{folder}/state/scratch") if found != pid]


def wait_until_gone(folder: Path, seconds: float = 5.0) -> list[int]:
    until = time.monotonic() + seconds
    while (left := processes_with(f"{folder}/state/scratch")) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def completed(folder: Path) -> dict[str, tuple[str, str]]:
    database = folder / "state" / "bisector.db"
    if not database.exists():
        return {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        try:
            rows = db.execute("SELECT id, sha, role FROM runs").fetchall()
        except sqlite3.OperationalError:  # killed before the table was made
            return {}
    return {run: (sha, role) for run, sha, role in rows}


@pytest.mark.parametrize("rounds", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_goes_on_to_the_same_answer(
    tmp_path: Path, rounds: int
) -> None:
    plans = [{"code": TRAINING}] * 9 + [{"code": TRAINING, "loss": 0.5}] * 8
    shas = make_repository(tmp_path / "repo", plans)
    rng = random.Random(rounds)
    stored: dict[str, tuple[str, str]] = {}
    for _ in range(rounds):
        process = start(tmp_path, shas, is_read=False)
        time.sleep(rng.uniform(0.0, 3.0))
        victim = rng.choice(("parent", "children", "both", "terminate", "interrupt"))
        children = below(tmp_path, process.pid)
        if victim in ("children", "both"):
            kill_all(children if rng.random() < 0.5 else children[:1])
        if victim in ("parent", "both"):
            process.kill()
        if victim in ("terminate", "interrupt"):
            process.send_signal(signal.SIGTERM if victim == "terminate" else signal.SIGINT)
        if victim != "children":
            process.wait(20)
            assert wait_until_gone(tmp_path) == [], f"orphans after {victim}"
        else:
            time.sleep(rng.uniform(0.0, 1.0))
            process.kill()
            process.wait(20)
            assert wait_until_gone(tmp_path) == []
        now = completed(tmp_path)
        assert stored.items() <= now.items(), "a stored run was lost"
        stored = now
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["outcome"], entry["culprit"]["sha"]) == ("culprit", shas[9])
    assert stored.items() <= completed(tmp_path).items()
    made = Counter((p["sha"], p["role"]) for p in entry["probes"])
    assert max(made.values()) <= 2, "a completed run was repeated"
    assert entry["runs"] <= 4 + 2 * 3 + 4
    assert not list((tmp_path / "state" / "scratch").iterdir())
    assert not list((tmp_path / "state" / "checkouts").iterdir())
    assert wait_until_gone(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_hunt_says_so_and_ends_with_130(tmp_path: Path, number: int) -> None:
    slow = {"code": "import time; time.sleep(30)"}
    shas = make_repository(tmp_path / "repo", [slow] * 3)
    process = start(tmp_path, shas)
    until = time.monotonic() + 20
    while not below(tmp_path, process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    entry = only_hunt(out.decode())
    assert (entry["outcome"], entry["culprit"]) == ("interrupted", None)
    assert wait_until_gone(tmp_path) == []


def test_what_a_training_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{"code": TRAINING}] * 2)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert entry["outcome"] == "not_reproduced"
    assert processes_with(f"{tmp_path}/state/scratch") == []


def test_what_a_killed_process_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2)
    left = tmp_path / "state" / "scratch" / "999999-1" / "r1"
    left.mkdir(parents=True)
    owner = {"BISECTOR_OWNER": "999999-1/r1"}
    orphan = subprocess.Popen(["sleep", "60"], env={**os.environ, **owner}, start_new_session=True)
    hunt(tmp_path, shas[0], shas[-1], code=3)
    assert orphan.wait(5) == -signal.SIGKILL
    assert not left.parent.exists()


def test_the_live_process_of_another_hunt_is_not_swept(tmp_path: Path) -> None:
    slow = {"code": "import time; time.sleep(1.5)"}
    shas = make_repository(tmp_path / "repo", [slow] * 2 + [{}] * 2)
    process = start(tmp_path, shas[:2])
    until = time.monotonic() + 20
    while not below(tmp_path, process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert bisector(tmp_path, "status").returncode == 0
    out, _ = process.communicate(timeout=60)
    entry = only_hunt(out.decode())
    assert [p["status"] for p in entry["probes"]] == ["completed"] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_clone_that_never_ends_is_ended_with_the_hunt(tmp_path: Path, number: int) -> None:
    make_repository(tmp_path / "repo", [{}])
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        args = ["hunt", "a", "b", "--repo", url, "--suite", "toy.toml", "--json"]
        process = subprocess.Popen(
            [*BISECTOR, *args], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        connection, _ = server.accept()
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        connection.close()
    if number == signal.SIGKILL:
        assert bisector(tmp_path, "status").returncode == 0
    else:
        assert process.returncode == 130
        assert json.loads(out) == {"schema": 1, "hunts": []}
    until = time.monotonic() + 5
    while processes_with(url) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_with(url) == []
