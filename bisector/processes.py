"""Processes: names that outlive process numbers, and the end of what a run or a dead bisector left."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

MARKER = "BISECTOR_OWNER"  # in the environment of all that bisector starts: "owner/run"


def mark(owner: str, run: str) -> dict[str, str]:
    """Return the variables by which every process of a run can be found again."""
    return {MARKER: f"{owner}/{run}"}


def own_identity() -> str:
    """Return a name for this process that no later process of the same number shares."""
    pid = os.getpid()
    return f"{pid}-{_start_time(pid)}"


def is_alive(identity: str) -> bool:
    """Whether the process of that name still runs."""
    pid, _, started = identity.partition("-")
    return pid.isdigit() and bool(started) and _start_time(int(pid)) == started


def _start_time(pid: int) -> str:
    """Return the process's start in clock ticks since boot; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def kill_run(owner: str, run: str) -> None:
    """Kill every process that a run left, wherever it moved to."""
    _kill(lambda its_owner, its_run: (its_owner, its_run) == (owner, run))


def kill_orphans() -> None:
    """Kill every process whose owner is gone."""
    _kill(lambda owner, _: not is_alive(owner))


def kill_all() -> None:
    """Kill every process whose owner is gone, or is this process, which is about to end."""
    mine = own_identity()
    _kill(lambda owner, _: owner == mine or not is_alive(owner))


def _kill(is_meant: Callable[[str, str], bool]) -> None:
    prefix = f"{MARKER}=".encode()
    ours = os.readlink("/proc/self/ns/pid")
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if os.readlink(entry.with_name("ns") / "pid") != ours:
                continue  # a container's: its owner has another number there
            variables = entry.read_bytes().split(b"\0")
            marks = [v.removeprefix(prefix).decode() for v in variables if v.startswith(prefix)]
            if marks and is_meant(*marks[0].split("/", 1)):
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except (OSError, ValueError, TypeError):  # gone meanwhile, or a mark of nobody's
            continue
