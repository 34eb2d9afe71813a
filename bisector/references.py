"""Reads and writes the reference files: a recorded trajectory with its config and environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisector.errors import BisectorError
from bisector.model import METRICS, Trajectory
from bisector.series import parse_step, plain


@dataclass(frozen=True, slots=True)
class Reference:
    """A recorded trajectory, with the config and environment it was recorded with."""

    config: Mapping[str, Any]
    environment: Mapping[str, str]
    trajectory: Trajectory


def load_reference(path: Path) -> Reference:
    """Return the reference in the file; BisectorError says where it is not one."""
    remedy = "Give a reference file as `bisector record` writes it."
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BisectorError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BisectorError(f"{path} cannot be read: {error}.", "Check the file.") from None
    except (ValueError, RecursionError) as error:
        raise BisectorError(f"{path} is no JSON, perhaps half-written: {error}.", remedy) from None
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list) or not data["steps"]:
        raise BisectorError(f"{path} has no list of steps.", remedy)
    if not isinstance(data.get("config", {}), dict) or not isinstance(data.get("env", {}), dict):
        raise BisectorError(f"{path}: config and env must be tables.", remedy)
    try:
        steps = tuple(parse_step(entry) for entry in data["steps"])
    except ValueError as error:
        raise BisectorError(f"{path} has a step without its values: {error}.", remedy) from None
    return Reference(data.get("config", {}), data.get("env", {}), steps)


def save_reference(path: Path, reference: Reference) -> None:
    """Write the reference beside its place, then rename it: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "config": dict(reference.config),
        "env": dict(reference.environment),
        "steps": [
            {"step": s.step, **{m: plain(getattr(s, m)) for m in METRICS}}
            for s in reference.trajectory
        ],
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    partial.replace(path)
