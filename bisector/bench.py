"""The runs in progress: starts each in a free device slot, collects what it showed, stores that first."""

import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisector import environment, processes
from bisector.contents import Footprint
from bisector.declared import read_declared
from bisector.envs import Refused
from bisector.errors import InfraError, KilledError, SupervisorKilledError
from bisector.job import Job
from bisector.model import (
    CONFLICTS,
    Config,
    Crash,
    Environment,
    Role,
    Run,
    RunResult,
    Status,
    short,
)
from bisector.running import Running
from bisector.session import Session
from bisector.sites import Site, Sites
from bisector.slots import Slots, device_of
from bisector.warming import Warming, is_conclusive

POLL = 0.01  # seconds between looks at running children
KILLS_UNTIL_CRASH = 5  # a training killed so often at one step is taken to bring it on itself


@dataclass(frozen=True, slots=True)
class Order:
    """A run to make: a config at a commit, for a hunt or (None) for a single question.

    Two orders are the same if hunt, commit, role, the config's name, `is_cold` and `without` are.
    """

    hunt: str | None
    sha: str
    role: Role
    name: str = field(init=False)
    config: Config = field(compare=False)
    environment: Environment = field(compare=False)
    is_cold: bool = False  # never forked from a warm process
    without: str = ""  # a commit that is reverted in the checkout
    # Whether it is told after each step to go on or to stop.
    is_led: bool = field(default=False, compare=False)
    # Where it is made; None: at its commit, with the training interpreter.
    site: Site | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.config.name)

    @property
    def pins(self) -> Mapping[str, str]:
        """Return the versions to install in place of what the training interpreter has."""
        return self.site.pins if self.site else {}


@dataclass(frozen=True, slots=True)
class InFlight:
    """A run in progress, the slots it holds and when it began (seconds since the epoch)."""

    order: Order
    running: Running
    slots: list[str]
    began: float


class Bench:
    """Makes runs, several side by side. `say` is told what a person should know."""

    def __init__(self, session: Session, say: Callable[[str], None]) -> None:
        self._session, self._say = session, say
        self._slots = Slots(slot_names(session))
        self._checkouts = session.state / "checkouts" / session.owner
        self._scratch = session.state / "scratch" / session.owner
        self._refused: list[tuple[Order, Run]] = []
        self._kills: dict[Order, list[tuple[type, int]]] = {}  # how, and at which step, tries ended
        self._warming = Warming(session, self._scratch, say)
        self._sites = Sites(session)
        self._must_be_cold: dict[Order, str] = {}  # and what they showed when they were warm
        self.in_flight: list[InFlight] = []
        self._newest = 0.0

    def __enter__(self) -> "Bench":
        self._newest = self._session.store.newest_start()  # and sweeps what killed processes left
        for folder in (self._checkouts, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """End what runs; nothing of it is observed."""
        for flight in list(self.in_flight):
            self.cancel(flight.order)
        self._warming.close()
        self._sites.close()
        for folder in (self._checkouts, self._scratch):
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, order: Order) -> bool:
        """Start a run; False: no slot is free, or an interpreter or a warm process is about to be there, try
        again later."""
        python = self._session.python
        if order.pins:
            stand = self._sites.ask(order.pins, order.config)
            if stand is None:
                return False
            if isinstance(stand, Refused):
                name = f"r{uuid.uuid4().hex[:10]}"
                self._refuse(order, name, RunResult(Status.SETUP_FAILED, reason=stand.reason))
                return True
            python, order = stand.python, replace(order, environment=stand.environment)
        devices = ",".join(gpu.index for gpu in self._session.suite_gpus[:1])
        if self._may_be_warm(order) and self._warming.is_preparing(order.environment, devices):
            return False
        slots = self._slots.take(order.config.num_processes)
        if slots is None:
            return False
        try:
            flight = self._launch(order, python, slots)
        except OSError as error:
            self._slots.give(slots)
            raise InfraError(
                f"The run of {short(order.sha)} could not be prepared: {error}.",
                "Free space under the state directory; run it again.",
            ) from None
        except BaseException:
            self._slots.give(slots)
            raise
        if flight:
            self.in_flight.append(flight)
        else:
            self._slots.give(slots)
        return True

    def _may_be_warm(self, order: Order) -> bool:
        is_allowed = self._warming.may_be_warm(order.config, order.role)
        return (
            is_allowed and not order.pins and not order.is_cold and order not in self._must_be_cold
        )

    def cancel(self, order: Order) -> None:
        """End a run in progress; nothing of it is observed."""
        for flight in [each for each in self.in_flight if each.order == order]:
            flight.running.cancel()
            self.in_flight.remove(flight)
            self._clear(flight)

    def collect(self) -> list[tuple[Order, Run]]:
        """Return the runs that ended since the last call, stored already, with what ordered them."""
        self._warming.rest()
        ended, self._refused = self._refused, []
        for flight in list(self.in_flight):
            try:
                result = flight.running.poll()
            except KilledError as error:
                result = self._after_kill(flight, error)
            else:
                if result is None:
                    continue
            self.in_flight.remove(flight)
            self._clear(flight)
            if result and self._has_made_room(flight, result):
                continue
            if result and self._stands(flight.order, result):
                name = flight.running.job.run
                run = self._store(flight.order, name, flight.began, result)
                ended.append((flight.order, run))
        return ended

    def _has_made_room(self, flight: InFlight, result: RunResult) -> bool:
        """Whether a run found no memory beside another of ours: from now on one goes on a device at a time."""
        taken = {device_of(slot) for other in self.in_flight for slot in other.slots}
        is_beside = not taken.isdisjoint(map(device_of, flight.slots))
        if not (is_beside and result.crash and result.crash.type == "OutOfMemoryError"):
            return False
        self._slots.keep_one_a_device()
        self._say(
            f"{short(flight.order.sha)} found no memory beside another run; now one at a time."
        )
        return True

    def _stands(self, order: Order, result: RunResult) -> bool:
        """Whether what a run showed counts; else it is made again, cold."""
        if not is_conclusive(result):
            self._must_be_cold[order] = result.reason
            return False
        failure = self._must_be_cold.pop(order, "")
        if failure and result.has_trained:
            self._warming.note_failure(f"{short(order.sha)} trained cold; warm: {failure}")
        return True

    def _launch(self, order: Order, python: str, slots: list[str]) -> InFlight | None:
        """Return the run in progress, or None where the commit cannot be set up here."""
        name, config = f"r{uuid.uuid4().hex[:10]}", order.config
        checkout = self._checkouts / name  # its own: a training may write into it
        repository, commit = (
            self._session.repository,
            order.site.commit if order.site else order.sha,
        )
        if not order.without:
            repository.checkout(commit, checkout)
        elif not repository.checkout_without(commit, order.without, checkout):
            self._refuse(order, name, RunResult(Status.SETUP_FAILED, reason=CONFLICTS))
            return None
        declared = read_declared(checkout)
        lack = ""
        if config.method:
            lack = environment.find_unsatisfied(
                declared.requirements, declared.requires_python, order.environment
            )
        elif config.script and not (checkout / config.script).is_file():
            lack = f"the commit has no file {config.script}"
        if lack:
            read = Footprint(data=frozenset({config.script} if config.script else ()))
            is_known = config.method is not None or (
                config.has_footprint and not _has_link(checkout, config.script or "")
            )
            footprint = read if is_known else None  # what is declared counts for every footprint
            result = RunResult(Status.SETUP_FAILED, reason=lack, footprint=footprint)
            self._refuse(order, name, result)
            return None
        devices = map(device_of, slots)
        gpus = [device.removeprefix("cuda") for device in devices if device.startswith("cuda")]
        job = Job(
            run=name,
            config=config,
            checkout=checkout,
            declared=declared,
            scratch=self._scratch / name,
            log=self._session.state / "logs" / f"{name}.log",
            hub=self._session.state / "hub",
            assets=self._session.assets_of(config),
            python=python,
            devices=",".join(gpus),
            timeout=self._session.settings.train.timeout,
            mark=processes.mark(self._session.owner, name),
            is_led=order.is_led and config.method is not None,
        )
        supervisor = self._warming.supervisor(checkout) if self._may_be_warm(order) else None
        return InFlight(order, Running(job, supervisor), slots, self._now())

    def _refuse(self, order: Order, name: str, result: RunResult) -> None:
        """Store a run that could not be set up."""
        shutil.rmtree(self._checkouts / name, ignore_errors=True)
        self._refused.append((order, self._store(order, name, self._now(), result)))

    def _now(self) -> float:
        """Return the time, but never one before the runs that are stored: a clock may be set back."""
        self._newest = max(time.time(), self._newest + 1e-3)
        return self._newest

    def _clear(self, flight: InFlight) -> None:
        """Give back what a run held, and remove all but its log."""
        job = flight.running.job
        self._slots.give(flight.slots)
        for folder in (job.scratch, job.checkout):
            shutil.rmtree(folder, ignore_errors=True)

    def _after_kill(self, flight: InFlight, error: KilledError) -> RunResult | None:
        """Return None to try again, or a crash where the last tries all ended so, at the same step."""
        order = flight.order
        processes.kill_run(self._session.owner, flight.running.job.run)
        if flight.running.is_warm:
            self._must_be_cold[order] = error.problem
            self._say(f"{short(order.sha)}: {error.problem} {error.remedy}")
            return None
        kills = self._kills.setdefault(order, [])
        kills.append((type(error), flight.running.steps()))
        recent = kills[-KILLS_UNTIL_CRASH:]
        if len(recent) < KILLS_UNTIL_CRASH or len(set(recent)) > 1:
            self._say(f"{short(order.sha)}: {error.problem} {error.remedy}")
            return None
        if isinstance(error, SupervisorKilledError):
            raise InfraError(
                f"The supervisor of {short(order.sha)} was killed {len(recent)} times in a row.",
                "Find out what kills it, perhaps the commit itself; run it again.",
            )
        message = f"killed {len(recent)} times in a row at step {recent[0][1]}, perhaps for memory"
        crash = Crash("Killed", "", message)
        return RunResult(Status.CRASHED, (), crash, message, time.time() - flight.began)

    def _store(self, order: Order, name: str, began: float, result: RunResult) -> Run:
        if result.crash and result.crash.type == "OutOfMemoryError" and self._is_crowded():
            raise InfraError(
                f"{short(order.sha)} ran out of GPU memory while another process used the GPU.",
                "Wait until the GPU is free; run it again.",
            )
        if order.without:  # what it read is no commit's
            result = replace(result, footprint=None)
        run = Run(name, order.hunt, order.sha, order.role, result, began, order.environment.id)
        self._session.store.add_run(
            run, config=order.config.digest, name=order.config.name, environment=order.environment
        )
        return run

    def _is_crowded(self) -> bool:
        return bool(self._session.suite_gpus) and environment.is_device_shared([])


def _has_link(checkout: Path, path: str) -> bool:
    """Whether a link lies on the way to a file of the checkout, so that more than its own path matters."""
    file = checkout / path
    return any(each.is_symlink() for each in (file, *file.parents) if each.is_relative_to(checkout))


def slot_names(session: Session) -> list[str]:
    """Return the device slots that runs of this session may take."""
    gpus = session.suite_gpus
    if not gpus:
        return [f"cpu{n}" for n in range(session.jobs)]
    rounds = range(max(-(-session.jobs // len(gpus)), 1))
    return [f"cuda{gpu.index}" + (f".{n}" if n else "") for n in rounds for gpu in gpus]
