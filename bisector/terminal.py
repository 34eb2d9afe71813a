"""What the commands share: the application, options that recur, exit codes, and how they print."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

OK, USER_ERROR, UNDECIDED, INFRA, INTERRUPTED = 0, 1, 3, 4, 130
BAD, SKIP = 1, 125  # of probe, for `git bisect run`


# The code of a command that came to its end; empty where a write failed before.
answers: list[int] = []


class ShowFormat(StrEnum):
    """How `show` prints."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


app = typer.Typer(
    help="Find the commit that moved a training trajectory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Repo = Annotated[str, typer.Option("--repo", help="Repository: a path or a URL.")]
SuiteName = Annotated[str, typer.Option("--suite", help="h100, tiny, or a suite file.")]
ConfigNames = Annotated[list[str] | None, typer.Option("--config", help="A config; may repeat.")]
State = Annotated[str, typer.Option("--state", help="Where everything is kept. [state]")]
SettingsFile = Annotated[str, typer.Option("--settings", help="The settings file.")]
Python = Annotated[str, typer.Option("--python", help="The training interpreter.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs side by side. [what fits]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Name every run.")]


def out() -> "Console":
    """Return the console that people's output goes to."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(document: dict[str, Any]) -> None:
    """Print the one document of `--json`."""
    print(json.dumps(document, indent=2, allow_nan=False))


def show_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print (label, text) lines."""
    from bisector import report

    out().print(report.as_table(lines))


def answer(code: int) -> NoReturn:
    """End with the command's own answer, once all of it is written."""
    sys.stdout.flush()
    answers.append(code)
    raise typer.Exit(code)
