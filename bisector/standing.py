"""Says how each commit of a branch stands for one config, and which runs would say more; pure.

The walk goes from the oldest commit on and judges each run by the trajectory of the turn before it, in the
epoch of the run. The first commit that has left it is the alarm; nothing behind an alarm is judged.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from bisector.compare import deviations, has_data_changed, headline, largest_differences
from bisector.contents import Footprint
from bisector.judge import skip_reason
from bisector.model import Config, Crash, Deviation, Run, RunResult, Status
from bisector.watched import Epoch, Regression, RegressionState, Turn, Word

AUDITED = 50  # one commit in so many that could inherit its verdict is run anyway
CRASH = Deviation(None, "crash", None, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Same:
    """The run is in line with the anchor."""

    run: Run


@dataclass(frozen=True, slots=True)
class Left:
    """The run has left the anchor."""

    run: Run
    deviation: Deviation
    crash: Crash | None = None
    metrics: frozenset[str] = frozenset()  # those that deviate


@dataclass(frozen=True, slots=True)
class Skip:
    """The commit cannot be judged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """A crash or a hang counts when it was seen twice."""


Reading = Same | Left | Skip | Again


@dataclass(frozen=True, slots=True)
class Settled:
    """An anchor with the result that it stands for."""

    id: str  # what names it: run or file
    sha: str
    result: RunResult


@dataclass(frozen=True)
class Track:
    """One config on the branch with all that is known of it.

    `commits` is the window that is looked at, oldest first; `turns` are in the branch's order, also those
    before the window; `epochs` oldest first, the last one is now.
    """

    config: Config
    commits: tuple[str, ...]
    turns: tuple[Turn, ...]
    epochs: tuple[Epoch, ...]
    anchors: Mapping[tuple[str, str, float], Settled]
    runs: Mapping[str, tuple[Run, ...]]
    states: Mapping[str, RegressionState]
    max_backlog: int
    backfilled_from: str  # no commit before this one is filled in
    # For each known footprint the commits of the window that touch it; empty: no verdict is inherited.
    touching: Mapping[Footprint, Collection[str]] = field(default_factory=dict)
    memo: dict[tuple[str, str], list[Deviation]] = field(default_factory=dict, compare=False)

    @property
    def now(self) -> Epoch:
        """Return the epoch in which runs are made."""
        return self.epochs[-1]

    @property
    def began(self) -> float:
        """Return when the start was first run; 0 where a reference file stands for it."""
        runs = self.runs.get(self.turns[0].sha, ())
        return min((run.started for run in runs), default=0.0)

    def anchor(self, turn: str, epoch: Epoch | None = None) -> Settled | None:
        """Return what stands for a turn in an epoch, by default now."""
        epoch = epoch or self.now
        return self.anchors.get((turn, epoch.environment, epoch.since))

    def runs_in(self, epoch: Epoch, sha: str) -> list[Run]:
        """Return the runs of a commit that belong to an epoch, oldest first."""
        later = [e.since for e in self.epochs if e.environment == epoch.environment]
        ends = min((since for since in later if since > epoch.since), default=float("inf"))
        return [
            run
            for run in self.runs.get(sha, ())
            if run.environment == epoch.environment and epoch.since <= run.started < ends
        ]

    def open_at(self, turn: str) -> frozenset[str]:
        """Return the regressions that are open from a turn on; what was accepted is not."""
        return self.open_by_turn[turn]

    @cached_property
    def open_by_turn(self) -> dict[str, frozenset[str]]:
        """Return the same for every turn, in their order."""
        over = (RegressionState.ACCEPTED, RegressionState.UNREPRODUCED)
        found: dict[str, frozenset[str]] = {}
        current: frozenset[str] = frozenset()
        for each in self.turns:
            if each.back_to in found:
                current = found[each.back_to]
            else:
                current = (current | set(each.opens)) - set(each.closes)
            found[each.sha] = current
        return {
            turn: frozenset(r for r in opened if self.states.get(r) not in over)
            for turn, opened in found.items()
        }

    def has_lost(self, found: Regression) -> bool:
        """Whether a regression is not over, but no commit of the branch opens it: its own was pushed away."""
        return not (found.state.is_over or any(found.id in turn.opens for turn in self.turns))

    def differs(self, run: Run, anchor: Settled) -> list[Deviation]:
        """Return how a completed run deviates from an anchor that completed: what to lead with, then one
        deviation of each other metric."""
        key = run.id, anchor.id
        observed, reference = run.result.trajectory, anchor.result.trajectory
        if observed is reference:  # equal to the bit, by far the most of all
            return []
        if key not in self.memo:
            largest = largest_differences(observed, reference)
            found = [  # a NaN where the anchor has one too is in line with it
                d
                for d in deviations(observed, reference, self.config.tolerances)
                if d.metric is None or largest[d.metric] > 0
            ]
            changed = has_data_changed(observed, reference)
            firsts = {d.metric: d for d in reversed(found)}
            first = headline(found, self.config.tolerances.step)
            others = [d for metric, d in firsts.items() if first and metric != first.metric]
            self.memo[key] = [replace(d, data_changed=changed) for d in (first, *others) if d]
        return self.memo[key]


@dataclass(frozen=True, slots=True)
class Standing:
    """How one commit stands, why, and the run that says so."""

    sha: str
    word: Word
    reason: str = ""
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """The first commit that left its line: somewhere after `good`, and no later than `bad`."""

    turn: str
    good: str
    bad: str
    left: Left


class Purpose(StrEnum):
    """What a run outside a hunt is for."""

    ANCHOR = "anchor"
    TEST = "test"
    BACKFILL = "backfill"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Need:
    """A run that would say more."""

    sha: str
    purpose: Purpose
    turn: str = ""


@dataclass(frozen=True, slots=True)
class Walk:
    """One config's branch: a standing for each commit of the window, the alarm if there is one, and
    the runs that are needed, most urgent first."""

    standings: tuple[Standing, ...]
    alarm: Alarm | None
    needs: tuple[Need, ...]
    turn: str  # the turn that the newest judged commit belongs to
    last: str  # the newest commit that was run and is in line
    # Commits that left the line, each with the one that it had to be equal to.
    contradicted: tuple[tuple[str, str], ...] = ()


def judge_run(track: Track, runs: list[Run], anchor: Settled) -> Reading:
    """Return what a commit's runs of one epoch, oldest first, say against an anchor."""
    run, result = runs[-1], runs[-1].result
    match result.status:
        case Status.COMPLETED if anchor.result.crash:
            found = _since_before(track, run, anchor)
            metrics = frozenset(d.metric or "" for d in found)
            return Left(run, found[0] if found else CRASH, None, metrics)
        case Status.COMPLETED:
            found = track.differs(run, anchor)
            metrics = frozenset(d.metric or "" for d in found)
            return Left(run, found[0], None, metrics) if found else Same(run)
        case Status.CRASHED:
            return _judge_crash(runs, anchor)
        case Status.TIMED_OUT if len(runs) < 2 or runs[-2].result.status is not Status.TIMED_OUT:
            return Again()
        case _:
            return Skip(skip_reason([result]))


def _since_before(track: Track, run: Run, crashed: Settled) -> list[Deviation]:
    """Return how a run deviates from the newest trajectory before what crashed."""
    shas = [turn.sha for turn in track.turns]
    own = next((turn for (turn, _, _), each in track.anchors.items() if each.id == crashed.id), "")
    before = shas[: shas.index(own)] if own in shas else []
    anchors = (track.anchor(turn) for turn in reversed(before))
    trained = next((a for a in anchors if a and a.result.status is Status.COMPLETED), None)
    return track.differs(run, trained) if trained else []


def _judge_crash(runs: list[Run], anchor: Settled) -> Reading:
    crash = runs[-1].result.crash
    assert crash
    before = runs[-2].result.crash if len(runs) > 1 else None
    if before is None or before.signature != crash.signature:
        return Again() if len(runs) < 4 else Skip("crashes, but not the same way twice in a row")
    if anchor.result.crash is None:
        return Left(runs[-1], CRASH, crash)
    if anchor.result.crash.signature == crash.signature:
        return Same(runs[-1])
    return Skip(f"crashes in another way: {crash.type}")


def read(track: Track, turn: str, sha: str) -> Reading | None:
    """Return what is known of a commit, in the newest epoch that can say it; None: nothing."""
    for epoch in reversed(track.epochs):
        anchor = track.anchor(turn, epoch)
        runs = track.runs_in(epoch, sha)
        if anchor and runs:
            return judge_run(track, runs, anchor)
    return None


def walk(track: Track) -> Walk:
    """Return how the branch stands for this config."""
    turns = {turn.sha: turn for turn in track.turns}
    before = [turn for turn in track.turns if turn.sha not in track.commits]
    turn = (before or list(track.turns))[-1 if before else 0].sha
    start = track.turns[0].sha
    found: dict[str, Standing] = {}
    presumed: list[str] = []
    pending: list[str] = []
    again: list[str] = []
    last, alarm = turn, None
    cover = _Cover(track)
    contradicted: list[tuple[str, str]] = []
    for sha in track.commits:
        vouching = cover.move_to(sha)
        reading = read(track, turn, sha) if sha not in turns or sha == start else None
        if sha in turns and sha != start:
            turn = last = sha
            presumed += pending
            pending = []
            found[sha] = _in_line(track, turn, sha, _run_at(track, sha))
            continue
        match reading:
            case None if vouching and vouching.sha in found:
                found[sha] = _inherit(found[vouching.sha], sha)
            case None:
                pending.append(sha)
            case Again():
                again.append(sha)
            case Skip(reason):
                found[sha] = Standing(sha, Word.SKIPPED, reason, track.runs[sha][-1])
            case Same(run):
                last = sha
                presumed += pending
                pending = []
                found[sha] = _in_line(track, turn, sha, run)
            case Left(run):
                alarm = Alarm(turn, last, sha, reading)
                if cover.vouched_for(run):
                    contradicted.append((sha, cover.vouched_for(run)))
                found[sha] = Standing(sha, Word.BAD, "has left its line; being looked into", run)
                break
    for sha in presumed:
        found[sha] = Standing(sha, Word.PRESUMED, "between two commits that are in line")
    standings = tuple(found.get(sha) or _waiting(sha, alarm) for sha in track.commits)
    ready = [sha for sha in pending if sha not in cover.behind] or pending
    needs = _needs(track, Walk((), alarm, (), turn, last), ready, again)
    fill = [sha for sha in presumed if sha not in cover.behind]
    needs += [Need(sha, Purpose.BACKFILL) for sha in _to_backfill(track, fill)]
    needs += [Need(sha, Purpose.AUDIT) for sha in cover.inherited if is_audited(sha)]
    return Walk(standings, alarm, tuple(needs), turn, last, tuple(contradicted))


class _Cover:
    """Follows the newest run along the branch: it vouches for later commits up to one that touches what it read.

    Behind such a commit, while that is still to be run, others wait for its run, as long as they touch nothing
    that the run before it read.
    """

    def __init__(self, track: Track) -> None:
        self._track = track
        self._newest: Run | None = None
        self._touching: Collection[str] | None = None
        self._is_lost = True
        self._vouching: Run | None = None
        self.inherited: list[str] = []
        self.behind: set[str] = set()

    def move_to(self, sha: str) -> Run | None:
        """Go on to the next commit; return the run that vouches for it, where it has none itself."""
        touches = self._touching is None or sha in self._touching
        self._is_lost |= touches
        self._vouching = None if self._is_lost else self._newest
        own = _run_at(self._track, sha)
        if own:
            footprint = own.result.footprint
            self._newest, self._is_lost = own, False
            self._touching = self._track.touching.get(footprint) if footprint else None
            return None
        if self._vouching:
            self.inherited.append(sha)
        elif not touches:
            self.behind.add(sha)
        return self._vouching

    def vouched_for(self, run: Run) -> str:
        """Return the commit that a run of the present one had to be equal to; empty if there is none."""
        before = self._vouching
        return before.sha if before and before.environment == run.environment else ""


def is_audited(sha: str) -> bool:
    """Whether a commit is run although it could inherit its verdict."""
    return int(sha[:8], 16) % AUDITED == 0


def _inherit(source: Standing, sha: str) -> Standing:
    return replace(
        source, sha=sha, reason=f"as {source.sha[:10]}: it touches nothing that was read there"
    )


def _run_at(track: Track, sha: str) -> Run | None:
    runs = track.runs.get(sha, ())
    return runs[-1] if runs else None


def _in_line(track: Track, turn: str, sha: str, run: Run | None) -> Standing:
    red = sorted(track.open_at(turn))
    if red:
        return Standing(sha, Word.BAD, f"as since {turn[:10]} ({', '.join(red)})", run)
    return Standing(sha, Word.GOOD, f"in line with {turn[:10]}", run)


def _waiting(sha: str, alarm: Alarm | None) -> Standing:
    why = f"until {alarm.bad[:10]} is looked into" if alarm else "not run yet"
    return Standing(sha, Word.WAITING, why)


def _needs(track: Track, found: Walk, pending: list[str], again: list[str]) -> list[Need]:
    turn, last, alarm = found.turn, found.last, found.alarm
    needs = [Need(sha, Purpose.TEST) for sha in again]
    if alarm:
        if alarm.left.run in track.runs_in(track.now, alarm.bad):
            return needs
        pending, again = [alarm.bad], []  # seen in an epoch that is over
    if track.anchor(turn) is None:
        return [*_anchor_needs(track, turn, last, pending), *needs]
    if len(pending) > track.max_backlog:
        pending = pending[-1:]
    return [*needs, *(Need(sha, Purpose.TEST) for sha in pending)]


def _anchor_needs(track: Track, turn: str, last: str, pending: list[str]) -> list[Need]:
    """Return the run that is to become the turn's anchor now: of the newest commit in line or, where that
    does not train, of the oldest later one that does."""
    for sha in dict.fromkeys([last, *pending]):
        if not is_useless(track, sha):
            return [Need(sha, Purpose.ANCHOR, turn)]
    return []


def is_useless(track: Track, sha: str) -> bool:
    """Whether a commit has shown in the present epoch that it does not train."""
    runs = track.runs_in(track.now, sha)
    if not runs or runs[-1].result.status is Status.COMPLETED:
        return False
    return runs[-1].result.status is Status.SETUP_FAILED or len(runs) > 1


def _to_backfill(track: Track, presumed: list[str]) -> list[str]:
    order = {sha: position for position, sha in enumerate(track.commits)}
    first = order.get(track.backfilled_from, 0)
    return [sha for sha in presumed if order[sha] >= first]
