"""Prints what a hunt costs beside its trainings, and the same hunt by `git bisect run`; run by hand.

python benchmarks/overhead.py            # the synthetic history
python benchmarks/overhead.py --demo     # and the demo, which trains
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from synthetic import git, make_repository  # noqa: E402

from bisector.case import Case  # noqa: E402
from bisector.model import Config, Environment, Hunt, Role, Run, RunResult, Status, Step, Tolerances  # noqa: E402
from bisector.plan import next_actions  # noqa: E402

COMMITS = 1000
CULPRIT = 617
TRAINING = {"code": "import time; time.sleep(0.05)"}
BISECTOR = [sys.executable, "-m", "bisector"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--demo", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare_searches(Path(folder))
    time_planning()
    if args.demo:
        time_demo()


def compare_searches(folder: Path) -> None:
    plans = [TRAINING] * CULPRIT + [{**TRAINING, "loss": 0.5}] * (COMMITS + 1 - CULPRIT)
    shas = make_repository(folder / "repo", plans)
    env = {**os.environ, "TMPDIR": str(folder)}
    alone = time_training(folder / "repo")
    asked = [
        *BISECTOR,
        "hunt",
        shas[0],
        shas[-1],
        "--repo",
        "repo",
        "--suite",
        "toy.toml",
        "--json",
    ]
    began = time.monotonic()
    done = subprocess.run(
        asked,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    wall = time.monotonic() - began
    start_up = time_command(asked, cwd=folder, env=env)  # answered from the store
    (entry,) = json.loads(done.stdout)["hunts"]
    assert entry["culprit"]["sha"] == shas[CULPRIT]
    rounds = entry["runs"] - 4  # ends and confirmation run two at a time
    overhead = (wall - start_up) / rounds - alone
    print(f"history: {COMMITS} commits; the training alone takes {alone:.3f} s")
    print(
        f"bisector hunt:  {entry['runs']:3} runs, {wall:6.2f} s, of which {start_up:.2f} s start-up"
    )
    print(f"                {overhead:.3f} s overhead for each of {rounds} rounds")
    git(folder / "repo", "bisect", "start", shas[-1], shas[0])
    script = [*BISECTOR, "probe", "HEAD", "--against", shas[0], "--suite", f"{folder}/toy.toml"]
    began = time.monotonic()
    done = subprocess.run(
        ["git", "bisect", "run", *script, "--state", f"{folder}/bisect"],
        cwd=folder / "repo",
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    wall = time.monotonic() - began
    assert f"{shas[CULPRIT]} is the first bad commit" in done.stdout
    probes = done.stdout.count("toy: ")
    print(f"git bisect run: {probes:3} probes, {wall:6.2f} s, no end checked, nothing confirmed")


def time_training(repository: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(repository / "train.py"), "--output_dir", out]
        return statistics.median(time_command(command) for _ in range(9))


def time_command(command: list[str], **options: Any) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, **options)
    return time.monotonic() - began


def time_planning() -> None:
    limits = {"loss": 1e-3, "grad_norm": 1e-1}
    config = Config(
        "c", "s", "c", True, None, "t", {}, (), 1, (), Tolerances(limits, limits), (), False, "d"
    )
    commits = tuple(f"{number:040x}" for number in range(100_001))
    environment = Environment("e", "", {}, "cpu", 0, 1, {}, "")
    hunt = Hunt("h", "r", commits[0], commits[-1], 100_000, config, environment)

    def ended(sha: str, loss: float) -> Run:
        steps = tuple(Step(number, loss, 1.0) for number in range(1, 51))
        return Run(sha, "h", sha, Role.END, RunResult(Status.COMPLETED, steps), 0.0, "e")

    runs = (ended(commits[0], 1.0),) * 2 + (ended(commits[-1], 2.0),) * 2
    began = time.monotonic()
    next_actions([Case(hunt, commits, runs)], [])
    print(f"planning the next run over 100,000 commits: {time.monotonic() - began:.3f} s")


def time_demo() -> None:
    with tempfile.TemporaryDirectory() as state:
        began = time.monotonic()
        done = subprocess.run(
            [*BISECTOR, "demo", "--state", state], capture_output=True, text=True, check=True
        )
        cost = next(line for line in done.stdout.splitlines() if line.startswith("cost"))
        print(f"demo: {time.monotonic() - began:.0f} s; {' '.join(cost.split()[1:])}")


if __name__ == "__main__":
    main()
