"""The nouns of the service as frozen data: what it remembers of a branch beside the runs themselves.

commits  o──o──o──o──C──o──o──F──o──o      C moved the trajectory, F moved it back
turns    start       opens r1    closes r1
judged   by start's  by C's      by start's trajectory again
"""

from dataclasses import dataclass
from enum import StrEnum

from bisector.model import Crash, Deviation


class Word(StrEnum):
    """What is known of one commit and config."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"
    PRESUMED = "presumed"
    WAITING = "waiting"


class RegressionState(StrEnum):
    """Where a regression is in its life."""

    OPEN = "open"
    CULPRIT = "culprit"
    INCONCLUSIVE = "inconclusive"
    CHANGED = "changed"
    ACCEPTED = "accepted"
    FIXED = "fixed"
    UNREPRODUCED = "not_reproduced"

    @property
    def is_over(self) -> bool:
        """Whether commits are good again in spite of it."""
        return self in (self.ACCEPTED, self.FIXED, self.UNREPRODUCED)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A time in which one config's trajectories are comparable: one environment, from `since` on.

    It ends when the environment's fingerprint changes, or when a control run moved without that.
    """

    config: str
    environment: str
    since: float  # seconds since the epoch; 0: from the first run on


@dataclass(frozen=True, slots=True)
class Turn:
    """A commit from which on a config is judged by another trajectory; the first one is the start."""

    config: str
    sha: str
    opens: tuple[str, ...] = ()  # regressions that begin here
    closes: tuple[str, ...] = ()  # regressions that end here
    back_to: str = (
        ""  # the earlier turn whose trajectory it is again: what was open there is open here
    )


@dataclass(frozen=True, slots=True)
class Anchor:
    """What stands for a turn's trajectory in one epoch: a run of commit `sha`, or a reference file."""

    config: str
    turn: str
    environment: str
    since: float
    sha: str
    run: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Regression:
    """A mismatch that the service follows from open to fixed or accepted."""

    id: str
    class_name: str
    config: str  # the member that was hunted
    state: RegressionState
    good: str  # the newest commit before it that was in line
    bad: str  # the commit that raised the alarm
    opened: float
    environment: str
    deviation: Deviation | None = None
    crash: Crash | None = None
    culprit: str = ""
    parent: str = ""
    hunt: str = ""
    moved: tuple[str, ...] = ()
    unmoved: tuple[str, ...] = ()
    ended_by: str = ""  # the commit that fixed it
    reason: str = ""  # why it was accepted, or how it ended
    links: tuple[str, ...] = ()  # other regressions that it may belong to


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One alarm that is being looked into; it ends in turns. Without a hunt, `bad` itself is what turned."""

    id: str
    class_name: str
    config: str
    good: str
    bad: str
    opened: float
    environment: str
    hunt: str = ""
    regression: str = ""  # empty where the alarm looks like the end of one


@dataclass(frozen=True, slots=True)
class Question:
    """Asks why a config moved with its environment: from `record`, a stored run or a reference file of before,
    to `commit` in today's environment. Moments are seconds since the epoch."""

    key: str  # of what was told
    config: str
    record: str
    commit: str
    attempts: int = 0  # that failed
    due: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """One thing to tell people, as channels get it."""

    id: str
    event: str
    regression: str
    created: float
    document: str  # JSON


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message on its way to one channel."""

    message: Message
    channel: str
    state: str  # waiting, delivered, dead
    attempts: int
    due: float
    reason: str
