"""The tick: ask the core what is next, do it through one effect, store it; and the loop around it."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from bisector import plan
from bisector.bench import POLL, Bench, InFlight, Order
from bisector.candidates import Ranges
from bisector.case import Case, Start
from bisector.model import Conclusion, Run
from bisector.plan import Action, Cancel
from bisector.recalling import Memory
from bisector.report import count
from bisector.running import Running
from bisector.session import Session
from bisector.sites import Site
from bisector.stopping import may_stop


class Progress(Protocol):
    """Where a loop says what it does."""

    def finished(self, run: Run, config: str) -> None:
        """Hear of a run that ended."""

    def said(self, text: str) -> None:
        """Hear something that a person should know."""

    def tick(self, running: list[InFlight], cases: list[Case]) -> None:
        """Hear what runs now."""


class Loop:
    """Drives hunts to their ends; what is stored after each run is all that it needs to go on."""

    def __init__(self, session: Session, bench: Bench, progress: Progress) -> None:
        self._session, self._bench, self._progress = session, bench, progress
        self._cases: dict[str, Case] = {}
        self._ranges = Ranges(session, session.repository)
        self._memory = Memory(session)
        self._actions: list[Action] = []
        self._told: set[str] = set()  # the hunts whose places were counted
        self._planned_for: tuple[list[Start], int] | None = None  # what the core saw last
        self._led = WeakKeyDictionary[Running, tuple[object, ...]]()  # what was known of each run
        self.conclusions: dict[str, Conclusion] = {}

    def run(self, cases: list[Case], is_stopped: Callable[[], bool]) -> None:
        """Tick until every case is concluded or `is_stopped` says so; InfraError leaves all as it was."""
        self._cases = {case.hunt.id: self._ranges.mark(case) for case in cases}
        while self._cases and not is_stopped():
            if not self.tick():
                time.sleep(POLL)

    def tick(self) -> bool:
        """Collect what has ended, then do what is next; say whether anything happened."""
        self._lead()
        ended = self._bench.collect()
        for order, run in ended:
            self._take(order, run)
        cases = list(self._cases.values())
        in_flight = [start_of(flight.order) for flight in self._bench.in_flight]
        seen = (in_flight, len(cases))
        if ended or seen != self._planned_for:
            self._say_places(cases)
            self._actions = plan.next_actions(cases, in_flight, self._session.jobs)
            self._planned_for = seen
        done = []
        for action in self._actions:
            if isinstance(action, Start) and self._recall(action):
                self._planned_for = None  # what is known now changes what is wanted
                done.append(True)
                break
            done.append(self._do(action))
        self._progress.tick(self._bench.in_flight, cases)
        return bool(ended) or any(done)

    def _lead(self) -> None:
        """Stop the runs that have shown enough, and allow the others their next step."""
        led = [flight for flight in self._bench.in_flight if flight.order.is_led]
        for flight in led:
            flight.running.look()
        for flight in led:
            start, running = start_of(flight.order), flight.running
            case = self._cases.get(start.hunt)
            if case is None:
                continue
            others = [o.running.seen for o in led if plan.is_other_end(start, start_of(o.order))]
            known = len(running.seen), tuple(map(len, others)), len(case.runs)
            is_ahead = any(len(other) < len(running.seen) for other in others)
            if self._led.get(running) != known:
                stop = plan.stop_after(case, start, running.seen, others)
                if stop is not None:
                    running.stop(stop)
            if not (is_ahead and running.is_patient):
                running.allow(len(running.seen))
            self._led[running] = known

    def _say_places(self, cases: list[Case]) -> None:
        """Say once, before it is spent, what testing every place of a hunt costs."""
        for case in cases:
            id_ = case.hunt.id
            if id_ not in self._told and (places := plan.places_left(case)) is not None:
                self._told.add(id_)
                self._progress.said(f"{case.hunt.config.name}: {count(places, 'place')} to test")

    def _take(self, order: Order, run: Run) -> None:
        assert order.hunt
        case = self._cases.get(order.hunt)
        if case is None:  # concluded while this run was in flight
            return
        runs = sorted((*case.runs, run), key=lambda run: (run.started, run.id))
        self._cases[order.hunt] = self._ranges.mark(replace(case, runs=tuple(runs)))
        self._progress.finished(run, order.config.name)

    def _recall(self, start: Start) -> bool:
        """Let a stored run stand for one that is wanted, if there is one."""
        case = self._cases[start.hunt]
        run = self._memory.recall(case, start, self._ranges.candidates_of(case))
        if run:
            self._take(self._order(start), run)
        return run is not None

    def _do(self, action: Action) -> bool:
        if isinstance(action, Start):
            return self._bench.start(self._order(action))
        if isinstance(action, Cancel):
            self._bench.cancel(self._order(action.start))
            return True
        self._session.store.conclude(action.hunt, action.conclusion)
        self.conclusions[action.hunt] = action.conclusion
        del self._cases[action.hunt]
        return True

    def _order(self, start: Start) -> Order:
        hunt = self._cases[start.hunt].hunt
        asked = hunt.id, start.sha, start.role, hunt.config, hunt.environment
        site = Site(hunt.at or start.sha, hunt.pins.get(start.sha, {}))
        how = start.is_cold, start.without
        return Order(*asked, *how, is_led=may_stop(hunt), site=site)


def start_of(order: Order) -> Start:
    """Return the start that a run of a hunt was ordered by."""
    assert order.hunt
    return Start(order.hunt, order.sha, order.role, order.is_cold, order.without)
