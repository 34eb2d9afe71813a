"""Prints what finding ten planted regressions costs, by `git bisect run bisector probe` and by `bisector hunt`; by hand.

python benchmarks/planted.py                       # ten histories of 200 commits: over an hour
python benchmarks/planted.py --only "raise beta"   # one of them
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from driving import BISECTOR, bisector, only_hunt  # noqa: E402
from planting import REGRESSIONS, Regression, make_history  # noqa: E402
from synthetic import git  # noqa: E402

from bisector.store import Store  # noqa: E402

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one search took: seconds, runs, and the training steps of those."""

    seconds: float
    runs: int
    steps: int

    def __str__(self) -> str:
        return f"{self.seconds:7.0f} s {self.runs:3} runs {self.steps:5} steps"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[planted.name for planted in REGRESSIONS])
    parser.add_argument("--commits", type=int, default=200)
    args = parser.parse_args()
    ratios = []
    print(f"{'regression, commit':50} git bisect run                   bisector hunt       ratio")
    for seed, planted in enumerate(REGRESSIONS):
        if args.only in (None, planted.name):
            with tempfile.TemporaryDirectory() as folder:
                ratios.append(compare(Path(folder), planted, args.commits, seed))
    print(
        f"hunt's time over git bisect's: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}"
    )


def compare(folder: Path, planted: Regression, commits: int, seed: int) -> float:
    at = random.Random(seed).randint(1, commits)
    shas = make_history(folder / "repo", commits=commits, regression=planted, at=at, seed=seed)
    by_git = bisect(folder, planted, shas, at)
    by_hunt = hunt(folder, planted, shas, at)
    ratio = by_hunt.seconds / by_git.seconds
    print(f"{planted.name:45} {at:4} {by_git}  {by_hunt}  {ratio:6.2f}", flush=True)
    return ratio


def bisect(folder: Path, planted: Regression, shas: list[str], at: int) -> Cost:
    began = time.monotonic()
    git(folder / "repo", "bisect", "start", shas[-1], shas[0])
    probe = [*BISECTOR, "probe", "HEAD", "--against", shas[0], "--suite", "tiny"]
    done = subprocess.run(
        ["git", "bisect", "run", *probe, "--config", planted.config, "--state", f"{folder}/bisect"],
        cwd=folder / "repo",
        capture_output=True,
        text=True,
        check=False,
        timeout=HOUR,
    )
    seconds = time.monotonic() - began
    git(folder / "repo", "bisect", "reset")
    assert f"{shas[at]} is the first bad commit" in done.stdout, f"{done.stdout}\n{done.stderr}"
    return cost(folder / "bisect", seconds)


def hunt(folder: Path, planted: Regression, shas: list[str], at: int) -> Cost:
    began = time.monotonic()
    done = bisector(
        *(folder, "hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "tiny"),
        *("--config", planted.config, "--state", "hunt", "--json"),
        timeout=HOUR,
    )
    seconds = time.monotonic() - began
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert only_hunt(done.stdout)["culprit"]["sha"] == shas[at]
    return cost(folder / "hunt", seconds)


def cost(state: Path, seconds: float) -> Cost:
    store = Store(state)
    runs = [run for run, _ in store.recent_runs(1000)]
    store.close()
    shutil.rmtree(state)
    return Cost(seconds, len(runs), sum(len(run.result.trajectory) for run in runs))


if __name__ == "__main__":
    main()
