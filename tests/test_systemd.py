"""The unit, its settings and its install steps; where a systemd can be booted, they run under it."""

import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import booting
import pytest
from booting import Machine
from service import SUITE, Remote
from synthetic import git

from bisector import service_manager
from bisector.config import load_settings
from bisector.interpreter import WORKER

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "systemd" / "bisector.service"
SETTINGS = ROOT / "systemd" / "bisector.toml"
README = (ROOT / "systemd" / "README.md").read_text()
WEBHOOK = "https://hooks.example.org/secret"

# What stands at /opt/bisector/bin/bisector. It serves as `bisector watch` does, as far as the service manager can
# see, with a training that does not heed SIGTERM; every other command answers with its name.
PROGRAM = """#!/usr/bin/python3 -I
import signal, subprocess, sys, time
sys.path.insert(0, "/opt/bisector/lib")
from service_manager import tell, watchdog_interval

def stop(*_):
    tell("STOPPING=1", "STATUS=ends")
    sys.exit(0)

def reload(*_):
    tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    tell("READY=1", "STATUS=settings read again")

if sys.argv[1] != "watch":
    print(sys.argv[1])
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, reload)
training = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", training], start_new_session=True)
print("bisector watches", file=sys.stderr, flush=True)
tell("READY=1", "STATUS=waits for commits")
while True:
    time.sleep(min(watchdog_interval() or 1, 1))
    tell("WATCHDOG=1")
"""

# What trainings and their supervision need of the sandbox, and what it refuses them.
SANDBOX = """
import ctypes, errno, fcntl, json, mmap, os, pathlib, socket, subprocess, sys

def write(path):
    with open(path, "a"):
        pass

def take_turns():
    with open("/tmp/bisector-cuda0.lock", "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError(errno.ENOLCK, "the lock of a person's run is not seen")

def see_a_persons_run():
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        if b"PERSON=1" in path.read_bytes().split(bytes(1)):
            return
    raise OSError(errno.ESRCH, "a person's run is not seen")

def supervise():
    folder = pathlib.Path("/var/lib/bisector/run")
    folder.mkdir()
    result = folder / "result.json"
    spec = {"argv": ["/bin/echo"], "env": {}, "cwd": "/", "log": f"{folder}/log", "log_limit": 1000}
    command = [sys.executable, "-I", "-S", "/opt/bisector/lib/worker.py", "supervise", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as supervisor:
        spec |= {"timeout": 30, "result": str(result)}
        print(json.dumps(spec), file=supervisor.stdin, flush=True)
        supervisor.wait(30)
    if json.loads(result.read_text())["exit"]:
        raise OSError(errno.ECHILD, "the training did not end well")

def make_a_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000):  # CLONE_NEWUSER
        raise OSError(ctypes.get_errno(), "unshare")

NEEDED = {
    "state": lambda: write("/var/lib/bisector/file"),
    "shared memory": lambda: write("/dev/shm/bisector"),
    "credential": lambda: open(os.environ["CREDENTIALS_DIRECTORY"] + "/slack"),
    "compiled code": lambda: mmap.mmap(-1, 1, prot=mmap.PROT_WRITE | mmap.PROT_EXEC),
    "affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "processor": lambda: open("/proc/cpuinfo"),
    "memory": lambda: open("/proc/vmstat"),
    "interfaces": socket.if_nameindex,
    "internet": lambda: socket.socket(socket.AF_INET6),
    "turns": take_turns,
    "a person's run": see_a_persons_run,
    "supervision": supervise,
}
REFUSED = {
    "settings": lambda: write("/etc/bisector/bisector.toml"),
    "program": lambda: write("/opt/bisector/bin/bisector"),
    "secret": lambda: open("/etc/bisector/slack-url"),
    "home": lambda: os.listdir("/root"),
    "device": lambda: open("/dev/foreign"),
    "namespace": make_a_namespace,
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "others' processes": lambda: open("/proc/1/stat"),
}

def attempt(act):
    try:
        act()
    except OSError as error:
        return str(error)
    return "works"

found = {name: attempt(act) for name, act in (NEEDED | REFUSED).items()}
print("wrong:", {name: how for name, how in found.items() if (how == "works") != (name in NEEDED)})
"""

# Times that a test can wait for.
FAST = "[Service]\nRestartSec=100ms\nWatchdogSec=1s\nTimeoutAbortSec=1s\n"

LACK = booting.find_lack()
booted = pytest.mark.skipif(bool(LACK), reason=LACK)
analyzed = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


def steps(heading: str) -> list[str]:
    """Return the shell lines below a heading of the README."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    return [
        line
        for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]


def take(machine: Machine, heading: str) -> str:
    """Run the steps below a heading as root in a checkout, and return what they print.

    The program is PROGRAM in place of a virtual environment, for which pip would fetch gigabytes.
    """
    printed = ""
    for line in steps(heading):
        if "-m venv" in line:
            machine.write("/opt/bisector/bin/bisector", PROGRAM, 0o755)
            source = Path(service_manager.__file__).read_text()
            machine.write("/opt/bisector/lib/service_manager.py", source)
        elif "/pip " not in line:
            step = line.replace("sudo -u bisector", "runuser -u bisector --")
            printed += machine.run("sh", "-c", step, text=f"{WEBHOOK}\n", cwd=ROOT)
    return printed


# The files


@analyzed
def test_the_unit_is_verified_without_a_word(tmp_path: Path) -> None:
    system = tmp_path / "usr/lib/systemd/system"
    shutil.copytree("/lib/systemd/system", system, symlinks=True)
    for command in re.findall(r"^Exec\w+=(\S+)", UNIT.read_text(), re.MULTILINE):
        program = tmp_path / command.lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(0o755)
    shutil.copy(UNIT, system)
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={tmp_path}", "bisector.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@analyzed
def test_the_unit_exposes_at_most_3() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]


def test_the_example_settings_load_and_name_the_places_of_the_unit() -> None:
    settings, unit = load_settings(SETTINGS), UNIT.read_text()
    assert settings.state.dir == "/var/lib/bisector"
    assert "\nStateDirectory=bisector\n" in unit
    (channel,) = settings.notify
    assert channel.url_file == "/run/credentials/bisector.service/slack"
    assert "\nLoadCredential=slack:/etc/bisector/slack-url\n" in unit


def test_the_steps_name_the_places_of_the_unit() -> None:
    unit, install = UNIT.read_text(), "\n".join(steps("Install"))
    for place in ("/opt/bisector", "/etc/bisector/bisector.toml", "/etc/bisector/slack-url"):
        assert place in unit
        assert place in install
    assert set(steps("Upgrade")) - set(steps("Install")) == {"systemctl restart bisector"}


# The protocol


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        yield listening


@pytest.mark.parametrize("form", ["path", "abstract"])
def test_lines_reach_the_manager_as_one_message(
    form: str, manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify") if form == "path" else f"@bisector-test-{os.getpid()}"
    manager.bind(name.replace("@", "\0"))
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    assert service_manager.tell("READY=1", "STATUS=waits for commits …")
    assert manager.recv(4096).decode() == "READY=1\nSTATUS=waits for commits …"


def test_a_line_break_starts_no_assignment_of_its_own(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    assert service_manager.tell("STATUS=runs “mend\nMAINPID=1\r\n”", "WATCHDOG=1")
    assert manager.recv(4096).decode() == "STATUS=runs “mend MAINPID=1 ”\nWATCHDOG=1"


def test_without_a_manager_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not service_manager.tell("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not service_manager.tell("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/" + "x" * 200)
    assert not service_manager.tell("READY=1")


def test_a_manager_that_does_not_listen_holds_nobody_up(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    started = time.monotonic()
    while service_manager.tell("WATCHDOG=1"):
        assert time.monotonic() < started + 5, "the queue has an end"
    assert time.monotonic() < started + 3


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "120000000"}, 60.0),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time(
    variables: dict[str, str], interval: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert service_manager.watchdog_interval() == interval


# Under a real service manager


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the service was installed by the README's steps, with times to wait for."""
    with booting.boot(tmp_path_factory.mktemp("machine")) as machine:
        take(machine, "Install")
        machine.write("/etc/systemd/system/bisector.service.d/fast.conf", FAST)
        machine.run("systemctl", "daemon-reload")
        yield machine


@pytest.fixture
def service(machine: Machine) -> Iterator[Machine]:
    """The machine with the service just started, and stopped after."""
    machine.run("systemctl", "reset-failed")
    machine.run("systemctl", "restart", "bisector")
    yield machine
    machine.run("systemctl", "stop", "bisector")
    machine.run("rm", "-f", "/etc/systemd/system/bisector.service.d/test.conf")
    machine.run("systemctl", "daemon-reload")


def adapt(machine: Machine, text: str) -> None:
    """Change the unit for one test."""
    machine.write("/etc/systemd/system/bisector.service.d/test.conf", f"[Service]\n{text}\n")
    machine.run("systemctl", "daemon-reload")


def restarts(machine: Machine) -> int:
    return int(machine.show("bisector", "NRestarts"))


def wait_for_restart(machine: Machine, before: int) -> None:
    is_next = {"NRestarts": lambda count: int(count) > before, "ActiveState": "active".__eq__}
    machine.wait("bisector", is_next, timeout=15)


def processes(machine: Machine) -> str:
    return machine.attempt("pgrep", "--list-full", "--uid", "bisector").stdout


@booted
def test_the_service_runs_and_says_what_it_does(service: Machine) -> None:
    assert service.show("bisector", "ActiveState") == "active"
    assert service.show("bisector", "StatusText")
    assert "bisector watches" in service.journal("bisector")


@booted
@pytest.mark.slow
def test_the_steps_of_every_day_work(service: Machine) -> None:
    assert "active (running)" in take(service, "See how it fares")
    pid = service.show("bisector", "MainPID")
    take(service, "Change it")
    service.wait("bisector", {"ActiveState": "active".__eq__}, timeout=5)
    assert service.show("bisector", "MainPID") == pid
    take(service, "Upgrade")
    assert service.show("bisector", "ActiveState") == "active"
    assert service.show("bisector", "MainPID") != pid


@booted
def test_a_start_lasts_until_the_service_says_that_it_is_ready(service: Machine) -> None:
    command = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)[0]
    adapt(
        service,
        f"ExecStart=\nExecStart=env -u NOTIFY_SOCKET {command}\nTimeoutStartSec=1s\nRestart=no",
    )
    done = service.attempt("systemctl", "restart", "bisector")
    assert done.returncode == 1
    assert service.show("bisector", "Result") == "timeout"


@booted
def test_a_secret_is_readable_by_the_service_alone(service: Machine) -> None:
    place = "/run/credentials/bisector.service/slack"
    assert service.run("runuser", "-u", "bisector", "--", "cat", place).strip() == WEBHOOK
    for user, path in (("nobody", place), ("bisector", "/etc/bisector/slack-url")):
        assert service.attempt("runuser", "-u", user, "--", "cat", path).returncode == 1
    pid = service.show("bisector", "MainPID")
    for name in ("environ", "cmdline"):
        assert WEBHOOK not in service.run("cat", f"/proc/{pid}/{name}")


@booted
def test_without_the_secret_the_service_starts_and_finds_it_empty(service: Machine) -> None:
    service.run("mv", "/etc/bisector/slack-url", "/etc/bisector/away")
    try:
        service.run("systemctl", "restart", "bisector")
        assert service.run("cat", "/run/credentials/bisector.service/slack").strip() == ""
    finally:
        service.run("mv", "/etc/bisector/away", "/etc/bisector/slack-url")


@booted
def test_a_service_that_no_longer_advances_is_started_again(service: Machine) -> None:
    before = restarts(service)
    service.run("systemctl", "kill", "--signal=STOP", "--kill-who=main", "bisector")
    wait_for_restart(service, before)
    assert "Watchdog timeout" in service.journal("bisector")


@booted
def test_a_killed_service_is_started_again_without_what_it_left(service: Machine) -> None:
    left = set(processes(service).splitlines())
    before = restarts(service)
    service.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "bisector")
    wait_for_restart(service, before)
    assert not left & set(processes(service).splitlines())


@booted
@pytest.mark.slow
def test_a_service_that_always_fails_is_given_up(service: Machine) -> None:
    adapt(service, "ExecStart=\nExecStart=/bin/false")
    service.run("systemctl", "stop", "bisector")
    service.run("systemctl", "reset-failed")
    service.attempt("systemctl", "start", "bisector")
    service.wait("bisector", {"ActiveState": "failed".__eq__, "NRestarts": "5".__eq__}, timeout=15)


@booted
def test_the_sandbox_leaves_what_trainings_need_and_little_else(service: Machine) -> None:
    service.write("/opt/bisector/lib/sandbox.py", SANDBOX)
    service.write("/opt/bisector/lib/worker.py", WORKER.read_text())
    service.run("mknod", "--mode=666", "/dev/foreign", "c", "10", "229")
    hold = "flock --no-fork /tmp/bisector-cuda0.lock sh -c 'exec sleep 60 >/dev/null 2>&1'"
    person = "setpriv --reuid=bisector --regid=bisector --clear-groups"
    service.run("sh", "-c", f"umask 0; PERSON=1 {person} {hold} &")
    command = "/usr/bin/python3 -I /opt/bisector/lib/sandbox.py"
    adapt(service, f"Type=oneshot\nRestart=no\nExecStart=\nExecStart={command}")
    service.run("systemctl", "restart", "bisector")
    service.run("pkill", "--exact", "sleep")
    assert "wrong: {}" in service.journal("bisector")


@booted
def test_a_stop_is_quick_and_leaves_no_process(service: Machine) -> None:
    assert processes(service)
    started = time.monotonic()
    service.run("systemctl", "stop", "bisector")
    assert time.monotonic() < started + 10
    assert service.show("bisector", "Result") == "success"
    assert processes(service) == ""


@booted
@pytest.mark.slow
def test_the_uninstall_steps_leave_nothing(tmp_path: Path) -> None:
    with booting.boot(tmp_path) as machine:
        take(machine, "Install")
        take(machine, "Uninstall")
        for place in ("/opt/bisector", "/etc/bisector", "/var/lib/bisector"):
            assert machine.attempt("test", "-e", place).returncode == 1, place
        assert machine.attempt("id", "bisector").returncode == 1
        assert machine.attempt("systemctl", "cat", "bisector").returncode == 1


# The same with the real service, on a small branch

REAL = """#!/bin/sh
PYTHONPATH=/opt/bisector/lib:{packages} exec /usr/bin/python3 -m bisector "$@"
"""
REAL_SETTINGS = """
[watch]
repository = "/opt/remote.git"
interval = "1s"
suite = "/etc/bisector/toy.toml"
[train]
python = "/usr/bin/python3"
[state]
dir = "/var/lib/bisector"
"""


@booted
def test_the_real_service_watches_is_killed_goes_on_and_stops(tmp_path: Path) -> None:
    remote = Remote(tmp_path)
    remote.push()
    for number in range(3):
        remote.commit(f"harmless {number}")
    with booting.boot(tmp_path) as machine:
        take(machine, "Install")
        machine.run("systemctl", "stop", "bisector")
        program = REAL.format(packages=sysconfig.get_path("purelib"))
        machine.write("/opt/bisector/bin/bisector", program, 0o755)
        machine.run(
            "cp", "-r", str(ROOT / "bisector"), str(ROOT / "references"), "/opt/bisector/lib"
        )
        machine.run("cp", "-r", str(remote.path), "/opt/remote.git")
        machine.run("chown", "-R", "bisector:", "/opt/remote.git")
        machine.write("/etc/bisector/toy.toml", SUITE)
        machine.write("/etc/bisector/bisector.toml", REAL_SETTINGS)
        tried = machine.attempt(
            "runuser", "-u", "bisector", "--", "/opt/bisector/bin/bisector", "--help"
        )
        if tried.returncode:
            pytest.skip(f"the system's Python cannot run it: {tried.stderr[-200:]}")
        machine.run("systemctl", "reset-failed")
        machine.run("systemctl", "start", "bisector")
        head = git(remote.path, "rev-parse", "main")
        is_seen = {
            "StatusText": lambda text: text.startswith(f"at {head[:10]}; 0 running, 0 wanted")
        }
        machine.wait("bisector", is_seen, timeout=60)

        before = restarts(machine)
        machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "bisector")
        machine.wait("bisector", {"NRestarts": lambda count: int(count) > before}, timeout=40)
        machine.wait("bisector", is_seen, timeout=60)
        started = time.monotonic()
        machine.run("systemctl", "stop", "bisector")
        assert time.monotonic() < started + 10
        assert machine.show("bisector", "Result") == "success"
        assert processes(machine) == ""
