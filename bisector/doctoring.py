"""`doctor`: checks what training needs, one thing a check, and says what to fix."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bisector.delivering import open_channels
from bisector.errors import BisectorError
from bisector.model import COMPARED_PACKAGES
from bisector.report import describe_environment, printable
from bisector.session import Session

LEAST_DISK = 2 * 10**9  # bytes: checkouts, logs and one run's caches, with room
NEEDED_PACKAGES = ("torch", "transformers", "accelerate", "datasets")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `remedy` says what to do where it is not well."""

    name: str
    is_well: bool
    found: str
    remedy: str = ""


def examine(session: Session) -> list[Check]:
    """Return every check; one that fails does not hide the others."""
    checks: Sequence[tuple[str, Callable[[Session], Check]]] = (
        ("git", _check_git),
        ("settings", _check_settings),
        ("state", _check_state),
        ("disk", _check_disk),
        ("interpreter", _check_interpreter),
        ("device", _check_device),
        ("suite", _check_suite),
        ("repository", _check_repository),
        ("isolation", _check_isolation),
        ("channels", _check_channels),
    )
    found = []
    for name, check in checks:
        try:
            found.append(check(session))
        except BisectorError as error:
            found.append(Check(name, False, error.problem, error.remedy))
    return found


def _check_git(session: Session) -> Check:
    try:
        version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return Check("git", False, "git does not run.", "Install git 2.30 or later.")
    return Check("git", True, version.stdout.strip())


def _check_settings(session: Session) -> Check:
    name = session.options.settings or os.environ.get("BISECTOR_SETTINGS", "")
    _ = session.settings
    return Check("settings", True, name or "none; the defaults hold")


def _check_state(session: Session) -> Check:
    _ = session.store
    return Check("state", True, f"{session.state} can be written")


def _check_disk(session: Session) -> Check:
    free = shutil.disk_usage(session.state).free
    found = f"{free / 1e9:.1f} GB free"
    remedy = f"Free {LEAST_DISK / 1e9:.0f} GB, or move the state with --state."
    return Check("disk", free >= LEAST_DISK, found, "" if free >= LEAST_DISK else remedy)


def _check_interpreter(session: Session) -> Check:
    packages = session.described["packages"]
    missing = [name for name in NEEDED_PACKAGES if name not in packages]
    if missing:
        return Check(
            "interpreter",
            False,
            f"{session.python} lacks {', '.join(missing)}.",
            "Install them there, or name another interpreter with --python.",
        )
    versions = [f"{name} {packages[name]}" for name in COMPARED_PACKAGES if name in packages]
    return Check(
        "interpreter", True, f"Python {session.described['python']}, {', '.join(versions)}"
    )


def _check_device(session: Session) -> Check:
    if not session.gpus:
        return Check("device", True, f"CPU only, {session.jobs} runs side by side")
    return Check("device", True, ", ".join(gpu.name for gpu in session.gpus))


def _check_suite(session: Session) -> Check:
    configs = session.configs()
    lacking = [
        f"{config.name}: {lack}"
        for config in session.suite.configs.values()
        if (lack := session.find_lack(config))
    ]
    environments = [session.environment_of(config) for config in configs]
    found = f"{session.suite.name}: {', '.join(config.name for config in configs)} can run"
    if lacking:
        found += f"; not here: {'; '.join(lacking)}"
    return Check("suite", True, f"{found} ({describe_environment(environments[0])})")


def _check_repository(session: Session) -> Check:
    head = session.repository.resolve("HEAD")
    return Check("repository", True, f"{session.repository.location}, HEAD is {head[:10]}")


def _check_isolation(session: Session) -> Check:
    return Check(
        "isolation",
        True,
        "trainings run as this user, without its variables; they could read its files",
    )


def _check_channels(session: Session) -> Check:
    channels = open_channels(session.settings.notify)
    if not channels:
        return Check("channels", True, "none; `bisector watch` would tell nobody")
    for name in channels:
        last = session.ledger.last_of(name)
        if last and last.state != "delivered":
            remedy = "Mend the channel; `bisector notify-test` tries it."
            return Check("channels", False, f"{name}: {printable(last.reason)}.", remedy)
    return Check("channels", True, f"{', '.join(channels)}; `bisector notify-test` tries them")


def show(checks: Sequence[Check], console: Console) -> None:
    """Print one line a check, and below it what to do."""
    for check in checks:
        mark = Text("ok  " if check.is_well else "FIX ", style="green" if check.is_well else "red")
        console.print(mark + Text(f"{check.name}: {check.found}"))
        if check.remedy:
            console.print(Text(f"    {check.remedy}"))
