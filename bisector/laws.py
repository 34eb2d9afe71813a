"""Watches the laws that need no reference: a class's identities, and that its members agree; pure."""

import math
from collections.abc import Mapping, Sequence

from bisector.acts import Act, BrokenLaw, Make, Work
from bisector.model import Config, Role, RunResult, Status
from bisector.standing import Settled, Standing, Track, Walk
from bisector.watched import Word


def watch_laws(tracks: Sequence[Track], walks: Mapping[str, Walk]) -> list[Act | Work]:
    """Return what to say of laws that are broken since some commit, or the runs that narrow the commit."""
    found: list[Act | Work] = []
    for track in tracks:
        broken = {
            standing.sha: _broken_laws(track, standing, walks)
            for standing in walks[track.config.name].standings
            if standing.run and standing.run.result.status is Status.COMPLETED
        }
        found += _beginnings(track, broken)
    return found


def _beginnings(track: Track, broken: Mapping[str, Mapping[str, str]]) -> list[Act | Work]:
    """Return the first commit of each streak; what was broken before the window has been said."""
    found: list[Act | Work] = []
    is_whole = track.commits[:1] == (track.turns[0].sha,)
    before = ""
    held: dict[str, str] | None = {} if is_whole else None
    for sha, laws in broken.items():
        for law in laws.keys() - (laws if held is None else held).keys():
            untested = _between(track, before, sha)
            if untested:
                middle = untested[len(untested) // 2]
                found.append(Make(track.config.name, middle, Role.TEST))
            else:
                found.append(BrokenLaw(track.config.name, sha, before, law, laws[law]))
        before, held = sha, dict(laws)
    return found


def _between(track: Track, before: str, sha: str) -> list[str]:
    if not before:
        return []
    order = track.commits
    between = order[order.index(before) + 1 : order.index(sha)]
    return [each for each in between if not track.runs.get(each)]


def _broken_laws(track: Track, standing: Standing, walks: Mapping[str, Walk]) -> dict[str, str]:
    """Return the laws that a run breaks, each with what was read instead."""
    assert standing.run
    config = track.config
    laws = broken_identities(config, standing.run.result)
    twin = _twin(standing, walks.get(config.agrees_with))
    if twin:
        found = track.differs(standing.run, twin)
        if found:
            laws[f"agrees with {config.agrees_with}"] = (
                f"{found[0].metric} {found[0].observed:.9g} instead of {found[0].reference:.9g}"
            )
    return laws


def broken_identities(config: Config, result: RunResult) -> dict[str, str]:
    """Return the identities of a config that a trajectory breaks, in words, each with what was read."""
    by_number = {step.step: step for step in result.trajectory}
    broken = {}
    for law in config.identities:
        step = by_number.get(law.step)
        value = None if step is None else step.loss if law.metric == "loss" else step.grad_norm
        if value is None or not abs(value - law.equals) <= max(law.within, _rounding(value)):
            words = f"{law.metric} at step {law.step} is {law.equals:.9g} to within {law.within:g}"
            broken[words] = "no such step" if value is None else f"{value:.9g}"
    return broken


def _rounding(value: float) -> float:
    """Return how far rounding may have moved a value: transformers before 5.0 logs four decimals."""
    return 0.5e-4 if math.isfinite(value) and value == round(value, 4) else 0.0


def _twin(standing: Standing, canonical: Walk | None) -> Settled | None:
    """Return the canonical member's run of the commit, where both are good and of one environment."""
    if canonical is None or standing.word is not Word.GOOD or not standing.run:
        return None
    for other in canonical.standings:
        is_same = other.sha == standing.sha and other.word is Word.GOOD and other.run
        if is_same and other.run and other.run.result.status is Status.COMPLETED:
            if other.run.environment != standing.run.environment:
                return None
            return Settled(other.run.id, other.sha, other.run.result)
    return None
