"""Compares trajectories: two series in, deviations out. The only float arithmetic of bisector.

Values are aligned by step number, never by position, and non-finite values are reported before any
limit is applied, since NaN compares false with every limit.
"""

import math
from collections.abc import Mapping

from bisector.model import METRICS, Deviation, Step, Tolerances, Trajectory


def deviations(
    observed: Trajectory, reference: Trajectory, tolerances: Tolerances, whole: int = 0
) -> list[Deviation]:
    """Return every way in which `observed` left `reference`; empty where they agree.

    Order: non-finite values by step, then missing, repeated or reordered steps, then values over the
    step limit by step, then drift by metric. A value is over a limit when the absolute difference is
    larger than it; drift is the mean of the signed differences over the steps that both have, or over
    `whole` steps if that is more: the least that it can still be said to be where both are prefixes.
    """
    pairs = _aligned(observed, reference)
    return [
        *_non_finite(observed, reference),
        *_length(observed, reference),
        *_steps(pairs, tolerances.step),
        *_drift(pairs, tolerances.drift, whole),
    ]


def headline(found: list[Deviation], limits: Mapping[str, float]) -> Deviation | None:
    """Return the deviation to lead with: non-finite, length, the first step, then drift.

    Of several metrics at one step it is the one farthest over its limit.
    """
    rank = ("non_finite", "length", "step", "drift")

    def urgency(deviation: Deviation) -> tuple[int, int, float]:
        limit = limits.get(deviation.metric or "", 0.0)
        size = abs(deviation.observed - deviation.reference)
        excess = size / limit if limit and math.isfinite(size) else size
        return (
            rank.index(deviation.kind),
            deviation.step or 0,
            0.0 if math.isnan(excess) else -excess,
        )

    return min(found, key=urgency, default=None)


def largest_differences(one: Trajectory, other: Trajectory) -> dict[str, float]:
    """Return each metric's largest absolute difference; infinite where only one side is finite, or
    where the two do not have the same steps."""
    if _numbers(one) != _numbers(other):
        return dict.fromkeys(METRICS, math.inf)
    pairs = _aligned(one, other)
    return {
        metric: max(
            (_difference(_value(a, metric), _value(b, metric)) for a, b in pairs), default=0.0
        )
        for metric in METRICS
    }


def is_within(observed: Trajectory, reference: Trajectory, limits: Mapping[str, float]) -> bool:
    """Whether every step's difference is at most the metric's limit, over the same steps."""
    found = largest_differences(observed, reference)
    return all(found[metric] <= limits[metric] for metric in METRICS)


def has_drifted(
    observed: Trajectory, reference: Trajectory, limits: Mapping[str, float], whole: int = 0
) -> bool:
    """Whether a metric's mean signed difference is over its limit; the mean is that of `deviations`."""
    return bool(_drift(_aligned(observed, reference), limits, whole))


def parting(one: Trajectory, other: Trajectory, tolerances: Tolerances, whole: int) -> int | None:
    """Return after how many steps two runs in progress have parted; None: not in the steps that both have.

    They part at the first step whose number differs, with a value that is finite on one side only or a
    difference over the step limit, or where the sum of the signed differences so far, divided by the `whole`
    number of steps, is twice the drift limit (0: not known, so that only single steps count).
    """
    sums = dict.fromkeys(METRICS, 0.0)
    for count, (a, b) in enumerate(zip(one, other, strict=False), 1):
        if a.step != b.step:
            return count
        for metric in METRICS:
            ours, theirs = _value(a, metric), _value(b, metric)
            if _difference(ours, theirs) > tolerances.step[metric]:
                return count
            sums[metric] += ours - theirs if math.isfinite(ours - theirs) else 0.0
            if whole and abs(sums[metric]) / whole >= 2 * tolerances.drift[metric]:
                return count
    return None


def has_data_changed(one: Trajectory, other: Trajectory) -> bool | None:
    """Whether the numbers of tokens seen differ; None where either trainer logs none."""
    pairs = [
        (a.num_tokens, b.num_tokens)
        for a, b in _aligned(one, other)
        if a.num_tokens is not None and b.num_tokens is not None
    ]
    return any(a != b for a, b in pairs) if pairs else None


def is_finite(trajectory: Trajectory) -> bool:
    """Whether every loss and grad_norm is a finite number."""
    return all(math.isfinite(_value(step, metric)) for step in trajectory for metric in METRICS)


def _value(step: Step, metric: str) -> float:
    return step.loss if metric == "loss" else step.grad_norm


def _numbers(trajectory: Trajectory) -> list[int]:
    return [step.step for step in trajectory]


def _aligned(one: Trajectory, other: Trajectory) -> list[tuple[Step, Step]]:
    by_number = {step.step: step for step in other}
    return [(step, by_number[step.step]) for step in one if step.step in by_number]


def _difference(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf


def _non_finite(observed: Trajectory, reference: Trajectory) -> list[Deviation]:
    """A value of either side that is no number; the other side's is NaN where it lacks the step."""
    theirs, ours = {s.step: s for s in reference}, {s.step: s for s in observed}
    found = []
    for number in sorted({*theirs, *ours}):
        for metric in METRICS:
            ours_value, their_value = (
                _value(side[number], metric) if number in side else None for side in (ours, theirs)
            )
            if any(v is not None and not math.isfinite(v) for v in (ours_value, their_value)):
                found.append(
                    Deviation(
                        metric=metric,
                        kind="non_finite",
                        step=number,
                        observed=math.nan if ours_value is None else ours_value,
                        reference=math.nan if their_value is None else their_value,
                        limit=0.0,
                    )
                )
    return found


def _length(observed: Trajectory, reference: Trajectory) -> list[Deviation]:
    ours, theirs = _numbers(observed), _numbers(reference)
    if ours == theirs:
        return []
    same = sum(1 for _ in _common_prefix(ours, theirs))
    step = (theirs[same:] or ours[same:])[0]
    return [Deviation(None, "length", step, float(len(ours)), float(len(theirs)), 0.0)]


def _common_prefix(one: list[int], other: list[int]) -> list[int]:
    prefix = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        prefix.append(a)
    return prefix


def _steps(pairs: list[tuple[Step, Step]], limits: Mapping[str, float]) -> list[Deviation]:
    return [
        Deviation(metric, "step", a.step, _value(a, metric), _value(b, metric), limits[metric])
        for a, b in pairs
        for metric in METRICS
        if math.isfinite(_value(a, metric) - _value(b, metric))
        and abs(_value(a, metric) - _value(b, metric)) > limits[metric]
    ]


def _drift(
    pairs: list[tuple[Step, Step]], limits: Mapping[str, float], whole: int
) -> list[Deviation]:
    found = []
    for metric in METRICS:
        values = [(_value(a, metric), _value(b, metric)) for a, b in pairs]
        finite = [(a, b) for a, b in values if math.isfinite(a - b)]
        if not finite:
            continue
        mean = math.fsum(a - b for a, b in finite) / max(len(finite), whole)
        if abs(mean) > limits[metric]:
            ours, theirs = (math.fsum(side) / len(finite) for side in zip(*finite, strict=True))
            found.append(Deviation(metric, "drift", None, ours, theirs, limits[metric]))
    return found
