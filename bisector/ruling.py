"""Turns what was decided into what is stored and what is told, as one record; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bisector.acts import (
    Broken,
    BrokenLaw,
    Contradicted,
    Drop,
    End,
    Leave,
    Mended,
    NewEnvironment,
    Open,
    Restart,
    SetAnchor,
    Settle,
    Shift,
    Snapshot,
    Withdraw,
)
from bisector.model import Environment, Event, Run
from bisector.settling import IS_BACK, fix, settle
from bisector.standing import Same, Track, judge_run
from bisector.telling import Record, Tell, describe, digest, make_anchor, tell_of
from bisector.watched import Anchor, Epoch, Inquiry, Question, Regression, RegressionState, Turn

DAY = 86_400.0


Decision = (
    SetAnchor
    | Restart
    | Shift
    | Open
    | Settle
    | Withdraw
    | Drop
    | End
    | Leave
    | Broken
    | Mended
    | BrokenLaw
    | NewEnvironment
    | Contradicted
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a ruling needs beside the snapshot: environments by id, the hunt that was begun, and whether it is
    asked why a trajectory moved with its environment."""

    environments: Mapping[str, Environment] = field(default_factory=dict)
    hunt: str = ""
    asks_why: bool = False


def rule(decision: Decision, snapshot: Snapshot, facts: Facts) -> Record:
    """Return what a decision stores and tells."""
    tracks = {track.config.name: track for track in snapshot.tracks}
    match decision:
        case SetAnchor(config, turn, run):
            return Record(anchors=(make_anchor(tracks[config], turn, run.sha, run.id),))
        case Restart(config, sha, _):
            return Record(restarts=(Turn(config, sha),))
        case Shift():
            return _shift(decision, tracks[decision.config])
        case Open():
            return _open(decision, snapshot, tracks, facts)
        case Settle():
            return settle(decision, snapshot, tracks)
        case Withdraw(inquiry, is_over):
            found = snapshot.regressions.get(inquiry.regression)
            dropped = _drop(found, inquiry.hunt) if found and is_over else Record()
            return replace(dropped, ended=(inquiry.id,))
        case Drop(regression):
            return _drop(regression, "")
        case End(regression, sha):
            over, told = fix(regression, sha, IS_BACK)
            return Record(regressions=(over,), tells=(told,))
        case Leave():
            return _leave(decision)
        case _:
            return Record(tells=(_say(decision, tracks, facts),))


def _say(
    decision: Broken | Mended | BrokenLaw | NewEnvironment | Contradicted,
    tracks: Mapping[str, Track],
    facts: Facts,
) -> Tell:
    match decision:
        case Broken():
            return _broken(decision, tracks)
        case Mended():
            return _mended(decision, tracks)
        case BrokenLaw():
            return _broken_law(decision)
        case NewEnvironment():
            return _new_environment(decision, tracks, facts)
        case Contradicted():
            return _contradicted(decision)


def accept(regression: Regression, reason: str) -> Record:
    """Return the record of a change that is intended."""
    accepted = replace(regression, state=RegressionState.ACCEPTED, reason=reason)
    commit = regression.culprit or regression.bad
    told = tell_of(
        regression,
        Event.ACCEPTED,
        f"accepted:{regression.id}:{commit}",
        f"{regression.config}: the change by {commit[:10]} is accepted",
        (("reason", reason),),
        commit=commit,
    )
    return Record(regressions=(accepted,), tells=(told,))


def _leave(decision: Leave) -> Record:
    found, head = decision.regression, decision.head[:10]
    culprit = (found.culprit or found.bad)[:10]
    reason = f"{culprit} is not on the branch any more, and {head} is in line again"
    state, event = RegressionState.FIXED, Event.FIXED
    if decision.is_anew:
        reason = f"{culprit} is not on the branch any more; {head} is in line with a new baseline"
        state, event = RegressionState.UNREPRODUCED, Event.INCONCLUSIVE
    told = tell_of(
        found,
        event,
        f"left:{found.id}:{decision.head}",
        f"{found.config}: {culprit} left the branch",
        (("how", reason),),
    )
    return Record(regressions=(replace(found, state=state, reason=reason),), tells=(told,))


# Alarms


def _open(decision: Open, snapshot: Snapshot, tracks: Mapping[str, Track], facts: Facts) -> Record:
    track = tracks[decision.config]
    regression = None if decision.is_end else _regression(decision, snapshot, track, facts.hunt)
    if regression and decision.reason:
        return _without_culprit(regression, decision, tracks)
    inquiry = Inquiry(
        id=f"i{digest(decision.config, decision.good, decision.bad, track.now, snapshot.now)}",
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
    event = Event.BROKEN if decision.left.crash else Event.REGRESSION
    if decision.is_held:
        later = f"the hunt waits: {snapshot.hunt_hold}"
        return Record(regressions=(regression,), tells=(_told_of(event, regression, later),))
    told = _told_of(event, regression)
    return Record(inquiries=(inquiry,), regressions=(regression,), tells=(told,))


def _regression(decision: Open, snapshot: Snapshot, track: Track, hunt: str) -> Regression:
    """Return the regression of an alarm: the one already told of, or the one whose commit was pushed away and
    whose trajectory it is, if there is one."""
    told = snapshot.told_of(decision)
    if told:
        return replace(told, good=decision.good, hunt=hunt)
    for known in snapshot.regressions.values():
        if known.config == decision.config and _is_same_again(track, known, decision.left.run):
            return replace(
                known,
                state=RegressionState.OPEN,
                good=decision.good,
                bad=decision.bad,
                culprit="",
                parent="",
                hunt=hunt,
                links=(*known.links, f"first by {known.culprit[:10]}"),
            )
    name = track.config.class_name
    return Regression(
        id=f"r{digest(name, decision.good, decision.bad, track.now)}",
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


def _is_same_again(track: Track, known: Regression, run: Run) -> bool:
    """Whether a run is in line with a regression whose commit was pushed away."""
    lost = track.anchor(known.culprit) if track.has_lost(known) else None
    return lost is not None and isinstance(judge_run(track, [run, run], lost), Same)


def _without_culprit(regression: Regression, decision: Open, tracks: Mapping[str, Track]) -> Record:
    """There is nothing to hunt for: it is said, and the commit's own trajectory is the next baseline."""
    found = replace(regression, state=RegressionState.INCONCLUSIVE, reason=decision.reason)
    moved = [tracks[name] for name in decision.moved]
    runs = {t.config.name: t.runs_in(t.now, decision.bad)[-1] for t in moved}
    return Record(
        turns=tuple(Turn(name, decision.bad, opens=(found.id,)) for name in runs),
        anchors=tuple(
            make_anchor(t, decision.bad, decision.bad, runs[t.config.name].id) for t in moved
        ),
        regressions=(found,),
        tells=(_told_of(Event.REGRESSION, found),),
    )


def _told_of(event: Event, found: Regression, later: str = "") -> Tell:
    # No commit's words: none is accused yet.
    what = "no longer trains" if found.crash else "has left its line"
    text = f"{found.config} {what} between {found.good[:10]} and {found.bad[:10]}"
    if found.reason:
        text = f"{found.config} has left its line at {found.bad[:10]}, and no single commit did it"
    details = [("what", describe(found.deviation, found.crash))]
    if found.reason:
        details.append(("why", found.reason))
    elif later:
        details.append(("next", later))
    elif found.hunt:
        details.append(("next", f"the last good commit is as it was; hunting ({found.hunt})"))
    return tell_of(
        found,
        event,
        f"{event}:{found.id}",
        text,
        tuple(details),
    )


def _drop(found: Regression, hunt: str) -> Record:
    reason = "it did not happen again: the commit is in line by now"
    dropped = replace(found, state=RegressionState.UNREPRODUCED, reason=reason)
    told = tell_of(
        found,
        Event.INCONCLUSIVE,
        f"dropped:{found.id}",
        f"{found.config}: the mismatch at {found.bad[:10]} was not reproduced",
        (("why", reason),),
        hunt=hunt,
    )
    return Record(regressions=(dropped,), tells=(told,))


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
            ("what", describe(decision.left.deviation, decision.left.crash)),
            ("differs", "nothing that is recorded of the environment"),
            ("next", "what it gives today is the baseline from now on"),
        ),
        moved=(decision.config,),
    )
    return Record(epochs=(epoch,), anchors=(anchor,), tells=(told,))


def _new_environment(decision: NewEnvironment, tracks: Mapping[str, Track], facts: Facts) -> Tell:
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
    after = sorted((e.config, e.environment, e.since) for e in decision.after)
    key = f"environment:{after}"
    head = next(iter(tracks.values())).commits[-1]
    asks = [
        Question(f"{config}:{digest(key)}", config, record, head)
        for config, record in decision.records.items()
    ]
    details = [("differs", line) for line in dict.fromkeys(differs)]
    if asks and facts.asks_why:
        details.append(("next", "asking which package did it"))
    return Tell(
        Event.ENVIRONMENT,
        key,
        text,
        tuple(details),
        moved=decision.moved,
        unmoved=decision.unmoved,
        asks=tuple(asks) if facts.asks_why else (),
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


def _broken(decision: Broken, tracks: Mapping[str, Track]) -> Tell:
    names = ", ".join(decision.configs)
    verb = "does" if len(decision.configs) == 1 else "do"
    return Tell(
        Event.BROKEN,
        _key(decision, tracks),
        f"{names} {verb} not train here since {decision.sha[:10]}, so nothing can be said",
        (("why", decision.reason),),
        commit=decision.sha,
    )


def _mended(decision: Mended, tracks: Mapping[str, Track]) -> Tell:
    names, since = ", ".join(decision.broken.configs), decision.broken.sha[:10]
    verb = "trains" if len(decision.broken.configs) == 1 else "train"
    key = _key(decision.broken, tracks)
    return Tell(
        Event.FIXED,
        f"mended:{key}:{decision.sha}",
        f"{names} {verb} again since {decision.sha[:10]}; it did not since {since}",
        commit=decision.sha,
        answers=key,
    )


def _key(broken: Broken, tracks: Mapping[str, Track]) -> str:
    environment = tracks[broken.configs[0]].now.environment
    return f"broken:{broken.sha}:{broken.reason}:{environment}"


def _contradicted(decision: Contradicted) -> Tell:
    config, sha, source = decision.config, decision.sha[:10], decision.source[:10]
    return Tell(
        Event.IDENTITY,
        f"inherited:{config}:{decision.sha}",
        f"{config} left its line at {sha}, though {sha} touches nothing that the run of {source} read",
        (
            ("law", f"gives what {source} gives"),
            ("do", f"find out what it read: bisector audit {source} {sha} --config {config}"),
        ),
        moved=(config,),
        commit=decision.sha,
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
