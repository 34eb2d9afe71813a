"""A repository whose commit n holds the number n, and a trainer that reads what to do there."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TRAINER = """
import json, os, sys
out = sys.argv[sys.argv.index("--output_dir") + 1]
here = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(os.path.join(here, "plan.json")))
exec(plan.get("code", ""))
with open(os.path.join(out, "metrics.jsonl"), "w") as file:
    for step in range(1, plan.get("steps", 5) + 1):
        line = {"step": step, "loss": 1.0 + plan.get("loss", 0.0) / step, "grad_norm": 2.0 + plan.get("norm", 0.0)}
        if "tokens" in plan:
            line["num_tokens"] = plan["tokens"] * step
        file.write(json.dumps(line) + "\\n")
        file.flush()
"""

SUITE = """
[class.toy]
script = "train.py"
canonical = "toy"
tol = { loss = 1e-3, grad_norm = 1e-1 }
residual_tol = { loss = 1e-5, grad_norm = 1e-3 }
[class.toy.members.toy]
"""


def git(repository: Path, *args: str) -> str:
    env = {
        **os.environ,
        **{
            f"GIT_{who}_{what}": "x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    done = subprocess.run(
        ["git", "-C", str(repository), *args], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make_repository(
    path: Path,
    plans: list[Mapping[str, Any]],
    *,
    subject: Callable[[int], str] = lambda n: f"commit {n} (#{n})",
) -> list[str]:
    """Make one commit a plan and return their shas, oldest first."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    stream = []
    for number, plan in enumerate(plans):
        files = {"train.py": TRAINER, "plan.json": json.dumps({"n": number, **plan})}
        if "pyproject" in plan:
            files["pyproject.toml"] = plan["pyproject"]
        message = subject(number)
        stream.append(
            f"commit refs/heads/main\ncommitter x <x@x> {1700000000 + number} +0000\n"
            f"data {len(message.encode())}\n{message}\n"
        )
        for name, text in files.items():
            stream.append(f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n")
    subprocess.run(
        ["git", "-C", str(path), "fast-import", "--quiet"],
        input="".join(stream),
        text=True,
        check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    git(path, "reset", "-q", "--hard", "main")
    (path.parent / "toy.toml").write_text(SUITE)
    return git(path, "rev-list", "--first-parent", "--reverse", "main").split()
