"""Finds which packages moved a trajectory from one environment to another, and in which of their releases.

The changes are made one after the other, in a hunt; its culprit moves the trajectory on top of the changes before
it. Whether it needs those is asked next: with it alone made first, does the trajectory move? If not, a hunt through
the rest finds the next one that it needs, and so on, until those found are enough. Each of them is needed, so the
set is as small as can be (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, look
for the same set; here the order is a line, so that a hunt finds each member).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bisector import hunting
from bisector.daemon import Progress
from bisector.errors import BisectorError, InfraError
from bisector.model import Outcome
from bisector.pinning import Pins, missing_releases, pin
from bisector.ranges import Asked, AskedChanges
from bisector.records import Record, load_record
from bisector.releases import find_releases
from bisector.report import Report
from bisector.session import HuntOptions, Session
from bisector.versions import nearest, read_version

Changed = tuple[str, str, str]  # a package, its version before and since; "" for none

# What is looked at first, if it differs; the rest follows by name, and torch last: it takes longest to install.
FIRST = ("transformers", "tokenizers", "huggingface-hub", "accelerate", "datasets", "kernels")


@dataclass(frozen=True, slots=True)
class Way:
    """How two environments differ, at one commit: versions to install there, by package."""

    at: str
    old: Mapping[str, str]
    new: Mapping[str, str]

    def changes(self, installed: Mapping[str, str]) -> tuple[Changed, ...]:
        """Return what differs, in the order in which it is looked at; what is not pinned is as installed."""
        names = sorted(self.old.keys() | self.new.keys(), key=_rank)
        both = [
            (n, self.old.get(n, installed.get(n, "")), self.new.get(n, installed.get(n, "")))
            for n in names
        ]
        return tuple(each for each in both if each[1] != each[2])


def _rank(name: str) -> tuple[int, str]:
    if name in FIRST:
        return FIRST.index(name), name
    return len(FIRST) + (name == "torch"), name


def dissect_files(
    session: Session, files: tuple[str, str], at: str, options: HuntOptions, progress: Progress
) -> tuple[list[Report], tuple[str, ...]]:
    """Return the hunts between the environments that two files record, for each config, and what to know of how
    those were made."""
    old, new = (pins_of(session, load_record(Path(file))) for file in files)
    way = Way(at, old.versions, new.versions)
    reports: list[Report] = []
    notes = [*old.notes, *new.notes]
    for config in session.configs():
        inside = Session(replace(session.options, configs=(config.name,)))
        made, more = dissect(inside, way, options, progress)
        reports += made
        notes += more
    return reports, tuple(dict.fromkeys(notes))


def pins_of(session: Session, record: Record) -> Pins:
    """Return the versions that make the training interpreter's environment the recorded one."""
    described = session.described
    installed = {n: v for n, v in described["packages"].items() if n not in ("trl", "bisector")}
    near = {
        name: nearest(record.packages[name], find_releases(name))
        for name in missing_releases(record.packages, installed)
    }
    return pin(record.packages, installed, near)


def dissect(
    session: Session, way: Way, options: HuntOptions, progress: Progress
) -> tuple[list[Report], list[str]]:
    """Return the hunts that were made, the one through all changes first, and notes of those that could not begin;
    the last ones name releases."""
    changes = way.changes(session.described["packages"])
    if not changes:
        raise BisectorError(
            "The two environments have the same packages.",
            "What differs between them, if anything, is no package: compare device, Python and data.",
        )
    kept = {name: v for name, v in way.old.items() if name not in {n for n, *_ in changes}}

    def search(asked: Asked | AskedChanges) -> list[Report]:
        return hunting.hunt(session, asked, options, progress, lambda cases: None)

    def through(
        made: Sequence[Changed], left: Sequence[Changed], held: Sequence[Changed]
    ) -> Report:
        """Hunt through the changes `left`, on top of those that are `made`; `held` are never made."""
        pins = {**kept, **{n: old for n, old, _ in held}, **{n: new for n, _, new in made}}
        (report,) = search(AskedChanges(way.at, pins, tuple(left)))
        return report

    reports = [through((), changes, ())]
    needed: list[Changed] = []
    left = list(changes)
    while (found := _culprit(reports[-1], left)) is not None:
        before = left[:found]
        needed.append(left[found])
        if not before:
            break
        others = [c for c in changes if c not in needed and c not in before]
        reports.append(through(needed[:-1], [needed[-1]], [*before, *others]))
        if reports[-1].conclusion.outcome is not Outcome.NOT_REPRODUCED:
            break
        reports.append(through(needed, before, others))
        left = before
    ranges = _releases(way, changes, needed)
    if together := _suspected(reports[0], changes):
        ranges = _releases_together(way, changes, together)
    notes = []
    for asked in ranges:
        made, lack = begin(f"the releases of {asked.package}", partial(search, asked))
        reports += made
        notes += lack
    return reports, notes


def begin(what: str, hunt: Callable[[], list[Report]]) -> tuple[list[Report], list[str]]:
    """Return what a hunt reports, or a note of why it could not begin: what was found before it stands."""
    try:
        return hunt(), []
    except InfraError:
        raise
    except BisectorError as error:
        return [], [f"{what} were not searched: {error.problem}"]


def _culprit(report: Report, changes: Sequence[Changed]) -> int | None:
    """Return which of the changes the hunt names."""
    culprit = report.conclusion.culprit
    if culprit is None:
        return None
    names = [f"{name} {since or 'removed'}" for name, _, since in changes]
    return names.index(culprit.sha)


def _suspected(report: Report, changes: Sequence[Changed]) -> list[Changed]:
    """Return the changes that hide one another, since they cannot be installed apart."""
    places = {suspect.sha for suspect in report.conclusion.suspects}
    return [change for change in changes if f"{change[0]} {change[2] or 'removed'}" in places]


def _releases_together(
    way: Way, changes: Sequence[Changed], together: Sequence[Changed]
) -> list[Asked]:
    """Return the range of releases of the first of several changes; the others move along as they must."""
    name, before, since = together[0]
    if not (before and since):
        return []
    free = {n for n, *_ in together}
    old = {**way.old, **{n: v for n, v, _ in changes}}
    pins = {n: v for n, v in old.items() if n not in free}
    return [_range(name, before, since, way.at, pins)]


def _range(name: str, before: str, since: str, at: str, pins: Mapping[str, str]) -> Asked:
    """Return the releases of a package between two; forwards, also where the way goes back."""
    older, newer = sorted((before, since), key=read_version)
    return Asked(older, newer, package=name, at=at, pins=pins)


def _releases(way: Way, changes: Sequence[Changed], needed: Sequence[Changed]) -> list[Asked]:
    """Return the ranges of releases of each package that is needed, with the others at their new version."""
    old = {**way.old, **{name: before for name, before, _ in changes}}
    ranges = []
    for name, before, since in needed:
        if before and since:
            others = {n: new for n, _, new in needed if n != name}
            pins = {n: v for n, v in {**old, **others}.items() if n != name}
            ranges.append(_range(name, before, since, way.at, pins))
    return ranges
