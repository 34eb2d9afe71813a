"""Decides what an alarm means, step by step: members, control run, kin, hunt, and the turn it ends in; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bisector.acts import (
    Act,
    Broken,
    Drop,
    End,
    Leave,
    Make,
    Open,
    Restart,
    Revert,
    SetAnchor,
    Settle,
    Shift,
    Snapshot,
    Withdraw,
    Work,
)
from bisector.judge import skip_reason
from bisector.kinship import Back, Kin, Mends, New, Wanted, WantedRevert, find_kin
from bisector.model import Change, Role, Run, Status
from bisector.standing import (
    Again,
    Alarm,
    Left,
    Need,
    Purpose,
    Same,
    Settled,
    Track,
    Walk,
    is_useless,
    judge_run,
)
from bisector.watched import Inquiry, RegressionState, Word

MOST_SHIFTS = 3  # in SHIFTS_WITHIN seconds; more, and the config is not deterministic here
SHIFTS_WITHIN = 86_400.0
RETRY_CONTROL = 3_600.0  # seconds until a control that did not train is tried again


def look_into(
    snapshot: Snapshot, tracks: list[Track], walks: Mapping[str, Walk]
) -> list[Act | Work]:
    """Return the next step with what one class's members show; empty where all is quiet."""
    shifts = [
        shift
        for track in tracks
        if not _is_restless(track, snapshot.now)
        and (shift := _find_shift(track, walks[track.config.name]))
    ]
    if shifts:
        return list(shifts)
    name = tracks[0].config.class_name
    inquiry = next((i for i in snapshot.inquiries if i.class_name == name), None)
    if inquiry:
        return _pursue(snapshot, inquiry, tracks, walks)
    alarmed = [t for t in tracks if _is_alarm_of_now(t, walks[t.config.name])]
    if not alarmed:
        return [
            *_drop_what_is_in_line(snapshot, tracks, walks),
            *_end_what_is_over(snapshot, tracks, walks),
        ]
    return _approach(snapshot, _lead(alarmed, walks), tracks, walks)


def _drop_what_is_in_line(
    snapshot: Snapshot, tracks: list[Track], walks: Mapping[str, Walk]
) -> list[Act | Work]:
    names = {track.config.name for track in tracks if not walks[track.config.name].alarm}
    return [
        Drop(found)
        for found in snapshot.regressions.values()
        if found.state is RegressionState.OPEN and found.config in names
    ]


def _end_what_is_over(
    snapshot: Snapshot, tracks: list[Track], walks: Mapping[str, Walk]
) -> list[Act | Work]:
    ends: list[Act | Work] = []
    for track in tracks:
        opened = track.open_by_turn
        for found in snapshot.regressions.values():
            is_told = found.state.is_over or found.state is RegressionState.OPEN
            if found.config != track.config.name or is_told:
                continue
            turns = [turn for turn in opened if found.id in opened[turn]]
            after = list(opened)[list(opened).index(turns[-1]) + 1 :] if turns else []
            head = walks[found.config].standings[-1]
            if after:
                ends.append(End(found, after[0]))
            elif track.has_lost(found) and head.run and head.word in (Word.GOOD, Word.BAD):
                ends.append(Leave(found, head.sha, track.began >= found.opened))
    return ends


def _is_alarm_of_now(track: Track, found: Walk) -> bool:
    alarm = found.alarm
    return bool(alarm and alarm.left.run in track.runs_in(track.now, alarm.bad))


def _lead(alarmed: list[Track], walks: Mapping[str, Walk]) -> Track:
    """Return the config to hunt with: of those that left first, the canonical one if it is among them."""

    def rank(track: Track) -> tuple[int, bool]:
        alarm = walks[track.config.name].alarm
        assert alarm
        behind_head = len(track.commits) - track.commits.index(alarm.bad)
        return -behind_head, not track.config.is_canonical

    return min(alarmed, key=rank)


def _is_restless(track: Track, now: float) -> bool:
    """Whether a config has moved without a cause so often of late that its runs just differ."""
    of_late = [e for e in track.epochs if e.since > now - SHIFTS_WITHIN]
    return len(of_late) >= MOST_SHIFTS


def _find_shift(track: Track, found: Walk) -> Shift | None:
    """Return the shift that a control of the newest commit in line shows, if it shows one."""
    anchor = track.anchor(found.turn)
    runs = track.runs_in(track.now, found.last)
    if anchor is None or not runs or runs[-1].role is not Role.CONTROL:
        return None
    reading = judge_run(track, runs, anchor)
    is_shift = isinstance(reading, Left) and reading.run.result.status is Status.COMPLETED
    return Shift(track.config.name, found.turn, runs[-1], reading) if is_shift else None  # type: ignore[arg-type]


def _approach(
    snapshot: Snapshot, track: Track, tracks: list[Track], walks: Mapping[str, Walk]
) -> list[Act | Work]:
    """Return the next step before an alarm becomes an inquiry."""
    config, alarm = track.config.name, walks[track.config.name].alarm
    assert alarm
    anchor = track.anchor(alarm.turn)
    assert anchor
    others = _untested(tracks, walks, alarm.bad)
    if others:
        return others
    if _was_in_vain(snapshot, track, alarm):
        return [Broken((config,), alarm.bad, "its runs differ from one to the next")]
    moved, unmoved = _members(tracks, snapshot.tracks, walks, alarm.bad)
    opened = Open(config, alarm.good, alarm.bad, alarm.left, moved, unmoved)
    if alarm.good == alarm.bad:
        return [replace(opened, reason="no known commit of this branch matches its reference")]
    control = _control(snapshot, track, alarm.good, alarm.left.run, anchor)
    if not isinstance(control, Run):
        return control
    kin = find_kin(track, alarm.turn, alarm.left.run, snapshot.culprits, snapshot.reverted)
    if isinstance(kin, Wanted | WantedRevert):
        return _fetch(track, kin)
    if anchor.result.crash:
        narrow = _middle(track, alarm.good, alarm.bad)
        if narrow:
            return [Make(config, narrow, Role.TEST)]
    elif not _parts(track, alarm.left.run, control):
        reason = (
            f"it is in line with {alarm.good[:10]}, the commit before; only the sum of the small "
            f"changes since {anchor.sha[:10]} is over the tolerance"
        )
        return [replace(opened, reason=reason)]
    return [replace(opened, is_end=not isinstance(kin, New), hunts=anchor.result.crash is None)]


def _was_in_vain(snapshot: Snapshot, track: Track, alarm: Alarm) -> bool:
    """Whether the same range was looked into before, to no end: looking again would cost the same for ever."""
    vain = (RegressionState.UNREPRODUCED, RegressionState.INCONCLUSIVE)
    return any(
        (found.class_name, found.good, found.bad)
        == (track.config.class_name, alarm.good, alarm.bad)
        and found.state in vain
        for found in snapshot.regressions.values()
    )


def _untested(tracks: list[Track], walks: Mapping[str, Walk], bad: str) -> list[Act | Work]:
    """Return the tests of the class's other members at the alarming commit that are still to be made; those
    too of a member that has an alarm of its own, but at a later commit."""
    return [
        Make(track.config.name, bad, Role.TEST)
        for track in tracks
        if track.anchor(walks[track.config.name].turn)
        and bad in track.commits
        and not _is_by(track, bad, walks[track.config.name].last)
        and not _is_known(track, bad)
    ]


def _members(
    tracks: list[Track], everyone: Sequence[Track], walks: Mapping[str, Walk], bad: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the class's members that left at `bad`, and all configs that are in line there."""

    def left(track: Track) -> bool:
        alarm = walks[track.config.name].alarm
        return bool(alarm and alarm.bad == bad)

    moved = tuple(t.config.name for t in tracks if left(t))
    unmoved = tuple(t.config.name for t in everyone if not left(t) and _is_in_line(t, walks, bad))
    return moved, unmoved


def _is_in_line(track: Track, walks: Mapping[str, Walk], sha: str) -> bool:
    standings = walks[track.config.name].standings
    return any(s.sha == sha and s.run and s.word in ("good", "bad") for s in standings)


def _control(
    snapshot: Snapshot, track: Track, good: str, alarming: Run, anchor: Settled
) -> Run | list[Act | Work]:
    """Return the control run of the newest commit in line, or what is to be done for it."""
    config = track.config.name
    runs = track.runs_in(track.now, good)
    fresh = [r for r in runs if r.role is Role.CONTROL and r.started >= alarming.started]
    if not fresh:
        return [Make(config, good, Role.CONTROL)]
    match judge_run(track, fresh, anchor):
        case Same(run):
            return run
        case Again():
            return [Make(config, good, Role.CONTROL)]
        case _ if fresh[-1].started + RETRY_CONTROL < snapshot.now:
            return [Make(config, good, Role.CONTROL)]
        case Left(crash=None):
            return [Broken((config,), good, "its runs differ from one to the next")]
        case _:
            return [Broken((config,), good, skip_reason([fresh[-1].result]))]


def _parts(track: Track, run: Run, control: Run) -> bool:
    """Whether the alarming run deviates from the control too, not only from the anchor."""
    reading = judge_run(track, [run, run], Settled(control.id, control.sha, control.result))
    return not isinstance(reading, Same)


def _middle(track: Track, good: str, bad: str) -> str:
    """Return the untested commit in the middle between two; empty if there is none."""
    first = track.commits.index(good) if good in track.commits else -1
    between = track.commits[first + 1 : track.commits.index(bad)]
    untested = [sha for sha in between if not track.runs_in(track.now, sha)]
    return untested[len(untested) // 2] if untested else ""


def _fetch(track: Track, wanted: Wanted | WantedRevert) -> list[Act | Work]:
    if isinstance(wanted, WantedRevert):
        return [Revert(wanted.sha, wanted.reverts)]
    if wanted.turn:
        return list(set_anchor(track, Need(wanted.sha, Purpose.ANCHOR, wanted.turn)))
    return [Make(track.config.name, wanted.sha, Role.TEST)]


# An inquiry, from the hunt's answer to the turns


def _pursue(
    snapshot: Snapshot, inquiry: Inquiry, tracks: list[Track], walks: Mapping[str, Walk]
) -> list[Act | Work]:
    track = next((t for t in tracks if t.config.name == inquiry.config), None)
    if track is None or inquiry.environment != track.now.environment:
        return [Withdraw(inquiry, is_over=False)]
    conclusion = snapshot.conclusions.get(inquiry.hunt)
    if inquiry.hunt and conclusion is None:
        return []
    alarm = walks[inquiry.config].alarm
    if alarm is None or not _is_by(track, alarm.bad, inquiry.bad):
        return [Withdraw(inquiry, is_over=alarm is None or inquiry.bad in track.commits)]
    if not _is_alarm_of_now(track, walks[inquiry.config]):
        return [Withdraw(inquiry, is_over=False)]
    found = conclusion.culprit if conclusion else None
    sha = found.sha if found else alarm.bad
    others = [t for t in tracks if t is not track and _left_by(t, walks, inquiry.bad)]
    wanted = [make for each in (track, *others) for make in _missing(each, sha, found)]
    if wanted:
        return list(wanted)
    run = _newest(track, sha)
    kin: Kin | Wanted | WantedRevert = New()
    if found or not inquiry.hunt:
        kin = find_kin(track, alarm.turn, run, snapshot.culprits, snapshot.reverted)
    if isinstance(kin, Wanted | WantedRevert):
        return _fetch(track, kin)
    also = [t for t in others if _moved_at(t, walks[t.config.name], sha, found)]
    if isinstance(kin, Back | Mends):  # each member must itself be back
        own = {
            t.config.name: find_kin(
                t, walks[t.config.name].turn, _newest(t, sha), snapshot.culprits, snapshot.reverted
            )
            for t in also
        }
        for t in also:
            wish = own[t.config.name]
            if isinstance(wish, Wanted | WantedRevert):
                return _fetch(t, wish)
        also = [t for t in also if isinstance(own[t.config.name], Back | Mends)]
    runs = {t.config.name: _newest(t, sha) for t in (track, *also)}
    _, unmoved = _members(tracks, snapshot.tracks, walks, inquiry.bad)
    unmoved = tuple(name for name in unmoved if name not in runs)
    return [Settle(inquiry, alarm.turn, sha, runs, unmoved, kin, conclusion, alarm.left)]


def _is_by(track: Track, sha: str, limit: str) -> bool:
    """Whether a commit comes no later than another; both of the window."""
    order = track.commits
    return sha in order and limit in order and order.index(sha) <= order.index(limit)


def _left_by(track: Track, walks: Mapping[str, Walk], bad: str) -> bool:
    alarm = walks[track.config.name].alarm
    return bool(
        alarm
        and _is_by(track, alarm.bad, bad)
        and _is_alarm_of_now(track, walks[track.config.name])
    )


def _missing(track: Track, sha: str, found: Change | None) -> list[Make]:
    """Return the runs that show whether a config moved at the culprit: there, and at its parent."""
    return [
        Make(track.config.name, each, Role.TEST)
        for each in (sha, found.parent if found else "")
        if each and not _is_known(track, each)
    ]


def _is_known(track: Track, sha: str) -> bool:
    runs = track.runs_in(track.now, sha)
    return bool(runs) and (runs[-1].result.status is Status.COMPLETED or is_useless(track, sha))


def _newest(track: Track, sha: str) -> Run:
    return track.runs_in(track.now, sha)[-1]


def _moved_at(track: Track, found: Walk, sha: str, change: Change | None) -> bool:
    """Whether a config too was in line before the commit and left at it."""
    anchor = track.anchor(found.turn)
    if anchor is None:
        return False
    after = judge_run(track, track.runs_in(track.now, sha), anchor)
    if change is None:
        return isinstance(after, Left)
    before = judge_run(track, track.runs_in(track.now, change.parent), anchor)
    return isinstance(before, Same) and isinstance(after, Left)


# Anchors


def set_anchor(track: Track, need: Need) -> list[Act | Work]:
    """Return the step towards an anchor: to make its run, or to take it."""
    config = track.config.name
    runs = track.runs_in(track.now, need.sha)
    is_start = need.turn == track.turns[0].sha
    if is_start and need.sha != need.turn and not track.anchors:
        reason = why_useless(track, need.turn)
        return [Broken((config,), need.turn, reason), Restart(config, need.sha, reason)]
    if runs and runs[-1].result.status is Status.COMPLETED:
        return [SetAnchor(config, need.turn, runs[-1])]
    return [Make(config, need.sha, Role.CONTROL)]


def why_useless(track: Track, sha: str) -> str:
    """Return why a commit does not train at present."""
    runs = track.runs_in(track.now, sha)
    return skip_reason([runs[-1].result]) if runs else "not run"
