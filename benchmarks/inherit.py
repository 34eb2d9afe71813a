"""Prints how many commits of real history need no run of a config, from the footprints of runs; by hand.

python benchmarks/inherit.py TRL_CLONE                # the last 500 commits, each canonical config of suite tiny
bisector audit GOOD BAD --config NAME --sample 50     # whether runs bear that out

A config is run at `--places` commits, spread evenly; each footprint tells which commits of its part touch it.
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

from bisector.bench import Order
from bisector.candidates import Candidates
from bisector.model import Role
from bisector.probing import make_runs
from bisector.progress import TerminalProgress
from bisector.session import Options, Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trl")
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--places", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Options(args.trl, "tiny", state=str(Path(folder) / "state")))
        repository = session.repository
        ends = (f"{args.head}~{args.commits}", args.head)
        commits = repository.first_parents(*(repository.resolve(end) for end in ends))
        candidates = Candidates(repository, commits)
        parts = [n * args.commits // args.places for n in range(args.places + 1)]
        orders = {
            (config.name, place): Order(
                None, commits[place], Role.TEST, config, session.environment_of(config)
            )
            for config in session.configs()
            for place in parts[:-1]
        }
        with TerminalProgress(is_verbose=False) as progress:
            runs = make_runs(session, list(orders.values()), progress)
    print(f"{commits[0][:10]} … {commits[-1][:10]}, {args.commits} commits")
    for name in dict.fromkeys(name for name, _ in orders):
        touching: set[int] = set()
        for first, last in pairwise(parts):
            footprint = runs[orders[name, first]].result.footprint
            assert footprint, runs[orders[name, first]].result.reason
            touching |= {p for p in candidates.touching(footprint) if first < p <= last}
        share = 1 - len(touching) / args.commits
        print(f"{name:14} {len(touching):4} commits touch it; {share:5.1%} need no run")


if __name__ == "__main__":
    main()
