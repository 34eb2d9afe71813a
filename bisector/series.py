"""Trajectories, and other frozen data, as text and back; pure. Numbers that are not finite travel as "nan", "inf" and "-inf"."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from bisector.model import Step, Trajectory

Kind = TypeVar("Kind")


def parse_step(entry: Mapping[str, Any]) -> Step:
    """Return one logged step; ValueError where it is none."""
    try:
        return _parse_step(entry)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _parse_step(entry: Mapping[str, Any]) -> Step:
    tokens = entry.get("num_tokens")
    return Step(
        int(entry["step"]),
        float(entry["loss"]),
        float(entry["grad_norm"]),
        None if tokens is None else float(tokens),
    )


def parse_lines(text: str) -> Trajectory:
    """Return the steps of a `metrics.jsonl`, in the order logged, up to a line that was cut short."""
    steps: list[Step] = []
    for line in text.splitlines():
        try:
            steps.append(parse_step(json.loads(line)))
        except (ValueError, RecursionError):
            break
    return tuple(steps)


def parse_trainer_state(text: str) -> Trajectory:
    """Return the training steps of a `trainer_state.json`; empty where it holds none."""
    try:
        entries = json.loads(text)["log_history"]
        return tuple(parse_step(entry) for entry in entries if "loss" in entry)
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def dump_steps(trajectory: Trajectory) -> str:
    """Return the steps as compact JSON."""
    return json.dumps(
        [[s.step, plain(s.loss), plain(s.grad_norm), plain(s.num_tokens)] for s in trajectory]
    )


@lru_cache(maxsize=256)
def load_steps(text: str) -> Trajectory:
    """Return what `dump_steps` wrote; one object for one text, since most runs repeat to the bit."""
    return tuple(
        Step(step, float(loss), float(norm), None if tokens is None else float(tokens))
        for step, loss, norm, tokens in json.loads(text)
    )


def plain(value: float | None) -> float | str | None:
    """Return the value as JSON can hold it."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def dump(value: Any) -> str:
    """Return frozen data as JSON, such that `load` reads it back."""
    return json.dumps(_plain(value))


def load(kind: type[Kind], text: str) -> Kind:
    """Return the frozen data that `dump` wrote."""
    return msgspec.convert(json.loads(text), kind, strict=False)


def _plain(value: Any) -> Any:
    """Return a dataclass as what JSON can hold, so that an adapter reads it back."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
