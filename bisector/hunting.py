"""`hunt` from the question to the reports: ranges, identity, the loop, the words of what was found."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType

from bisector.bench import Bench
from bisector.case import Case
from bisector.daemon import Loop, Progress
from bisector.errors import BisectorError, InfraError
from bisector.model import MIN_RUNS, Conclusion, Outcome
from bisector.plan import next_step
from bisector.ranges import Ask, resolve
from bisector.report import Report
from bisector.reporting import interrupted, report_of
from bisector.session import HuntOptions, Session, ask
from bisector.slots import Lock


class Stop:
    """Set by SIGINT, SIGTERM or SIGHUP; asked between ticks."""

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take the signals for a while."""

        def set_stop(number: int, frame: FrameType | None) -> None:
            self.is_set = True

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, set_stop) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def hunt(
    session: Session,
    asked: Ask,
    options: HuntOptions,
    progress: Progress,
    expect: Callable[[list[Case]], None],
) -> list[Report]:
    """Return a report for each config; `expect` is told the cases before anything runs."""
    if options.max_runs is not None and options.max_runs < MIN_RUNS:
        raise BisectorError(
            f"--max-runs {options.max_runs} is too few: both ends run twice.",
            f"Allow at least {MIN_RUNS}.",
        )
    range_ = resolve(session, asked)
    if options.fixed:
        range_ = replace(range_, places=range_.places[::-1])
    questions = [
        ask(session, config, range_, options, session.environment_of(config))
        for config in session.configs()
    ]
    for found, digest in questions:
        session.store.add_hunt(found, digest)
    runs_of = session.store.runs_of
    cases = [Case(f, range_.places, runs_of(f.id), options.max_runs) for f, _ in questions]
    expect(cases)
    conclusions = _pursue(session, cases, progress)
    return [
        report_of(session, lambda: session.repository, case.hunt, conclusions[case.hunt.id])
        for case in cases
    ]


def _pursue(session: Session, cases: list[Case], progress: Progress) -> dict[str, Conclusion]:
    """Run the hunts that have no answer yet; another process that runs one is waited for."""
    store = session.store
    with Stop().listening() as stop, ExitStack() as held:
        for case in cases:
            lock = held.enter_context(Lock(session.state / "locks" / f"{case.hunt.id}.lock"))
            if not _wait_for(
                lock, stop, lambda: progress.said("another process runs this hunt; following it")
            ):
                break
        cases = [replace(case, runs=store.runs_of(case.hunt.id)) for case in cases]
        conclusions = {case.hunt.id: stored for case in cases if (stored := _answer(session, case))}
        left = [case for case in cases if case.hunt.id not in conclusions]
        missing = interrupted()
        with Bench(session, progress.said) as bench:
            loop = Loop(session, bench, progress)
            try:
                loop.run(left, lambda: stop.is_set)
            except InfraError as error:
                if not stop.is_set:  # a signal also ends what git was doing
                    missing = Conclusion(Outcome.INFRA, f"{error.problem} {error.remedy}")
            conclusions |= loop.conclusions
        return {case.hunt.id: conclusions.get(case.hunt.id, missing) for case in cases}


def _wait_for(lock: Lock, stop: Stop, say: Callable[[], None]) -> bool:
    if lock.acquire():
        return True
    say()
    while not stop.is_set:
        if lock.acquire():
            return True
        time.sleep(0.2)
    return False


def _answer(session: Session, case: Case) -> Conclusion | None:
    """Return the stored answer, unless a larger budget lets the hunt go on."""
    stored = session.store.hunt(case.hunt.id)
    conclusion = stored[1] if stored else None
    if conclusion and conclusion.outcome is Outcome.BUDGET and isinstance(next_step(case), list):
        session.store.reopen(case.hunt.id)
        return None
    return conclusion
