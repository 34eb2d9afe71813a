"""Turns outcomes into terminal text, Markdown and JSON; pure. Everything a commit's author wrote is escaped."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bisector import alignment
from bisector.alignment import Alike
from bisector.judge import (
    Ends,
    Rule,
    UnclearError,
    end_results,
    furthest,
    judge,
    make_class_rule,
    make_rule,
    measure_noise,
    read_end,
    trusted,
)
from bisector.model import (
    Axis,
    Change,
    Commit,
    Conclusion,
    Crash,
    Deviation,
    Environment,
    Hunt,
    Outcome,
    Run,
    Status,
    short,
)
from bisector.series import plain
from bisector.stopping import cut, horizon, prefix_length, whole

SHOWN_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "kernels")
SHOWN_SUSPECTS = 20


@dataclass(frozen=True, slots=True)
class Report:
    """One hunt with its answer and all that the answer is told with."""

    hunt: Hunt
    conclusion: Conclusion
    runs: tuple[Run, ...]
    words: Mapping[str, Commit]  # of every commit that the report may name
    advice: tuple[str, ...] = ()
    alike: tuple[Alike, ...] = ()  # where else the culprit's blocks stand
    # The packages beside the one searched that another version of it brings: (before, since), "" for none.
    moved_along: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        """Return how many of the commits can matter, as far as is known."""
        known = self.conclusion.candidates
        return self.hunt.commits if known is None else known


# Text


def printable(text: str) -> str:
    """Return text that cannot move a cursor, change colours or reorder a line."""
    return "".join(
        " " if char.isspace() else char
        for char in text
        if char.isspace() or not unicodedata.category(char).startswith("C")
    )


def number(value: float, digits: int = 7) -> str:
    """Return a value with as many significant digits; nine tell any two fp32 numbers apart."""
    return f"{value:.{digits}g}" if math.isfinite(value) else str(plain(value))


def describe_deviation(deviation: Deviation, crash: Crash | None = None) -> str:
    """Return one deviation in words."""
    metric, kind = deviation.metric, deviation.kind
    if kind == "crash":
        return (
            f"training crashes: {printable(crash.type)}: {printable(crash.message)}"
            if crash
            else "crash"
        )
    values = deviation.observed, deviation.reference
    digits = 9 if number(values[0]) == number(values[1]) else 7
    observed, reference = (number(value, digits) for value in values)
    if kind == "non_finite":
        text = f"{metric} is {observed} at step {deviation.step}, where it was {reference}"
    elif kind == "length":
        text = (
            f"{observed} steps instead of {reference}, or other steps; "
            f"they part at step {deviation.step}"
        )
    elif kind == "drift":
        size = abs(deviation.observed - deviation.reference)
        text = (
            f"{metric} is off by {size:.2g} on the mean ({observed} instead of {reference}, "
            f"limit {deviation.limit:g})"
        )
    else:
        size = abs(deviation.observed - deviation.reference)
        text = (
            f"{metric} at step {deviation.step}: {observed} instead of {reference} "
            f"(off by {size:.2g}, limit {deviation.limit:.2g})"
        )
    changed = {True: "; the data changed", False: "; same number of tokens", None: ""}
    return text + changed[deviation.data_changed]


def headline(report: Report) -> str:
    """Return the answer in one sentence."""
    conclusion, config = report.conclusion, report.hunt.config.name
    match conclusion.outcome:
        case Outcome.CULPRIT:
            assert conclusion.culprit
            sha = conclusion.culprit.sha
            return f"{config}: {name(report.hunt, sha)} {_did(report)}{_subject(report, sha)}"
        case Outcome.SUSPECTS:
            what = "ended the deviation" if report.hunt.fixed else "moved the trajectory"
            left = count(len(conclusion.suspects), noun(report.hunt))
            return f"{config}: one of {left} {what}"
        case Outcome.NOT_REPRODUCED:
            return f"{config}: not reproduced, {printable(conclusion.reason)}"
        case Outcome.CONTRADICTION:
            return f"{config}: the runs contradict one another, so nothing is accused"
        case Outcome.ENVIRONMENT:
            return f"{config}: these {noun(report.hunt)}s do not train in this environment"
        case Outcome.BUDGET:
            return f"{config}: {printable(conclusion.reason)}"
        case Outcome.INFRA:
            return f"{config}: the machine failed, and nothing was concluded"
        case Outcome.INTERRUPTED:
            return f"{config}: {printable(conclusion.reason)}"


def _did(report: Report) -> str:
    """Return what the culprit did."""
    has_crash = report.conclusion.crash is not None
    if report.hunt.fixed:
        return f"is the first {noun(report.hunt)} at which the {'crash' if has_crash else 'deviation'} is gone"
    return f"{'broke' if has_crash else 'moved'} the trajectory"


def lines(report: Report) -> list[tuple[str, str]]:
    """Return the report as (label, text) lines, the answer first."""
    conclusion = report.conclusion
    found = [("", headline(report))]
    if conclusion.culprit:
        found += _change_lines(report, conclusion.culprit)
    elif conclusion.ends_deviation:
        found.append(("ends", describe_deviation(conclusion.ends_deviation, conclusion.crash)))
    if conclusion.outcome in (Outcome.CONTRADICTION, Outcome.ENVIRONMENT, Outcome.INFRA):
        found.append(("why", printable(conclusion.reason)))
    if conclusion.reverted:
        found.append(("reverted", describe_revert(report)))
    found += [("alike", printable(text)) for text in alignment.describe(report.alike)]
    for other in conclusion.others:
        found.append(("also", f"{name(report.hunt, other.sha)}{_subject(report, other.sha)}"))
        found.append(("", describe_deviation(other.deviation)))
    for change in conclusion.transient:
        found += _transient_lines(report, change)
    found += _suspect_lines(report)
    if conclusion.confirmed:
        how = "culprit and parent run twice more, fresh: each on its side"
        found.append(("confirmed", how))
        if not conclusion.explained:
            which = report.hunt.end_names[1]
            found.append(("open", f"the {which} is not wholly explained by what is named here"))
        if report.hunt.fixed:
            newest = short(report.hunt.newest)
            text = f"every {noun(report.hunt)} tested from it on, up to {newest}, is as {newest} is"
            if conclusion.transient:
                text += ", but for what moved and was undone"
            found.append(("since", text))
    if conclusion.compared_steps and horizon(report.hunt, report.runs) == conclusion.compared_steps:
        steps = count(conclusion.compared_steps, "step")
        text = f"the first {steps} of each run; --thorough also finds what moved later ones"
        found.append(("compared", text))
    found += [("note", printable(note)) for note in conclusion.notes]
    found += [("advice", printable(line)) for line in report.advice]
    found.append(("range", _range(report)))
    found.append(("cost", _cost(report)))
    found.append(("with", describe_environment(report.hunt.environment)))
    found.append(("hunt", report.hunt.id))
    return found


def _transient_lines(report: Report, change: Change) -> list[tuple[str, str]]:
    text = f"{name(report.hunt, change.sha)}{_subject(report, change.sha)}"
    if not report.hunt.probe_all:
        return [("undone", text)]
    if change.back_to:
        return [("back", f"{text}, as at {short(change.back_to)}")]
    return [("moved", text), ("", describe_deviation(change.deviation, report.conclusion.crash))]


def describe_revert(report: Report) -> str:
    """Return what the bad end does with the culprit reverted."""
    bad, crash = report.hunt.bad[:10], report.conclusion.crash
    match report.conclusion.reverted:
        case "conflicts":
            return f"it does not revert cleanly at {bad}"
        case "restores":
            what = "makes it train again" if crash else "restores the trajectory"
            return f"reverting it at {bad} {what}"
    why = "something else also holds it"
    if report.conclusion.others:
        why = "the later changes named here hold it too"
    return f"reverting it at {bad} does not{' make it train again' if crash else ''}: {why}"


def _change_lines(report: Report, change: Change) -> list[tuple[str, str]]:
    words = report.words.get(change.sha)
    lines = []
    if words:
        request = f", pull request {words.pull_request}" if words.pull_request else ""
        lines.append(("by", f"{printable(words.author)}, {words.date[:10]}{request}"))
    what = describe_deviation(change.deviation, report.conclusion.crash)
    lines.append(("before" if report.hunt.fixed else "what", what))
    moved = [
        f"{n} {old or 'none'} → {new or 'none'}" for n, (old, new) in report.moved_along.items()
    ]
    if moved:
        lines.append(("with it", f"{', '.join(moved)}: moved along, so it may be one of these"))
    return lines


def _suspect_lines(report: Report) -> list[tuple[str, str]]:
    suspects = report.conclusion.suspects
    lines = []
    for suspect in suspects[:SHOWN_SUSPECTS]:
        reason = f" ({printable(suspect.reason)})" if suspect.reason else ""
        lines.append(("suspect", f"{name(report.hunt, suspect.sha)} {suspect.why}{reason}"))
    if len(suspects) > SHOWN_SUSPECTS:
        lines.append(("", f"and {len(suspects) - SHOWN_SUSPECTS} more"))
    return lines


def _subject(report: Report, sha: str) -> str:
    words = report.words.get(sha)
    return f": {printable(words.subject)}" if words else ""


NOUNS = {
    Axis.COMMIT: "commit",
    Axis.PACKAGE: "release",
    Axis.SOURCE: "commit",
    Axis.ENVIRONMENT: "change",
}


def noun(hunt: Hunt) -> str:
    """Return what one place of the hunt's range is called."""
    return NOUNS[hunt.axis]


def name(hunt: Hunt, place: str) -> str:
    """Return a place of the hunt's range as a sentence names it."""
    return f"{hunt.package} {short(place)}".strip()


def _range(report: Report) -> str:
    hunt = report.hunt
    ends = f"{name(hunt, hunt.oldest)} … {short(hunt.newest)}"
    text = f"{ends}, {count(hunt.commits, noun(hunt))}"
    if report.conclusion.candidates is None or hunt.axis is not Axis.COMMIT:
        return text
    return f"{text}, of which {report.candidates} touch what the runs read"


def _cost(report: Report) -> str:
    runs = executions(report.runs)
    recalled = sum(run.is_recalled for run in report.runs)
    return (
        f"{count(len(runs), 'run')}, {sum(len(r.result.trajectory) for r in runs)} training steps, "
        f"{duration(wall_seconds(runs))}" + (f"; {recalled} made before" if recalled else "")
    )


def describe_environment(environment: Environment) -> str:
    """Return interpreter, main packages and device in one line."""
    versions = [
        f"{n} {environment.packages[n]}" for n in SHOWN_PACKAGES if n in environment.packages
    ]
    return ", ".join([f"Python {environment.python}", *versions, environment.gpu])


def count(number: int, noun: str) -> str:
    """Return "1 commit", "2 commits"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(number: float) -> str:
    """Return a number of bytes for people."""
    return f"{number / 1e6:.0f} MB" if number < 1e9 else f"{number / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def as_table(lines: Sequence[tuple[str, str]]) -> Group:
    """Return (label, text) lines as rich draws them: the first whole, the others in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines[1:]:
        table.add_row(label, Text(text))
    return Group(Text(lines[0][1], style="bold"), table)


def executions(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that really trained for this; one that could not be set up executed nothing."""
    return [
        run for run in runs if run.result.status is not Status.SETUP_FAILED and not run.is_recalled
    ]


def wall_seconds(runs: Sequence[Run]) -> float:
    """Return the seconds in which at least one of the runs was in progress."""
    total, until = 0.0, 0.0
    for begin, end in sorted((run.started, run.started + run.result.seconds) for run in runs):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


def probe_verdicts(report: Report) -> list[str | None]:
    """Return each run's verdict against the good end; None while the ends are not known, or tell nothing."""
    runs = _as_compared(report)
    rule, anchor = _rule(report.hunt, runs)
    if rule is None:
        return [_verdict_without_rule(report, run) for run in report.runs]
    shown = {run.id: run for run in runs}
    return [_verdict(shown.get(run.id, run), runs, anchor, rule) for run in report.runs]


def _verdict_without_rule(report: Report, run: Run) -> str | None:
    if not run.result.has_trained:
        return "skip"
    is_good = report.conclusion.outcome is Outcome.NOT_REPRODUCED or run.sha == report.hunt.good
    return "good" if is_good else None


def _verdict(run: Run, runs: Sequence[Run], anchor: Any, rule: Rule) -> str | None:
    same = [r.result for r in runs if (r.sha, r.role) == (run.sha, run.role)]
    try:
        return judge([run.result], anchor, rule) or judge(same, anchor, rule)
    except UnclearError:
        return None


def _as_compared(report: Report) -> tuple[Run, ...]:
    """Return the runs as the answer compared them: over the steps that told the ends apart, or whole."""
    runs = trusted(report.hunt, report.runs)
    steps = horizon(report.hunt, runs)
    if steps is None or report.conclusion.compared_steps not in (0, steps):
        return whole(runs)
    return cut(runs, steps)


def _rule(hunt: Hunt, runs: Sequence[Run]) -> tuple[Rule | None, Any]:
    good, bad = (read_end(end_results(runs, sha, hunt)) for sha in (hunt.good, hunt.bad))
    if isinstance(good, list) and isinstance(bad, Crash):
        return Rule({}, crash=bad), furthest(good)[0]
    if isinstance(good, list) and isinstance(bad, list):
        ends = Ends(furthest(good)[0], furthest(bad)[0], measure_noise(hunt, runs))
        is_short = horizon(hunt, runs) is not None
        length = prefix_length(hunt.config) if is_short else 0
        rule = make_rule(ends, hunt.config.tolerances, exact=hunt.exact, whole=length)
        if rule is None and hunt.probe_all:
            rule = make_class_rule(ends, hunt.config.tolerances, exact=hunt.exact)
        return rule, ends.good
    return None, ()
