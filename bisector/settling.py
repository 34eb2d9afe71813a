"""Says what an inquiry ends in: regressions that are new, fixed, back or only changed, and their turns; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bisector.acts import Settle, Snapshot
from bisector.kinship import Back, Mends, New, Returned, Unclear
from bisector.model import Config, Event, Outcome
from bisector.standing import Track
from bisector.telling import Record, Tell, describe, digest, make_anchor, tell_of
from bisector.watched import Regression, RegressionState, Turn

IS_BACK = "the trajectory is again what it was before"
IS_BACK_ALONE = (
    "with the other open regressions reverted, the trajectory is what it was before them"
)
TRAINS_AGAIN = "it trains again, though not in the trajectory of before"


def settle(decision: Settle, snapshot: Snapshot, tracks: Mapping[str, Track]) -> Record:
    """Return what the end of an inquiry stores and tells."""
    kin, sha = decision.kin, decision.sha
    ended = (decision.inquiry.id,)
    match kin:
        case Back(_, closes) | Mends(closes):
            known = [snapshot.regressions[r] for r in closes if r in snapshot.regressions]
            missing = {m for r in known for m in r.moved if m in tracks} - decision.runs.keys()
            if not missing:
                how = IS_BACK if isinstance(kin, Back) else IS_BACK_ALONE
                fixed = [fix(found, sha, how) for found in known]
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
            make_anchor(tracks[name], sha, sha, run.id) for name, run in decision.runs.items()
        ),
    )


def fix(found: Regression, sha: str, how: str) -> tuple[Regression, Tell]:
    """Return a regression that a commit fixed, and what is told of it."""
    culprit = found.culprit or found.bad
    told = tell_of(
        found,
        Event.FIXED,
        f"fixed:{found.id}:{sha}",
        f"{found.config}: {sha[:10]} fixed what {culprit[:10]} had moved",
        (("how", how),),
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
            ("what", describe(change.deviation if change else decision.left.deviation, None)),
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
    told = tell_of(
        found,
        Event.CHANGED,
        f"changed:{found.id}",
        f"{found.config}: {decision.sha[:10]} moved the trajectory again, on top of {', '.join(links)}",
        (("what", describe(found.deviation, found.crash)), ("why unclear", kin.reason)),
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
    details = [("what", describe(found.deviation, found.crash))]
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
    told = tell_of(
        found,
        event,
        f"{event}:{found.id}:{decision.sha}",
        text,
        tuple(details),
        commit=decision.sha if is_culprit else "",
        hunt=found.hunt,
    )
    closes = _crash_that_is_over(decision, track)
    record = _turned(decision, tracks, opens=(found.id,), closes=closes)
    over = [
        fix(snapshot.regressions[r], decision.sha, TRAINS_AGAIN)
        for r in closes
        if r in snapshot.regressions
    ]
    over += [
        _replace(lost, found)
        for lost in snapshot.regressions.values()
        if lost.config == found.config and lost.culprit and track.has_lost(lost)
        if lost.id != found.id
    ]
    return replace(
        record,
        ended=(decision.inquiry.id,),
        regressions=(found, *(regression for regression, _ in over)),
        tells=(told, *(end for _, end in over)),
    )


def _replace(lost: Regression, found: Regression) -> tuple[Regression, Tell]:
    """Return a regression whose commit was pushed away, over now that another one is known, and what is told."""
    reason = f"{lost.culprit[:10]} left the branch; what moves the trajectory now is {found.id}"
    told = tell_of(
        lost,
        Event.CHANGED,
        f"left:{lost.id}:{found.id}",
        f"{lost.config}: {lost.culprit[:10]} left the branch",
        (("how", reason),),
    )
    over = replace(
        lost, state=RegressionState.UNREPRODUCED, reason=reason, links=(*lost.links, found.id)
    )
    return over, told


def _crash_that_is_over(decision: Settle, track: Track) -> tuple[str, ...]:
    """Return the regressions of a crash that ended here, though in another trajectory than before it."""
    anchor = track.anchor(decision.turn)
    if not anchor or not anchor.result.crash or decision.left.crash:
        return ()
    return next(turn.opens for turn in track.turns if turn.sha == decision.turn)


def _settled_regression(decision: Settle, snapshot: Snapshot, track: Track) -> Regression:
    inquiry, conclusion = decision.inquiry, decision.conclusion
    known = snapshot.regressions.get(inquiry.regression) or Regression(
        id=f"r{digest(inquiry.class_name, inquiry.good, decision.sha, track.now)}",
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
