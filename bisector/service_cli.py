"""The commands around the service: watch, status, accept, pause, resume, notify-test."""

import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from bisector.terminal import (
    OK,
    USER_ERROR,
    AsJson,
    ConfigNames,
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
)

if TYPE_CHECKING:
    from bisector.session import Session


@app.command()
def watch(
    once: Annotated[bool, typer.Option("--once", help="Make one pass and end.")] = False,
    port: Annotated[
        int, typer.Option("--port", help="Serve /metrics and /health on this loopback port.")
    ] = 0,
    repo: Repo = "",
    suite: SuiteName = "",
    config: ConfigNames = None,
    state: State = "",
    settings: SettingsFile = "",
    python: Python = "",
    verbose: Verbose = False,
) -> None:
    """Poll, run, compare, hunt and tell, until stopped."""
    from bisector.hunting import Stop
    from bisector.looping import Loop
    from bisector.serving import serve
    from bisector.session import Options
    from bisector.watching import Watcher

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format=_log_format(), force=True
    )
    for noisy in ("apscheduler", "httpx", "httpcore", "git"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    watcher = Watcher(Options(repo, suite, tuple(config or ()), state, settings, python))
    with Stop().listening() as stop, serve(watcher, port):
        loop = Loop(watcher, lambda: stop.is_set)

        def reload(number: int, frame: FrameType | None) -> None:
            loop.request_reload()

        signal.signal(signal.SIGHUP, reload)
        loop.run(once=once)
    answer(OK)


def _log_format() -> str:
    """Return the form of a log line; the journal adds the time itself."""
    return (
        "%(levelname)s %(message)s"
        if os.environ.get("JOURNAL_STREAM")
        else ("%(asctime)s %(levelname)s %(message)s")
    )


@app.command()
def status(state: State = "", settings: SettingsFile = "", as_json: AsJson = False) -> None:
    """Show what is watched, what runs, what is open, and the last hunts and runs."""
    from bisector import overviewing

    session = _open(state, settings)
    found = overviewing.overview(session)
    if as_json:
        print_json(found)
    else:
        overviewing.show(found, out())
    answer(OK)


@app.command()
def accept(
    id_: Annotated[str, typer.Argument(metavar="ID", help="A regression; a beginning will do.")],
    reason: Annotated[str, typer.Option("--reason", help="Why this change is intended.")],
    write: Annotated[
        str, typer.Option("--write", help="Also write the re-recorded reference files here.")
    ] = "",
    state: State = "",
    settings: SettingsFile = "",
) -> None:
    """Take the new trajectory as the baseline from the culprit on."""
    from bisector.accepting import accept_regression

    session = _open(state, settings)
    found, written = accept_regression(session, id_, reason, Path(write) if write else None)
    print(f"{found.id} is accepted: {found.config} at {(found.culprit or found.bad)[:10]}")
    for path in written:
        print(path)
    answer(OK)


@app.command()
def pause(state: State = "", settings: SettingsFile = "") -> None:
    """Let the service start no new run."""
    _open(state, settings).ledger.set("paused", "yes")
    print("paused: what runs ends, and nothing new starts until `bisector resume`")
    answer(OK)


@app.command()
def resume(state: State = "", settings: SettingsFile = "") -> None:
    """Let the service start runs again."""
    _open(state, settings).ledger.set("paused", "")
    print("resumed")
    answer(OK)


def _open(state: str, settings: str) -> "Session":
    from bisector.session import Options, Session

    return Session(Options(state=state, settings=settings))


@app.command(name="notify-test")
def notify_test(settings: SettingsFile = "", as_json: AsJson = False) -> None:
    """Send one test message to every channel."""
    from bisector import documents, trying

    tried = trying.send_test(_open("", settings))
    if as_json:
        print_json({"schema": documents.SCHEMA, "channels": [each.to_json() for each in tried]})
    else:
        for each in tried:
            print(f"{each.channel}: {each.words}")
    answer(OK if all(each.is_delivered for each in tried) else USER_ERROR)
