import math
from pathlib import Path

import pytest

from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.model import (
    Change,
    Conclusion,
    Config,
    Crash,
    Deviation,
    Environment,
    Hunt,
    Outcome,
    Role,
    Run,
    RunResult,
    Status,
    Step,
    Suspect,
    Tolerances,
)
from bisector.store import Store

LIMITS = {"loss": 1e-3, "grad_norm": 0.1}
CONFIG = Config(
    "toy",
    "s",
    "toy",
    True,
    None,
    "t.py",
    {"a": "1"},
    ("-x",),
    1,
    (),
    Tolerances(LIMITS, LIMITS),
    (),
    False,
    "d",
)
ENVIRONMENT = Environment("e1", "3.11", {"torch": "2"}, "cpu", 0, 1, {"driver": ""}, "f")
HUNT = Hunt("habc", "repo", "g" * 40, "b" * 40, 3, CONFIG, ENVIRONMENT, skip=("s",))


def a_run(name: str, *, started: float = 0.0, status: Status = Status.COMPLETED) -> Run:
    result = RunResult(
        status,
        (Step(1, math.nan, math.inf, 3.0), Step(2, 0.1, 1 / 3)),
        Crash("E", "f:g", "m") if status is Status.CRASHED else None,
        "why",
        1.5,
        "tail",
    )
    return Run(name, "habc", "c" * 40, Role.END, result, started, "e1")


def same(one: Run, other: Run) -> bool:
    return repr(one) == repr(other)  # NaN differs from itself


def test_hunts_and_runs_come_back_as_they_went_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_hunt(HUNT, "q")
    store.add_hunt(HUNT, "q")
    for run in (a_run("r2", started=2.0, status=Status.CRASHED), a_run("r1", started=1.0)):
        store.add_run(run, config="d", name="toy", environment=ENVIRONMENT)
    store.close()
    store = Store(tmp_path)
    assert store.hunts_asking("q") == ["habc"]
    assert store.hunt("hab") == (HUNT, None)
    first, second = store.runs_of("habc")
    assert same(first, a_run("r1", started=1.0))
    assert same(second, a_run("r2", started=2.0, status=Status.CRASHED))
    found = store.run("r1")
    assert found is not None
    assert found[2] == ENVIRONMENT
    store.close()


def test_an_answer_comes_back_and_can_be_taken_back(tmp_path: Path) -> None:
    deviation = Deviation("loss", "non_finite", 3, math.nan, 1.0, 0.0, True)
    conclusion = Conclusion(
        Outcome.CULPRIT,
        "r",
        Change("a", "p", deviation),
        suspects=(Suspect("s", "skipped", "x"),),
        crash=Crash("E", "p", "m"),
        noise={"loss": 0.0},
        notes=("n",),
    )
    store = Store(tmp_path)
    store.add_hunt(HUNT, "q")
    store.conclude("habc", conclusion)
    stored = store.hunt("habc")
    assert stored is not None
    assert repr(stored[1]) == repr(conclusion)
    store.reopen("habc")
    assert store.hunt("habc") == (HUNT, None)
    store.close()


def test_a_beginning_that_two_share_names_neither(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("r11", "r12"):
        store.add_run(a_run(name), config="d", name="toy", environment=ENVIRONMENT)
    assert store.run("r1") is None
    assert store.run("r11") is not None
    assert store.run("") is None
    assert store.run("%") is None
    store.close()


def test_only_a_completed_run_stands_for_a_commit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_run(
        a_run("r1", status=Status.CRASHED), config="d", name="toy", environment=ENVIRONMENT
    )
    assert store.completed_run("c" * 40, "d", "e1") is None
    store.add_run(a_run("r2"), config="d", name="toy", environment=ENVIRONMENT)
    found = store.completed_run("c" * 40, "d", "e1")
    assert found is not None
    assert found.id == "r2"
    assert store.completed_run("c" * 40, "other", "e1") is None
    store.close()


def test_a_state_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BisectorError, match="--state"):
        Store(tmp_path / "file" / "state")


def test_what_is_read_together_is_of_one_moment(tmp_path: Path) -> None:
    reader, writer = Store(tmp_path), Store(tmp_path)
    one, other = Ledger(reader.db, reader.transaction), Ledger(writer.db, writer.transaction)
    other.set("head", "a")
    with reader.reading():
        assert one.get("head") == "a"
        other.set("head", "b")
        assert one.get("head") == "a"
    assert one.get("head") == "b"
