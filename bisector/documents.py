"""Turns outcomes into the JSON documents of the contract; pure."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from bisector.model import METRICS, Axis, Change, Crash, Deviation, Environment, Hunt, Role, Run
from bisector.report import SHOWN_PACKAGES, Report, executions, probe_verdicts, wall_seconds
from bisector.reproduce import public
from bisector.series import plain
from bisector.watched import Regression

SCHEMA = 1


def to_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the document that `hunt --json` prints."""
    return {"schema": SCHEMA, "hunts": [hunt_json(report) for report in reports]}


def hunt_json(report: Report) -> dict[str, Any]:
    """Return one entry of `hunts`."""
    hunt, conclusion, runs = report.hunt, report.conclusion, executions(report.runs)
    return {
        "hunt": hunt.id,
        "axis": hunt.axis,
        **({} if hunt.axis is Axis.COMMIT else {"package": hunt.package, "at": hunt.at}),
        **({"source": public(hunt.source)} if hunt.axis is Axis.SOURCE else {}),
        "config": hunt.config.name,
        "suite": hunt.config.suite,
        "good": hunt.good,
        "bad": hunt.bad,
        "exact": hunt.exact,
        "thorough": hunt.thorough,
        "fixed": hunt.fixed,
        "probe_all": hunt.probe_all,
        "outcome": conclusion.outcome,
        "reason": conclusion.reason,
        "culprit": _culprit_json(report, conclusion.culprit) if conclusion.culprit else None,
        "others": [_change_json(report, change) for change in conclusion.others],
        "transient": [_change_json(report, change) for change in conclusion.transient],
        "suspects": [
            {**_place(hunt, s.sha), "why": s.why, "reason": s.reason} for s in conclusion.suspects
        ],
        "ends_deviation": deviation_json(conclusion.ends_deviation),
        "crash": crash_json(conclusion.crash),
        "confirmed": conclusion.confirmed,
        "explained": conclusion.explained,
        "reverted": conclusion.reverted,
        "compared_steps": conclusion.compared_steps,
        "noise": {metric: plain(conclusion.noise.get(metric)) for metric in METRICS},
        "commits": report.hunt.commits,
        "candidates": report.candidates,
        "runs": len(runs),
        "training_steps": sum(len(run.result.trajectory) for run in runs),
        "wall_seconds": round(wall_seconds(runs), 3),
        "probes": [
            _probe_json(report, run, verdict)
            for run, verdict in zip(report.runs, probe_verdicts(report), strict=True)
        ],
        "environment": environment_json(hunt.environment),
        "notes": list(conclusion.notes),
        "advice": list(report.advice),
    }


def _culprit_json(report: Report, culprit: Change) -> dict[str, Any]:
    return {**_change_json(report, culprit), "alike": [asdict(each) for each in report.alike]}


def _change_json(report: Report, change: Change) -> dict[str, Any]:
    hunt, words = report.hunt, report.words.get(change.sha)
    moved_along = {n: list(versions) for n, versions in report.moved_along.items()}
    if hunt.axis not in (Axis.COMMIT, Axis.SOURCE):
        return {
            **_versions(hunt, change),
            "moved_along": moved_along,
            "deviation": deviation_json(change.deviation),
        }
    return {
        **({"package": hunt.package, "moved_along": moved_along} if hunt.source else {}),
        "sha": change.sha,
        "parent": change.parent,
        "subject": words.subject if words else "",
        "author": words.author if words else "",
        "date": words.date if words else "",
        "pull_request": words.pull_request if words else None,
        "deviation": deviation_json(change.deviation),
        "back_to": change.back_to or None,
    }


def _versions(hunt: Hunt, change: Change) -> dict[str, str]:
    """Return the package that a change moves, and its version since and before; "" for none."""
    if hunt.axis is Axis.PACKAGE:
        return {"package": hunt.package, "version": change.sha, "parent": change.parent}
    name = change.sha.partition(" ")[0]
    since, before = (hunt.pins[place].get(name, "") for place in (change.sha, change.parent))
    return {"package": name, "version": since, "parent": before}


def deviation_json(deviation: Deviation | None) -> dict[str, Any] | None:
    """Return one deviation as JSON; null where there is none."""
    if deviation is None:
        return None
    is_crash = deviation.kind == "crash"
    return {
        "metric": deviation.metric,
        "kind": deviation.kind,
        "step": deviation.step,
        "observed": None if is_crash else plain(deviation.observed),
        "reference": None if is_crash else plain(deviation.reference),
        "limit": None if is_crash else plain(deviation.limit),
        "data_changed": deviation.data_changed,
    }


def crash_json(crash: Crash | None) -> dict[str, str] | None:
    """Return a crash as JSON; null where there is none."""
    return {"type": crash.type, "place": crash.place, "message": crash.message} if crash else None


def _place(hunt: Hunt, place: str) -> dict[str, str]:
    """Return a place of the hunt's range, under the name that its axis gives it."""
    return {"sha" if hunt.axis in (Axis.COMMIT, Axis.SOURCE) else "version": place}


def _probe_json(report: Report, run: Run, verdict: str | None) -> dict[str, Any]:
    culprit = report.conclusion.culprit
    return {
        "run": run.id,
        **_place(report.hunt, run.sha),
        "role": run.role,
        "without": culprit.sha if culprit and run.role is Role.REVERT else None,
        "verdict": verdict,
        "status": run.result.status,
        "steps": len(run.result.trajectory),
        "seconds": round(run.result.seconds, 3),
        "warm": run.result.warm,
        "reused": run.is_recalled,
        "reason": run.result.reason,
    }


def environment_json(environment: Environment) -> dict[str, Any]:
    """Return an environment as the contract shows it, with every package beside the main ones."""
    return {
        "id": environment.id,
        "python": environment.python,
        **{name: environment.packages.get(name, "") for name in SHOWN_PACKAGES},
        "gpu": environment.gpu,
        "threads": environment.threads,
        "data_fingerprint": environment.data_fingerprint,
        "machine": dict(environment.machine),
        "packages": dict(environment.packages),
    }


def regression_json(found: Regression) -> dict[str, Any]:
    """Return a regression as JSON."""
    return {
        "regression": found.id,
        "class": found.class_name,
        "config": found.config,
        "state": found.state,
        "opened": moment(found.opened),
        "good": found.good,
        "bad": found.bad,
        "culprit": found.culprit or None,
        "parent": found.parent or None,
        "ended_by": found.ended_by or None,
        "hunt": found.hunt or None,
        "members": {"moved": list(found.moved), "unmoved": list(found.unmoved)},
        "deviation": deviation_json(found.deviation),
        "reason": found.reason,
        "links": list(found.links),
    }


def moment(value: str | float) -> str | None:
    """Return seconds since the epoch as ISO 8601; null for none."""
    return (
        datetime.fromtimestamp(float(value), UTC).isoformat(timespec="seconds") if value else None
    )
