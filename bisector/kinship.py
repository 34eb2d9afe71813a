"""Says what a turn means for the regressions that are open, or were: does it end one, bring one back, or is
it something new? Pure; only trajectories claim anything, a commit's title never does.

With several regressions open, the end of one shows only at the commit with the others reverted:

    o──R1──o──R2──o──F      F alone agrees with nothing; F without R2 agrees with what was before R1
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bisector.judge import skip_reason
from bisector.model import Run
from bisector.standing import Again, Left, Same, Settled, Skip, Track, judge_run
from bisector.watched import RegressionState

LOOKED_BACK = 5  # earlier trajectories that a new one is compared with
REVERTED = 4  # open regressions for which the others are reverted


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that must be known first; of an anchor where `turn` is given."""

    sha: str
    turn: str = ""


@dataclass(frozen=True, slots=True)
class WantedRevert:
    """A commit that must be made first: `sha` with other commits reverted, the newest first."""

    sha: str
    reverts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Back:
    """The trajectory is that of an earlier turn again: `closes` are over."""

    turn: str
    closes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mends:
    """One regression is over while others stay open, shown by the run with those reverted."""

    closes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """A regression that was over is back."""

    turn: str
    opens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unclear:
    """It may end one of the open regressions, or be another: they could not be told apart."""

    reason: str


@dataclass(frozen=True, slots=True)
class New:
    """It has nothing to do with any regression that is known."""


Kin = Back | Mends | Returned | Unclear | New
Reverted = Mapping[tuple[str, tuple[str, ...]], str]  # to a commit; empty: does not revert cleanly


def find_kin(
    track: Track,
    turn: str,
    run: Run,
    culprits: Mapping[str, str],
    reverted: Reverted,
) -> Kin | Wanted | WantedRevert:
    """Return what `run`, the first behind `turn` that left its line, means, or what must be known first.

    `culprits` maps the regressions to their commits.
    """
    current = track.open_at(turn)
    earlier = _earlier(track, turn)
    for candidate in _fewer_open(track, earlier, current):
        agreed = _agrees(track, run, candidate)
        if isinstance(agreed, Wanted):
            return agreed
        if agreed:
            return Back(candidate, tuple(sorted(current - track.open_at(candidate))))
    if len(current) > 1:
        found = _without_the_others(
            track, current, earlier, run=run, culprits=culprits, reverted=reverted
        )
        if found:
            return found
    for candidate in earlier[:LOOKED_BACK]:
        opens = track.open_at(candidate) - current
        if not opens or not all(track.states.get(r) is RegressionState.FIXED for r in opens):
            continue
        agreed = _agrees(track, run, candidate)
        if isinstance(agreed, Wanted):
            return agreed
        if agreed:
            return Returned(candidate, tuple(sorted(opens)))
    return New()


def _earlier(track: Track, turn: str) -> list[str]:
    shas = [each.sha for each in track.turns]
    return shas[: shas.index(turn)][::-1]


def _fewer_open(track: Track, earlier: list[str], current: frozenset[str]) -> list[str]:
    """Return the newest turn for each set of regressions that some of the `current` ones came on top of,
    those with the fewest first."""
    newest: dict[frozenset[str], str] = {}
    for turn in earlier:
        if track.open_at(turn) < current:
            newest.setdefault(track.open_at(turn), turn)
    return [newest[opened] for opened in sorted(newest, key=len)][:LOOKED_BACK]


def _agrees(track: Track, run: Run, turn: str) -> bool | Wanted:
    anchor = track.anchor(turn)
    if anchor is None:
        known = [s.sha for (t, _, _), s in track.anchors.items() if t == turn]
        sha = known[-1] if known else turn
        return Wanted(sha, turn) if not _is_hopeless(track, sha) else False
    return isinstance(judge_run(track, _with_repeats(track, run), anchor), Same)


def _with_repeats(track: Track, run: Run) -> list[Run]:
    """Return the runs up to this one: a crash counts when it was seen twice."""
    runs = track.runs_in(track.now, run.sha)
    return runs[: runs.index(run) + 1] if run in runs else [run]


def _is_hopeless(track: Track, sha: str) -> bool:
    runs = track.runs_in(track.now, sha)
    return len(runs) > 1 and all(run.result.crash or not run.result.trajectory for run in runs)


def _without_the_others(
    track: Track,
    current: frozenset[str],
    earlier: list[str],
    *,
    run: Run,
    culprits: Mapping[str, str],
    reverted: Reverted,
) -> Kin | Wanted | WantedRevert | None:
    """Return the regression that is over, found by reverting the others; None: none of them is."""
    order = {turn.sha: position for position, turn in enumerate(track.turns)}
    base = next((turn for turn in earlier if not track.open_at(turn)), track.turns[0].sha)
    reason = ""
    for regression in sorted(current, key=lambda r: order.get(culprits.get(r, ""), 0))[:REVERTED]:
        others = [culprits.get(r, "") for r in current if r != regression]
        if not all(others):
            reason = "another open regression has no culprit that could be reverted"
            continue
        reverts = tuple(sorted(others, key=lambda sha: -order.get(sha, 0)))
        made = reverted.get((run.sha, reverts))
        if made is None:
            return WantedRevert(run.sha, reverts)
        if not made:
            reason = "the other open regressions do not revert cleanly"
            continue
        found = _compare_revert(track, made, base)
        if isinstance(found, Wanted):
            return found
        if found is True:
            return Mends((regression,))
        reason = found or reason
    return Unclear(reason) if reason else None


def _compare_revert(track: Track, made: str, base: str) -> Wanted | bool | str:
    """Return whether a commit with reverts agrees with the base; words where it cannot be said."""
    anchor: Settled | None = track.anchor(base)
    if anchor is None:
        return Wanted(base, base)
    runs = track.runs_in(track.now, made)
    match judge_run(track, runs, anchor) if runs else Again():
        case Again():
            return Wanted(made)
        case Same(_):
            return True
        case Left(crash=None):
            return False
        case Left(last):
            return f"with the others reverted it does not train: {skip_reason([last.result])}"
        case Skip(why):
            return f"with the others reverted it does not train: {why}"
