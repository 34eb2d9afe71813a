"""Turns what was decided into what is stored and what is told, as one record; pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bisector.acts import (
    Broken,
    BrokenLaw,
    Drop,
    End,
    NewEnvironment,
    Open,
    Restart,
    SetAnchor,
    Settle,
    Shift,
    Snapshot,
    Withdraw,
)
from bisector.kinship import Back, Mends, New, Returned, Unclear
from bisector.model import Config, Crash, Deviation, Environment, Event, Outcome
from bisector.report import describe_deviation
from bisector.standing import Track
from bisector.watched import Anchor, Epoch, Inquiry, Regression, RegressionState, Turn

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Tell:
    """One thing to tell people. `key` is what it is about: nothing is told twice.

    `commit` is the one whose words, link and author belong to it.
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

    @property
    def id(self) -> str:
        """Return the message's id."""
        return f"m{_digest(self.key)}"


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
    tells: tuple[Tell, ...] = ()


Decision = (
    SetAnchor
    | Restart
    | Shift
    | Open
    | Settle
    | Withdraw
    | Drop
    | End
    | Broken
    | BrokenLaw
    | NewEnvironment
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a ruling needs beside the snapshot: environments by id, and the hunt that was begun."""

    environments: Mapping[str, Environment] = field(default_factory=dict)
    hunt: str = ""


def rule(decision: Decision, snapshot: Snapshot, facts: Facts) -> Record:
    """Return what a decision stores and tells."""
    tracks = {track.config.name: track for track in snapshot.tracks}
    match decision:
        case SetAnchor(config, turn, run):
            return Record(anchors=(_anchor(tracks[config], turn, run.sha, run.id),))
        case Restart(config, sha, _):
            return Record(restarts=(Turn(config, sha),))
        case Shift():
            return _shift(decision, tracks[decision.config])
        case Open():
            return _open(decision, snapshot, tracks, facts)
        case Settle():
            return _settle(decision, snapshot, tracks)
        case Withdraw(inquiry, is_over):
            found = snapshot.regressions.get(inquiry.regression)
            dropped = _drop(found, inquiry.hunt) if found and is_over else Record()
            return replace(dropped, ended=(inquiry.id,))
        case Drop(regression):
            return _drop(regression, "")
        case End(regression, sha):
            over, told = _fixed(regression, sha, Back(sha, ()))
            return Record(regressions=(over,), tells=(told,))
        case Broken(config, sha, reason):
            return Record(tells=(_broken(tracks[config], sha, reason),))
        case BrokenLaw():
            return Record(tells=(_broken_law(decision),))
        case NewEnvironment():
            return Record(tells=(_new_environment(decision, facts),))


def accept(regression: Regression, reason: str) -> Record:
    """Return the record of a change that is intended."""
    accepted = replace(regression, state=RegressionState.ACCEPTED, reason=reason)
    commit = regression.culprit or regression.bad
    told = Tell(
        Event.ACCEPTED,
        f"accepted:{regression.id}:{commit}",
        f"{regression.config}: the change by {commit[:10]} is accepted",
        (("reason", reason),),
        regression=regression.id,
        moved=regression.moved,
        unmoved=regression.unmoved,
        commit=commit,
    )
    return Record(regressions=(accepted,), tells=(told,))


def leave(regression: Regression, head: str) -> Record:
    """Return the record of a culprit that is no longer on the branch, whose newest commit is `head`."""
    reason = "its commit left the branch (force-pushed)"
    return Record(
        regressions=(
            replace(regression, state=RegressionState.FIXED, ended_by=head, reason=reason),
        ),
        tells=(
            Tell(
                Event.FIXED,
                f"fixed:{regression.id}:{head}",
                f"{regression.config}: {regression.culprit[:10]} left the branch",
                (("how", reason),),
                regression=regression.id,
                moved=regression.moved,
            ),
        ),
    )


# Alarms


def _open(decision: Open, snapshot: Snapshot, tracks: Mapping[str, Track], facts: Facts) -> Record:
    track = tracks[decision.config]
    regression = None if decision.is_end else _regression(decision, snapshot, track, facts.hunt)
    if regression and decision.reason:
        return _without_culprit(regression, decision, tracks)
    inquiry = Inquiry(
        id=f"i{_digest(decision.config, decision.good, decision.bad, track.now, snapshot.now)}",
        class_name=track.config.class_name,
        config=decision.config,
        good=decision.good,
        bad=decision.bad,
        opened=snapshot.now,
        environment=track.now.environment,
        hunt=facts.hunt,
        regression=regression.id if regression else "",
    )
    if regression is None:
        return Record(inquiries=(inquiry,))
    told = _told_of(Event.BROKEN if decision.left.crash else Event.REGRESSION, regression)
    return Record(inquiries=(inquiry,), regressions=(regression,), tells=(told,))


def _regression(decision: Open, snapshot: Snapshot, track: Track, hunt: str) -> Regression:
    """Return the regression of an alarm: the one already told of, if there is one."""
    name = track.config.class_name
    for known in snapshot.regressions.values():
        if known.state is RegressionState.OPEN and (known.class_name, known.bad) == (
            name,
            decision.bad,
        ):
            return replace(known, good=decision.good, hunt=hunt)
    return Regression(
        id=f"r{_digest(name, decision.good, decision.bad, track.now)}",
        class_name=name,
        config=decision.config,
        state=RegressionState.OPEN,
        good=decision.good,
        bad=decision.bad,
        opened=snapshot.now,
        environment=track.now.environment,
        deviation=decision.left.deviation,
        crash=decision.left.crash,
        hunt=hunt,
        moved=decision.moved,
        unmoved=decision.unmoved,
    )


def _without_culprit(regression: Regression, decision: Open, tracks: Mapping[str, Track]) -> Record:
    """There is nothing to hunt for: it is said, and the commit's own trajectory is the next baseline."""
    found = replace(regression, state=RegressionState.INCONCLUSIVE, reason=decision.reason)
    moved = [tracks[name] for name in decision.moved]
    runs = {t.config.name: t.runs_in(t.now, decision.bad)[-1] for t in moved}
    return Record(
        turns=tuple(Turn(name, decision.bad, opens=(found.id,)) for name in runs),
        anchors=tuple(
            _anchor(t, decision.bad, decision.bad, runs[t.config.name].id) for t in moved
        ),
        regressions=(found,),
        tells=(_told_of(Event.REGRESSION, found),),
    )


def _told_of(event: Event, found: Regression) -> Tell:
    what = "no longer trains" if found.crash else "has left its line"
    text = f"{found.config} {what} between {found.good[:10]} and {found.bad[:10]}"
    if found.reason:
        text = f"{found.config} has left its line at {found.bad[:10]}, and no single commit did it"
    details = [("what", _describe(found.deviation, found.crash))]
    if found.reason:
        details.append(("why", found.reason))
    elif found.hunt:
        details.append(("next", f"the last good commit is as it was; hunting ({found.hunt})"))
    return Tell(
        event,
        f"{event}:{found.id}",
        text,
        tuple(details),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        commit=found.bad,
    )


def _describe(deviation: Deviation | None, crash: Crash | None) -> str:
    return describe_deviation(deviation, crash) if deviation else ""


def _drop(found: Regression, hunt: str) -> Record:
    reason = "it did not happen again: the commit is in line by now"
    dropped = replace(found, state=RegressionState.UNREPRODUCED, reason=reason)
    told = Tell(
        Event.INCONCLUSIVE,
        f"dropped:{found.id}",
        f"{found.config}: the mismatch at {found.bad[:10]} was not reproduced",
        (("why", reason),),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        hunt=hunt,
    )
    return Record(regressions=(dropped,), tells=(told,))


# The ends of inquiries


def _settle(decision: Settle, snapshot: Snapshot, tracks: Mapping[str, Track]) -> Record:
    kin, sha = decision.kin, decision.sha
    ended = (decision.inquiry.id,)
    match kin:
        case Back(_, closes) | Mends(closes):
            known = [snapshot.regressions[r] for r in closes if r in snapshot.regressions]
            missing = {m for r in known for m in r.moved if m in tracks} - decision.runs.keys()
            if not missing:
                fixed = [_fixed(found, sha, kin) for found in known]
                back_to = kin.turn if isinstance(kin, Back) else ""
                record = _turned(decision, tracks, closes=closes, back_to=back_to)
                return replace(
                    record,
                    ended=ended,
                    regressions=tuple(found for found, _ in fixed),
                    tells=tuple(told for _, told in fixed),
                )
            why = f"{', '.join(sorted(missing))} did not come back with it"
            return _changed(decision, snapshot, tracks, Unclear(why))
        case Returned(_, opens):
            known = [snapshot.regressions[r] for r in opens if r in snapshot.regressions]
            back = [_reopened(found, decision) for found in known]
            record = _turned(decision, tracks, opens=opens)
            return replace(
                record,
                ended=ended,
                regressions=tuple(found for found, _ in back),
                tells=tuple(told for _, told in back),
            )
        case Unclear():
            return _changed(decision, snapshot, tracks, kin)
        case New():
            return _new(decision, snapshot, tracks)


def _turned(
    decision: Settle,
    tracks: Mapping[str, Track],
    *,
    opens: Sequence[str] = (),
    closes: Sequence[str] = (),
    back_to: str = "",
) -> Record:
    """Return the turns and their anchors: every config that turned is judged by its run there from now on."""
    sha = decision.sha
    return Record(
        turns=tuple(
            Turn(name, sha, tuple(opens), tuple(closes), back_to) for name in decision.runs
        ),
        anchors=tuple(
            _anchor(tracks[name], sha, sha, run.id) for name, run in decision.runs.items()
        ),
    )


def _fixed(found: Regression, sha: str, kin: Back | Mends) -> tuple[Regression, Tell]:
    how = (
        "the trajectory is again what it was before"
        if isinstance(kin, Back)
        else "with the other open regressions reverted, the trajectory is what it was before them"
    )
    culprit = found.culprit or found.bad
    told = Tell(
        Event.FIXED,
        f"fixed:{found.id}:{sha}",
        f"{found.config}: {sha[:10]} fixed what {culprit[:10]} had moved",
        (("how", how),),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        commit=sha,
    )
    return replace(found, state=RegressionState.FIXED, ended_by=sha, reason=how), told


def _reopened(found: Regression, decision: Settle) -> tuple[Regression, Tell]:
    sha = decision.sha
    before = found.culprit or found.bad
    change = decision.conclusion.culprit if decision.conclusion else None
    told = Tell(
        Event.REOPENED,
        f"reopened:{found.id}:{sha}",
        f"{found.config}: {sha[:10]} brought back what {before[:10]} had moved",
        (
            ("what", _describe(change.deviation if change else decision.left.deviation, None)),
            ("was fixed by", found.ended_by[:10]),
        ),
        regression=found.id,
        moved=tuple(decision.runs),
        unmoved=decision.unmoved,
        commit=sha,
        hunt=decision.inquiry.hunt,
    )
    again = replace(
        found,
        state=RegressionState.CULPRIT,
        culprit=sha,
        parent=change.parent if change else "",
        ended_by="",
        reason="",
        links=tuple(dict.fromkeys([*found.links, f"first by {before[:10]}"])),
    )
    return again, told


def _changed(
    decision: Settle, snapshot: Snapshot, tracks: Mapping[str, Track], kin: Unclear
) -> Record:
    """It may end an open regression or be another; it is followed as one, linked to those that are open."""
    track = tracks[decision.inquiry.config]
    links = tuple(sorted(track.open_at(decision.turn)))
    found = replace(
        _settled_regression(decision, snapshot, track),
        state=RegressionState.CHANGED,
        links=links,
        reason=kin.reason,
    )
    told = Tell(
        Event.CHANGED,
        f"changed:{found.id}",
        f"{found.config}: {decision.sha[:10]} moved the trajectory again, on top of {', '.join(links)}",
        (("what", _describe(found.deviation, found.crash)), ("why unclear", kin.reason)),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        commit=decision.sha,
        hunt=found.hunt,
    )
    record = _turned(decision, tracks, opens=(found.id,))
    return replace(record, ended=(decision.inquiry.id,), regressions=(found,), tells=(told,))


def _new(decision: Settle, snapshot: Snapshot, tracks: Mapping[str, Track]) -> Record:
    track = tracks[decision.inquiry.config]
    found = _settled_regression(decision, snapshot, track)
    members = [tracks[name].config for name in (*found.moved, *found.unmoved) if name in tracks]
    pattern = point_to(members, found, decision.left.metrics)
    details = [("what", _describe(found.deviation, found.crash))]
    if pattern:
        details.append(("points to", pattern))
    if found.reason:
        details.append(("why", found.reason))
    is_culprit = bool(found.culprit)
    event = Event.CULPRIT if is_culprit else Event.INCONCLUSIVE
    text = (
        f"{found.config}: {decision.sha[:10]} {'broke' if found.crash else 'moved'} the trajectory"
        if is_culprit
        else f"{found.config} moved between {found.good[:10]} and {found.bad[:10]}, "
        f"but no single commit can be named"
    )
    told = Tell(
        event,
        f"{event}:{found.id}:{decision.sha}",
        text,
        tuple(details),
        regression=found.id,
        moved=found.moved,
        unmoved=found.unmoved,
        commit=decision.sha if is_culprit else "",
        hunt=found.hunt,
    )
    closes = _crash_that_is_over(decision, track)
    record = _turned(decision, tracks, opens=(found.id,), closes=closes)
    over = [
        _fixed(snapshot.regressions[r], decision.sha, Back("", closes))
        for r in closes
        if r in snapshot.regressions
    ]
    return replace(
        record,
        ended=(decision.inquiry.id,),
        regressions=(found, *(regression for regression, _ in over)),
        tells=(told,),
    )


def _crash_that_is_over(decision: Settle, track: Track) -> tuple[str, ...]:
    """Return the regressions of a crash that ended here, though in another trajectory than before it."""
    anchor = track.anchor(decision.turn)
    if not anchor or not anchor.result.crash or decision.left.crash:
        return ()
    return next(turn.opens for turn in track.turns if turn.sha == decision.turn)


def _settled_regression(decision: Settle, snapshot: Snapshot, track: Track) -> Regression:
    inquiry, conclusion = decision.inquiry, decision.conclusion
    known = snapshot.regressions.get(inquiry.regression) or Regression(
        id=f"r{_digest(inquiry.class_name, inquiry.good, decision.sha, track.now)}",
        class_name=inquiry.class_name,
        config=inquiry.config,
        state=RegressionState.OPEN,
        good=inquiry.good,
        bad=inquiry.bad,
        opened=snapshot.now,
        environment=track.now.environment,
        deviation=decision.left.deviation,
        crash=decision.left.crash,
    )
    is_accepted = known.state is RegressionState.ACCEPTED
    found = replace(known, moved=tuple(decision.runs), unmoved=decision.unmoved, hunt=inquiry.hunt)
    culprit = RegressionState.ACCEPTED if is_accepted else RegressionState.CULPRIT
    if conclusion is None:
        return replace(found, state=culprit, culprit=decision.sha)
    if conclusion.outcome is not Outcome.CULPRIT or conclusion.culprit is None:
        state = RegressionState.ACCEPTED if is_accepted else RegressionState.INCONCLUSIVE
        reason = f"{conclusion.outcome}: {conclusion.reason}".rstrip(": ")
        return replace(found, state=state, reason=reason)
    return replace(
        found,
        state=culprit,
        culprit=conclusion.culprit.sha,
        parent=conclusion.culprit.parent,
        deviation=conclusion.culprit.deviation,
        crash=conclusion.crash,
    )


def point_to(members: Sequence[Config], found: Regression, metrics: frozenset[str]) -> str:
    """Return what the pattern of members, and of `metrics`, that moved points to; empty if to nothing."""
    same = [config for config in members if config.class_name == found.class_name]
    moved = [config for config in same if config.name in found.moved]
    unmoved = [config for config in same if config.name not in found.moved]
    if metrics == {"grad_norm"}:
        return "only grad_norm moved: clipping, or how it is reported"
    if not unmoved:
        return "all members moved: semantics or data" if len(moved) > 1 else ""
    for has, words in _PATTERNS:
        if all(has(config) for config in moved) and not any(has(c) for c in unmoved):
            return words
    return ""


def _accumulates(config: Config) -> bool:
    return config.args.get("gradient_accumulation_steps", "1") != "1"


_PATTERNS = (
    (_accumulates, "only accumulation moved: normalisation of the loss"),
    (lambda config: config.num_processes > 1, "only two processes moved: distributed training"),
    (
        lambda config: config.args.get("padding_free", "False") == "True",
        "only padding-free batches moved: masking",
    ),
)


# Environments, crashes, laws


def _shift(decision: Shift, track: Track) -> Record:
    control = decision.control
    epoch = Epoch(decision.config, track.now.environment, control.started)
    anchor = Anchor(
        decision.config, decision.turn, epoch.environment, epoch.since, control.sha, control.id
    )
    name = track.config.class_name
    told = Tell(
        Event.ENVIRONMENT,
        f"shift:{name}:{control.started // DAY}",
        f"{decision.config}: {control.sha[:10]} was in line and has moved today, so no commit did it",
        (
            ("what", _describe(decision.left.deviation, decision.left.crash)),
            ("differs", "nothing that is recorded of the environment"),
            ("next", "what it gives today is the baseline from now on"),
        ),
        moved=(decision.config,),
    )
    return Record(epochs=(epoch,), anchors=(anchor,), tells=(told,))


def _new_environment(decision: NewEnvironment, facts: Facts) -> Tell:
    pairs = zip(decision.before, decision.after, strict=True)
    environments = facts.environments
    differs = [
        line
        for old, new in pairs
        if old.environment in environments and new.environment in environments
        for line in differences(environments[old.environment], environments[new.environment])
    ]
    text = "the environment changed, and no trajectory moved with it"
    if decision.moved:
        text = (
            f"the environment changed, and {', '.join(decision.moved)} moved with it: no commit did"
        )
    key = sorted((e.config, e.environment, e.since) for e in decision.after)
    return Tell(
        Event.ENVIRONMENT,
        f"environment:{key}",
        text,
        tuple(("differs", line) for line in dict.fromkeys(differs)),
        moved=decision.moved,
        unmoved=decision.unmoved,
    )


def differences(before: Environment, after: Environment) -> list[str]:
    """Return what differs between two environments, a line each."""
    old, new = _flat(before), _flat(after)
    return [
        f"{name}: {old.get(name) or 'absent'} → {new.get(name) or 'absent'}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _flat(environment: Environment) -> dict[str, str]:
    return {
        **environment.packages,
        **environment.machine,
        "python": environment.python,
        "gpu": environment.gpu,
        "devices": str(environment.devices),
        "threads": str(environment.threads),
        "data": environment.data_fingerprint,
    }


def _broken(track: Track, sha: str, reason: str) -> Tell:
    config = track.config.name
    return Tell(
        Event.BROKEN,
        f"broken:{config}:{sha}:{track.now.environment}",
        f"{config} does not train here since {sha[:10]}, so nothing can be said of it",
        (("why", reason),),
        commit=sha,
    )


def _broken_law(decision: BrokenLaw) -> Tell:
    since = f"since {decision.sha[:10]}"
    if decision.before:
        since += f"; it held at {decision.before[:10]}"
    return Tell(
        Event.IDENTITY,
        f"identity:{decision.config}:{decision.law}:{decision.sha}",
        f"{decision.config} breaks a law {since}",
        (("law", decision.law), ("reads", decision.reading)),
        moved=(decision.config,),
        commit=decision.sha,
    )


def _anchor(track: Track, turn: str, sha: str, run: str) -> Anchor:
    epoch = track.now
    return Anchor(track.config.name, turn, epoch.environment, epoch.since, sha, run)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
