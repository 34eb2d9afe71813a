"""Reads a recorded environment, with the run that it belongs to where the file has one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisector.errors import BisectorError
from bisector.model import Trajectory
from bisector.references import load_reference
from bisector.versions import package_name

NO_PACKAGES = {
    "trl",
    "bisector",
    "python",
    "gpu",
    "threads",
    "id",
    "packages",
    "data_fingerprint",
    "machine",
}


@dataclass(frozen=True, slots=True)
class Record:
    """What a file, or a stored run, says of how it was recorded; empty where it says nothing."""

    source: str
    packages: Mapping[str, str]
    python: str = ""
    gpu: str = ""
    data_fingerprint: str = ""
    config: str = ""
    commit: str = ""
    trajectory: Trajectory = ()
    machine: Mapping[str, str] = field(default_factory=dict)


def load_record(path: Path) -> Record:
    """Return what a reference file, or a JSON document with an environment as `hunt --json` has it, records."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BisectorError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BisectorError(f"{path} cannot be read: {error}.", "Check the file.") from None
    found = _environment(data)
    if found is None:
        raise BisectorError(
            f"{path} records no environment.",
            "Give a reference file, or what `hunt --json` shows under `environment`.",
        )
    listed = found.get("packages") or found
    if not isinstance(listed, dict):
        raise BisectorError(
            f"{path}: packages must be a table.",
            "Give each package as a name and its version, as `hunt --json` does.",
        )
    packages = {
        package_name(name): version
        for name, version in listed.items()
        if isinstance(version, str) and version and name not in NO_PACKAGES
    }
    python, gpu, fingerprint = (
        str(found.get(k) or "") for k in ("python", "gpu", "data_fingerprint")
    )
    machine = found.get("machine")
    record = Record(
        *(str(path), packages, python, gpu, fingerprint),
        machine=machine if isinstance(machine, dict) else {},
    )
    if "steps" not in data:
        return record
    reference = load_reference(path)
    return replace(
        record,
        config=str(reference.config.get("name", "")),
        commit=str(found.get("trl") or ""),
        trajectory=reference.trajectory,
    )


def _environment(data: Any) -> Mapping[str, Any] | None:
    """Return the environment in a document: under `env`, `environment`, that of its only hunt, or itself."""
    if not isinstance(data, dict):
        return None
    hunts = data.get("hunts")
    if isinstance(hunts, list) and len(hunts) == 1 and isinstance(hunts[0], dict):
        return _environment(hunts[0])
    for key in ("env", "environment"):
        if isinstance(data.get(key), dict):
            return dict(data[key])
    is_one = isinstance(data.get("packages"), dict) or isinstance(data.get("torch"), str)
    return data if is_one else None
