"""Describes the training environment, and says what it lacks. Pinned versions, devices, data."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bisector.model import Environment

BF16_CAPABILITY = 8.0  # Ampere, also the least that the flash-attention kernels run on


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver names it."""

    index: str
    name: str
    capability: float
    driver: str
    memory: int = 0  # bytes


def list_gpus() -> list[Gpu]:
    """Return the GPUs, in the driver's order; empty where there is no driver. Touches no CUDA."""
    query = "index,name,compute_cap,driver_version,memory.total"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [Gpu(i, name, float(cap), driver, int(mib) << 20) for i, name, cap, driver, mib in rows]


def is_device_shared(own: Sequence[int]) -> bool:
    """Whether a process other than `own` holds memory on a GPU."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return any(int(line) not in own for line in done.stdout.split() if line.isdigit())


def make_environment(
    described: Mapping[str, Any],
    gpus: Sequence[Gpu],
    variables: Mapping[str, str],
    *,
    threads: int,
    data_fingerprint: str,
) -> Environment:
    """Return the environment that runs share: interpreter, packages, `gpus` used, variables and data.

    `gpus` is empty on CPU; trl itself is left out of the identity, since each commit brings its own.
    """
    packages: dict[str, str] = dict(described["packages"])
    machine = {
        "processor": described["processor"],
        "driver": gpus[0].driver if gpus else "",
        "variables": hashlib.sha256(json.dumps(sorted(variables.items())).encode()).hexdigest()[
            :12
        ],
    }
    gpu = gpus[0].name if gpus else "cpu"
    identity = {
        "python": described["python"],
        "packages": {name: v for name, v in packages.items() if name not in ("trl", "bisector")},
        "gpu": gpu,
        "threads": threads,
        "machine": machine,
        "data": data_fingerprint,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return Environment(
        id=f"e{digest[:12]}",
        python=described["python"],
        packages=packages,
        gpu=gpu,
        devices=len(gpus),
        threads=threads,
        machine=machine,
        data_fingerprint=data_fingerprint,
    )


def find_lack(requires: Sequence[str], packages: Mapping[str, str], gpus: Sequence[Gpu]) -> str:
    """Return why this machine cannot run a config with these needs; empty if it can."""
    is_modern = bool(gpus) and gpus[0].capability >= BF16_CAPABILITY
    for need in requires:
        if need == "cuda" and not gpus:
            return "it needs CUDA, and this machine has no GPU"
        if need == "bf16" and not is_modern:
            return "it needs bf16, which this device does not have"
        if need == "flash-attention" and not (is_modern and "kernels" in packages):
            return (
                "it needs the flash-attention kernel: an Ampere GPU or newer, and package kernels"
            )
        if need.startswith("devices:") and len(gpus) < int(need.removeprefix("devices:")):
            return (
                f"it needs {need.removeprefix('devices:')} GPUs, and this machine has {len(gpus)}"
            )
    return ""


def find_unsatisfied(
    requirements: Sequence[str], requires_python: str, environment: Environment
) -> str:
    """Return what a commit asks for and this environment lacks; empty if it satisfies everything.

    Requirements that cannot be parsed, or whose marker is false here, are passed over.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    lacks = []
    for text in requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker and not wanted.marker.evaluate({"python_version": _minor(environment)}):
            continue
        installed = environment.packages.get(wanted.name.lower().replace("_", "-"))
        if installed is None:
            lacks.append(f"{text} (not installed)")
        elif not wanted.specifier.contains(installed, prereleases=True):
            lacks.append(f"{wanted.name}{wanted.specifier} (installed: {installed})")
    try:
        if not SpecifierSet(requires_python).contains(environment.python, prereleases=True):
            lacks.append(f"Python {requires_python} (here: {environment.python})")
    except InvalidSpecifier:
        pass
    return f"the commit asks for {', '.join(lacks)}" if lacks else ""


def _minor(environment: Environment) -> str:
    return ".".join(environment.python.split(".")[:2])


def releases_before(date: datetime, names: Sequence[str]) -> list[str]:
    """Return `name==version` of each package's newest release before the date, as the index has them.

    Empty where uv or the index cannot be reached.
    """
    import uv

    options = ["--no-deps", "--no-header", "--no-annotate", "--quiet"]
    try:
        done = subprocess.run(
            [
                uv.find_uv_bin(),
                "pip",
                "compile",
                *options,
                "--exclude-newer",
                date.isoformat(),
                "-",
            ],
            input="\n".join(names),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "UV_NO_PROGRESS": "1"},
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if "==" in line]


def requirement_name(text: str) -> str:
    """Return the package that a requirement names; empty where it cannot be parsed."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text).name
    except InvalidRequirement:
        return ""
