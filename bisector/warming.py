"""Decides which runs are forked from a warm process, and when that process is started and replaced.

A warm run that trained is as good as a cold one. Whatever else it showed is made again cold before it
counts; where that one trains, the warm process was at fault.
"""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bisector import processes, runner
from bisector.job import Supervisor
from bisector.model import Config, Environment, Role, RunResult
from bisector.session import Session
from bisector.warm import Template

ROLES = (Role.END, Role.NOISE, Role.SEARCH, Role.TEST, Role.CONFIRM, Role.REVERT)
MOST_FORKS = 200
MOST_FAILURES = 2  # templates that failed, after which all runs are cold
READY = 120.0  # seconds that a template has to import everything
IDLE = 300.0  # seconds without a run after which a template ends


class Warming:
    """The warm process of a bench. `say` is told when one fails."""

    def __init__(self, session: Session, folder: Path, say: Callable[[str], None]) -> None:
        self._session, self._folder, self._say = session, folder, say
        self._template: Template | None = None
        self._environment: tuple[object, ...] = ()
        self._since = self._used = 0.0
        self._failures = 0 if session.warm else MOST_FAILURES

    def may_be_warm(self, config: Config, role: Role) -> bool:
        """Whether such a run may be forked."""
        is_plain = config.method is not None and config.num_processes == 1
        return is_plain and role in ROLES and self._failures < MOST_FAILURES

    def is_preparing(self, environment: Environment, devices: str) -> bool:
        """Whether a run had better wait for the template, which is started if there is none.

        Several cold runs take longer than the template's start and as many warm ones.
        """
        found = environment.python, environment.packages
        if self._template and (found != self._environment or self._template.forks >= MOST_FORKS):
            self.close()
        if not self._template and self._failures < MOST_FAILURES:
            self._environment = found
            self._start(devices)
        if self._template and self._template.is_dead():
            self.note_failure(self._template.why_dead())
            return True
        if not self._template or self._template.is_ready():
            return False
        if time.monotonic() - self._since > READY:
            self.note_failure("it did not come up")
        return True

    def _start(self, devices: str) -> None:
        session, name = self._session, f"w{uuid.uuid4().hex[:10]}"  # as long as a run's
        folder = self._folder / name
        variables = runner.variables_of_place(
            session.python, folder / "root", session.state / "hub", devices
        )
        mark = processes.mark(session.owner, name)
        self._template = Template(session.python, {**variables, **mark}, folder)
        self._since = self._used = time.monotonic()

    def supervisor(self, checkout: Path) -> Supervisor | None:
        """Return what a warm run of the checkout is started by; None: it must run cold."""
        if not self._template or self._template.is_dead() or self._template.find_shadow(checkout):
            return None
        self._used = time.monotonic()
        return self._template.supervisor()

    def note_failure(self, reason: str) -> None:
        """Replace the template, or do without one after too many failures."""
        self._failures += 1
        self._say(f"The warm process is replaced: {reason}.")
        self.close()

    def rest(self) -> None:
        """End the template if no run has wanted it for long."""
        if self._template and time.monotonic() - self._used > IDLE:
            self.close()

    def close(self) -> None:
        """End the template; what was forked from it goes on."""
        if self._template:
            self._template.close()
            self._template = None


def is_conclusive(result: RunResult) -> bool:
    """Whether what a run showed stands; a warm one stands only if it trained."""
    return result.has_trained or not result.warm
