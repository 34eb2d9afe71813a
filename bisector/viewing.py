"""What `status` shows of the branch: each commit's verdicts, what waits, what is broken.

Working it out takes longer than all the rest of `status`, so the service keeps it whenever it has nothing else to do.
It holds as long as its stamp does: the stamp changes with all that the view depends on, except time.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bisector import __version__
from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.model import Config
from bisector.session import Session

if TYPE_CHECKING:
    from bisector.acts import Snapshot
    from bisector.repo import Repository
    from bisector.standing import Standing, Walk

SHOWN_COMMITS = 10
KEPT_COMMITS = 50  # in JSON

View = Mapping[str, Any]
NOTHING: View = {"queue": [], "broken": [], "alarms": [], "commits": []}


def stamp(session: Session, ledger: Ledger, configs: Sequence[Config]) -> str:
    """Return what two views of the same branch, runs and decisions have in common."""
    settings = session.settings
    return json.dumps(
        [
            *(__version__, settings.watch.max_backlog, settings.train.footprints),
            *(session.store.last_number(), session.store.count_concluded(), ledger.revision),
            *(ledger.get(key) for key in ("start", "floor", "head")),
            *(f"{config.name} {config.digest}" for config in configs),
        ]
    )


def find(session: Session, ledger: Ledger, configs: Sequence[Config], location: str) -> View:
    """Return the view that is kept, or a new one where that is not of now."""
    kept = ledger.get("view")
    if kept:
        stamped, view = json.loads(kept)
        if stamped == stamp(session, ledger, configs):
            found: View = view
            return found
    from bisector.branch import Branch
    from bisector.repo import Repository

    repository = Repository(location, session.state)
    branch = Branch(session, repository, ledger, configs, drives_hunts=False)
    try:
        return make(branch.snapshot(time.time()), repository) if branch.recall() else NOTHING
    except BisectorError:  # the mirror is gone; the service clones it again
        return NOTHING


def keep(ledger: Ledger, stamped: str, view: View) -> None:
    """Keep a view for whoever asks while its stamp holds."""
    ledger.set("view", json.dumps([stamped, view]))


def make(snapshot: "Snapshot", repository: "Repository") -> View:
    """Return the view of what is known, with everything in the queue that a limit or a pause holds back."""
    from bisector.acts import Broken
    from bisector.agenda import make_agenda
    from bisector.case import Start

    agenda = make_agenda(snapshot, [])
    hunts = {case.hunt.id: case.hunt.config.name for case in snapshot.cases}
    queue = [
        {
            "config": hunts[work.hunt] if isinstance(work, Start) else work.config,
            "sha": work.sha,
            "role": str(work.role),
        }
        for work in agenda.work
    ]
    broken = [
        {"configs": list(act.configs), "sha": act.sha, "reason": act.reason}
        for act in agenda.acts
        if isinstance(act, Broken)
    ]
    alarms = [
        {"config": name, "good": found.alarm.good, "bad": found.alarm.bad}
        for name, found in agenda.walks.items()
        if found.alarm
    ]
    commits = _commits(agenda.walks, repository)
    return {"queue": queue, "broken": broken, "alarms": alarms, "commits": commits}


def _commits(walks: Mapping[str, "Walk"], repository: "Repository") -> list[dict[str, Any]]:
    """Return the newest commits, newest first, and how each stands for each config."""
    by_sha: dict[str, dict[str, Standing]] = {}
    order: list[str] = []
    for name, found in walks.items():
        shas = [standing.sha for standing in found.standings[-KEPT_COMMITS:]]
        order = shas if len(shas) > len(order) else order
        for standing in found.standings[-KEPT_COMMITS:]:
            by_sha.setdefault(standing.sha, {})[name] = standing
    order.reverse()
    subjects = _subjects(repository, order[:SHOWN_COMMITS])
    return [
        {
            "sha": sha,
            "subject": subjects.get(sha, ""),
            "configs": {
                name: {
                    "verdict": s.word,
                    "reason": s.reason,
                    "run": s.run.id if s.run else None,
                }
                for name, s in by_sha[sha].items()
            },
        }
        for sha in order
    ]


def _subjects(repository: "Repository", shas: Sequence[str]) -> dict[str, str]:
    try:
        return repository.subjects(shas) if shas else {}
    except BisectorError:
        return {}
