"""Finds stored runs that stand for a run that is wanted: nothing that they depend on differs."""

from collections.abc import Iterator

from bisector.candidates import Candidates
from bisector.case import Case, Start, may_recall
from bisector.compare import largest_differences
from bisector.errors import BisectorError
from bisector.judge import as_far
from bisector.model import Run, Status
from bisector.session import Session
from bisector.stopping import horizon, may_stop

LOOKED_AT = 20  # of the newest runs, for one that stands for the good end


class Memory:
    """The stored runs of a session, asked once for each run that is wanted."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked: set[tuple[Start, int]] = set()

    def recall(self, case: Case, start: Start, candidates: Candidates | None) -> Run | None:
        """Return a stored run that stands for the one wanted, noted as the hunt's; None where there is none."""
        asked = start, len(case.runs)
        if asked in self._asked or not may_recall(case, start):
            return None
        self._asked.add(asked)
        equal = _equal_runs(self._session, case, start, candidates)
        found = [run for run in equal if _is_enough(case, start, run)]
        if not found:
            return None
        best = max(found, key=lambda run: len(run.result.trajectory))
        if any(_differ(best, other) for other in found):
            return None  # something changed that is not known of
        return self._session.store.recall(best, case.hunt.id, start.sha, start.role)


def _differ(one: Run, other: Run) -> bool:
    return any(largest_differences(*as_far(one.result, other.result)).values())


def _is_enough(case: Case, start: Start, run: Run) -> bool:
    """Whether a run goes as far as this hunt compares; of an end, a prefix is enough to see."""
    if run.hunt == case.hunt.id or not run.result.has_trained:
        return False
    if run.result.status is Status.COMPLETED or (start.is_end and may_stop(case.hunt)):
        return True
    steps = horizon(case.hunt, case.runs)
    return steps is not None and len(run.result.trajectory) >= steps


def _equal_runs(
    session: Session, case: Case, start: Start, candidates: Candidates | None
) -> Iterator[Run]:
    """Yield the stored runs of the config and environment that must be equal to a run of the commit.

    They are those of the commit itself and, for the good end, which has a fresh run as control, those of commits
    that differ from it in nothing that the run read.
    """
    store, hunt = session.store, case.hunt
    question = hunt.config.digest, hunt.environment.id
    yield from store.runs_answering(*question, start.sha)
    if candidates is None or start.sha != hunt.good:
        return
    for run in store.newest_runs(*question, LOOKED_AT):
        footprint = run.result.footprint
        if footprint and run.sha != start.sha:
            try:
                if not Candidates(session.repository, [run.sha, start.sha]).touching(footprint):
                    yield run
            except BisectorError:  # a commit that is gone
                continue
