"""`why`: crosses old and new code with old and new environment, says which moved, and hunts that."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisector import documents, hunting, report
from bisector.bench import POLL, Order
from bisector.compare import deviations
from bisector.daemon import Progress
from bisector.dissecting import Way, begin, dissect, pins_of
from bisector.envs import Refused
from bisector.errors import BisectorError
from bisector.model import EXACT, Config, Role, Run, RunResult, Status
from bisector.pinning import Pins
from bisector.probing import make_runs
from bisector.ranges import Asked
from bisector.records import Record, load_record
from bisector.report import Report
from bisector.session import HuntOptions, Session
from bisector.sites import Site, Sites, Stand
from bisector.twobytwo import CELLS, Cell, Finding, Side, decide

REPEATS = 2  # runs of each cell where something moved


@dataclass(frozen=True, slots=True)
class Asking:
    """What `why` was asked: the old record, the new commit, and the old one where the record's is not there."""

    source: str
    commit: str = "HEAD"
    old: str = ""
    exact: bool = False
    hunts: tuple[str, ...] = ("code", "environment")  # the axes


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer: what moved, the runs that say so, and the hunts for what exactly it was."""

    record: Record
    crossing: "Crossing"
    runs: Mapping[Cell, Sequence[Run]]
    finding: Finding
    notes: tuple[str, ...]
    reports: tuple[Report, ...] = ()


def explain(session: Session, asking: Asking, progress: Progress) -> Explanation:
    """Return why a trajectory is not what was recorded."""
    record = _record(session, asking.source)
    config = _config(session, record)
    commits = {
        Side.OLD: _old_commit(session, asking, record),
        Side.NEW: session.repository.resolve(asking.commit),
    }
    pins = pins_of(session, record)
    crossing = Crossing(config, commits, pins.versions, _stands(session, pins, config))
    runs = _cross(session, crossing, progress, repeats=1)
    tolerances = EXACT if asking.exact else config.tolerances
    finding = decide(_results(record, runs, crossing), tolerances)
    if finding.names_a_cause:
        runs = _cross(session, crossing, progress, repeats=REPEATS)
        finding = decide(_results(record, runs, crossing), tolerances)
    notes = (*pins.notes, *_notes(record, crossing, runs))
    found = Explanation(record, crossing, runs, finding, notes)
    reports, lack = _hunt(session, found, asking, progress)
    return replace(found, reports=tuple(reports), notes=(*notes, *lack))


# What is asked


def _record(session: Session, source: str) -> Record:
    if Path(source).is_file() or source.endswith(".json"):
        return load_record(Path(source))
    stored = session.store.run(source)
    if stored is None:
        raise BisectorError(
            f"{source!r} is neither a file nor the id of one stored run.",
            "Give a reference file, or a run that `bisector status` lists.",
        )
    run, name, environment = stored
    return Record(
        f"run {run.id}",
        {n: v for n, v in environment.packages.items() if n not in ("trl", "bisector")},
        python=environment.python,
        gpu=environment.gpu,
        data_fingerprint=environment.data_fingerprint,
        config=name,
        commit=run.sha,
        trajectory=run.result.trajectory,
        machine=environment.machine,
    )


def _config(session: Session, record: Record) -> Config:
    if session.options.configs:
        return session.configs()[0]
    if not record.config:
        raise BisectorError(
            f"{record.source} does not say which config it is of.", "Name it with --config."
        )
    config = session.suite.config(record.config)
    if lack := session.find_lack(config):
        raise BisectorError(
            f"{config.name} cannot run here: {lack}.", "Name another with --config."
        )
    return config


def _old_commit(session: Session, asking: Asking, record: Record) -> str:
    if not (asking.old or record.commit):
        raise BisectorError(
            f"{record.source} does not say which commit it is of.", "Name it with --old COMMIT."
        )
    try:
        return session.repository.resolve(asking.old or record.commit)
    except BisectorError:
        if asking.old:
            raise
        raise BisectorError(
            f"Commit {record.commit[:10]}, of which {record.source} is, is not in the repository.",
            "Name the commit of the branch that has its code with --old COMMIT.",
        ) from None


# The four cells


@dataclass(frozen=True, slots=True)
class Crossing:
    """The two commits, the two interpreters, and the versions that the old one has in place of the new one's."""

    config: Config
    commits: Mapping[Side, str]
    pins: Mapping[str, str]
    stands: Mapping[Side, Stand | Refused]


def _stands(session: Session, pins: Pins, config: Config) -> dict[Side, Stand | Refused]:
    """Return the interpreter of each environment, or why there is none."""
    sites = Sites(session)
    try:
        while (old := sites.ask(pins.versions, config)) is None:
            time.sleep(POLL)
    finally:
        sites.close()
    new = sites.ask({}, config)
    assert new
    return {Side.OLD: old, Side.NEW: new}


def _cross(
    session: Session, crossing: Crossing, progress: Progress, *, repeats: int
) -> dict[Cell, list[Run]]:
    """Return as many whole runs of each cell that can be made; stored ones first, then fresh ones."""
    runs: dict[Cell, list[Run]] = {}
    config, commits = crossing.config, crossing.commits
    for side, stand in crossing.stands.items():
        if isinstance(stand, Refused):
            continue
        pins = crossing.pins if side is Side.OLD else {}
        cells = {Cell(code, side): commits[code] for code in Side}
        for cell, sha in cells.items():
            runs[cell] = _stored(session, sha, config, stand)[-repeats:]
        for _ in range(repeats):
            asked = (Role.CONTROL, config, stand.environment)
            wanted = {
                cell: Order(None, sha, *asked, site=Site(sha, pins))
                for cell, sha in cells.items()
                if len(runs[cell]) < repeats
            }
            made = make_runs(session, list(dict.fromkeys(wanted.values())), progress)
            for cell, order in wanted.items():
                runs[cell].append(made[order])
    return runs


def _stored(session: Session, sha: str, config: Config, stand: Stand) -> list[Run]:
    found = session.store.runs_answering(config.digest, stand.environment.id, sha)
    whole = [run for run in found if run.result.status is not Status.STOPPED_EARLY]
    return sorted(whole, key=lambda run: run.started)


def _results(
    record: Record, runs: Mapping[Cell, Sequence[Run]], crossing: Crossing
) -> dict[Cell, list[RunResult]]:
    """Return what each cell gave. Where the old environment cannot be built again, what was recorded in it on this
    machine is what old code gives there."""
    found = {}
    for cell in CELLS:
        stand = crossing.stands[cell.environment]
        if isinstance(stand, Refused):
            found[cell] = [RunResult(Status.SETUP_FAILED, reason=stand.reason)]
        else:
            found[cell] = [run.result for run in runs[cell]]
    if isinstance(crossing.stands[Side.OLD], Refused) and _is_from_here(record, crossing):
        found[CELLS[0]] = [RunResult(Status.COMPLETED, record.trajectory)]
    return found


def _is_from_here(record: Record, crossing: Crossing) -> bool:
    here = crossing.stands[Side.NEW]
    assert isinstance(here, Stand)
    environment = here.environment
    recorded = record.gpu, record.python, record.data_fingerprint, _machine(record.machine)
    return bool(record.trajectory and record.machine) and recorded == (
        *(environment.gpu, environment.python, environment.data_fingerprint),
        _machine(environment.machine),
    )


def _machine(found: Mapping[str, str]) -> dict[str, str]:
    """Return what is known of a machine; the variables of a run name the interpreter too."""
    return {name: value for name, value in found.items() if name != "variables"}


def _notes(record: Record, crossing: Crossing, runs: Mapping[Cell, Sequence[Run]]) -> list[str]:
    """Return what differs from the record besides code and versions, and whether its values come again."""
    here = crossing.stands[Side.NEW]
    assert isinstance(here, Stand)
    environment, notes = here.environment, []
    if record.python and record.python != environment.python:
        notes.append(f"Python {record.python} was recorded; {environment.python} runs here")
    if record.data_fingerprint and record.data_fingerprint != environment.data_fingerprint:
        notes.append(
            "the data or the model is another than what was recorded: the fingerprints differ"
        )
    for name, before in _machine(record.machine).items():
        if (now := environment.machine.get(name)) != before:
            notes.append(f"{name} {before} was recorded; {now or 'none'} is here")
    if record.gpu and record.gpu != environment.gpu:
        notes.append(
            f"it was recorded on {record.gpu} and this is {environment.gpu}: the recorded values say "
            "nothing here, only the four runs do"
        )
        return notes
    again = runs.get(Cell(Side.OLD, Side.OLD))
    if record.trajectory and again:
        found = deviations(
            again[0].result.trajectory, record.trajectory, crossing.config.tolerances
        )
        notes.append(
            "old code in the old environment does not give the recorded values here"
            if found
            else "old code in the old environment gives the recorded values"
        )
    return notes


# The guilty axis


def _hunt(
    session: Session, found: Explanation, asking: Asking, progress: Progress
) -> tuple[list[Report], list[str]]:
    """Return the reports, and notes of hunts that could not begin."""
    if not found.finding.names_a_cause:
        return [], []
    reports: list[Report] = []
    notes: list[str] = []
    options, crossing = HuntOptions(exact=asking.exact), found.crossing
    code, environment = (
        found.finding.moved(axis) if axis in asking.hunts else None
        for axis in ("code", "environment")
    )
    here = replace(session.options, configs=(crossing.config.name,))
    if code:
        stand = crossing.stands[code]
        assert isinstance(stand, Stand)
        asked = Asked(crossing.commits[Side.OLD], crossing.commits[Side.NEW])
        inside = Session(replace(here, python=stand.python))
        reports, notes = begin(
            "the commits",
            lambda: hunting.hunt(inside, asked, options, progress, lambda cases: None),
        )
    if environment:
        way = Way(crossing.commits[environment], old=crossing.pins, new={})
        made, lack = dissect(Session(here), way, options, progress)
        reports += made
        notes += lack
    return reports, notes


# As text and JSON


def lines(found: Explanation) -> list[tuple[str, str]]:
    """Return the answer as (label, text) lines."""
    crossing, finding = found.crossing, found.finding
    told = [("", f"{crossing.config.name}: {finding.cause}: {report.printable(finding.reason)}")]
    for cell, runs in found.runs.items():
        commit = crossing.commits[cell.code][:10]
        told.append((str(cell), f"{commit}, {report.count(len(runs), 'run')}"))
    for effect in finding.effects:
        what = (
            report.describe_deviation(effect.deviation) if effect.deviation else "does not move it"
        )
        other = "environment" if effect.axis == "code" else "code"
        told.append((f"{effect.axis}, {effect.held} {other}", what))
    told += [("note", report.printable(note)) for note in found.notes]
    told.append(("old", f"{found.record.source}: {_versions(crossing)}"))
    return told


def _versions(crossing: Crossing) -> str:
    pins = [f"{name} {version}" for name, version in sorted(crossing.pins.items())]
    return ", ".join(pins) if pins else "the packages that are installed here"


def to_json(found: Explanation) -> dict[str, Any]:
    """Return the answer as JSON, without its hunts."""
    crossing = found.crossing
    return {
        "config": crossing.config.name,
        "cause": found.finding.cause,
        "reason": found.finding.reason,
        "old": crossing.commits[Side.OLD],
        "new": crossing.commits[Side.NEW],
        "pins": dict(crossing.pins),
        "effects": [
            {
                "axis": effect.axis,
                "held": effect.held,
                "moves": effect.deviation is not None,
                "deviation": documents.deviation_json(effect.deviation),
            }
            for effect in found.finding.effects
        ],
        "cells": [
            {"code": cell.code, "environment": cell.environment, "runs": [run.id for run in runs]}
            for cell, runs in found.runs.items()
        ],
        "notes": list(found.notes),
    }
