"""What the service can do next, as data: runs to make, and changes of what it remembers of the branch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bisector.case import Case, Start
from bisector.kinship import Kin, Reverted
from bisector.model import Conclusion, Role, Run
from bisector.plan import Cancel, Conclude
from bisector.standing import Left, Track
from bisector.watched import Epoch, Inquiry, Regression, RegressionState


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the service knows. `cases` and `conclusions` are those of the inquiries' hunts."""

    now: float
    tracks: tuple[Track, ...]
    inquiries: tuple[Inquiry, ...] = ()
    cases: tuple[Case, ...] = ()
    conclusions: Mapping[str, Conclusion] = field(default_factory=dict)
    regressions: Mapping[str, Regression] = field(default_factory=dict)
    reverted: Reverted = field(default_factory=dict)
    hold: str = ""  # why no run may start now
    hunt_hold: str = ""  # why no hunt may start now

    @property
    def culprits(self) -> dict[str, str]:
        """Return the regressions' commits."""
        return {found.id: found.culprit for found in self.regressions.values()}

    def told_of(self, alarm: "Open") -> Regression | None:
        """Return the open regression of a class's alarm, where people know of it already."""
        name = next(t.config.class_name for t in self.tracks if t.config.name == alarm.config)
        for found in self.regressions.values():
            is_open = found.state is RegressionState.OPEN
            if is_open and (found.class_name, found.bad) == (name, alarm.bad):
                return found
        return None


@dataclass(frozen=True, slots=True)
class Make:
    """Run a config at a commit, outside a hunt."""

    config: str
    sha: str
    role: Role


@dataclass(frozen=True, slots=True)
class SetAnchor:
    """Let a run stand for a turn in the present epoch."""

    config: str
    turn: str
    run: Run


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin at a later commit: those before it do not train here."""

    config: str
    sha: str
    reason: str


@dataclass(frozen=True, slots=True)
class Shift:
    """The newest good commit no longer gives its trajectory: a new epoch begins with its control run."""

    config: str
    turn: str
    control: Run
    left: Left


@dataclass(frozen=True, slots=True)
class Revert:
    """Make the commit that is `sha` with others reverted."""

    sha: str
    reverts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """Look into an alarm. `moved` and `unmoved` are configs at the alarming commit.

    `is_end`: it looks like the end of a regression, so that nobody is told yet. Without `hunts`, `bad`
    itself is what turned; with a `reason`, no single commit is: that is said, and nothing is looked into.
    While hunts are held back, `is_held`: people are told, and the hunt begins later.
    """

    config: str
    good: str
    bad: str
    left: Left
    moved: tuple[str, ...]
    unmoved: tuple[str, ...]
    is_end: bool = False
    hunts: bool = False
    reason: str = ""
    is_held: bool = False

    @property
    def begins_hunt(self) -> bool:
        """Whether a hunt is to begin now."""
        return self.hunts and not self.is_held


@dataclass(frozen=True, slots=True)
class Settle:
    """End an inquiry: from `sha` on, each config of `runs` is judged by its run there."""

    inquiry: Inquiry
    turn: str  # the turn before it
    sha: str
    runs: Mapping[str, Run]
    unmoved: tuple[str, ...]
    kin: Kin
    conclusion: Conclusion | None
    left: Left


@dataclass(frozen=True, slots=True)
class Withdraw:
    """End an inquiry that nothing came of: the commit is in line by now, or today's environment is another.

    `is_over`: it is in line, so that its regression is over too.
    """

    inquiry: Inquiry
    is_over: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """A regression is over before a culprit was found: its commit is in line by now."""

    regression: Regression


@dataclass(frozen=True, slots=True)
class End:
    """A regression is over since `sha`, though that showed only when older commits were filled in."""

    regression: Regression
    sha: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A regression whose commit was pushed away is over: `head`, the newest commit, is in line.

    `is_anew`: with a baseline that is younger than the regression, so that nothing is known to be mended.
    """

    regression: Regression
    head: str
    is_anew: bool


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """Say once that a law that needs no reference is broken from `sha` on; it held at `before` (or empty)."""

    config: str
    sha: str
    before: str
    law: str
    reading: str


@dataclass(frozen=True, slots=True)
class NewEnvironment:
    """Say what a new environment did: every config has an anchor in it by now. `records` are what stood before
    for one config of each class that moved, by config: a stored run, or a reference file."""

    before: tuple[Epoch, ...]
    after: tuple[Epoch, ...]
    moved: tuple[str, ...]
    unmoved: tuple[str, ...]
    records: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Say once that a run of `sha` left the line, though it touches nothing that the run of `source` read."""

    config: str
    sha: str
    source: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Say once that configs do not train from a commit on, so that nothing can be said of them."""

    configs: tuple[str, ...]
    sha: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mended:
    """What was said to be broken trains again since `sha`."""

    broken: Broken
    sha: str


Act = (
    SetAnchor
    | Restart
    | Shift
    | Revert
    | Open
    | Settle
    | Withdraw
    | Drop
    | End
    | Leave
    | BrokenLaw
    | Broken
    | Mended
    | NewEnvironment
    | Contradicted
    | Cancel
    | Conclude
)
Work = Start | Make
