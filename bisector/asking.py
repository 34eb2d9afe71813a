"""Asks `bisector why` for the service, one question after the other, each in a process of its own.

Its runs and hunts are stored as any, so that a question whose process was killed goes on where it was.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bisector import processes
from bisector.bulletin import About
from bisector.ledger import Ledger
from bisector.session import Session
from bisector.terminal import OK, UNDECIDED
from bisector.watched import Question

ATTEMPTS = 3
PAUSE = 3_600.0  # seconds between attempts
LONGEST = 86_400.0  # seconds; one that takes longer hangs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question: the document of `why --json`, or else why there is none."""

    question: Question
    document: dict[str, Any] | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    question: Question
    process: subprocess.Popen[bytes]
    began: float  # monotonic


class Asker:
    """Holds the process of the question that is asked now, if one is."""

    def __init__(self, session: Session, ledger: Ledger, about: About) -> None:
        self._session, self._ledger, self._about = session, ledger, about
        self._folder = session.state / "scratch" / session.owner / "why"
        self._asked: _Asked | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a question is asked now, or could be."""
        return self._asked is not None or self._next() is not None

    def tick(self, *, is_held: bool) -> Answer | None:
        """Go on; return an answer that has come. While `is_held` nothing is asked, and what is asked is put off."""
        if self._asked is None:
            if not is_held and (question := self._next()):
                self._ask(question)
            return None
        code = self._asked.process.poll()
        if code is None:
            if is_held:
                self.close()
            elif time.monotonic() - self._asked.began > LONGEST:
                self._kill()
            return None
        asked, self._asked = self._asked, None
        return self._read(asked.question, code)

    def _next(self) -> Question | None:
        now = time.time()
        due = (
            each
            for each in self._ledger.questions()
            if not now < each.due <= now + PAUSE  # later only where the clock was set back
        )
        return next(due, None)

    def _ask(self, question: Question) -> None:
        log.info("why did %s move? asking", question.config)
        options = self._session.options
        command = [
            *(sys.executable, "-m", "bisector", "why", question.record, question.commit),
            *("--json", "--hunt", "environment", "--config", question.config),
            *("--repo", self._about.repository, "--suite", self._about.suite),
            *("--state", str(self._session.state)),
        ]
        if options.settings:
            command += ["--settings", options.settings]
        if options.python:
            command += ["--python", options.python]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            (self._folder / "answer.json").open("wb") as answer,
            (self._folder / "log").open("wb") as words,
        ):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=words,
                start_new_session=True,
                env={**os.environ, **processes.mark(self._session.owner, "why")},
            )
        self._asked = _Asked(question, process, time.monotonic())

    def _read(self, question: Question, code: int) -> Answer | None:
        document, refusal = None, f"it ended with {code}"
        with suppress(OSError, ValueError):  # a full disk, or an answer that was cut short
            words = (self._folder / "log").read_text("utf-8", "replace").splitlines()
            refusal = " ".join(words[-2:]) or refusal
            if code in (OK, UNDECIDED):
                document = json.loads((self._folder / "answer.json").read_bytes())
        is_whole = document is not None and not _is_unfinished(document["hunts"])
        if not is_whole and question.attempts + 1 < ATTEMPTS:
            log.warning("why did %s move? %s Again in an hour.", question.config, refusal)
            again = replace(question, attempts=question.attempts + 1, due=time.time() + PAUSE)
            self._ledger.write(asked=[again])
            return None
        return Answer(question, document, refusal)

    def close(self) -> None:
        """Stop asking; the question stays."""
        if self._asked:
            self._asked.process.terminate()
            try:
                self._asked.process.wait(10)
            except subprocess.TimeoutExpired:
                self._kill()
        self._asked = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        assert self._asked
        self._asked.process.kill()
        self._asked.process.wait()
        processes.kill_orphans()  # its runs


def _is_unfinished(hunts: Sequence[dict[str, Any]]) -> bool:
    return any(hunt["outcome"] in ("infra", "interrupted") for hunt in hunts)
