"""The report of a hunt that is stored: its answer, its runs, and the words of the commits that it names."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bisector.alignment import Alike, find_alike
from bisector.errors import BisectorError
from bisector.model import Axis, Change, Commit, Conclusion, Hunt, Outcome, Run, Status
from bisector.report import Report
from bisector.series import dump, load
from bisector.session import Session

if TYPE_CHECKING:
    from bisector.repo import Repository


@dataclass(frozen=True, slots=True)
class Account:
    """What the repository says of an answer. It never changes and may take seconds to find out, so it is stored."""

    words: Mapping[str, Commit]
    advice: tuple[str, ...] = ()
    alike: tuple[Alike, ...] = ()


def report_of(
    session: Session, repository: "Callable[[], Repository]", found: Hunt, conclusion: Conclusion
) -> Report:
    """Return the report of a hunt that is stored; without words where the repository is gone."""
    runs = session.store.runs_of(found.id)
    moved_along = {}
    if found.axis is not Axis.COMMIT:
        moved_along = _moved_along(session, conclusion, found, runs)
    if found.axis not in (Axis.COMMIT, Axis.SOURCE):
        return Report(found, conclusion, runs, {}, moved_along=moved_along)
    stored = session.store.account(found.id)
    account = load(Account, stored) if stored else None
    if account is None:
        try:
            if found.source:
                from bisector.repo import Repository

                place = Repository(found.source, session.state)
            else:
                place = repository()
            account = _make_account(session, place, found, conclusion)
        except BisectorError:
            account = Account({})
        else:
            session.store.keep_account(found.id, dump(account))
    return Report(
        *(found, conclusion, runs, account.words, account.advice),
        alike=account.alike,
        moved_along=moved_along,
    )


def _make_account(
    session: Session, repository: "Repository", found: Hunt, conclusion: Conclusion
) -> Account:
    changes = [conclusion.culprit, *conclusion.others, *conclusion.transient]
    words = {c.sha: repository.describe(c.sha) for c in changes if c}
    advice = _advise(session, repository, found, conclusion)
    return Account(words, advice, _find_alike(repository, conclusion.culprit))


def _find_alike(repository: "Repository", culprit: Change | None) -> tuple[Alike, ...]:
    """Return where else the culprit's blocks stand; none where git does not say."""
    if culprit is None:
        return ()
    parent, sha = culprit.parent, culprit.sha
    try:
        diffs = repository.diff(parent, sha)
        return find_alike(diffs, repository.python_files(parent), repository.python_files(sha))
    except (BisectorError, ValueError):  # no repository any more, or output that is not git's
        return ()


def _moved_along(
    session: Session, conclusion: Conclusion, found: Hunt, runs: Sequence[Run]
) -> dict[str, tuple[str, str]]:
    """Return what the culprit's environment has in another version than its parent's, beside what is searched."""
    if conclusion.culprit is None:
        return {}
    ids = {run.sha: run.environment for run in runs if run.result.status is not Status.SETUP_FAILED}
    sides = conclusion.culprit.parent, conclusion.culprit.sha
    known = session.store.environments([ids[side] for side in sides])
    old, new = (known[ids[side]].packages for side in sides)
    pinned = found.pins[sides[0]].keys() | found.pins[sides[1]].keys()
    return {
        name: (old.get(name, ""), new.get(name, ""))
        for name in sorted(old.keys() | new.keys())
        if name not in pinned and old.get(name) != new.get(name)
    }


def _advise(
    session: Session, repository: "Repository", found: Hunt, conclusion: Conclusion
) -> tuple[str, ...]:
    """Return what would make commits train that do not train here."""
    if conclusion.outcome is not Outcome.ENVIRONMENT or found.axis is not Axis.COMMIT:
        return ()
    from bisector import environment
    from bisector.declared import read_declared

    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        repository.checkout(found.good, checkout)
        declared = read_declared(checkout)
    date = datetime.fromisoformat(repository.describe(found.good).date)
    lines = []
    if conclusion.crash and conclusion.crash.type in ("ImportError", "ModuleNotFoundError"):
        lines.append(f"the failing import: {conclusion.crash.message}")
    if declared.requirements:
        lines.append(f"{found.good[:10]} asks for: {', '.join(declared.requirements)}")
    names = [environment.requirement_name(text) for text in declared.requirements]
    pins = environment.releases_before(date, [name for name in names if name])
    if pins:
        lines.append(f"the newest releases before {date:%Y-%m-%d}: {' '.join(pins)}")
        lines.append("build an environment with those, and name its interpreter with --python")
    else:
        lines.append(
            f"build an environment with releases from before {date:%Y-%m-%d} "
            "(`uv pip install --exclude-newer`), and name its interpreter with --python"
        )
    return tuple(lines)


def interrupted() -> Conclusion:
    """Return what stands for an answer while there is none."""
    reason = "interrupted; the same command goes on where it stopped"
    return Conclusion(Outcome.INTERRUPTED, reason)
