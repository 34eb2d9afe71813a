"""The form of what a decision stores and tells: one record with its messages; pure."""

import hashlib
from dataclasses import dataclass

from bisector.model import Crash, Deviation, Event
from bisector.report import describe_deviation
from bisector.standing import Track
from bisector.watched import Anchor, Epoch, Inquiry, Question, Regression, Turn


@dataclass(frozen=True, slots=True)
class Tell:
    """One thing to tell people. `key` is what it is about: nothing is told twice.

    `commit` is the one whose words, link and author belong to it. What `answers` another key is told only
    where that was. What it `asks` is asked when it is told.
    """

    event: Event
    key: str
    text: str
    details: tuple[tuple[str, str], ...] = ()
    regression: str = ""
    moved: tuple[str, ...] = ()
    unmoved: tuple[str, ...] = ()
    commit: str = ""
    hunt: str = ""
    answers: str = ""
    asks: tuple[Question, ...] = ()

    @property
    def id(self) -> str:
        """Return the message's id."""
        return message_id(self.key)


@dataclass(frozen=True, slots=True)
class Record:
    """What one decision stores, in one transaction; what is there already is replaced."""

    epochs: tuple[Epoch, ...] = ()
    turns: tuple[Turn, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    inquiries: tuple[Inquiry, ...] = ()
    ended: tuple[str, ...] = ()  # inquiries
    restarts: tuple[Turn, ...] = ()  # each replaces its config's start
    regressions: tuple[Regression, ...] = ()
    answered: tuple[str, ...] = ()  # questions, by key
    tells: tuple[Tell, ...] = ()


def tell_of(
    found: Regression,
    event: Event,
    key: str,
    text: str,
    details: tuple[tuple[str, str], ...] = (),
    *,
    commit: str = "",
    hunt: str = "",
) -> Tell:
    """Return what is told of a regression, with the members that it is known to have moved."""
    return Tell(
        *(event, key, text, details),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        commit=commit,
        hunt=hunt,
    )


def message_id(key: str) -> str:
    """Return the id of the message of that key."""
    return f"m{digest(key)}"


def describe(deviation: Deviation | None, crash: Crash | None) -> str:
    """Return a deviation in words; empty for none."""
    return describe_deviation(deviation, crash) if deviation else ""


def make_anchor(track: Track, turn: str, sha: str, run: str) -> Anchor:
    """Return the anchor by which a run stands for a turn in the present epoch."""
    epoch = track.now
    return Anchor(track.config.name, turn, epoch.environment, epoch.since, sha, run)


def digest(*parts: object) -> str:
    """Return a short name for what the parts say."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
