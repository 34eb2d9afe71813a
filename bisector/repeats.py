"""How far runs of one commit differ, which should not at all: the A/A evidence of each config; pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from bisector.compare import largest_differences
from bisector.judge import as_far
from bisector.model import METRICS, Environment, Run
from bisector.series import plain


@dataclass(frozen=True, slots=True)
class Repeats:
    """What repeated runs of a config in one environment show: `largest` is each metric's largest difference between
    two runs of one commit, over the steps that both have."""

    config: str
    environment: Environment
    commits: int
    runs: int
    pairs: int
    largest: Mapping[str, float]

    @property
    def is_exact(self) -> bool:
        """Whether every run repeated bit for bit."""
        return not any(self.largest.values())


def gather(
    runs: Iterable[tuple[Run, str, str]], environments: Mapping[str, Environment]
) -> list[Repeats]:
    """Return the evidence by config and environment; each run comes with its config's name and digest."""
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run, name, digest in runs:
        by_commit = groups.setdefault((name, digest, run.environment), {})
        by_commit.setdefault(run.sha, []).append(run)
    return [
        _repeats(name, environments[environment], list(by_commit.values()))
        for (name, _, environment), by_commit in sorted(groups.items())
    ]


def _repeats(name: str, environment: Environment, commits: list[list[Run]]) -> Repeats:
    pairs = [pair for runs in commits for pair in combinations(runs, 2)]
    found = [_differ(*pair) for pair in pairs]
    largest = {metric: max(each[metric] for each in found) for metric in METRICS}
    return Repeats(name, environment, len(commits), sum(map(len, commits)), len(pairs), largest)


def _differ(one: Run, other: Run) -> dict[str, float]:
    return largest_differences(*as_far(one.result, other.result))


def to_json(found: Repeats) -> dict[str, Any]:
    """Return the evidence of one config in one environment as JSON."""
    return {
        "config": found.config,
        "gpu": found.environment.gpu,
        "environment": found.environment.id,
        "commits": found.commits,
        "runs": found.runs,
        "pairs": found.pairs,
        "exact": found.is_exact,
        "largest": {metric: plain(found.largest[metric]) for metric in METRICS},
    }


def words(found: Repeats) -> str:
    """Return what the repeats show."""
    if found.is_exact:
        return "repeats bit for bit"
    return ", ".join(f"{metric} by up to {found.largest[metric]:.2g}" for metric in METRICS)
