"""Prints how often a hunt whose runs read wrongly now and then names the right commit; seeded, in memory, run by hand.

python benchmarks/noise.py                  # 1,000 hunts for each line, 10,000 without culprit: some minutes
python benchmarks/noise.py --hunts 100
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from random import Random
from statistics import fmean

import numpy as np

from bisector import bayes
from bisector.bayes import Confirm, Counts, Found
from bisector.model import Verdict
from bisector.search import Probes, Reading

COMMITS = (12, 128, 234, 1024)
NOISE = (0.0, 0.01, 0.05, 0.1, 0.2)
ENDS = (
    8  # runs of the ends where they differ; the first of each is what the others are compared with
)
REPEATS = 3  # of each end: six A/A runs
SET = {"set right": 1.0, "set by half": 0.5, "set by double": 2.0}
SHARE = {
    "plain bisect, confirmed": 10,
    "git_bayesect": 200,
}  # of the hunts without culprit: the last gives up late
MOST = 2000  # readings after which a search that never gives up is ended


@dataclass(frozen=True)
class Trainer:
    """Runs whose verdicts are wrong at the given rates; `culprit` None: no commit changed anything."""

    culprit: int | None
    false_bad: float
    false_good: float
    rng: Random

    def read(self, position: int) -> Verdict:
        is_bad = self.culprit is not None and position >= self.culprit
        is_wrong = self.rng.random() < (self.false_good if is_bad else self.false_bad)
        return Verdict.BAD if is_bad != is_wrong else Verdict.GOOD


@dataclass(frozen=True)
class Ending:
    """What a hunt named (None: nothing), and the runs that it took."""

    named: int | None
    searched: int
    others: int = 0  # of the ends, and to confirm


Method = Callable[[int, Trainer], Ending]


def six_repeats(commits: int, trainer: Trainer) -> Ending:
    """The rates come from three more runs of either end."""
    ends = [Reading(p, trainer.read(p)) for p in (0, commits) for _ in range(REPEATS)]
    return bayesian(commits, trainer, ends, Counts())


def set_rates(factor: float) -> Method:
    """The rates are set, with the weight of six runs, and the bad end is never run again unless asked for."""

    def method(commits: int, trainer: Trainer) -> Ending:
        bad, good = (min(rate * factor, 1.0) for rate in (trainer.false_bad, trainer.false_good))
        known = Counts(*(REPEATS * share for share in (bad, 1 - bad, good, 1 - good)))
        return bayesian(commits, trainer, [], known)

    return method


def bayesian(commits: int, trainer: Trainer, ends: list[Reading], known: Counts) -> Ending:
    """Search and confirm as a hunt does."""
    readings, fresh = list(ends), []
    while True:
        step = bayes.search(0, commits, readings, fresh, known=known)
        if isinstance(step, Probes):
            readings += [Reading(p, trainer.read(p)) for p in step.positions]
        elif isinstance(step, Confirm):
            sides = [step.link.parent] * step.parent + [step.link.child] * step.child
            fresh += [Reading(p, trainer.read(p)) for p in sides]
        else:
            named = step.link.child if isinstance(step, Found) and step.link.is_single else None
            return Ending(named, len(readings) - len(ends), ENDS + len(fresh))


def plain(commits: int, trainer: Trainer, votes: int = 1) -> Ending:
    """Halve, and believe each verdict, or that of most of the `votes`."""
    good, bad, searched = 0, commits, 0
    while bad - good > 1:
        middle = (good + bad) // 2
        bads = sum(trainer.read(middle) is Verdict.BAD for _ in range(votes))
        good, bad = (good, middle) if bads > votes // 2 else (middle, bad)
        searched += votes
    return Ending(bad, searched)


def plain_confirmed(commits: int, trainer: Trainer) -> Ending:
    """Halve, then run culprit and parent twice more: all four must be on their own side."""
    found = plain(commits, trainer)
    assert found.named
    is_confirmed = all(
        trainer.read(position) is side
        for position, side in ((found.named - 1, Verdict.GOOD), (found.named, Verdict.BAD))
        for _ in range(2)
    )
    return Ending(found.named if is_confirmed else None, found.searched, 4 + 4)


def majority(commits: int, trainer: Trainer) -> Ending:
    return plain(commits, trainer, votes=5)


LOG_BETA = np.array(
    [
        [math.lgamma(a / 100) if a else 0.0 for a in range(offset, 400_000, 100)]
        for offset in (5, 10, 90, 95, 0)
    ]
)


def bayesect(commits: int, trainer: Trainer) -> Ending:
    """What git_bayesect publishes: a Beta prior for either side, (0.9, 0.1) and (0.05, 0.95), the commit that
    leaves the least entropy to be expected, and an end at 0.95. It runs no end and confirms nothing."""
    bads, all_ = np.zeros(commits), np.zeros(commits)  # of positions 1 … `commits`, each alone
    for searched in range(MOST):
        bad_before = np.concatenate([[0], np.cumsum(bads)])[:-1].astype(int)
        all_before = np.concatenate([[0], np.cumsum(all_)])[:-1].astype(int)
        bad_after, all_after = int(bads.sum()) - bad_before, int(all_.sum()) - all_before
        log = _log_marginal(bad_after, all_after - bad_after, 2, 1) + _log_marginal(
            bad_before, all_before - bad_before, 0, 3
        )
        belief = np.exp(log - log.max())
        belief /= belief.sum()
        best = int(belief.argmax())
        if belief[best] >= 0.95:
            return Ending(best + 1, searched)
        new = (0.9 + bad_after) / (1 + all_after)
        old = (0.05 + bad_before) / (1 + all_before)
        left = _left(belief, new, old) + _left(belief, 1 - new, 1 - old)
        position = int(left.argmin())
        bads[position] += trainer.read(position + 1) is Verdict.BAD
        all_[position] += 1
    return Ending(None, MOST)


def _log_marginal(bads: "np.ndarray", goods: "np.ndarray", a: int, b: int) -> "np.ndarray":
    """Return log ∫ p^bads (1 - p)^goods over a Beta prior whose parameters sum to one, but for a constant."""
    whole = np.array([math.lgamma(1 + n) for n in range(int((bads + goods).max()) + 1)])
    found: np.ndarray = LOG_BETA[a][bads] + LOG_BETA[b][goods] - whole[bads + goods]
    return found


def _left(belief: "np.ndarray", new: "np.ndarray", old: "np.ndarray") -> "np.ndarray":
    """Return, for each position, the entropy left by an answer, times the answer's probability."""
    on_new, on_old = (
        belief * new,
        belief * old,
    )  # the change is at the position or before it, or after

    def total(new_part: "np.ndarray", old_part: "np.ndarray") -> "np.ndarray":
        sums: np.ndarray = np.cumsum(new_part) + (old_part.sum() - np.cumsum(old_part))
        return sums

    p = total(on_new, on_old)
    logs = total(_xlogx(on_new), _xlogx(on_old))
    return _xlogx(p) - logs


def _xlogx(x: "np.ndarray") -> "np.ndarray":
    found: np.ndarray = x * np.log2(np.where(x > 0, x, 1.0))
    return found


METHODS: dict[str, Method] = {
    "bisector, six A/A runs": six_repeats,
    **{f"bisector, rates {name}": set_rates(factor) for name, factor in SET.items()},
    "plain bisect": plain,
    "plain bisect, confirmed": plain_confirmed,
    "majority of five": majority,
    "git_bayesect": bayesect,
}


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    method: str
    commits: int
    false_bad: float
    false_good: float
    hunts: int
    has_culprit: bool = True

    def run(self) -> str:
        rng = Random(f"{self.commits} {self.false_bad} {self.false_good} {self.has_culprit}")
        endings, right, wrong = [], 0, 0
        for _ in range(self.hunts):
            culprit = rng.randint(1, self.commits) if self.has_culprit else None
            own = Random(rng.random())  # so that all methods meet the same culprits
            ending = METHODS[self.method](
                self.commits, Trainer(culprit, self.false_bad, self.false_good, own)
            )
            endings.append(ending)
            right += ending.named is not None and ending.named == culprit
            wrong += ending.named is not None and ending.named != culprit
        searched = fmean(e.searched for e in endings)
        whole = fmean(e.searched + e.others for e in endings)
        refused = self.hunts - right - wrong
        noise = f"{100 * self.false_bad:g} / {100 * self.false_good:g}"
        return (
            f"| {self.method} | {self.commits} | {noise} | {right} | {wrong} | {refused} "
            f"| {searched:.1f} | {whole:.1f} |"
        )


def cells(hunts: int) -> Iterable[Cell]:
    rates = [*((p, p) for p in NOISE), (0.0, 0.1)]
    for commits, (bad, good), method in product(COMMITS, rates, METHODS):
        if not (bad == good == 0.0 and "set by" in method):
            yield Cell(method, commits, bad, good, hunts)


def empty_cells(hunts: int) -> Iterable[Cell]:
    methods = [name for name in METHODS if name.startswith("bisector")]
    for noise, method in product(
        (0.05, 0.1, 0.2), [*methods, "plain bisect, confirmed", "git_bayesect"]
    ):
        count = max(hunts // SHARE.get(method, 1), 1)
        yield Cell(method, 1024, noise, noise, count, has_culprit=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hunts", type=int, default=1000)
    parser.add_argument("--method", default="", help="only methods whose name holds this")
    parser.add_argument("--commits", type=int, default=0, help="only ranges of this length")
    chosen = parser.parse_args()
    head = "| method | N | % false bad / false good | right | wrong | refused | search probes | all runs |"
    with ProcessPoolExecutor(2) as pool:
        for title, found in (
            ("With a culprit", cells(chosen.hunts)),
            ("Without", empty_cells(10 * chosen.hunts)),
        ):
            print(
                f"\n{title}, of {chosen.hunts} hunts each\n\n{head}\n|---|---|---|---|---|---|---|---|"
            )
            wanted = [
                cell
                for cell in found
                if chosen.method in cell.method and chosen.commits in (0, cell.commits)
            ]
            for line in pool.map(Cell.run, wanted):
                print(line)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
