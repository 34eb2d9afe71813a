"""`watch`: the service. It polls, asks the core what is next, does it, and stores it with what people are told.

The schedule only wakes it; the store decides. Whatever happens to the process, the next one goes on from
what is stored.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisector import bulletin, report, viewing
from bisector.acts import Act, Make, NewEnvironment, Open, Revert
from bisector.agenda import Agenda, make_agenda
from bisector.asking import Asker
from bisector.background import begin
from bisector.bench import Bench, Order
from bisector.branch import Branch
from bisector.bulletin import About
from bisector.case import Start
from bisector.config import Settings
from bisector.daemon import start_of
from bisector.delivering import Outbox, open_channels
from bisector.errors import BisectorError
from bisector.housekeeping import keep_inside
from bisector.ledger import Ledger
from bisector.limiting import DAY, find_holds
from bisector.model import Environment, Run
from bisector.plan import Cancel, Conclude
from bisector.posting import Poster
from bisector.recalling import Memory
from bisector.repo import Repository
from bisector.ruling import Facts, rule
from bisector.session import HuntOptions, Options, Range, Session, ask
from bisector.slots import Lock
from bisector.telling import Record

SILENT_FETCH = 6 * 3_600.0  # seconds without a fetch after which people are told
LONGEST_BACKOFF = 900.0  # seconds between fetches, or between ticks, that fail

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll saw."""

    head: str
    environments: dict[str, Environment]
    is_cloned: bool  # anew: what was made in the mirror is gone


@dataclass(frozen=True, slots=True)
class Pulse:
    """How the service fares, for whoever asks from another thread. Moments are seconds since the epoch."""

    ticked: float = 0.0
    fetched: float = 0.0
    running: int = 0
    wanted: int = 0
    regressions: int = 0
    seconds: float = 0.0  # trained in 7 days
    held: str = ""
    channels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Watcher:
    """The service for one state directory; a second one on it is refused."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.session = Session(options)
        self._lock = Lock(self.session.state / "locks" / "watch.lock")
        if not self._lock.acquire():
            raise BisectorError(
                f"Another `bisector watch` uses {self.session.state}.",
                "Stop it, or name another directory with --state.",
            )
        self._set_up(open_channels(self.session.settings.notify))

    def _set_up(self, channels: dict[str, Any]) -> None:
        session = self.session
        settings = session.settings
        location = watched_location(self._options, settings)
        self.repository = session.repository = Repository(location, session.state)
        if not session.options.configs and settings.watch.configs:
            session.options = replace(session.options, configs=tuple(settings.watch.configs))
        self.configs = session.configs() if session.options.configs else _all_that_run(session)
        store = session.store
        self.ledger = Ledger(store.db, store.transaction, self.configs)
        suite = session.suite
        is_file = suite.name.endswith(".toml")
        name = str(suite.path.resolve()) if is_file else suite.name
        self.about = About(location, settings.watch.branch, name)
        self.ledger.set("about", json.dumps([location, settings.watch.branch, self.about.suite]))
        self.ledger.set("configs", json.dumps([config.name for config in self.configs]))
        self.branch = Branch(session, self.repository, self.ledger, self.configs)
        self._poster = Poster(session, self.repository, self.ledger, self.about)
        self.outbox = Outbox(self.ledger, channels, self._poster.announce_dead)
        self._asker = Asker(session, self.ledger, self.about)
        self.environments: dict[str, Environment] = {}
        self.agenda: Agenda | None = None
        self._memory = Memory(session)
        self.pulse = Pulse()
        self._is_viewed = True
        self._poll: Future[Polled] | None = None
        self._poll_due, self._failed_polls = 0.0, 0
        self._is_stale = True
        self._acts: list[Act] = []
        self._seen_holds: tuple[float, tuple[str, str]] = 0.0, ("", "")

    # Ticks

    def tick(self, bench: Bench) -> bool:
        """Do what is next, each through one effect; say whether anything happened."""
        happened = self._finish_poll() | self.outbox.tick()
        for order, run in bench.collect():
            log.info("%s", _describe_run(order, run))
            happened = self._is_stale = True
            self._note_running(bench)
        if not self.environments:
            return happened
        self._hold_changed()
        happened |= self._explain()
        if self._is_stale:
            self._is_stale = self._is_viewed = False
            self.agenda = self._plan(bench)
            self._acts = list(self.agenda.acts)
        while self._acts:
            if self._do(self._acts.pop(0), bench):
                self._is_stale = True
                return True
        if self._start_runs(bench) or happened:
            return True
        self._keep_view()
        return False

    def _keep_view(self) -> None:
        """Have `status` answer at once; while there is more to do, it works out by itself what it shows."""
        if self._is_viewed:
            return
        self._is_viewed = True
        stamp = viewing.stamp(
            self.session, self.ledger, self.configs
        )  # first: what comes later is not in it
        snapshot = self.branch.snapshot(time.time())
        viewing.keep(self.ledger, stamp, viewing.make(snapshot, self.repository))

    def _plan(self, bench: Bench) -> Agenda:
        hold, hunt_hold = find_holds(self.session, self.ledger)
        self.snapshot = self.branch.snapshot(time.time(), hold=hold, hunt_hold=hunt_hold)
        running = [start_of(flight.order) for flight in bench.in_flight if flight.order.hunt]
        agenda = make_agenda(self.snapshot, running, self.session.jobs)
        self._say_held(agenda.held)
        return agenda

    def _do(self, act: Act, bench: Bench) -> bool:
        """Do one act; False where it is done already, or was told already."""
        if isinstance(act, Cancel):
            bench.cancel(self._order(act.start))
            return True
        if isinstance(act, Conclude):
            self.session.store.conclude(act.hunt, act.conclusion)
            log.info("hunt %s: %s", act.hunt, act.conclusion.outcome)
            return True
        if isinstance(act, Revert):
            folder = self.session.state / "scratch" / self.session.owner
            made = self.repository.revert(act.sha, act.reverts, folder)
            self.branch.keep_reverted(act.sha, act.reverts, made)
            return True
        facts = Facts()
        if isinstance(act, Open) and act.begins_hunt:
            facts = Facts(hunt=self._begin_hunt(act))
        if isinstance(act, NewEnvironment):
            ids = {epoch.environment for epoch in (*act.before, *act.after)}
            known = self.session.store.environments(list(ids))
            facts = Facts(known, asks_why=self.session.settings.watch.why)
        return self.write(rule(act, self.snapshot, facts))

    def _begin_hunt(self, act: Open) -> str:
        session = self.session
        config = self.branch.configs[act.config]
        commits = tuple(self.repository.first_parents(act.good, act.bad))
        hunt, question = ask(
            session,
            config,
            Range(tuple(commits)),
            HuntOptions(thorough=True),
            self.environments[act.config],
        )
        session.store.add_hunt(hunt, question)
        return hunt.id

    def write(self, record: Record) -> bool:
        """Store a record with its messages; False where it holds nothing new."""
        return self._poster.write(record)

    def _start_runs(self, bench: Bench) -> bool:
        assert self.agenda
        busy = {(f.order.hunt, f.order.sha, f.order.name) for f in bench.in_flight}
        for work in self.agenda.work:
            order = self._order(work)
            if isinstance(work, Make) and (None, order.sha, order.name) in busy:
                continue
            if isinstance(work, Start) and self._recall(work):
                self._is_stale = True
                return True
            if not bench.start(order):
                return False
            self._is_stale = True  # what is in flight changed what a hunt wants
            self._note_running(bench)
            return True
        return False

    def _explain(self) -> bool:
        """Go on with the questions why a config moved; say whether one was answered."""
        _, holds = self._seen_holds
        answer = self._asker.tick(is_held=any(holds))
        if answer is None:
            return False
        told = bulletin.explained(answer.question, answer.document, answer.refusal)
        return self.write(Record(tells=(told,), answered=(answer.question.key,)))

    def _recall(self, start: Start) -> bool:
        """Let a stored run stand for one that a hunt wants, if there is one."""
        case = next(case for case in self.snapshot.cases if case.hunt.id == start.hunt)
        found = self._memory.recall(case, start, self.branch.candidates(case.commits))
        return found is not None

    def _order(self, work: Start | Make) -> Order:
        if isinstance(work, Start):
            case = next(case for case in self.snapshot.cases if case.hunt.id == work.hunt)
            asked = work.hunt, work.sha, work.role, case.hunt.config, case.hunt.environment
            return Order(*asked, is_cold=work.is_cold, without=work.without)
        config = self.branch.configs[work.config]
        return Order(None, work.sha, work.role, config, self.environments[work.config])

    def _note_running(self, bench: Bench) -> None:
        """Let `status` know what runs."""
        running = [
            {
                "run": flight.running.job.run,
                "owner": self.session.owner,
                "config": flight.order.name,
                "sha": flight.order.sha,
                "role": str(flight.order.role),
                "began": flight.began,
            }
            for flight in bench.in_flight
        ]
        self.ledger.set("running", json.dumps(running))

    def is_quiet(self, bench: Bench) -> bool:
        """Whether nothing runs, nothing is wanted, and nothing is on its way."""
        if self._poll or bench.in_flight or self.outbox.is_busy or self._asker.is_busy:
            return False
        if not self.environments:  # the remote does not answer
            return True
        return not self._is_stale and not (self.agenda and self.agenda.work)

    # Polling

    def poll(self) -> None:
        """Look at the remote and at the environment, in a thread: both may take long."""
        if self._poll is None and time.monotonic() >= self._poll_due:
            self._poll = begin(self._look, "poll")

    def _look(self) -> Polled:
        is_cloned = self.repository.fetch()
        head = self.repository.resolve(f"refs/heads/{self.about.branch}")
        looking = Session(self.session.options)
        looking.settings = self.session.settings
        looking.suite = self.session.suite
        found = {config.name: looking.environment_of(config) for config in self.configs}
        return Polled(head, found, is_cloned)

    def _finish_poll(self) -> bool:
        if self._poll is None or not self._poll.done():
            return False
        poll, self._poll = self._poll, None
        try:
            polled = poll.result()
        except BisectorError as error:
            self._fetch_failed(error)
            return True
        self._failed_polls, self._poll_due = 0, 0.0
        self.ledger.set("fetched", str(time.time()))
        self.ledger.set("fetch error", "")
        if polled.is_cloned:
            self.branch.forget_reverted()
        if polled.head != self.branch.head or polled.environments != self.environments:
            self.branch.move_to(polled.head)
            self.branch.begin(polled.environments)
            self.environments = polled.environments
            self._is_stale = True
        return True

    def _fetch_failed(self, error: BisectorError) -> None:
        self._failed_polls += 1
        interval = self.session.settings.watch.interval
        wait = min(interval * 2.0 ** min(self._failed_polls - 1, 20), LONGEST_BACKOFF)
        self._poll_due = time.monotonic() + wait
        log.warning("%s %s", error.problem, error.remedy)
        self.ledger.set("fetch error", error.problem)
        last = float(self.ledger.get("fetched") or 0.0)
        if not last:
            last = float(self.ledger.get("first try") or 0.0)
            if not last:
                self.ledger.set("first try", str(time.time()))
                return
        if time.time() - last > SILENT_FETCH:
            text = f"no fetch has worked for {(time.time() - last) / 3600:.0f} hours"
            why = (("why", error.problem), ("do", error.remedy))
            self.write(Record(tells=(bulletin.stalled(f"fetch:{last:.0f}", text, why),)))

    # Limits

    def _hold_changed(self) -> None:
        """Plan again where a limit or a pause began or ended meanwhile."""
        now, (seen, before) = time.monotonic(), self._seen_holds
        if now - seen >= 1.0:
            holds = find_holds(self.session, self.ledger)
            self._seen_holds = now, holds
            self._is_stale |= holds != before

    def _say_held(self, held: str) -> None:
        if held != self.ledger.get("held"):
            self.ledger.set("held", held)
        if held and "limit" in held:
            day = f"{held}:{time.time() // DAY:.0f}"
            text = f"work waits: {held}"
            self.write(Record(tells=(bulletin.stalled(day, text),)))

    # What happens on a schedule

    def keep_house(self) -> None:
        """Hold the state directory inside its limit, and forget old messages."""
        limit = self.session.settings.state.max_size
        excess = keep_inside(self.session.state, limit)
        if excess:
            text = (
                f"the state directory is {report.size(excess)} over its limit of "
                f"{report.size(limit)}, and nothing in it can go"
            )
            do = (("do", "Raise state.max_size, or give the service another disk."),)
            self.write(
                Record(tells=(bulletin.stalled(f"disk:{time.time() // DAY:.0f}", text, do),))
            )
        self.ledger.forget(time.time())

    def beat(self) -> None:
        """Say that the service is alive, when it is time to."""
        every = self.session.settings.watch.heartbeat
        last = float(self.ledger.get("heartbeat") or 0.0)
        now = time.time()
        if not last:
            self.ledger.set("heartbeat", str(now))
        elif now - last >= every:
            self.ledger.set("heartbeat", str(now))
            self.write(
                Record(
                    tells=(bulletin.heartbeat(self.about, f"{now:.0f}", self._how_things_are()),)
                )
            )

    def _how_things_are(self) -> Sequence[tuple[str, str]]:
        is_open = [r.id for r in self.ledger.regressions() if not r.state.is_over]
        minutes = self.session.store.seconds_trained_since(time.time() - 7 * DAY) / 60
        return (
            ("head", self.branch.head[:10]),
            ("open", ", ".join(is_open) or "no regression"),
            ("GPU minutes", f"{minutes:.0f} in 7 days"),
        )

    def feel_pulse(self, running: int) -> str:
        """Note how the service fares; return it in one line, for the service manager."""
        ledger, store = self.ledger, self.session.store
        now = time.time()
        self.pulse = Pulse(
            ticked=now,
            fetched=float(ledger.get("fetched") or 0.0),
            running=running,
            wanted=len(self.agenda.work) if self.agenda else 0,
            regressions=sum(not r.state.is_over for r in ledger.regressions()),
            seconds=store.seconds_trained_since(now - 7 * DAY),
            held=ledger.get("held"),
            channels=ledger.channels(),
        )
        head = self.branch.head[:10] or "no commit yet"
        held = f"; {self.pulse.held}" if self.pulse.held else ""
        return (
            f"at {head}; {running} running, {self.pulse.wanted} wanted, "
            f"{self.pulse.regressions} open{held}"
        )

    def tell_of_failure(self, since: float, words: str) -> None:
        """Tell people that nothing has worked since a moment; the log has said so all the time."""
        hours = (time.time() - since) / 3600
        text = f"nothing has worked for {hours:.0f} hours"
        self.write(Record(tells=(bulletin.stalled(f"ticks:{since:.0f}", text, (("why", words),)),)))

    def wake(self) -> None:
        """Plan again: time has passed."""
        self._is_stale = True

    def reload(self) -> None:
        """Read the settings again; keep the old ones where the new are wrong."""
        try:
            fresh = Session(self._options)
            channels = open_channels(fresh.settings.notify)
            old, new = self.session.settings, fresh.settings
            if (new.watch, new.state.dir, new.train.python, new.train.devices) != (
                *(old.watch, old.state.dir, old.train.python, old.train.devices),
            ):
                raise BisectorError(
                    "[watch], state.dir, train.python or train.devices changed, "
                    "which a reload does not take.",
                    "Restart the service.",
                )
        except BisectorError as error:
            log.error("settings kept as they were: %s %s", error.problem, error.remedy)
            self.ledger.set("reload error", error.problem)
            return
        self.session.settings = fresh.settings
        self.outbox.use(channels)
        self.ledger.set("reload error", "")
        self._is_stale = True
        log.info("settings read again")

    def close(self) -> None:
        """Leave all as it is stored."""
        self._asker.close()
        self.outbox.close()
        self.branch.close()
        self._lock.release()


def watched_location(options: Options, settings: Settings) -> str:
    """Return the repository to watch, always as a URL: it is mirrored, never used in place."""
    location = options.repo or settings.watch.repository
    if Path(location).exists():
        return f"file://{Path(location).resolve()}"
    return location


def _all_that_run(session: Session) -> list[Any]:
    found = [c for c in session.suite.configs.values() if not session.find_lack(c)]
    return found or session.configs()


def _describe_run(order: Order, run: Run) -> str:
    reason = f": {run.result.reason}" if run.result.reason else ""
    return f"{order.name} {run.sha[:10]} {run.role} {run.result.status} in {run.result.seconds:.1f} s{reason}"
