"""`show` and `status`: what is stored of hunts and runs, as text, Markdown or JSON."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bisector import documents, issue_text, markup, report
from bisector.errors import BisectorError
from bisector.markup import escape
from bisector.model import Conclusion, Environment, Hunt, Run, short
from bisector.report import Report
from bisector.reporting import interrupted, report_of
from bisector.series import plain
from bisector.session import Session
from bisector.watched import Regression

if TYPE_CHECKING:
    from bisector.repo import Repository

STEP_COLUMNS = ("step", "loss", "grad_norm", "num_tokens")

StoredRun = tuple[Run, str, Environment]
Recent = Sequence[tuple[Hunt, Conclusion | None, float]]


@dataclass(frozen=True, slots=True)
class Followed:
    """A regression, with the report of its hunt where it has one."""

    regression: Regression
    hunt: Report | None


Shown = Report | StoredRun | Followed


def find(session: Session, prefix: str) -> Shown:
    """Return the one hunt, regression or run whose id begins so."""
    hunt = session.store.hunt(prefix)
    if hunt:
        return _report_of(session, *hunt)
    run = session.store.run(prefix)
    regression = session.ledger.regression(prefix)
    if regression and not run:
        return Followed(regression, _report(session, regression.hunt))
    if run is None or regression:
        raise BisectorError(
            f"No single hunt, regression or run has an id that begins with {prefix!r}.",
            "`bisector status` lists the last ones.",
        )
    return run


def _report(session: Session, hunt: str) -> Report | None:
    stored = session.store.hunt(hunt) if hunt else None
    return _report_of(session, *stored) if stored else None


def _report_of(session: Session, hunt: Hunt, conclusion: Conclusion | None) -> Report:
    def open_repository() -> "Repository":
        from bisector.repo import Repository

        return Repository(hunt.repository, session.state)

    return report_of(session, open_repository, hunt, conclusion or interrupted())


def show(shown: Shown, console: Console) -> None:
    """Print a hunt with its probes, a regression with its hunt, or a run with its steps."""
    if isinstance(shown, Followed):
        console.print(
            report.as_table(regression_lines(documents.regression_json(shown.regression)))
        )
        if shown.hunt:
            console.print()
            show(shown.hunt, console)
        return
    if isinstance(shown, Report):
        console.print(report.as_table(report.lines(shown)))
        console.print(_probe_table(shown))
    else:
        console.print(report.as_table(_run_lines(shown)))
        console.print(_step_table(shown[0]))
        if shown[0].result.log_tail and shown[0].result.crash:
            console.print(Text("last lines of the log:", style="dim"))
            for line in shown[0].result.log_tail.splitlines():
                console.print(Text(report.printable(line)), soft_wrap=True)


def _probe_table(shown: Report) -> Table:
    table = Table(
        "commit", "role", "verdict", "status", "steps", "s", "run", box=None, padding=(0, 2, 0, 0)
    )
    for run, verdict in zip(shown.runs, report.probe_verdicts(shown), strict=True):
        result = run.result
        table.add_row(
            short(run.sha),
            run.role,
            verdict or "",
            result.status,
            str(len(result.trajectory)),
            f"{result.seconds:.1f}",
            run.id,
        )
    return table


def _run_lines(stored: StoredRun) -> list[tuple[str, str]]:
    run, config, environment = stored
    result = run.result
    lines = [("", f"{config} at {short(run.sha)}: {result.status}")]
    if result.reason:
        lines.append(("why", report.printable(result.reason)))
    lines.append(("role", run.role))
    lines.append(
        ("started", datetime.fromtimestamp(run.started, UTC).isoformat(timespec="seconds"))
    )
    lines.append(("cost", f"{len(result.trajectory)} steps, {report.duration(result.seconds)}"))
    lines.append(("with", report.describe_environment(environment)))
    if run.hunt:
        lines.append(("hunt", run.hunt))
    return lines


def _step_table(run: Run) -> Table:
    table = Table(*STEP_COLUMNS, box=None, padding=(0, 2, 0, 0))
    for row in _step_rows(run):
        table.add_row(*row)
    return table


def _step_rows(run: Run) -> list[tuple[str, str, str, str]]:
    return [
        (
            str(step.step),
            report.number(step.loss),
            report.number(step.grad_norm),
            "" if step.num_tokens is None else report.number(step.num_tokens),
        )
        for step in run.result.trajectory
    ]


def to_json(shown: Shown) -> dict[str, Any]:
    """Return a hunt as `hunt --json` prints it, a regression with its hunt, or a run."""
    if isinstance(shown, Followed):
        hunt = documents.hunt_json(shown.hunt) if shown.hunt else None
        regression = documents.regression_json(shown.regression)
        return {"schema": documents.SCHEMA, **regression, "report": hunt}
    if isinstance(shown, Report):
        return documents.to_json([shown])
    run, config, environment = shown
    result = run.result
    return {
        "schema": documents.SCHEMA,
        "run": run.id,
        "hunt": run.hunt,
        "config": config,
        "sha": run.sha,
        "role": run.role,
        "status": result.status,
        "reason": result.reason,
        "crash": documents.crash_json(result.crash),
        "seconds": round(result.seconds, 3),
        "started": datetime.fromtimestamp(run.started, UTC).isoformat(),
        "steps": [
            {
                "step": step.step,
                "loss": plain(step.loss),
                "grad_norm": plain(step.grad_norm),
                "num_tokens": plain(step.num_tokens),
            }
            for step in result.trajectory
        ],
        "log_tail": result.log_tail,
        "environment": documents.environment_json(environment),
    }


def to_markdown(shown: Shown) -> str:
    """Return the same as text to paste; everything from outside is escaped."""
    if isinstance(shown, Report):
        return issue_text.page(shown)
    if isinstance(shown, Followed):
        (_, first), *rest = regression_lines(documents.regression_json(shown.regression))
        parts = [f"**{escape(first)}**", issue_text.bullets(rest)]
        return "\n\n".join([*parts, *([issue_text.page(shown.hunt)] if shown.hunt else [])])
    (_, first), *rest = _run_lines(shown)
    run, _, environment = shown
    parts = [f"**{escape(first)}**", issue_text.bullets(rest)]
    if run.result.crash:
        parts += issue_text.log_section(run)
    if run.result.trajectory:
        rows = [[*map(escape, row)] for row in _step_rows(run)]
        parts += ["### Steps", markup.table([*map(escape, STEP_COLUMNS)], rows)]
    return "\n\n".join([*parts, *issue_text.environment_section(environment)])


def show_status(found: Mapping[str, Any], console: Console) -> None:
    """Print the last hunts and runs of what `status_json` returned."""
    if not found["hunts"] and not found["runs"]:
        console.print("No hunts and no runs yet.")
    for hunt in found["hunts"]:
        created = datetime.fromisoformat(hunt["created"]).timestamp()
        line = Text(f"{hunt['hunt']}  {_ago(created):>9}  {hunt['config']}  ")
        oldest, newest = (
            (hunt["bad"], hunt["good"]) if hunt["fixed"] else (hunt["good"], hunt["bad"])
        )
        line.append(f"{oldest[:8]}…{newest[:8]}  ")
        line.append(hunt["outcome"] or "not finished", style="bold")
        if hunt["culprit"]:
            line.append(f" {short(hunt['culprit'])}")
        console.print(line)
    if found["runs"]:
        table = Table(
            "run", "config", "commit", "role", "status", "s", box=None, padding=(0, 2, 0, 0)
        )
        for run in found["runs"]:
            table.add_row(
                *(run["run"], run["config"], short(run["sha"])),
                *(run["role"], run["status"], f"{run['seconds']:.1f}"),
            )
        console.print(table)


def status_json(hunts: Recent, runs: Sequence[tuple[Run, str]]) -> dict[str, Any]:
    """Return the last hunts and runs as JSON."""
    return {
        "schema": documents.SCHEMA,
        "hunts": [
            {
                "hunt": hunt.id,
                "config": hunt.config.name,
                "good": hunt.good,
                "bad": hunt.bad,
                "fixed": hunt.fixed,
                "outcome": conclusion.outcome if conclusion else None,
                "culprit": conclusion.culprit.sha if conclusion and conclusion.culprit else None,
                "created": datetime.fromtimestamp(created, UTC).isoformat(),
            }
            for hunt, conclusion, created in hunts
        ],
        "runs": [
            {
                "run": run.id,
                "config": config,
                "sha": run.sha,
                "role": run.role,
                "status": run.result.status,
                "seconds": round(run.result.seconds, 3),
            }
            for run, config in runs
        ],
    }


def _ago(moment: float) -> str:
    return f"{report.duration(max(time.time() - moment, 0))} ago"


def regression_lines(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `documents.regression_json` returned as (label, text) lines."""
    culprit = found["culprit"]
    what = f"culprit {culprit[:10]}" if culprit else f"{found['good'][:10]} … {found['bad'][:10]}"
    lines = [("", f"{found['regression']}  {found['state']}: {found['config']}, {what}")]
    lines.append(("since", found["opened"]))
    for label, names in found["members"].items():
        if names:
            lines.append((label, ", ".join(names)))
    if found["ended_by"]:
        lines.append(("ended by", found["ended_by"][:10]))
    if found["links"]:
        lines.append(("linked to", ", ".join(found["links"])))
    if found["reason"]:
        lines.append(("why", report.printable(found["reason"])))
    return lines
