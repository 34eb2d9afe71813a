"""Boots a real systemd as PID 1 of namespaces of its own, on a view of this machine that forgets.

A booted machine sees this one's files. What it writes to /etc, /opt, /var and /tmp (users, units, state) lies
in memory and is gone with it; so are its processes, however the test ends. It has no network but a loopback
of its own, harmless devices alone, and none of this machine's services. No controller limits its memory
or processors there, and there is no logind, udev or D-Bus.

Needs root, overlayfs and a cgroup2 hierarchy that can be written; `find_lack` says what is missing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SYSTEMD = "/lib/systemd/systemd"
TOOLS = ("mount", "nsenter", "setpriv", "systemctl", "unshare")
NAMESPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net")
FORGOTTEN = ("/etc", "/opt", "/var", "/tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOOT_TIMEOUT = 30.0  # seconds; it takes half a second
# What a service takes for granted, and a journal; nothing that this machine would start.
UNITS = {
    "sysinit.target": "Requires=systemd-journald.service\nAfter=systemd-journald.service",
    "basic.target": "Requires=sysinit.target\nAfter=sysinit.target",
    "multi-user.target": "Requires=basic.target\nAfter=basic.target\nAllowIsolate=yes",
    "shutdown.target": "",
    "systemd-journald.socket": "[Socket]\nListenStream=/run/systemd/journal/stdout\n"
    "ListenDatagram=/run/systemd/journal/socket",
    "systemd-journald.service": "Requires=systemd-journald.socket\n"
    f"[Service]\nType=notify\nExecStart={SYSTEMD}-journald",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """A running systemd; `pid` is the process number that it has outside."""

    pid: int

    def run(self, *command: str, text: str = "", cwd: Path = Path("/"), timeout: float = 60) -> str:
        """Return what a command in the machine prints, run as root with `text` as its input."""
        done = self.attempt(*command, text=text, cwd=cwd, timeout=timeout)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(
        self, *command: str, text: str = "", cwd: Path = Path("/"), timeout: float = 60
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in the machine, whatever becomes of it."""
        return subprocess.run(
            [
                *("nsenter", f"--target={self.pid}", "--all", "--root"),
                *("env", f"--chdir={cwd}", *command),
            ],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "SYSTEMD_PAGER": ""},
        )

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file in the machine, and the folders above it."""
        self.run("install", "-D", f"--mode={mode:o}", "/dev/stdin", path, text=text)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def wait(self, unit: str, wanted: Mapping[str, Callable[[str], bool]], timeout: float) -> None:
        """Return once the properties of a unit are as `wanted`; fail after the time-out."""
        deadline = time.monotonic() + timeout
        while True:
            found = {name: self.show(unit, name) for name in wanted}
            if all(is_wanted(found[name]) for name, is_wanted in wanted.items()):
                return
            assert time.monotonic() < deadline, f"{unit}: {found}\n{self.journal(unit)}"
            time.sleep(0.05)

    def journal(self, unit: str) -> str:
        """Return what a unit logged, and what the manager logged of it."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", f"--unit={unit}", "--output=cat", "--no-pager")


def find_lack() -> str:
    """Return why no systemd can be booted here; empty if one can."""
    if os.getuid():
        return "only root can boot a systemd"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing or not Path(SYSTEMD).exists():
        return f"{', '.join(missing) or SYSTEMD} is not installed"
    hierarchy = _hierarchy()
    if hierarchy is None or not os.access(hierarchy, os.W_OK):
        return "there is no cgroup2 hierarchy that can be written"
    tried = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no namespaces can be made here"


@contextmanager
def boot(folder: Path) -> Iterator[Machine]:
    """Boot a machine that lives as long as the context; `folder` keeps its console."""
    hierarchy = _hierarchy()
    assert hierarchy
    console = folder / "console"
    console.touch()
    cgroup = hierarchy / f"bisector-test-{os.getpid()}-{time.monotonic_ns()}"
    cgroup.mkdir()

    def join() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    with console.open("ab") as log:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig=KILL", "unshare", *NAMESPACES),
                *("--fork", "--kill-child=KILL", "--mount-proc"),
                *(sys.executable, __file__, str(console)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=join,
        )
    try:
        yield _wait_until_up(process, console)
    finally:
        process.kill()  # and PID 1 with it, and with that all that is left
        process.wait()
        _remove(cgroup)


def _hierarchy() -> Path | None:
    """Return where the cgroup2 hierarchy is mounted: the only one, or beside those of version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)


def _wait_until_up(process: "subprocess.Popen[bytes]", console: Path) -> Machine:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + BOOT_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            machine = Machine(int(children.read_text()))
            state = machine.attempt("systemctl", "is-system-running").stdout.strip()
            if state == "running":
                return machine
        time.sleep(0.05)
    raise AssertionError(f"systemd did not come up:\n{console.read_text()}")


def _remove(cgroup: Path) -> None:
    """Remove a cgroup and those below it, once the last of its processes is reaped."""
    deadline = time.monotonic() + 10
    while cgroup.exists():
        for path in sorted(cgroup.rglob("*/"), reverse=True):
            with suppress(OSError):
                path.rmdir()
        with suppress(OSError):
            cgroup.rmdir()
        assert time.monotonic() < deadline, f"{cgroup} is still in use"
        time.sleep(0.01)


# Inside the namespaces, before there is a systemd


def _become_init(console: str) -> None:
    """Lay out the machine's file system, and become its systemd."""
    _mount("tmpfs", "/run", "mode=755")
    _make_devices(console)  # while the console can be reached: its folder may be in /tmp
    for place in FORGOTTEN:
        layers = Path(f"/run/layers{place}")
        (layers / "upper").mkdir(parents=True)
        (layers / "work").mkdir()
        shutil.copystat(place, layers / "upper")
        options = f"lowerdir={place},upperdir={layers}/upper,workdir={layers}/work"
        _mount("overlay", place, options)
    _mount("tmpfs", "/etc/systemd/system", "mode=755")
    units = Path("/run/systemd/system")
    units.mkdir(parents=True)
    for name, text in UNITS.items():
        (units / name).write_text(f"[Unit]\nDefaultDependencies=no\n{text}\n")
    for place in ("/proc/sys", "/sys"):  # systemd would raise the kernel's limits
        _run("mount", "--bind", "-o", "ro", place, place)
    _mount("cgroup2", "/sys/fs/cgroup", "rw")
    _run(
        "mount", "--make-rshared", "/"
    )  # as PID 1 does at boot: how a service gets its credentials
    variables = {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "container": "bisector-test",  # it is told that the kernel is not its own
        "SYSTEMD_UNIT_PATH": f"/etc/systemd/system:{units}",
        "SYSTEMD_GENERATOR_PATH": "/nonexistent",  # generators would read this machine's fstab
        "SYSTEMD_LOG_TARGET": "journal-or-kmsg",
    }
    os.execve(SYSTEMD, [SYSTEMD, "--unit=multi-user.target", "--show-status=no"], variables)


def _make_devices(console: str) -> None:
    """Make a /dev of the machine's own: the kernel has but one devtmpfs."""
    devices = Path("/run/dev")
    devices.mkdir()
    _mount("tmpfs", str(devices), "mode=755")
    for name, source in {"console": console, **{name: f"/dev/{name}" for name in DEVICES}}.items():
        (devices / name).touch()
        _run("mount", "--bind", source, str(devices / name))
    (devices / "pts").mkdir()
    _mount("devpts", str(devices / "pts"), "newinstance,ptmxmode=666,mode=620")
    (devices / "ptmx").symlink_to("pts/ptmx")
    (devices / "shm").mkdir()
    _mount("tmpfs", str(devices / "shm"), "mode=1777")
    (devices / "fd").symlink_to("/proc/self/fd")
    (devices / "stdin").symlink_to("/proc/self/fd/0")
    _run("mount", "--move", str(devices), "/dev")


def _mount(kind: str, place: str, options: str) -> None:
    _run("mount", "-t", kind, "-o", options, kind, place)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    _become_init(sys.argv[1])
