"""Composes what people are told: the document that channels get, from what was decided; pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bisector import documents, report
from bisector.documents import SCHEMA
from bisector.model import Commit, Deviation, Event
from bisector.report import Report
from bisector.reproduce import hunt_command, public
from bisector.series import load
from bisector.telling import Tell
from bisector.watched import Question

REPORT_LABELS = (
    "also",
    "reverted",
    "undone",
    "suspect",
    "confirmed",
    "open",
    "note",
    "advice",
    "range",
    "cost",
    "with",
)


@dataclass(frozen=True, slots=True)
class About:
    """What is watched, as people know it; `suite` as the command line takes it."""

    repository: str
    branch: str
    suite: str


def compose(
    tell: Tell,
    about: About,
    now: float,
    *,
    words: Commit | None = None,
    found: Report | None = None,
) -> dict[str, Any]:
    """Return the document of one message; `words` are those of its commit, `found` is its hunt."""
    text = f"{tell.text}: {report.printable(words.subject)}" if words else tell.text
    return {
        "schema": SCHEMA,
        "id": tell.id,
        "event": tell.event,
        "time": datetime.fromtimestamp(now, UTC).isoformat(),
        "repository": public(about.repository),
        "branch": about.branch,
        "regression": tell.regression or None,
        "members": {"moved": list(tell.moved), "unmoved": list(tell.unmoved)},
        "text": text,
        "details": [list(pair) for pair in _details(tell, words, found)],
        "links": [list(pair) for pair in _links(about.repository, words)],
        "reproduce": _reproduce(about, found),
        "checked": False,
        "hunt": documents.hunt_json(found) if found else None,
    }


def _details(tell: Tell, words: Commit | None, found: Report | None) -> Sequence[tuple[str, str]]:
    details = [(label, text) for label, text in tell.details if text]
    if words:
        details.insert(0, ("by", f"{report.printable(words.author)}, {words.date[:10]}"))
    if found:
        details += [pair for pair in report.lines(found) if pair[0] in REPORT_LABELS]
    return details


def _links(repository: str, words: Commit | None) -> list[tuple[str, str]]:
    home = home_page(repository)
    if not home or not words:
        return []
    links = [(words.sha[:10], f"{home}/commit/{words.sha}")]
    if words.pull_request:
        links.append((f"#{words.pull_request}", f"{home}/pull/{words.pull_request}"))
    return links


def home_page(repository: str) -> str:
    """Return the page of a repository on GitHub; empty for any other."""
    found = re.fullmatch(
        r"(?:https://(?:[^/@]*@)?github\.com/|(?:ssh://)?git@github\.com[:/])([\w.-]+/[\w.-]+?)(?:\.git)?/?",
        repository,
    )
    return f"https://github.com/{found[1]}" if found else ""


def _reproduce(about: About, found: Report | None) -> str:
    if found is None:
        return ""
    hunt, culprit = found.hunt, found.conclusion.culprit
    good, bad = (culprit.parent, culprit.sha) if culprit else (hunt.oldest, hunt.newest)
    where = {"repository": about.repository, "suite": about.suite}
    return hunt_command(hunt, good[:12], bad[:12], **where)


def explained(question: Question, document: Mapping[str, Any] | None, refusal: str) -> Tell:
    """Return the message that says why a config moved with its environment, from what `why --json` printed,
    or why that could not be found out."""
    key, config = f"why:{question.key}", question.config
    if document is None:
        text = f"why {config} moved with the environment could not be found out"
        return Tell(Event.ENVIRONMENT, key, text, (("why", refusal),), moved=(config,))
    found, hunts = document["why"], document["hunts"]
    culprits = [hunt["culprit"] for hunt in hunts if hunt["axis"] == "package" and hunt["culprit"]]
    what = " and ".join(f"{each['package']} {each['version']}" for each in culprits)
    text = f"{config}: {what} moved it" if what else f"{config}: {found['reason']}"
    details = [("cause", found["reason"])] if what else []
    for hunt in hunts:
        details.append((hunt["axis"], f"{_outcome(hunt)}; hunt {hunt['hunt']}"))
    details += [("note", note) for note in found["notes"]]
    return Tell(Event.ENVIRONMENT, key, text, tuple(details), moved=(config,))


def _outcome(hunt: Mapping[str, Any]) -> str:
    culprit = hunt["culprit"]
    if culprit is None:
        names = ", ".join(suspect["version"] for suspect in hunt["suspects"])
        return f"{hunt['outcome'].replace('_', ' ')}{': ' if names else ''}{names}"
    before, since = (culprit[side] or "none" for side in ("parent", "version"))
    deviation = report.describe_deviation(load(Deviation, json.dumps(culprit["deviation"])))
    return f"{culprit['package']} {before} → {since}: {deviation}"


def heartbeat(about: About, key: str, lines: Sequence[tuple[str, str]]) -> Tell:
    """Return the message that says that the service is alive, with how things are."""
    return Tell(Event.HEARTBEAT, f"heartbeat:{key}", f"watching {about.branch}", tuple(lines))


def stalled(key: str, text: str, details: Sequence[tuple[str, str]] = ()) -> Tell:
    """Return the message that work is held back, and why."""
    return Tell(Event.STALLED, f"stalled:{key}", text, tuple(details))


def dead_channel(channel: str, message: str, reason: str) -> Tell:
    """Return the message that a channel refused one, for the other channels."""
    text = f"channel {channel} is dead: a message was refused and will not be sent again"
    return Tell(Event.CHANNEL, f"channel:{channel}:{message}", text, (("why", reason),))


def trial(key: str) -> Tell:
    """Return the message of `notify-test`."""
    return Tell(Event.TEST, f"test:{key}", "a test message from bisector; nothing happened")
