"""The service as a process, on a real remote, with a real channel."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from packages import install, make_base, write_wheel
from service import SUITE, Listener, Remote, Service, set_version
from synthetic import git


@pytest.mark.parametrize("has_footprint", [False, True])
def test_a_story_from_the_first_commit_to_the_mend(
    tmp_path: Path, listener: Listener, has_footprint: bool
) -> None:
    remote = Remote(tmp_path)
    remote.push()
    sparing = SUITE.replace("[class.toy]\n", "[class.toy]\nfootprint = true\n")
    suite = sparing if has_footprint else SUITE
    service = Service(tmp_path, remote, listener.url, suite).start()
    try:
        service.settle(remote.push())
        for number in range(3):
            remote.commit(f"harmless {number}")
        service.settle(remote.push())
        assert listener.events == []

        first = remote.commit("scale the loss", add="a")
        remote.commit("harmless")
        seen = service.settle(remote.push())
        assert listener.events == ["regression", "culprit"]
        assert listener.accepted[1]["hunt"]["culprit"]["sha"] == first
        assert listener.accepted[1]["members"]["moved"] == ["toy", "toy_acc"]
        assert [r["culprit"] for r in seen["regressions"]] == [first]

        for number in range(10):
            remote.commit(f"harmless {number}")
        service.settle(remote.push())
        assert len(listener.events) == 2, "known already"
        with closing(sqlite3.connect(service.state / "bisector.db")) as db:
            (trained,) = db.execute("SELECT count(DISTINCT sha) FROM runs").fetchone()
        commits = int(git(remote.clone, "rev-list", "--count", "main"))
        assert trained <= 8 if has_footprint else trained == commits

        second = remote.commit("drop examples", add="b")
        remote.commit("harmless")
        service.settle(remote.push())
        assert listener.events[2:] == ["regression", "culprit"]
        assert listener.accepted[3]["hunt"]["culprit"]["sha"] == second

        git(remote.clone, "revert", "--no-edit", first)
        mend = git(remote.clone, "rev-parse", "HEAD")
        seen = service.settle(remote.push())
        assert listener.events[4:] == ["fixed"]
        assert listener.accepted[4]["regression"] == listener.accepted[0]["regression"]
        assert {r["state"]: r["ended_by"] for r in seen["regressions"]} == {
            "fixed": mend,
            "culprit": None,
        }
        assert seen["commits"][0]["configs"]["toy"]["verdict"] == "bad"

        remote.commit("put the examples back", remove="b")
        seen = service.settle(remote.push())
        assert listener.events[5:] == ["fixed"]
        assert seen["commits"][0]["configs"]["toy"]["verdict"] == "good"

        again = remote.commit("scale the loss again", add="a")
        seen = service.settle(remote.push())
        assert listener.events[6:] == ["reopened"]
        assert listener.accepted[6]["regression"] == listener.accepted[0]["regression"]
        assert again in [r["culprit"] for r in seen["regressions"]]
        assert service.stop() == 0
    finally:
        if service.process and service.process.poll() is None:
            service.stop(9)


def test_a_new_environment_accuses_nobody_and_a_regression_of_the_same_night_is_found(
    tmp_path: Path, listener: Listener
) -> None:
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url).start()
    try:
        service.settle(remote.push())
        service.stop()
        set_version(tmp_path / "venv", "2.0")
        remote.commit("harmless")
        culprit = remote.commit("scale the loss", add="a")
        remote.commit("harmless")
        head = remote.push()
        service.start()
        service.settle(head)
        assert sorted(listener.events) == ["culprit", "environment", "regression"]
        by_event = {message["event"]: message for message in listener.accepted}
        assert ["differs", "fakelib: 1.0 → 2.0"] in by_event["environment"]["details"]
        assert by_event["environment"]["hunt"] is None
        assert by_event["culprit"]["hunt"]["culprit"]["sha"] == culprit
    finally:
        service.stop()


def test_the_release_that_moved_a_config_is_found_even_if_the_service_is_killed_meanwhile(
    tmp_path: Path, listener: Listener
) -> None:
    index = tmp_path / "index"
    for name, version in (("fakelib", "1.0"), ("fakelib", "2.0"), ("other", "1"), ("other", "2")):
        write_wheel(index, name, version)
    make_base(tmp_path / "venv", index, "fakelib==1.0", "other==1")
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url, configs=["toy"], why=True, version="")
    service.variables["UV_DEFAULT_INDEX"] = index.as_uri()
    service.start()
    try:
        service.settle(remote.push())
        service.stop()
        install(tmp_path / "venv", index, "fakelib==2.0", "other==2")
        remote.commit("harmless")
        remote.push()
        service.start()
        service.wait(lambda seen: bool(seen["questions"]))
        service.stop(9)
        service.start()
        service.wait(lambda _: len(listener.accepted) > 1)
        service.wait(lambda seen: not seen["questions"])
        told, answer = listener.accepted
        assert ["next", "asking which package did it"] in told["details"]
        assert answer["event"] == "environment"
        assert answer["text"] == "toy: fakelib 2.0 moved it"
        details = dict(answer["details"])
        assert details["cause"] == "the environment moved it, and the code does not matter"
        assert details["package"].startswith("fakelib 1.0 → 2.0: ")
    finally:
        service.stop()


def test_a_question_that_cannot_be_asked_is_tried_three_times_and_then_told(
    tmp_path: Path, listener: Listener
) -> None:
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url, configs=["toy"], why=True)
    service.variables["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple"
    service.start()
    try:
        service.settle(remote.push())
        service.stop()
        set_version(tmp_path / "venv", "2.0")
        for attempts in (1, 2):
            service.start()
            service.wait(lambda seen: [q["attempts"] for q in seen["questions"]] == [attempts])  # noqa: B023
            service.stop()
            with closing(sqlite3.connect(service.state / "bisector.db")) as db, db:
                statement = "UPDATE watch SET value = json_set(value, '$.due', 0) WHERE key LIKE 'question %'"
                assert db.execute(statement).rowcount == 1
        service.start()
        service.wait(lambda _: len(listener.accepted) > 1)
        assert listener.accepted[1]["text"] == (
            "why toy moved with the environment could not be found out"
        )
        assert "index cannot be reached" in dict(listener.accepted[1]["details"])["why"]
        assert not service.look()["questions"]
    finally:
        service.stop()


def test_a_channel_that_is_down_gets_its_messages_later_once_and_in_order(
    tmp_path: Path, listener: Listener
) -> None:
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url).start()
    try:
        service.settle(remote.push())
        listener.answer = 503
        remote.commit("scale the loss", add="a")
        head = remote.push()
        service.wait(lambda seen: any(r["state"] == "culprit" for r in seen["regressions"]))
        assert listener.accepted == []
        assert listener.asked > 0
        listener.answer = 200
        service.settle(head)
        assert listener.events == ["regression", "culprit"]
    finally:
        service.stop()


def test_a_remote_that_is_down_for_a_while_is_asked_again(
    tmp_path: Path, listener: Listener
) -> None:
    remote = Remote(tmp_path)
    remote.push()
    service = Service(tmp_path, remote, listener.url).start()
    try:
        service.settle(remote.push())
        remote.path.rename(tmp_path / "away")
        service.wait(lambda seen: bool(seen["fetch_error"]))
        (tmp_path / "away").rename(remote.path)
        culprit = remote.commit("scale the loss", add="a")
        seen = service.settle(remote.push())
        assert seen["fetch_error"] == ""
        assert [r["culprit"] for r in seen["regressions"]] == [culprit]
    finally:
        service.stop()


def test_what_a_hunt_by_hand_stopped_early_is_no_test_of_a_commit(
    tmp_path: Path, listener: Listener
) -> None:
    remote = Remote(tmp_path)
    service = Service(tmp_path, remote, listener.url).start()
    try:
        first = remote.push()
        service.settle(first)
        service.stop()
        remote.commit("harmless")
        head = remote.push()
        with closing(sqlite3.connect(service.state / "bisector.db")) as db, db:
            db.execute(
                "CREATE TEMP TABLE copy AS SELECT * FROM runs WHERE sha = ? LIMIT 1", (first,)
            )
            db.execute(
                "UPDATE copy SET id = 'rx', sha = ?, role = 'search', status = 'stopped_early',"
                " steps = '[[1, 9.0, 9.0, null]]'",
                (head,),
            )
            db.execute("INSERT INTO runs SELECT * FROM copy")
        service.start().settle(head)
        assert listener.events == []
        with closing(sqlite3.connect(service.state / "bisector.db")) as db:
            made = db.execute("SELECT role, status FROM runs WHERE sha = ?", (head,)).fetchall()
        assert made.count(("test", "completed")) >= 1
    finally:
        service.stop()
