"""The commands about what is no commit: `why`, code or environment; `noise`, do runs repeat?"""

from enum import StrEnum
from typing import Annotated

import typer

from bisector.terminal import (
    OK,
    UNDECIDED,
    AsJson,
    ConfigNames,
    Jobs,
    Python,
    Repo,
    SettingsFile,
    State,
    SuiteName,
    Verbose,
    answer,
    app,
    out,
    print_json,
    show_lines,
)


class Hunted(StrEnum):
    """What `why` goes on to hunt, where it moved the trajectory."""

    BOTH = "both"
    CODE = "code"
    ENVIRONMENT = "environment"
    NONE = "none"

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes by name."""
        return {self.BOTH: ("code", "environment"), self.NONE: ()}.get(self, (str(self),))


@app.command()
def why(
    record: Annotated[
        str, typer.Argument(metavar="REFERENCE|RUN", help="A recorded file, or a stored run.")
    ],
    commit: Annotated[str, typer.Argument(help="The new code.")] = "HEAD",
    old: Annotated[str, typer.Option("--old", help="The old code. [what was recorded]")] = "",
    exact: Annotated[bool, typer.Option("--exact", help="Ask for every bit.")] = False,
    hunt: Annotated[
        Hunted, typer.Option("--hunt", help="Go on to hunt what moved it, on which axis.")
    ] = Hunted.BOTH,
    repo: Repo = "",
    suite: SuiteName = "",
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    jobs: Jobs = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say whether code or environment moved a trajectory, or both; exits 3 if neither can be named."""
    from bisector import documents, explaining, report
    from bisector.progress import TerminalProgress
    from bisector.session import Options, Session

    session = Session(Options(repo, suite, tuple(config or ()), state, settings, python, jobs or 0))
    asking = explaining.Asking(record, commit, old, exact, hunt.axes)
    with TerminalProgress(is_verbose=verbose) as progress:
        found = explaining.explain(session, asking, progress)
    if as_json:
        hunts = documents.to_json(found.reports)
        print_json({**hunts, "why": explaining.to_json(found)})
    else:
        show_lines(explaining.lines(found))
        for each in found.reports:
            print()
            show_lines(report.lines(each))
    answer(OK if found.finding.names_a_cause else UNDECIDED)


@app.command()
def noise(
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    as_json: AsJson = False,
) -> None:
    """Show how far runs of one commit differ, for each config, device and environment."""
    from rich.table import Table

    from bisector import documents, repeats
    from bisector.session import Options, Session

    store = Session(Options(state=state, settings=settings)).store
    runs = [each for each in store.repeated_runs() if not config or each[1] in config]
    known = store.environments(sorted({run.environment for run, *_ in runs}))
    found = repeats.gather(runs, known)
    if as_json:
        print_json({"schema": documents.SCHEMA, "noise": [repeats.to_json(each) for each in found]})
    elif not found:
        which = f" with {', '.join(config)}" if config else ""
        print(f"no commit was run twice{which} in one environment yet; a hunt runs its ends twice")
    else:
        columns = ("config", "device", "environment", "commits", "runs", "runs of one commit")
        table = Table(*columns, box=None, padding=(0, 1, 0, 0))
        for each in found:
            counts = str(each.commits), str(each.runs)
            place = each.environment.gpu, each.environment.id
            table.add_row(each.config, *place, *counts, repeats.words(each))
        out().print(table)
    answer(OK)
