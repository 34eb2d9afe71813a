"""Prints how many probes a search asks for, beside the least possible; run by hand.

python benchmarks/probes.py                 # 1,000 random culprits for each line: some minutes
python benchmarks/probes.py --culprits 100
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from racing import Race  # noqa: E402

from bisector.model import Link  # noqa: E402
from bisector.search import search_bound  # noqa: E402

RANGES = (12, 128, 234, 302, 1024)
WIDTHS = (1, 2, 4, 8)
SPREAD = 0.5  # of the logarithm of a run's time, whose median is 1
TOUCHING = 0.3  # of the commits, what the runs read
STRETCH = 0.1  # of the range, that cannot be judged
MakeRace = Callable[[int, int, int, Random], Race]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--culprits", type=int, default=1000)
    count = parser.parse_args().culprits
    print("One at a time: probes against the least possible, the logarithm of the candidates")
    print(f"{'':22} {'candidates':>10} {'probes':>7} {'floor':>6} {'excess':>7} {'worst':>6}")
    for name, make in ONE_BY_ONE.items():
        for commits in RANGES:
            alone(name, make, commits, count)
    print()
    print(
        "Several at once: rounds where every run takes 1, time where it is log-normal of median 1"
    )
    print(
        f"{'':22} {'candidates':>10} {'width':>6} {'rounds':>7} {'floor':>6} {'time':>6} {'ended':>6} {'wasted':>7}"
    )
    for name, skips in (("no skips", no_skips), ("a stretch of skips", a_stretch)):
        for commits in RANGES:
            for width in WIDTHS:
                together(name, skips, commits, width, count)


def alone(name: str, make: MakeRace, commits: int, count: int) -> None:
    """The mean excess is over each search's own floor, that of its candidates."""
    rng = Random(f"{name} {commits}")
    candidates, probes, excesses = [], [], []
    for _ in range(count):
        race = make(commits, 1, rng.randint(1, commits), rng)
        asked = race.run()[2]
        left = commits if race.marks is None else len(race.marks)
        candidates.append(left)
        probes.append(asked)
        excesses.append(asked - search_bound(left))
    floor = fmean(search_bound(left) for left in candidates)
    print(
        f"{name:22} {fmean(candidates):10.0f} {fmean(probes):7.2f} {floor:6.2f}"
        f" {fmean(excesses):7.2f} {max(excesses):6}"
    )


def plain(commits: int, width: int, culprit: int, rng: Random) -> Race:
    return Race(commits, culprit, width)


def skipping(commits: int, width: int, culprit: int, rng: Random) -> Race:
    return Race(commits, culprit, width, skips=a_stretch(commits, culprit, rng))


def touching(commits: int, width: int, culprit: int, rng: Random) -> Race:
    """The culprit touches what the runs read, as some other commits do."""
    marks = [n for n in range(1, commits + 1) if n == culprit or rng.random() < TOUCHING]
    return Race(commits, culprit, width, marks=marks)


ONE_BY_ONE: dict[str, MakeRace] = {
    "no skips": plain,
    "a stretch of skips": skipping,
    "30 % touch the reads": touching,
}


def together(
    name: str,
    skips: Callable[[int, int, Random], frozenset[int]],
    commits: int,
    width: int,
    count: int,
) -> None:
    rng = Random(f"{name} {commits} {width}")
    rounds, times, ended, wasted = [], [], [], []
    for _ in range(count):
        culprit = rng.randint(1, commits)
        skipped = skips(commits, culprit, rng)
        rounds.append(Race(commits, culprit, width, skips=skipped).run()[1])
        race = Race(commits, culprit, width, lambda: rng.lognormvariate(0, SPREAD), skipped)
        link, seconds, done, cancelled = race.run()
        assert skipped or link == Link(culprit - 1, culprit)
        times.append(seconds)
        ended.append(done)
        wasted.append(cancelled)
    print(
        f"{name:22} {commits:10} {width:6} {fmean(rounds):7.2f} {search_bound(commits, width):6}"
        f" {fmean(times):6.2f} {fmean(ended):6.2f} {fmean(wasted):7.2f}"
    )


def no_skips(commits: int, culprit: int, rng: Random) -> frozenset[int]:
    return frozenset()


def a_stretch(commits: int, culprit: int, rng: Random) -> frozenset[int]:
    """Neighbouring commits, a tenth of the range, anywhere in it; the ends and the culprit are none of them."""
    length = max(round(commits * STRETCH), 1)
    first = rng.randint(1, commits - length)
    return frozenset(range(first, first + length)) - {culprit}


if __name__ == "__main__":
    main()
