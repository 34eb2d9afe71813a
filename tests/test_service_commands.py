"""The commands around the service, and what people get wrong."""

import json
import shutil
import signal
import socket
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driving import assert_two_sentences, bisector, processes_with
from service import Listener, Remote, Service
from synthetic import git


@pytest.fixture
def service(tmp_path: Path, listener: Listener) -> Iterator[Service]:
    remote = Remote(tmp_path)
    remote.push()
    found = Service(tmp_path, remote, listener.url)
    yield found
    if found.process and found.process.poll() is None:
        found.stop(9)


def ask(service: Service, *args: str) -> str:
    done = bisector(service.folder, *args, "--settings", "bisector.toml")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("after", [0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05, 1.3])
def test_a_stop_at_any_moment_of_the_start_is_no_failure(service: Service, after: float) -> None:
    service.start()
    time.sleep(after)
    assert service.stop() in (0, -signal.SIGTERM)  # Python itself may not have come up yet


def change_settings(service: Service, old: str, new: str) -> None:
    path = service.folder / "bisector.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_once_makes_one_pass_tells_and_ends(service: Service, listener: Listener) -> None:
    ask(service, "watch", "--once")
    culprit = service.remote.commit("scale the loss", add="a")
    service.remote.commit("harmless")
    service.remote.push()
    ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit"]
    assert listener.accepted[1]["hunt"]["culprit"]["sha"] == culprit
    shown = ask(service, "status")
    assert "culprit" in shown
    assert culprit[:10] in shown

    regression = listener.accepted[0]["regression"]
    shown = ask(service, "show", regression)
    assert all(word in shown for word in (regression, culprit[:10], "toy_acc", "confirmed"))
    document = json.loads(ask(service, "show", regression, "--format", "json"))
    assert (document["culprit"], document["report"]["outcome"]) == (culprit, "culprit")
    said = ask(service, "accept", regression, "--reason", "a new default", "--write", "new")
    assert said.splitlines()[-1] == "new/toy.json"
    assert json.loads((service.folder / "new" / "toy.json").read_text())["env"]["trl"] == culprit
    ask(service, "watch", "--once")
    assert listener.events[-1] == "accepted"
    document = json.loads(ask(service, "status", "--json"))
    assert document["watch"]["commits"][0]["configs"]["toy"]["verdict"] == "good"
    again = bisector(
        service.folder, "accept", regression, "--reason", "x", "--settings", "bisector.toml"
    )
    assert_two_sentences(again, 1, "accepted already")


def test_the_view_that_the_service_keeps_is_the_one_that_status_works_out(service: Service) -> None:
    ask(service, "watch", "--once")
    service.remote.commit("scale the loss", add="a")
    service.remote.commit("harmless")
    service.remote.push()
    ask(service, "watch", "--once")

    def look() -> dict[str, Any]:
        watch: dict[str, Any] = json.loads(ask(service, "status", "--json"))["watch"]
        return {key: watch[key] for key in ("queue", "broken", "alarms", "commits")}

    def change(statement: str) -> int:
        with closing(sqlite3.connect(service.state / "bisector.db")) as db, db:
            return db.execute(statement).rowcount

    assert change("UPDATE watch SET value = replace(value, 'harmless', 'KEPT') WHERE key = 'view'")
    kept = look()
    assert kept["commits"][0]["subject"].startswith("KEPT")
    assert change("DELETE FROM watch WHERE key = 'view'")
    worked_out = look()
    assert worked_out["commits"][0]["subject"].startswith("harmless")
    kept["commits"][0]["subject"] = worked_out["commits"][0]["subject"]
    assert kept == worked_out
    ask(service, "watch", "--once")
    change("UPDATE watch SET value = replace(value, 'harmless', 'KEPT') WHERE key = 'view'")
    change("UPDATE watch SET value = value + 1 WHERE key = 'revision'")
    assert look() == worked_out, "a decision came after it"


def test_a_law_that_needs_no_reference_is_told_inside_every_tolerance(
    service: Service, listener: Listener
) -> None:
    ask(service, "watch", "--once")
    service.remote.commit("harmless")
    broken = service.remote.commit("build the reference model otherwise", add="quiet-law")
    service.remote.commit("harmless")
    service.remote.push()
    ask(service, "watch", "--once")
    ask(service, "watch", "--once")
    assert set(listener.events) == {"identity"}
    assert [m["links"] for m in listener.accepted] == [[], []], "one for each member, once"
    assert all(broken[:10] in message["text"] for message in listener.accepted)


def test_a_branch_that_is_pushed_anew_or_deleted_is_survived(
    service: Service, listener: Listener
) -> None:
    good = service.remote.commit("harmless")
    service.remote.push()
    ask(service, "watch", "--once")
    service.remote.commit("scale the loss", add="a")
    service.remote.push()
    ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit"]
    git(service.remote.clone, "reset", "-q", "--hard", good)
    service.remote.commit("something else")
    service.remote.push("--force")
    ask(service, "watch", "--once")
    assert listener.events[2:] == ["fixed"], "its commit left the branch"
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    assert {s["verdict"] for c in watch["commits"] for s in c["configs"].values()} == {"good"}
    git(service.remote.path, "branch", "-m", "main", "other")
    gone = bisector(service.folder, "watch", "--once", "--settings", "bisector.toml")
    assert gone.returncode == 4
    assert "main" in gone.stderr.splitlines()[-2]
    git(service.remote.path, "branch", "-m", "other", "main")
    ask(service, "watch", "--once")


def test_a_pause_and_a_limit_hold_work_back_and_say_so(
    service: Service, listener: Listener
) -> None:
    ask(service, "watch", "--once")
    ask(service, "pause")
    service.remote.commit("harmless")
    service.remote.push()
    ask(service, "watch", "--once")
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    assert (watch["paused"], watch["held"]) == (True, "paused by a person")
    assert watch["commits"][0]["configs"]["toy"]["verdict"] == "waiting"
    ask(service, "resume")
    change_settings(service, "[train]", "[limits]\nhunts_per_day = 1\n[train]")
    for flag in ("a", "b"):
        service.remote.commit("move", add=flag)
        service.remote.push()
        ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit", "stalled", "regression"]
    assert any("the hunt waits" in text for _, text in listener.accepted[-1]["details"])
    assert "hunts a day" in json.loads(ask(service, "status", "--json"))["watch"]["held"]


def test_the_limit_of_gpu_minutes_holds_runs_back_until_they_are_a_day_old(
    service: Service, listener: Listener
) -> None:
    change_settings(service, "[train]", "[limits]\ngpu_minutes_per_day = 3\n[train]")
    ask(service, "watch", "--once")
    database = sqlite3.connect(service.state / "bisector.db")
    with database:
        database.execute("UPDATE runs SET seconds = 100")  # two runs
    service.remote.commit("harmless")
    head = service.remote.push()
    ask(service, "watch", "--once")
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    assert watch["held"] == "the limit of 3 GPU minutes a day is reached"
    assert {s["verdict"] for s in watch["commits"][0]["configs"].values()} == {"waiting"}
    assert listener.events == ["stalled"]
    with database:
        database.execute("UPDATE runs SET started = started - 86401")
    database.close()
    ask(service, "watch", "--once")
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    assert (watch["held"], watch["commits"][0]["sha"]) == ("", head)
    assert {s["verdict"] for s in watch["commits"][0]["configs"].values()} == {"good"}


def test_a_channel_named_by_a_variable_and_a_program_hear_of_a_regression(
    service: Service, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = service.folder / "heard"
    program = f'[[notify]]\nname = "pager"\nkind = "exec"\ncommand = ["tee", "{heard}"]\n'
    change_settings(service, f'url = "{listener.url}"\n', f'url_env = "HOOK"\n{program}')
    monkeypatch.setenv("HOOK", listener.url)
    ask(service, "watch", "--once")
    service.remote.commit("scale the loss", add="a")
    service.remote.push()
    ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit"]
    assert json.loads(heard.read_text()) == listener.accepted[-1]
    assert listener.url.encode() not in (service.state / "bisector.db").read_bytes()


def test_status_names_what_is_broken_and_does_without_the_suite_file(service: Service) -> None:
    ask(service, "watch", "--once")
    service.remote.commit("hang", add="hang")
    service.remote.push()
    change_settings(service, 'timeout = "20s"', 'timeout = "2s"')
    change_settings(
        service, f'dir = "{service.state}"', f'dir = "{service.state}"\nmax_size = "1MB"'
    )
    ask(service, "watch", "--once")
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    (broken,) = watch["broken"]
    assert broken["configs"] == ["toy", "toy_acc"]
    text = ask(service, "status")
    assert "broken" in text
    (service.folder / "toy.toml").unlink()
    watch = json.loads(ask(service, "status", "--json"))["watch"]
    assert "toy.toml does not exist" in watch["suite_error"]


def test_a_running_service_refuses_a_second_reloads_serves_and_stops_at_once(
    service: Service, listener: Listener
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service.start("--port", str(port))
    service.settle(service.remote.push())

    second = bisector(service.folder, "watch", "--settings", "bisector.toml")
    assert_two_sentences(second, 1, "Another `bisector watch`")

    health = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read())
    assert health["healthy"] is True
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "bisector_regressions_open 0.0" in text

    change_settings(service, 'timeout = "20s"', 'timeout = "20 parsecs"')
    assert service.process
    service.process.send_signal(signal.SIGHUP)
    _wait_for_log(service, "settings kept as they were")
    change_settings(service, 'timeout = "20 parsecs"', 'timeout = "21s"')
    service.process.send_signal(signal.SIGHUP)
    _wait_for_log(service, "settings read again")

    service.remote.commit("hang", add="hang")
    service.remote.push()
    service.wait(lambda seen: bool(seen["running"]))
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 10
    assert processes_with(str(service.state)) == []


def _wait_for_log(service: Service, words: str) -> None:
    until = time.monotonic() + 30
    while words not in service.read_log():
        assert time.monotonic() < until, service.read_log()
        time.sleep(0.1)


BAD_SETTINGS = [
    ('interval = "1s"', 'intervall = "1s"', ("intervall", "interval")),
    ('interval = "1s"', "interval = 5", ("interval", "duration")),
    ('branch = "main"', "branch = 3", ("branch",)),
    ('kind = "json"', 'kind = "jsn"', ("kind",)),
    ('kind = "json"', 'kind = "json"\nevents = ["culprits"]', ("culprit",)),
    ('kind = "json"', 'kind = "json"\nsecret_file = "/does/not/exist"', ("/does/not/exist",)),
    ('kind = "json"', 'kind = "exec"', ("url",)),
]


@pytest.mark.parametrize(("old", "new", "words"), BAD_SETTINGS)
def test_settings_that_are_wrong_are_refused_in_two_sentences(
    tmp_path: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    text = (
        '[watch]\ninterval = "1s"\nbranch = "main"\n[state]\ndir = "state"\n'
        '[[notify]]\nname = "team"\nkind = "json"\nurl = "http://127.0.0.1:1/x"\n'
    )
    (tmp_path / "bisector.toml").write_text(text.replace(old, new))
    done = bisector(tmp_path, "watch", "--once", "--settings", "bisector.toml")
    assert_two_sentences(done, 1, *words)


def test_a_repository_that_wants_a_password_is_not_asked_for_one(tmp_path: Path) -> None:
    listener = Listener()
    done = bisector(
        tmp_path,
        "watch",
        "--once",
        "--suite",
        "tiny",
        "--repo",
        listener.url.replace("/hook", "/x.git"),
    )
    listener.close()
    assert done.returncode == 4
    assert "did not answer" in done.stderr


def test_notify_test_says_what_each_channel_answered(service: Service, listener: Listener) -> None:
    assert ask(service, "notify-test") == "team: delivered\n"
    assert listener.events == ["test"]
    listener.answer = 404
    done = bisector(service.folder, "notify-test", "--settings", "bisector.toml")
    assert (done.returncode, done.stdout) == (1, "team: answered 404\n")


def test_a_channel_that_refuses_is_announced_on_the_others(
    service: Service, listener: Listener
) -> None:
    other = Listener()
    with (service.folder / "bisector.toml").open("a") as file:
        file.write(f'[[notify]]\nname = "other"\nkind = "json"\nurl = "{other.url}"\n')
    ask(service, "watch", "--once")
    listener.answer = 410
    service.remote.commit("scale the loss", add="a")
    service.remote.push()
    ask(service, "watch", "--once")
    other.close()
    assert sorted(set(other.events)) == ["channel", "culprit", "regression"]
    channels = {
        c["channel"]: c for c in json.loads(ask(service, "status", "--json"))["watch"]["channels"]
    }
    assert channels["team"]["state"] == "dead"
    assert channels["team"]["reason"] == "answered 410"
    assert channels["other"]["state"] == "well"


def test_a_clock_that_was_set_back_disturbs_nothing(service: Service, listener: Listener) -> None:
    ask(service, "watch", "--once")
    db = sqlite3.connect(service.state / "bisector.db")
    with db:
        db.execute("UPDATE runs SET started = started + 100000")
    db.close()
    culprit = service.remote.commit("scale the loss", add="a")
    service.remote.push()
    ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit"]
    assert listener.accepted[1]["hunt"]["culprit"]["sha"] == culprit
    db = sqlite3.connect(service.state / "bisector.db")
    (count,) = db.execute("SELECT count(*) FROM runs WHERE role = 'control'").fetchone()
    db.close()
    assert count <= 4, "an anchor for each config, and the controls of one alarm"


def set_value(service: Service, key: str, value: float) -> None:
    db = sqlite3.connect(service.state / "bisector.db")
    with db:
        db.execute("INSERT OR REPLACE INTO watch VALUES (?, ?)", (key, str(value)))
    db.close()


def test_silence_of_six_hours_and_a_sign_of_life_are_told(
    service: Service, listener: Listener
) -> None:
    ask(service, "watch", "--once")
    set_value(service, "heartbeat", time.time() - 8 * 86_400)
    ask(service, "watch", "--once")
    assert listener.events == ["heartbeat"]
    service.remote.path.rename(service.folder / "away")
    set_value(service, "fetched", time.time() - 7 * 3_600)
    done = bisector(service.folder, "watch", "--once", "--settings", "bisector.toml")
    assert done.returncode == 4
    (service.folder / "away").rename(service.remote.path)
    ask(service, "watch", "--once")
    assert listener.events == ["heartbeat", "stalled"]
    assert "7 hours" in listener.accepted[1]["text"]


def test_a_mirror_that_is_lost_is_cloned_again_and_reverts_are_made_again(
    service: Service, listener: Listener
) -> None:
    ask(service, "watch", "--once")
    for flag in ("a", "b"):
        service.remote.commit(f"add {flag}", add=flag)
        service.remote.push()
        ask(service, "watch", "--once")
    (mirror,) = (service.state / "mirror.git").iterdir()
    shutil.rmtree(mirror)
    service.remote.commit("remove a", remove="a")
    service.remote.push()
    ask(service, "watch", "--once")
    shutil.rmtree(mirror)
    ask(service, "watch", "--once")
    assert listener.events == ["regression", "culprit", "regression", "culprit", "fixed"]
