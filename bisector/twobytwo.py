"""Old and new code crossed with old and new environment: which of the two moved a trajectory; pure.

                      old environment   new environment
        old code            a      ──E──▶     b
                            │                 │              each arrow: does it move the trajectory?
                            C                 C
                            ▼                 ▼
        new code            c      ──E──▶     d

    code          both C move it, no E does        environment   both E move it, no C does
    both          all four move it                 combination   one of a pair moves it, and its twin does not
    neither       none does                        unstable      a cell does not repeat itself

Where no arrow does, but d has left a, each moves it by a part, which is a combination too. A cell that cannot be set up takes its two arrows with it; the others decide. Where an axis has none left, what the
other does is said, and nothing of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from bisector.compare import deviations, headline
from bisector.conclude import CRASHED
from bisector.judge import skip_reason
from bisector.model import Deviation, RunResult, Status, Tolerances


class Side(StrEnum):
    """Old or new: of the code, or of the environment."""

    OLD = "old"
    NEW = "new"


class Cause(StrEnum):
    """What moved the trajectory."""

    CODE = "code"
    ENVIRONMENT = "environment"
    BOTH = "both"
    COMBINATION = "combination"
    NEITHER = "neither"
    UNSTABLE = "unstable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cell:
    """One code in one environment."""

    code: Side
    environment: Side

    def __str__(self) -> str:
        return f"{self.code} code in the {self.environment} environment"


TOGETHER = "code and environment moved it together, each by less than the tolerance"
CANCELLED = "old and new agree all the same, since what moved it was made up for"

CELLS = tuple(Cell(code, environment) for environment in Side for code in Side)


@dataclass(frozen=True, slots=True)
class Effect:
    """An arrow between two cells; `deviation` says how the second left the first, None if it did not."""

    axis: str  # "code" or "environment"
    held: Side  # the side of the other axis, which does not change
    deviation: Deviation | None


@dataclass(frozen=True, slots=True)
class Finding:
    """The cause, in words, with the effects that are known."""

    cause: Cause
    reason: str
    effects: tuple[Effect, ...] = ()

    @property
    def names_a_cause(self) -> bool:
        """Whether it says what moved the trajectory."""
        return self.cause not in (Cause.NEITHER, Cause.UNSTABLE, Cause.UNKNOWN)

    def moved(self, axis: str) -> Side | None:
        """Return on which side of the other axis this one moved the trajectory, the new one if on both."""
        sides = {e.held for e in self.effects if e.axis == axis and e.deviation}
        return next((side for side in (Side.NEW, Side.OLD) if side in sides), None)


Results = Mapping[Cell, Sequence[RunResult]]


def decide(results: Results, tolerances: Tolerances) -> Finding:
    """Return what moved the trajectory, from the runs of each cell, one or more."""
    for cell, runs in results.items():
        if any(_differ(one, other, tolerances) for one, other in combinations(runs, 2)):
            reason = f"the {cell} does not give the same twice, so nothing can be told from it"
            return Finding(Cause.UNSTABLE, reason)
    known = {cell: runs[0] for cell, runs in results.items() if _is_known(runs[0])}
    effects = tuple(
        Effect(axis, held, _differ(known[after], known[before], tolerances))
        for axis, held, before, after in _ARROWS
        if before in known and after in known
    )
    refused = [f"{c}: {skip_reason([r[0]])}" for c, r in results.items() if c not in known]
    cause = _cause(effects)
    words = _words(cause, effects)
    old, new = (known.get(Cell(side, side)) for side in Side)
    if old and new:
        is_moved = _differ(new, old, tolerances) is not None
        if cause is Cause.NEITHER and is_moved:
            cause, words = Cause.COMBINATION, TOGETHER
        elif cause not in (Cause.NEITHER, Cause.UNKNOWN) and not is_moved:
            words = f"{words}; {CANCELLED}"
    if refused:
        words = "; ".join([words, *(f"not run: {each}" for each in refused)])
    return Finding(cause, words, effects)


_ARROWS = (
    *(("code", held, Cell(Side.OLD, held), Cell(Side.NEW, held)) for held in Side),
    *(("environment", held, Cell(held, Side.OLD), Cell(held, Side.NEW)) for held in Side),
)


def _cause(effects: Sequence[Effect]) -> Cause:
    moves = {
        axis: [e.deviation is not None for e in effects if e.axis == axis]
        for axis in ("code", "environment")
    }
    if not (moves["code"] and moves["environment"]):
        moved = [axis for axis, does in moves.items() if True in does]
        return Cause(moved[0]) if moved else Cause.UNKNOWN
    if any(len(set(both)) == 2 for both in moves.values()):
        return Cause.COMBINATION
    by_code, by_environment = (True in moves[axis] for axis in ("code", "environment"))
    if by_code and by_environment:
        return Cause.BOTH
    if by_code:
        return Cause.CODE
    return Cause.ENVIRONMENT if by_environment else Cause.NEITHER


def _words(cause: Cause, effects: Sequence[Effect]) -> str:
    said = {
        Cause.CODE: "the code moved it, and the environment does not matter",
        Cause.ENVIRONMENT: "the environment moved it, and the code does not matter",
        Cause.BOTH: "code and environment moved it, each of them by itself",
        Cause.COMBINATION: "code and environment moved it in combination",
        Cause.NEITHER: "neither code nor environment moves it here",
        Cause.UNKNOWN: "too little of it can be run here",
    }[cause]
    unseen = {"code", "environment"} - {effect.axis for effect in effects}
    if len(unseen) == 1:
        (axis,) = unseen
        (other,) = {"code", "environment"} - unseen
        does = "moved it" if cause is not Cause.UNKNOWN else "does not move it here"
        return f"the {other} {does}; whether the {axis} does cannot be told"
    if cause is not Cause.COMBINATION:
        return said
    return f"{said}: {'; '.join(_describe(axis, effects) for axis in ('code', 'environment'))}"


def _describe(axis: str, effects: Sequence[Effect]) -> str:
    other = {"code": "environment", "environment": "code"}[axis]
    held = [e.held for e in effects if e.axis == axis and e.deviation]
    if not held:
        return f"the {axis} alone never does"
    where = "either" if len(held) == 2 else f"the {held[0]}"
    only = "" if len(held) == 2 else " only"
    return f"the {axis} moves it with {where} {other}{only}"


def _is_known(result: RunResult) -> bool:
    return result.status not in (Status.SETUP_FAILED, Status.TIMED_OUT)


def _differ(observed: RunResult, reference: RunResult, limits: Tolerances) -> Deviation | None:
    """Return how one run left the other: a crash that the other had not, or a deviation."""
    if observed.crash or reference.crash:
        crashes = {crash and crash.signature for crash in (observed.crash, reference.crash)}
        return CRASHED if len(crashes) == 2 else None
    if not (_is_known(observed) and _is_known(reference)):
        return None
    found = deviations(observed.trajectory, reference.trajectory, limits)
    return headline(found, limits.step)
