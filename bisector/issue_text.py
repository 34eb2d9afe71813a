"""A hunt's page in Markdown, ready to paste as an issue; pure. Everything from outside is escaped."""

import math
from collections.abc import Iterable, Sequence

from bisector import report, reproduce
from bisector.alignment import describe
from bisector.markup import block, code, escape, folded, table
from bisector.model import COMPARED_PACKAGES, Change, Environment, Role, Run, short
from bisector.report import Report
from bisector.unchecked import unchecked

FIRST_STEPS = 10
LOG_LINES = 15
SHOWN_BLOCKS = 10
# What the page says in sections of its own.
_ELSEWHERE = ("confirmed", "compared", "alike", "range", "cost", "with", "hunt")


def page(found: Report) -> str:
    """Return the whole page, the answer first."""
    (_, first), *rest = report.lines(found)
    parts = [
        f"**{escape(first)}**",
        bullets(pair for pair in _joined(rest) if pair[0] not in _ELSEWHERE),
        *_sides_section(found),
        *_confirmed_section(found),
        *_alike_section(found),
        *_cost_section(found),
        *environment_section(found.hunt.environment),
        *_reproduce_section(found),
        "### What was not checked\n",
        "\n".join(f"- {text}" for text in unchecked(found)),
        f"Hunt {code(found.hunt.id)} of bisector.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part)


def bullets(lines: Iterable[tuple[str, str]]) -> str:
    """Return (label, text) lines as a list."""
    return "\n".join(f"- **{escape(label)}** {escape(text)}" for label, text in lines)


def _joined(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the lines with those that have no label behind the one they belong to."""
    found: list[tuple[str, str]] = []
    for label, text in lines:
        if label or not found:
            found.append((label, text))
        else:
            found[-1] = found[-1][0], f"{found[-1][1]}; {text}"
    return found


# What each side showed


def _places(found: Report) -> list[tuple[str, str]]:
    """Return the two commits that the page compares, by name: the culprit and its parent, or the ends."""
    culprit = found.conclusion.culprit
    if culprit:
        return [("parent", _place(culprit.parent)), ("culprit", _place(culprit))]
    return [("good", _place(found.hunt.good)), ("bad", _place(found.hunt.bad))]


def _place(at: Change | str) -> str:
    """Return what is checked out, or named, at a place of the range."""
    return at if isinstance(at, str) else at.sha


def _best_run(runs: Sequence[Run], place: str) -> Run | None:
    """Return the run that shows most of a place: the longest that trained, among those a fresh one."""
    its = [run for run in runs if run.sha == place and run.role is not Role.CONTROL]
    return max(
        its,
        key=lambda r: (r.result.has_trained, len(r.result.trajectory), r.role is Role.CONFIRM),
        default=None,
    )


def _sides_section(found: Report) -> list[str]:
    sides = [(name, place, _best_run(found.runs, place)) for name, place in _places(found)]
    if not any(run for _, _, run in sides):
        return []
    parts = ["### First steps"]
    if all(run and run.result.trajectory for _, _, run in sides):
        parts += _steps(sides)
    stopped = [side for side in sides if not side[2] or not side[2].result.has_trained]
    return parts + [part for side in stopped for part in _what_happened(*side)]


def _steps(sides: Sequence[tuple[str, str, Run | None]]) -> list[str]:
    """Return the table of both trajectories and, if any, the number of steps that it leaves out."""
    one, other = ({s.step: s for s in run.result.trajectory} for _, _, run in sides if run)
    (first, _, _), (second, _, _) = sides
    numbers = sorted(one.keys() & other.keys())
    shown = numbers[:FIRST_STEPS]
    tokens = any(one[n].num_tokens != other[n].num_tokens for n in shown)
    metrics = ["loss", r"grad\_norm", *([r"num\_tokens"] * tokens)]
    header = ["step", *(f"{m}, {w}" for m in metrics for w in (first, second, "deviation"))]
    rows = []
    for n in shown:
        pairs = [(one[n].loss, other[n].loss), (one[n].grad_norm, other[n].grad_norm)]
        if tokens:
            pairs.append((_value(one[n].num_tokens), _value(other[n].num_tokens)))
        rows.append([str(n), *(cell for pair in pairs for cell in _cells(*pair))])
    names = ", ".join(
        f"{name} {code(short(place))} (run {code(run.id)})" for name, place, run in sides if run
    )
    more = len(numbers) - len(shown)
    left = (
        [f"{report.count(more, 'more step')} of these runs in bisector's database."] if more else []
    )
    return [f"{names}:", table(header, rows), *left]


def _value(number: float | None) -> float:
    return math.nan if number is None else number


def _cells(one: float, other: float) -> tuple[str, str, str]:
    digits = 9 if report.number(one) == report.number(other) else 7
    first, second = (report.number(value, digits) for value in (one, other))
    if first == second and (one == other or math.isnan(one)):
        return first, second, "0"
    difference = other - one
    return first, second, f"{difference:+.2g}" if math.isfinite(difference) else "not finite"


def _what_happened(name: str, place: str, run: Run | None) -> list[str]:
    if run is None:
        return [f"- {name} {code(short(place))} was not run."]
    result = run.result
    steps = report.count(len(result.trajectory), "step")
    text = f"- {name} {code(short(place))} (run {code(run.id)}): {result.status}, {steps}"
    if result.crash:
        text += f"; {escape(result.crash.type)}: {escape(result.crash.message)}"
        text += f" in {code(result.crash.place)}" if result.crash.place else ""
    elif result.reason:
        text += f"; {escape(result.reason)}"
    return [text, *log_section(run)]


def log_section(run: Run) -> list[str]:
    """Return the last lines that a run printed which crashed."""
    lines = run.result.log_tail.splitlines()[-LOG_LINES:]
    return [folded("Last lines of the log", block("\n".join(lines)))] if lines else []


# How it was found


def _confirmed_section(found: Report) -> list[str]:
    verdicts = report.probe_verdicts(found)
    pairs = zip(found.runs, verdicts, strict=True)
    fresh = [(run, verdict) for run, verdict in pairs if run.role is Role.CONFIRM]
    if not fresh:
        return []
    if found.conclusion.confirmed:
        text = "Culprit and parent ran twice more, fresh, and each was on its own side every time:"
    else:
        text = "Fresh runs of what moved, and of the place before it:"
    return ["### How it was confirmed", text, _runs_table(found, fresh)]


def _runs_table(found: Report, runs: Sequence[tuple[Run, str | None]]) -> str:
    names = {place: name for name, place in _places(found)}
    header = ["run", "commit", "why", "how", "side", "status", "steps", "seconds"]
    rows = []
    for run, verdict in runs:
        how = "made before" if run.is_recalled else "warm" if run.result.warm else "cold"
        name = f" ({names[run.sha]})" if run.sha in names else ""
        rows.append(
            [
                *(code(run.id), code(short(run.sha)) + name, str(run.role), how),
                *(verdict or "", escape(run.result.status), str(len(run.result.trajectory))),
                f"{run.result.seconds:.1f}",
            ]
        )
    return table(header, rows)


def _alike_section(found: Report) -> list[str]:
    if not found.alike:
        return []
    text = (
        "Where else the blocks stand that the culprit changed. A hint for a reader, not evidence."
    )
    lines = describe(found.alike, SHOWN_BLOCKS)
    return ["### The same blocks elsewhere", text, "\n".join(f"- {escape(line)}" for line in lines)]


def _cost_section(found: Report) -> list[str]:
    lines = [pair for pair in report.lines(found) if pair[0] in ("range", "compared", "cost")]
    seconds = sum(run.result.seconds for run in report.executions(found.runs))
    environment = found.hunt.environment
    devices = max(environment.devices, 1)
    where = "CPU" if environment.gpu == "cpu" else "GPU"
    text = f"{report.duration(seconds * devices)} over all runs"
    lines.append((f"{where} time", text))
    verdicts = report.probe_verdicts(found)
    runs = _runs_table(found, list(zip(found.runs, verdicts, strict=True)))
    every = [folded(f"Every run ({len(found.runs)})", runs)] if found.runs else []
    return ["### Range and cost", bullets(lines), *every]


def environment_section(environment: Environment) -> list[str]:
    """Return what the runs had in common."""
    gpu = environment.gpu
    rows = [("Python", environment.python)]
    rows += [(n, environment.packages[n]) for n in COMPARED_PACKAGES if n in environment.packages]
    rows.append(("gpu", gpu if environment.devices < 2 else f"{environment.devices} x {gpu}"))
    rows.append(("threads", str(environment.threads)))
    rows += [(key, value) for key, value in environment.machine.items() if value]
    rows.append(("data fingerprint", environment.data_fingerprint or "none: the script's own"))
    cells = [(escape(name), escape(value)) for name, value in rows]
    every = folded("Every package", block(reproduce.pins(environment)))
    return ["### Environment", table(["", ""], cells), every]


def _reproduce_section(found: Report) -> list[str]:
    hunt, culprit = found.hunt, found.conclusion.culprit
    commands = [reproduce.whole_command(hunt)]
    if culprit:
        narrow = reproduce.narrow_command(hunt, _place(culprit.parent), _place(culprit))
        commands += ["# or the accused commit alone:", narrow]
    parts = ["### How to reproduce it", "With bisector, in the environment above:"]
    parts += [block("\n".join(commands), "sh"), "Without:"]
    parts.append(block(reproduce.by_hand(hunt, _places(found)), "sh"))
    parts.append(
        f"Then compare `loss` and `grad_norm`, step by step: {reproduce.what_to_compare(hunt)}."
    )
    if "{tiny}" in "".join(hunt.config.args.values()):
        name = code(f"hub/{hunt.environment.data_fingerprint}")
        parts.append(
            "bisector makes model and data itself, the same bytes everywhere, in the state directory under "
            f"{name}; `$TINY` is that directory. It needs bisector, but nothing of what is under test."
        )
    elif hunt.config.method:
        parts.append(
            "Model and data come from the hub; the data must be those of the fingerprint above."
        )
    return parts
