"""Prints what a hunt over real history costs, beside `git bisect run`, and what each idea gives alone; by hand.

python benchmarks/hunts.py TRL_CLONE             # all sides, one after the other: about half an hour
python benchmarks/hunts.py TRL_CLONE --only a c d

(a) is `git bisect run bisector probe`, cold and whole, against a recorded reference: it checks no end and
confirms nothing. (b) adds the same runs of both ends, of the culprit and of its parent, twice each. (c) is
`bisector hunt` from an empty state, (d) the same where both ends were run and a warm process waits, as in the
service.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from driving import BISECTOR, only_hunt  # noqa: E402
from synthetic import git  # noqa: E402

from bisector.bench import Bench, Order  # noqa: E402
from bisector.config import references_dir  # noqa: E402
from bisector.daemon import Loop  # noqa: E402
from bisector.model import Role, Run  # noqa: E402
from bisector.plan import Case  # noqa: E402
from bisector.progress import TerminalProgress  # noqa: E402
from bisector.report import executions, wall_seconds  # noqa: E402
from bisector.session import HuntOptions, Options, Range, Session, ask  # noqa: E402
from bisector.store import Store  # noqa: E402

GOOD, BAD, CONFIG = "1fbe03509", "47d7c10e7", "dpo_default"
SUITE = ("--suite", "tiny", "--config", CONFIG)
OFF = {"stop": False, "warm": False, "footprints": False, "side by side": False}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one side took: seconds of the clock, the runs, and the answer. The search of (a) has no roles."""

    name: str
    seconds: float
    runs: Sequence[Run]
    began: float
    culprit: str

    def __str__(self) -> str:
        steps = sum(len(run.result.trajectory) for run in self.runs)
        parts = [self._in("end", "noise"), self._in("search", "control"), self._in("confirm")]
        start = min(run.started for run in self.runs) - self.began
        rest = self.seconds - start - sum(parts)
        split = " ".join(f"{part:7.1f}" for part in (start, *parts, rest))
        return f"{self.name:34} {self.seconds:7.1f} {len(self.runs):5} {steps:6} {split}  {self.culprit[:10]}"

    def _in(self, *roles: str) -> float:
        return wall_seconds([run for run in self.runs if run.role in roles])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trl")
    parser.add_argument("--only", nargs="+", choices=["a", "b", "c", "d", "none", *OFF])
    args = parser.parse_args()
    sides = args.only or ["a", "b", "c", "d", "none", *OFF]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = folder
        say_suite(Path(folder))
        print(f"{'':34} seconds  runs  steps   start    ends  search confirm    rest  culprit")
        if "a" in sides or "b" in sides:
            bisect(Path(folder), args.trl, is_checked="b" in sides)
        if "c" in sides:
            print(hunt(Path(folder) / "c", args.trl, "(c) hunt"), flush=True)
        if "d" in sides:
            print(hunt_in_service(Path(folder) / "d", args.trl), flush=True)
        for name in (each for each in ("none", *OFF) if each in sides):
            ideas = {**OFF, name: True}
            found = hunt(Path(folder) / f"alone {name}", args.trl, f"hunt, {name} alone", ideas)
            print(found, flush=True)


def say_suite(folder: Path) -> None:
    suite = references_dir() / "tiny.toml"
    digest = hashlib.sha256(suite.read_bytes()).hexdigest()[:12]
    assets = Session(Options(suite="tiny", state=str(folder / "assets")))._assets.name
    print(f"suite tiny {digest}, model and data {assets}")


def bisect(folder: Path, trl: str, *, is_checked: bool) -> None:
    """Print (a), and (b) with the runs that it makes more."""
    clone, state = folder / "clone", folder / "a"
    subprocess.run(["git", "clone", "-q", "--shared", trl, str(clone)], check=True)
    good, bad = (git(clone, "rev-parse", sha) for sha in (GOOD, BAD))
    reference = folder / "references" / "dpo.json"
    probe("record", good, "dpo", cwd=clone, state=folder / "r", output=reference.parent)
    against = ("--against", str(reference))
    began = time.time()
    git(clone, "bisect", "start", "--first-parent", bad, good)
    command = [*BISECTOR, "probe", "HEAD", *against, *SUITE, "--state", str(state)]
    done = subprocess.run(
        ["git", "bisect", "run", *command], cwd=clone, capture_output=True, text=True, check=True
    )
    seconds = time.time() - began
    culprit = git(clone, "rev-parse", "refs/bisect/bad")
    assert f"{culprit} is the first bad commit" in done.stdout
    git(clone, "bisect", "reset")
    cost = Cost("(a) git bisect run probe", seconds, runs_in(state), began, culprit)
    print(cost, flush=True)
    if is_checked:
        for sha in (good, bad, culprit, f"{culprit}^") * 2:
            probe("probe", sha, *against, *SUITE[2:], cwd=clone, state=state)
        name = "(b) and ends and culprit checked"
        print(Cost(name, time.time() - began, runs_in(state), began, culprit), flush=True)


def probe(command: str, *args: str, cwd: Path, state: Path, output: Path | None = None) -> None:
    more = ("--output", str(output)) if output else ()
    where = ("--suite", "tiny", "--state", str(state), *more)
    done = subprocess.run(
        [*BISECTOR, command, *args, *where], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr


def hunt(folder: Path, trl: str, name: str, ideas: dict[str, bool] | None = None) -> Cost:
    """Run a hunt from an empty state, with all ideas or with some."""
    folder.mkdir()
    options: list[str] = []
    if ideas is not None:
        footprints = str(ideas["footprints"]).lower()
        (folder / "settings.toml").write_text(f"[train]\nfootprints = {footprints}\n")
        options += ["--settings", "settings.toml"]
        options += [] if ideas["stop"] else ["--thorough"]
        options += [] if ideas["warm"] else ["--no-warm"]
        options += [] if ideas["side by side"] else ["--jobs", "1"]
    began = time.time()
    done = subprocess.run(
        [*BISECTOR, "hunt", GOOD, BAD, "--repo", trl, *SUITE, "--json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.time() - began
    culprit = only_hunt(done.stdout)["culprit"]["sha"]
    return Cost(name, seconds, runs_in(folder / "state"), began, culprit)


def hunt_in_service(folder: Path, trl: str) -> Cost:
    """Run a hunt as the service does: the ends are stored, whole, and the warm process is there."""
    session = Session(Options(trl, "tiny", (CONFIG,), str(folder)))
    (config,) = session.configs()
    repository = session.repository
    commits = tuple(repository.first_parents(*(repository.resolve(sha) for sha in (GOOD, BAD))))
    environment = session.environment_of(config)
    with TerminalProgress(is_verbose=False) as progress, Bench(session, progress.said) as bench:
        ends = [
            Order(None, sha, Role.TEST, config, environment) for sha in (commits[0], commits[-1])
        ]
        wanted = list(ends)
        while wanted or bench.in_flight:
            if wanted and bench.start(wanted[0]):
                wanted.pop(0)
            bench.collect()
            time.sleep(0.01)
        began = time.time()
        found, question = ask(session, config, Range(commits), HuntOptions(), environment)
        session.store.add_hunt(found, question)
        loop = Loop(session, bench, progress)
        loop.run([Case(found, commits, ())], lambda: False)
        seconds = time.time() - began
    culprit = loop.conclusions[found.id].culprit
    assert culprit
    runs = executions(session.store.runs_of(found.id))
    return Cost("(d) hunt, ends stored, warm", seconds, runs, began, culprit.sha)


def runs_in(state: Path) -> list[Run]:
    store = Store(state)
    runs = [run for run, _ in store.recent_runs(1000)]
    store.close()
    return executions(runs)


if __name__ == "__main__":
    main()
