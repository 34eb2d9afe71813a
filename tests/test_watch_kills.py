"""The service killed at random moments, and run for long: what is stored and told is the same."""

import os
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
from driving import processes_with
from service import Listener, Remote, Service

PHASES = (
    [("harmless", {}), ("scale the loss", {"add": "a"}), ("harmless", {})],
    [("drop examples", {"add": "b"}), ("harmless", {})],
    [("undo the scale", {"remove": "a"})],
    [("undo the drop", {"remove": "b"})],
)
MOST = {"end": 2, "search": 1, "confirm": 2, "test": 1}  # completed runs of one commit and hunt


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_service_killed_at_any_moment_ends_with_the_same_answers(
    tmp_path: Path, listener: Listener, kills: int
) -> None:
    rng = random.Random(kills)
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url).start()
    service.settle(remote.push())
    shas = []
    for phase in PHASES:
        shas.append([remote.commit(subject, **change) for subject, change in phase])
        head = remote.push()
        for _ in range(kills // len(PHASES) + 1):
            time.sleep(rng.uniform(0.05, 4.0))
            service.stop(9)
            service.start()
        seen = service.settle(head, timeout=240)
    assert service.stop() == 0

    first, second = shas[0][1], shas[1][0]
    assert {r["culprit"]: r["ended_by"] for r in seen["regressions"]} == {
        first: shas[2][0],
        second: shas[3][0],
    }
    verdicts = {c["sha"]: c["configs"]["toy"]["verdict"] for c in seen["commits"]}
    words = ["good", "bad", "bad", "bad", "bad", "bad", "good"]
    assert [verdicts[sha] for phase in shas for sha in phase] == words

    told = Counter(message["id"] for message in listener.accepted)
    assert max(told.values()) <= 2
    once = {message["id"]: message["event"] for message in listener.accepted}
    expected = ["regression", "culprit", "regression", "culprit", "fixed", "fixed"]
    assert sorted(once.values()) == sorted(expected)
    assert_nothing_twice(service.state)
    assert processes_with(str(service.state)) == []
    for folder in ("checkouts", "scratch"):
        assert list((service.state / folder).iterdir()) == []


def assert_nothing_twice(state: Path) -> None:
    """No run was repeated that had completed."""
    db = sqlite3.connect(state / "bisector.db")
    rows = db.execute(
        "SELECT hunt, sha, name, role, count(*) FROM runs WHERE status = 'completed'"
        " GROUP BY hunt, sha, name, role"
    ).fetchall()
    db.close()
    assert rows
    for _, sha, name, role, count in rows:
        assert count <= MOST.get(role, 3), f"{name} {sha} {role} ran {count} times"


@pytest.mark.parametrize("commits", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_long_watch_stays_small(tmp_path: Path, listener: Listener, commits: int) -> None:
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url, configs=["toy"], max_backlog=10_000).start()
    try:
        service.settle(remote.push())
        readings = []
        for batch in range(10):
            for number in range(commits // 10):
                remote.commit(f"harmless {batch} {number}")
            service.settle(remote.push(), timeout=600)
            readings.append(measure(service))
        assert listener.events == []
        memory, files, children = zip(*readings[3:], strict=True)
        assert max(memory) < 1.1 * memory[0], readings
        assert min(files[-3:]) <= files[0], readings
        assert min(children[-3:]) == 0, readings
        limit = 50 * 10**9
        assert service.look()["disk"]["used"] < limit
    finally:
        service.stop()


def measure(service: Service) -> tuple[int, int, int]:
    """Return the service's memory in kB, its open files and its children."""
    assert service.process
    process = Path(f"/proc/{service.process.pid}")
    (line,) = (x for x in (process / "status").read_text().splitlines() if x.startswith("VmRSS"))
    files, children = [], []
    for _ in range(10):  # a fetch, or a delivery, holds some for a moment
        files.append(len(os.listdir(process / "fd")))
        children.append(len((process / "task" / process.name / "children").read_text().split()))
        time.sleep(0.2)
    return int(line.split()[1]), min(files), min(children)
