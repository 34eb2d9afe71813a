"""The commands: parse, call, print, exit code. Errors people can cause end in two lines, never a traceback.

A command imports what it needs when it is called, so that `show` and `status` answer at once.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import bisector.cause_cli
import bisector.service_cli  # noqa: F401
from bisector import processes
from bisector.errors import BisectorError, InfraError, StopError
from bisector.terminal import (
    BAD,
    INFRA,
    INTERRUPTED,
    OK,
    SKIP,
    UNDECIDED,
    USER_ERROR,
    AsJson,
    ConfigNames,
    Jobs,
    Python,
    Repo,
    SettingsFile,
    ShowFormat,
    State,
    SuiteName,
    Verbose,
    answer,
    answers,
    app,
    out,
    print_json,
    show_lines,
)

if TYPE_CHECKING:
    from bisector.case import Case
    from bisector.model import Outcome
    from bisector.progress import TerminalProgress
    from bisector.session import Session


@app.command()
def hunt(
    good: Annotated[str, typer.Argument(help="The older commit.")],
    bad: Annotated[str, typer.Argument(help="The newer commit.")],
    repo: Repo = "",
    suite: SuiteName = "",
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    exact: Annotated[bool, typer.Option("--exact", help="Hunt every bit.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Always run to full length.")
    ] = False,
    fixed: Annotated[
        bool,
        typer.Option("--fixed", help="The older deviates: find the first commit that does not."),
    ] = False,
    probe_all: Annotated[
        bool, typer.Option("--probe-all", help="Test every place: find what moved and moved back.")
    ] = False,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Never test it; may repeat.")
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", help="Stop after so many runs.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Hunt afresh.")] = False,
    package: Annotated[
        str, typer.Option("--package", help="Search its releases; GOOD and BAD are versions.")
    ] = "",
    environment: Annotated[
        bool,
        typer.Option("--environment", help="GOOD and BAD are files that record an environment."),
    ] = False,
    at: Annotated[
        str, typer.Option("--at", help="The commit for --package or --environment. [HEAD]")
    ] = "",
    source: Annotated[
        str, typer.Option("--source", help="With --package: its repository; go on to its commits.")
    ] = "",
    jobs: Jobs = None,
    warm: Annotated[
        bool | None,
        typer.Option("--warm/--no-warm", help="Fork runs from a process that has imported torch."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Find what moved a trajectory: between two commits, or versions of a package; or what moved it back."""
    from bisector import documents, hunting, report
    from bisector.progress import TerminalProgress
    from bisector.ranges import Asked
    from bisector.session import HuntOptions, Options, Session

    session = Session(
        Options(repo, suite, tuple(config or ()), state, settings, python, jobs or 0, warm)
    )
    options = HuntOptions(exact, thorough, max_runs, again, fixed, probe_all)
    asked = Asked(good, bad, tuple(skip or ()), package, at, source)
    notes: Sequence[str] = ()
    with TerminalProgress(is_verbose=verbose) as progress:

        def expect(cases: list["Case"]) -> None:
            _expect(session, progress, cases)

        if source:
            from bisector.sourcing import hunt_source

            reports, notes = hunt_source(session, asked, options, progress, expect)
        elif environment:
            from bisector.dissecting import dissect_files

            reports, notes = dissect_files(session, (good, bad), at, options, progress)
        else:
            reports = hunting.hunt(session, asked, options, progress, expect)
    if as_json:
        print_json({**documents.to_json(reports), **({"notes": list(notes)} if notes else {})})
    else:
        for found in reports:
            show_lines(report.lines(found))
        for note in notes:
            print(f"note: {report.printable(note)}")
    answer(hunt_exit_code([found.conclusion.outcome for found in reports]))


def _expect(session: "Session", progress: "TerminalProgress", cases: Sequence["Case"]) -> None:
    from bisector import plan, report

    for case in cases:
        commits = len(case.commits) - 1
        stored = f", {len(case.runs)} stored" if case.runs else ""
        if case.hunt.probe_all:
            most = plan.expected_runs_of_all(commits)
            progress.said(
                f"{case.hunt.config.name}: {report.count(commits, report.noun(case.hunt))}, at most {most} runs, "
                f"and four more for each change{stored}"
            )
            continue
        progress.said(
            f"{case.hunt.config.name}: {report.count(commits, report.noun(case.hunt))}, about "
            f"{plan.expected_runs(commits, session.jobs)} runs if the ends differ and nothing is skipped{stored}"
        )


@app.command()
def probe(
    commit: str,
    against: Annotated[str, typer.Option("--against", help="A commit, or a trajectory file.")] = "",
    repo: Repo = "",
    suite: SuiteName = "",
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Train at one commit and compare; exits 0 good, 1 bad, 125 skip, 128 and more for all else."""
    from bisector import documents, probing
    from bisector.model import Verdict
    from bisector.progress import TerminalProgress
    from bisector.session import Options, Session

    session = Session(Options(repo, suite, tuple(config or ()), state, settings, python))
    with TerminalProgress(is_verbose=verbose) as progress:
        findings = probing.probe(session, commit, against, progress)
    if as_json:
        print_json(
            {"schema": documents.SCHEMA, "probes": [probing.finding_json(f) for f in findings]}
        )
    else:
        for finding in findings:
            show_lines(probing.finding_lines(finding))
    verdicts = {finding.verdict for finding in findings}
    worst = next(v for v in (Verdict.BAD, Verdict.SKIP, Verdict.GOOD) if v in verdicts)
    answer({Verdict.GOOD: OK, Verdict.BAD: BAD, Verdict.SKIP: SKIP}[worst])


@app.command()
def record(
    commit: str,
    classes: Annotated[list[str] | None, typer.Argument(metavar="[CLASS]...")] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="[state/references/SUITE]")] = "",
    repo: Repo = "",
    suite: SuiteName = "",
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    verbose: Verbose = False,
) -> None:
    """Record references of a commit on this machine."""
    from bisector import probing
    from bisector.progress import TerminalProgress
    from bisector.session import Options, Session

    session = Session(Options(repo, suite, (), state, settings, python))
    folder = Path(output) if output else probing.own_references(session)
    with TerminalProgress(is_verbose=verbose) as progress:
        written = probing.record(session, commit, classes or [], folder, progress)
    for path in written:
        print(path)
    answer(OK)


@app.command()
def compare(
    a: Path,
    b: Path,
    class_name: Annotated[str, typer.Option("--class", help="Whose tolerances to use.")] = "",
    suite: SuiteName = "",
    as_json: AsJson = False,
) -> None:
    """Compare two trajectory files, and their environments; exits 3 if they differ."""
    from bisector import comparing

    comparison = comparing.compare_files(a, b, class_name, suite)
    if as_json:
        print_json(comparing.to_json(comparison))
    else:
        comparing.show(comparison, out())
    answer(UNDECIDED if comparison.deviations else OK)


@app.command()
def audit(
    good: str,
    bad: str,
    repo: Repo = "",
    suite: SuiteName = "",
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    sample: Annotated[int, typer.Option("--sample", min=1, help="So many commits a config.")] = 10,
    jobs: Jobs = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run commits that would inherit a verdict; exits 3 if a run contradicts one."""
    from bisector import auditing, documents
    from bisector.progress import TerminalProgress
    from bisector.session import Options, Session

    session = Session(Options(repo, suite, tuple(config or ()), state, settings, python, jobs or 0))
    with TerminalProgress(is_verbose=verbose) as progress:
        found = auditing.audit(session, good, bad, sample, progress)
    if as_json:
        print_json({"schema": documents.SCHEMA, "audited": auditing.to_json(found)})
    else:
        show_lines(auditing.lines(found))
    answer(UNDECIDED if any(each.contradiction for each in found) else OK)


@app.command()
def show(
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="A hunt, regression or run; a beginning will do.")
    ],
    form: Annotated[ShowFormat, typer.Option("--format")] = ShowFormat.TEXT,
    state: State = "",
    settings: SettingsFile = "",
) -> None:
    """Show one hunt, regression or run, whole."""
    from bisector import looking
    from bisector.session import Options, Session

    shown = looking.find(Session(Options(state=state, settings=settings)), id_)
    if form is ShowFormat.JSON:
        print_json(looking.to_json(shown))
    elif form is ShowFormat.MARKDOWN:
        print(looking.to_markdown(shown))
    else:
        looking.show(shown, out())
    answer(OK)


@app.command()
def doctor(
    repo: Repo = "",
    suite: SuiteName = "",
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    as_json: AsJson = False,
) -> None:
    """Check what training needs, and say what to fix."""
    from bisector import doctoring, documents
    from bisector.session import Options, Session

    session = Session(Options(repo, suite, (), state, settings, python))
    checks = doctoring.examine(session)
    if as_json:
        print_json({"schema": documents.SCHEMA, "checks": [asdict(check) for check in checks]})
    else:
        doctoring.show(checks, out())
    answer(OK if all(check.is_well for check in checks) else USER_ERROR)


@app.command()
def demo(state: State = "", python: Python = "") -> None:
    """Hunt a planted regression in a small history of the installed trl."""
    from bisector import demonstrating
    from bisector.progress import TerminalProgress
    from bisector.session import Options, Session

    session = Session(Options(state=state, python=python))
    with TerminalProgress(is_verbose=True) as progress:
        shown = demonstrating.run(session, progress)
    show_lines(shown.lines)
    answer(OK if shown.is_right else USER_ERROR)


def hunt_exit_code(outcomes: Sequence["Outcome"]) -> int:
    """Return the exit code for a hunt's outcomes, one a config."""
    from bisector.model import Outcome

    if Outcome.INFRA in outcomes:
        return INFRA
    if Outcome.INTERRUPTED in outcomes:
        return INTERRUPTED
    return OK if Outcome.CULPRIT in outcomes else UNDECIDED


def main(args: Sequence[str]) -> tuple[int, bool]:
    """Run a command; return its exit code, and whether that is the command's own answer."""
    answers.clear()
    os.environ.update(processes.mark(processes.own_identity(), "self"))
    try:
        app(list(args), prog_name="bisector")
    except SystemExit as end:
        code = int(end.code or 0)
        return code, answers == [code] or "--help" in args
    except StopError:
        if "--json" in args and "hunt" in args:  # before there was anything to report
            from bisector import documents

            print_json(documents.to_json([]))
        raise
    except InfraError as error:
        return _complain(error, INFRA), False
    except BisectorError as error:
        return _complain(error, USER_ERROR), False
    except OSError as error:
        refusal = InfraError(f"The system refused: {error}.", "Mend that; run it again.")
        return _complain(refusal, INFRA), False
    finally:
        processes.kill_all()
    return OK, False


def _complain(error: BisectorError, code: int) -> int:
    from rich.console import Console
    from rich.text import Text

    from bisector import report

    console = Console(stderr=True, highlight=False)
    for line in (error.problem, error.remedy):
        console.print(Text(report.printable(line)), soft_wrap=True)
    return code
