"""Asks the training interpreter: what is installed there, and to fetch the model and data of a config."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisector.errors import BisectorError, InfraError

WORKER = Path(__file__).with_name("worker.py")


def describe(python: str) -> dict[str, Any]:
    """Return what `worker.py describe` says of the training interpreter."""
    try:
        done = subprocess.run(
            [python, str(WORKER), "describe"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise BisectorError(
            f"{python} cannot describe its environment: {''.join(detail)}.",
            "Give --python the path of a Python 3.11 or later that has torch, transformers and trl.",
        ) from None
    try:
        described: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise BisectorError(
            f"{python} is no Python interpreter.",
            "Give --python the path of one that has torch, transformers and trl.",
        ) from None
    return described


def fetch(python: str, args: Mapping[str, str], hub: Path) -> str:
    """Bring model, data and kernel of the arguments to `hub`, once; return a digest of their revisions."""
    record = (
        hub
        / f"fetched-{hashlib.sha256(json.dumps(sorted(args.items())).encode()).hexdigest()[:12]}.json"
    )
    if not record.exists():
        hub.mkdir(parents=True, exist_ok=True)
        variables = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(hub),
            "HF_HUB_CACHE": str(hub),
            "HF_DATASETS_CACHE": str(hub / "datasets"),
        }
        try:
            done = subprocess.run(
                [python, str(WORKER), "fetch"],
                input=json.dumps(dict(args)),
                capture_output=True,
                text=True,
                check=True,
                env=variables,
            )
        except (OSError, subprocess.SubprocessError) as error:
            detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            raise InfraError(
                f"Model or data could not be fetched: {''.join(detail)[:200]}.",
                "Check the network; run it again. `--suite tiny` needs none.",
            ) from None
        partial = record.with_suffix(".partial")
        partial.write_text(done.stdout)
        partial.rename(record)
    return hashlib.sha256(record.read_bytes()).hexdigest()[:12]
