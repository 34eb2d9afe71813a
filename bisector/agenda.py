"""Decides what the service does next, from what is stored; pure.

The order is the one that helps most: the hunt in progress, then alarms (their control run, what they mean),
then the anchors and tests of new commits, oldest first, then daily controls, and what was only presumed last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from bisector import plan
from bisector.acts import (
    Act,
    Broken,
    Contradicted,
    Make,
    Mended,
    NewEnvironment,
    Open,
    Snapshot,
    Work,
)
from bisector.case import Start
from bisector.compare import deviations
from bisector.inquest import look_into, set_anchor, why_useless
from bisector.laws import watch_laws
from bisector.model import Role
from bisector.standing import Purpose, Track, Walk, is_useless, walk
from bisector.watched import Word

CONTROL_EVERY = 86_400.0  # seconds between controls of the newest good commit


@dataclass(frozen=True, slots=True)
class Agenda:
    """What to store now, and the runs that are wanted, most urgent first; walks by config for whoever asks."""

    acts: tuple[Act, ...]
    work: tuple[Work, ...]
    walks: Mapping[str, Walk]
    held: str = ""  # why some of it has to wait


def make_agenda(snapshot: Snapshot, hunting: Sequence[Start], width: int = 1) -> Agenda:
    """Return what to do; `hunting` are the hunts' runs in flight, and `width` is how many go side by side."""
    walks = {track.config.name: walk(track) for track in snapshot.tracks}
    wanted: list[Act | Work] = list(plan.next_actions(snapshot.cases, hunting, width))
    for name in dict.fromkeys(track.config.class_name for track in snapshot.tracks):
        tracks = [track for track in snapshot.tracks if track.config.class_name == name]
        wanted += look_into(snapshot, tracks, walks)
    wanted += watch_laws(snapshot.tracks, walks)
    wanted += _runs_needed(snapshot, walks)
    wanted += _new_environment(snapshot.tracks, walks)
    wanted += _say_broken(snapshot.tracks, walks)
    wanted += [
        Contradicted(name, *pair) for name, found in walks.items() for pair in found.contradicted
    ]
    work = tuple(dict.fromkeys(item for item in wanted if isinstance(item, Start | Make)))
    acts = [item for item in wanted if not isinstance(item, Start | Make)]
    held = snapshot.hold if work else ""
    hunts = [act for act in acts if isinstance(act, Open) and act.begins_hunt]
    if snapshot.hunt_hold and hunts:
        held = held or snapshot.hunt_hold
        acts = [act for act in acts if act not in hunts]
        untold = [act for act in hunts if not (act.is_end or snapshot.told_of(act))]
        acts += [replace(act, is_held=True) for act in untold]
    return Agenda(tuple(acts), () if snapshot.hold else work, walks, held)


def _new_environment(tracks: Sequence[Track], walks: Mapping[str, Walk]) -> list[Act | Work]:
    """Return what a new environment did, once it is known for every config that it is new for."""
    new = [t for t in tracks if len(t.epochs) > 1 and t.epochs[-2].environment != t.now.environment]
    if not new or any(
        t.anchor(walks[t.config.name].turn) is None and not is_useless(t, walks[t.config.name].last)
        for t in new
    ):
        return []
    turns = {name: found.turn for name, found in walks.items()}
    moved = [t.config.name for t in new if _has_moved(t, turns[t.config.name])]
    records: dict[str, tuple[str, str]] = {}  # by class
    for track in new:
        name = track.config.name
        before = track.anchor(turns[name], track.epochs[-2])
        if before and name in moved:
            records.setdefault(track.config.class_name, (name, before.id))
    return [
        NewEnvironment(
            before=tuple(t.epochs[-2] for t in new),
            after=tuple(t.now for t in new),
            moved=tuple(moved),
            unmoved=tuple(t.config.name for t in new if t.config.name not in moved),
            records=dict(records.values()),
        )
    ]


def _has_moved(track: Track, turn: str) -> bool:
    """Whether a turn's trajectory is another one than in the epoch before, or is no more."""
    before, now = track.anchor(turn, track.epochs[-2]), track.anchor(turn)
    if before is None or now is None:
        return before is not None
    if before.result.crash or now.result.crash:
        return (before.result.crash is None) != (now.result.crash is None)
    return bool(
        deviations(now.result.trajectory, before.result.trajectory, track.config.tolerances)
    )


# The runs that the walks need


def _runs_needed(snapshot: Snapshot, walks: Mapping[str, Walk]) -> list[Act | Work]:
    anchors: list[Act | Work] = []
    tests: list[tuple[int, Make]] = []
    fill: list[Make] = []
    for track in snapshot.tracks:
        found = walks[track.config.name]
        length = len(track.commits)  # windows begin apart and end together
        order = {sha: position - length for position, sha in enumerate(track.commits)}
        for need in found.needs:
            make = Make(track.config.name, need.sha, Role.TEST)
            match need.purpose:
                case Purpose.ANCHOR:
                    anchors += set_anchor(track, need)
                case Purpose.TEST:
                    tests.append((order.get(need.sha, 0), make))
                case Purpose.BACKFILL | Purpose.AUDIT:
                    fill.append(make)
    tests.sort(key=lambda pair: pair[0])
    return [*anchors, *(make for _, make in tests), *_daily(snapshot, walks), *fill]


def _say_broken(tracks: Sequence[Track], walks: Mapping[str, Walk]) -> list[Act | Work]:
    """Say it where the newest commits do not train, or nothing trains any more in a new environment, and when
    that ends; once for all the configs that it is the same for."""
    broken: dict[tuple[str, str], list[str]] = {}
    mended: dict[tuple[str, str, str], list[str]] = {}
    for track in tracks:
        config, found = track.config.name, walks[track.config.name]
        if track.anchor(found.turn) is None and is_useless(track, found.last):
            broken.setdefault((found.last, why_useless(track, found.last)), []).append(config)
            continue
        judged = [s for s in found.standings if s.word not in (Word.WAITING, Word.PRESUMED)]
        streaks = [(word, list(some)) for word, some in groupby(judged, lambda s: s.word)]
        for (word, streak), (_, after) in pairwise([*streaks, (None, [])]):
            first = streak[0]
            if word is Word.SKIPPED and after:
                mended.setdefault((first.sha, first.reason, after[0].sha), []).append(config)
            elif word is Word.SKIPPED:
                broken.setdefault((first.sha, first.reason), []).append(config)
    untested = {need.sha for found in walks.values() for need in found.needs}
    return [
        *(
            Broken(tuple(names), sha, reason)
            for (sha, reason), names in broken.items()
            if sha not in untested  # another config may be broken there too
        ),
        *(
            Mended(Broken(tuple(names), sha, reason), end)
            for (sha, reason, end), names in mended.items()
            if (sha, reason) not in broken
        ),
    ]


def _daily(snapshot: Snapshot, walks: Mapping[str, Walk]) -> list[Make]:
    """Return the controls that are due: one a config and day, of its newest commit in line."""
    wanted = []
    for track in snapshot.tracks:
        found = walks[track.config.name]
        runs = track.runs_in(track.now, found.last)
        newest = max((run.started for run in runs), default=0.0)
        is_idle = not found.alarm and track.anchor(found.turn) is not None
        if is_idle and runs and newest + CONTROL_EVERY < snapshot.now:
            wanted.append(Make(track.config.name, found.last, Role.CONTROL))
    return wanted
