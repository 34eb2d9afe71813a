"""Decides how far the runs of a hunt have to go; pure.

Both ends stop `AFTER_PARTING` steps after they part, and every other run stops with them at the latest, so all
comparisons are made over those steps. The second run of an end stops where they part: that is enough to see an end
that strays, and whether the steps after it repeat is shown by the two runs that confirm the culprit's parent.
What is stored may be longer, where a run could not wait or ran alone: it is cut before anything is made of it, so
that no answer depends on timing.

A prefix is not always evidence. Where the ends do not part, where they part by less than their noise, or where a
probe's prefix drifts so that the rest of the run would decide, prefixes are ignored and whole runs are asked for.
"""

from collections.abc import Sequence
from dataclasses import replace

from bisector.compare import parting
from bisector.model import Config, Hunt, Role, Run, RunResult, Status, Trajectory

AFTER_PARTING = 2  # steps
UNKNOWN_LENGTH = 10**9  # steps; so long that no prefix proves a drift


def whole_steps(config: Config) -> int:
    """Return the optimizer steps of a whole run; 0 where the config does not say."""
    text = config.args.get("max_steps", "")
    return int(text) if text.isdecimal() else 0


def prefix_length(config: Config) -> int:
    """Return the steps of a whole run, to judge a prefix by; so many that no drift is proven if not known."""
    return whole_steps(config) or UNKNOWN_LENGTH


def may_stop(hunt: Hunt) -> bool:
    """Whether the hunt's runs may stop before their end."""
    return not (hunt.thorough or hunt.exact or hunt.probe_all)


def horizon(hunt: Hunt, runs: Sequence[Run]) -> int | None:
    """Return how many steps the runs of a hunt are compared over; None: whole runs."""
    if not may_stop(hunt):
        return None
    shown = [_first_shown(sha, runs) for sha in (hunt.good, hunt.bad)]
    ends = [result for result in shown if result]
    stop = parted_stop(hunt.config, *(r.trajectory for r in ends)) if len(ends) == 2 else None
    if stop is None:
        return None
    stopped = [len(r.trajectory) for r in ends if r.status is Status.STOPPED_EARLY]
    return min([stop, *stopped])


def parted_stop(config: Config, one: Trajectory, other: Trajectory) -> int | None:
    """Return after how many steps two ends stop; None: they have not parted in what is known of them."""
    parted = parting(one, other, config.tolerances, whole_steps(config))
    return None if parted is None else parted + AFTER_PARTING


def repeat_stop(horizon: int) -> int:
    """Return after how many steps the second run of an end stops."""
    return max(horizon - AFTER_PARTING, 1)


def are_ends_shown(hunt: Hunt, runs: Sequence[Run]) -> bool:
    """Whether each end has a run that did not crash."""
    return all(_first_shown(sha, runs) for sha in (hunt.good, hunt.bad))


def _first_shown(sha: str, runs: Sequence[Run]) -> RunResult | None:
    is_end = (Role.END, Role.NOISE)
    return next(
        (
            run.result
            for run in runs
            if run.sha == sha and run.role in is_end and run.result.has_trained
        ),
        None,
    )


def cut(runs: Sequence[Run], steps: int) -> tuple[Run, ...]:
    """Return the runs as if each had been stopped after so many steps."""
    return tuple(
        replace(run, result=_cut(run.result, steps)) if len(run.result.trajectory) >= steps else run
        for run in runs
    )


def _cut(result: RunResult, steps: int) -> RunResult:
    shown = result.trajectory[:steps]
    return replace(result, status=Status.STOPPED_EARLY, trajectory=shown, crash=None, reason="")


def whole(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs that were not stopped early."""
    return tuple(run for run in runs if run.result.status is not Status.STOPPED_EARLY)
