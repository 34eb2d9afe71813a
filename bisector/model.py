"""The nouns of bisector as frozen data; nothing here decides or touches anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from bisector.contents import Footprint

METRICS = ("loss", "grad_norm")
SHA_LENGTH = 40
# What a training of TRL can be moved by; everything else that is installed is recorded, not compared.
COMPARED_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "kernels",
    "tokenizers",
    "numpy",
    "safetensors",
    "huggingface-hub",
    "pyarrow",
    "peft",
    "liger-kernel",
)
UNKNOWN_VERSION = "0+unknown"
CONFLICTS = "it does not revert cleanly"  # why a bad end without its culprit could not be set up
MIN_RUNS = 5  # the four runs of the ends, and one more


class Status(StrEnum):
    """What happened to a run."""

    COMPLETED = "completed"
    STOPPED_EARLY = "stopped_early"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    SETUP_FAILED = "setup_failed"


class Role(StrEnum):
    """Why a run was made."""

    END = "end"
    NOISE = "noise"
    SEARCH = "search"
    CONFIRM = "confirm"
    CONTROL = "control"
    TEST = "test"
    REVERT = "revert"  # of the bad end without the culprit: it stands for no other run


class Verdict(StrEnum):
    """What a probe means, in git bisect's words."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


class Outcome(StrEnum):
    """How a hunt ended."""

    CULPRIT = "culprit"
    SUSPECTS = "suspects"
    NOT_REPRODUCED = "not_reproduced"
    CONTRADICTION = "contradiction"
    ENVIRONMENT = "environment"
    BUDGET = "budget"
    INFRA = "infra"
    INTERRUPTED = "interrupted"


class Axis(StrEnum):
    """What the places of a hunt's range are: commits, releases of a package, commits of a package, or
    environments."""

    COMMIT = "commit"
    PACKAGE = "package"
    SOURCE = "source"
    ENVIRONMENT = "environment"


class Event(StrEnum):
    """What a message is about."""

    REGRESSION = "regression"
    CULPRIT = "culprit"
    INCONCLUSIVE = "inconclusive"
    CHANGED = "changed"
    FIXED = "fixed"
    REOPENED = "reopened"
    ACCEPTED = "accepted"
    IDENTITY = "identity"
    ENVIRONMENT = "environment"
    BROKEN = "broken"
    STALLED = "stalled"
    CHANNEL = "channel"
    HEARTBEAT = "heartbeat"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit's words; the text is what its author wrote, so it is hostile until escaped."""

    sha: str
    subject: str
    author: str
    date: str  # ISO 8601, the author's
    pull_request: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """The values that one optimizer step logged; `num_tokens` is None where the trainer logs none."""

    step: int
    loss: float
    grad_norm: float
    num_tokens: float | None = None


Trajectory = tuple[Step, ...]


def short(place: str) -> str:
    """Return a place of a range as people name it: a commit by its first ten digits, else its whole name."""
    return place[:10] if len(place) == SHA_LENGTH else place


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Limits per metric: `step` on one step's difference, `drift` on the mean signed difference."""

    step: Mapping[str, float]
    drift: Mapping[str, float]


EXACT = Tolerances(dict.fromkeys(METRICS, 0.0), dict.fromkeys(METRICS, 0.0))

DeviationKind = Literal["non_finite", "step", "drift", "length", "crash"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One way in which a trajectory left another.

    `observed` and `reference` are the two values at `step`. For `drift` they are the two means over
    the compared steps and `step` is None; for `length` they count steps.
    """

    metric: str | None
    kind: DeviationKind
    step: int | None
    observed: float
    reference: float
    limit: float
    data_changed: bool | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash's signature, `type` and `place` (file and function of the innermost checkout frame, or
    empty), and its message, which is not part of the signature."""

    type: str
    place: str
    message: str

    @property
    def signature(self) -> tuple[str, str]:
        """Return what makes two crashes the same one."""
        return self.type, self.place


@dataclass(frozen=True, slots=True)
class Identity:
    """A law that needs no reference: `metric` at `step` equals `equals` to `within`."""

    metric: str
    step: int
    equals: float
    within: float


@dataclass(frozen=True, slots=True)
class Config:
    """One named way to train: a `trl` subcommand (`method`) or a path in the repository (`script`)."""

    name: str
    suite: str
    class_name: str
    is_canonical: bool
    method: str | None
    script: str | None
    args: Mapping[str, str]
    launch: tuple[str, ...]
    num_processes: int
    requires: tuple[str, ...]
    tolerances: Tolerances
    identities: tuple[Identity, ...]
    has_footprint: bool
    digest: str  # of everything above that can change a trajectory; runs are found by it
    agrees_with: str = ""  # the class's canonical member, where the suite says that members agree


@dataclass(frozen=True, slots=True)
class Declared:
    """A distribution's metadata; an empty `name` means that the checkout declares no package."""

    name: str = ""
    version: str = UNKNOWN_VERSION
    requirements: tuple[str, ...] = ()
    requires_python: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run depends on beside the commit, as recorded with it.

    `id` is a digest of all other fields. `packages` maps every installed distribution to its version.
    """

    id: str
    python: str
    packages: Mapping[str, str]
    gpu: str  # "cpu" where there is none
    devices: int
    threads: int
    machine: Mapping[str, str]  # processor, driver, kernel revisions
    data_fingerprint: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one execution showed."""

    status: Status
    trajectory: Trajectory = ()
    crash: Crash | None = None
    reason: str = ""
    seconds: float = 0.0
    log_tail: str = ""
    # None: not known whole, so that it says nothing of other commits.
    footprint: Footprint | None = None
    warm: bool = False  # forked from a process that had imported the training stack

    @property
    def has_trained(self) -> bool:
        """Whether it trained for as long as it was asked to."""
        return self.status in (Status.COMPLETED, Status.STOPPED_EARLY)


@dataclass(frozen=True, slots=True)
class Run:
    """One stored execution: why it was made, at which commit, and what it showed."""

    id: str
    hunt: str | None
    sha: str
    role: Role
    result: RunResult
    started: float  # seconds since the epoch
    environment: str
    is_recalled: bool = (
        False  # made before, for another purpose, and perhaps at a commit that gives the same
    )


@dataclass(frozen=True, slots=True)
class Hunt:
    """One search: the question and its options. `id` is a digest of what can change the answer.

    `good`, `bad` and `skip` are places of its range, named by commit, version, or what is installed there.
    Where it looks for what `fixed` a deviation, `good` is the newest commit and `bad` the oldest one.
    """

    id: str
    repository: str
    good: str
    bad: str
    commits: int  # places of the range (on commits: the first-parent line), the good end left out
    config: Config
    environment: Environment
    exact: bool = False
    thorough: bool = False
    skip: tuple[str, ...] = ()
    recalls: bool = True  # whether stored runs may stand for ends and probes
    axis: Axis = Axis.COMMIT
    package: str = ""  # whose releases, or commits, the places are
    source: str = ""  # the package's repository, where they are its commits
    at: str = ""  # the commit of every place where those are no commits
    # What is installed in place of what the training interpreter has, by place where those are no commits.
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fixed: bool = False
    probe_all: bool = False  # every commit that can matter is tested, whole

    @property
    def may_revert(self) -> bool:
        """Whether its culprit can be reverted at the bad end."""
        return self.axis is Axis.COMMIT and not self.fixed

    @property
    def oldest(self) -> str:
        """Return the older end."""
        return self.bad if self.fixed else self.good

    @property
    def newest(self) -> str:
        """Return the newer end."""
        return self.good if self.fixed else self.bad

    @property
    def end_names(self) -> tuple[str, str]:
        """Return what people call `good` and `bad`."""
        return ("newest commit", "oldest commit") if self.fixed else ("good end", "bad end")


@dataclass(frozen=True, slots=True)
class Link:
    """One step of the chain: the trajectory moved after `parent` and no later than `child`.

    Both are positions in the range. Where they are neighbours the newer of the two made the change: `child`,
    or `parent` in a range that runs backwards. Otherwise what lies between could not be told apart.
    """

    parent: int
    child: int

    @property
    def is_single(self) -> bool:
        """Whether the link names one commit."""
        return self.child == self.parent + 1


@dataclass(frozen=True, slots=True)
class Suspect:
    """A commit that may be the culprit: it was skipped, or never tested."""

    sha: str
    why: Literal["skipped", "untested"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A link that was found, with what moved at `sha` against `parent`, the commit before it.

    Of what was fixed, the deviation is the parent's against `sha`.
    """

    sha: str
    parent: str
    deviation: Deviation
    back_to: str = (
        ""  # an earlier commit whose trajectory it is on again; known of transient ones only
    )


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A hunt's answer. `culprit` is set only with outcome CULPRIT, that is, after confirmation."""

    outcome: Outcome
    reason: str = ""
    culprit: Change | None = None
    others: tuple[Change, ...] = ()
    transient: tuple[Change, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    ends_deviation: Deviation | None = None
    crash: Crash | None = None
    confirmed: bool = False
    explained: bool = False
    compared_steps: int = 0
    candidates: int | None = None  # commits that can matter; None where that was not worked out
    noise: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # Of the bad end with the culprit reverted; empty: not run, or it showed nothing, as a note says.
    reverted: Literal["restores", "does_not_restore", "conflicts", ""] = ""


@dataclass(frozen=True, slots=True)
class Release:
    """A version of a package in the index."""

    version: str
    uploaded: datetime | None = None
    is_yanked: bool = False
    is_pure: bool = False  # it has a wheel that needs no compiler
