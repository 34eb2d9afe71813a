"""Searches in memory whose probes take time: several at once, and what an answer makes useless is cancelled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bisector.model import Link, Verdict
from bisector.search import Reading, narrow


@dataclass
class Race:
    """A search whose probes take time: `width` at once, each as long as `seconds` says."""

    commits: int
    culprit: int
    width: int
    seconds: Callable[[], float] = lambda: 1.0
    skips: frozenset[int] = frozenset()
    marks: Sequence[int] | None = None  # the commits that touch what every run reads
    weights: Mapping[int, float] = field(default_factory=dict)

    def run(self) -> tuple[Link, float, int, int]:
        """Return the answer, how long it took, and how many probes ended and were cancelled."""
        verdicts: dict[int, Verdict] = {}
        ends = [
            Reading(0, Verdict.GOOD, self.marks),
            Reading(self.commits, Verdict.BAD, self.marks),
        ]
        in_flight: dict[int, float] = {}
        now, cancelled = 0.0, 0
        while True:
            step = narrow(
                0,
                self.commits,
                [*ends, *(Reading(p, v, self.marks) for p, v in verdicts.items())],
                width=self.width,
                in_flight=in_flight,
                weights=self.weights,
            )
            if isinstance(step, Link):
                return step, now, len(verdicts), cancelled + len(in_flight)
            assert len(set(step.positions)) == len(step.positions) <= self.width
            assert not set(step.positions) & set(verdicts), "probed twice"
            cancelled += len(set(in_flight) - set(step.positions))
            in_flight = {p: in_flight.get(p, now + self.seconds()) for p in step.positions}
            now = min(in_flight.values())
            for position in [p for p, end in in_flight.items() if end == now]:
                del in_flight[position]
                verdicts[position] = verdict_of(position, self.culprit, set(self.skips))


def verdict_of(position: int, culprit: int, skips: set[int]) -> Verdict:
    if position in skips:
        return Verdict.SKIP
    return Verdict.GOOD if position < culprit else Verdict.BAD
