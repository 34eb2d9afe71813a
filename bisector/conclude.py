"""Turns what a hunt has seen into its answer; pure. Accuses only what fresh runs confirmed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bisector.chain import Anchored, Chain, longest
from bisector.compare import deviations, has_data_changed, headline, is_finite, largest_differences
from bisector.judge import (
    HANG,
    Ends,
    Rule,
    end_deviations,
    judge,
    skip_reason,
)
from bisector.model import (
    EXACT,
    METRICS,
    Change,
    Conclusion,
    Crash,
    Deviation,
    Hunt,
    Link,
    Outcome,
    Role,
    RunResult,
    Status,
    Suspect,
    Tolerances,
    Trajectory,
    Verdict,
)
from bisector.search import Probes

CONFIRMATIONS = 2  # fresh runs of culprit and of parent
CRASHED = Deviation(None, "crash", None, float("nan"), float("nan"), 0.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a conclusion rests on; `open` holds the links in which the answer may lie."""

    hunt: Hunt
    commits: Sequence[str]
    results: Callable[..., list[RunResult]]
    longest: Callable[[int], RunResult]  # the run that shows most of what a position does
    ends: Ends | Crash
    rule: Rule
    open: tuple[Link, ...] = ()
    chain: Chain = field(default_factory=lambda: Chain((), ()))

    def within(self, probe: Probes) -> "Evidence":
        """Return the evidence while the search runs: links found, and where it looks now."""
        return replace(self, open=(*probe.found, Link(probe.good, probe.bad)))

    def with_chain(self, chain: Chain) -> "Evidence":
        """Return the evidence with the chain of changes found."""
        return replace(self, chain=chain, open=(chain.links[0].link,))

    def conclude(self) -> Conclusion:
        """Return the answer once the chain is found and the oldest link has its confirmations."""
        oldest, *later = self.chain.links
        others = [found for found in later if not self._doubt(found)]
        undone = [found for found in self.chain.transient if found.link.is_single]
        answer = replace(
            self._frame(),
            others=tuple(self._change(found) for found in others),
            transient=tuple(self._change(found) for found in undone),
            explained=len(others) == len(later),
        )
        answer = replace(answer, notes=(*answer.notes, *self._chain_notes()))
        doubt = self._doubt(oldest)
        if not doubt:
            return replace(
                answer, outcome=Outcome.CULPRIT, culprit=self._change(oldest), confirmed=True
            )
        return replace(
            answer,
            outcome=Outcome.CONTRADICTION if oldest.link.is_single else Outcome.SUSPECTS,
            suspects=self._suspects(),
            explained=False,
            reason=doubt,
        )

    def _doubt(self, found: Anchored) -> str:
        """Return why a link accuses nobody; empty if its commit was told apart and confirmed."""
        if not found.link.is_single:
            return "commits that could not be judged hide which one it is"
        if not self.is_confirmed(found):
            return "no runs were left to confirm it"
        return self._refutation(found)

    def _chain_notes(self) -> list[str]:
        notes = [
            self._words(found, "a later change", doubt)
            for found in self.chain.links[1:]
            if (doubt := self._doubt(found))
        ]
        notes += [
            self._words(found, "a change that was undone", self._doubt(found))
            for found in self.chain.transient
            if not found.link.is_single
        ]
        if any(found.link.is_single for found in self.chain.transient):
            notes.append("what was undone again was not run a second time")
        return notes

    def out_of_budget(self) -> Conclusion:
        """Return what is known when the allowed runs are used up."""
        reason = "the allowed number of runs is used up"
        if self.chain.links and self.chain.links[0].link.is_single:
            reason += " before the commit that is left was confirmed"
        return replace(
            self._frame(), outcome=Outcome.BUDGET, suspects=self._suspects(), reason=reason
        )

    def _frame(self) -> Conclusion:
        if isinstance(self.ends, Crash):
            return Conclusion(
                Outcome.CULPRIT,
                crash=self.ends,
                ends_deviation=CRASHED,
                noise=dict.fromkeys(METRICS, 0.0),
                compared_steps=len(self.longest(0).trajectory),
            )
        return Conclusion(
            Outcome.CULPRIT,
            ends_deviation=self._deviation(self.ends.bad, self.ends.good),
            noise=self.ends.noise,
            compared_steps=min(len(self.ends.good), len(self.ends.bad)),
            notes=(*_noise_notes(self.ends), *self._small_changes()),
        )

    def _at(self, position: int) -> list[RunResult]:
        """Return the runs of a position; those that confirm it show more where a probe was stopped before."""
        return self.results(self.commits[position], Role.END, Role.SEARCH, Role.CONFIRM)

    def _change(self, found: Anchored) -> Change:
        parent, child = found.link.parent, found.link.child
        deviation = (
            CRASHED
            if self.rule.crash
            else self._deviation(
                *_side_by_side(self.longest(child), self.longest(parent), found.anchor)
            )
        )
        return Change(self.commits[child], self.commits[child - 1], deviation)

    def _deviation(self, observed: Trajectory, *references: Trajectory) -> Deviation:
        """Return what to show of a change: by the class's tolerances, else by the rule's limits.

        Of several references the first that it left counts: a change is shown against its parent, and
        only where many small ones add up against the trajectory that the chain had left before.
        """
        by_class = EXACT if self.hunt.exact else self.hunt.config.tolerances
        by_rule = Tolerances(self.rule.limits, self.rule.drift)
        for reference in references:
            for limits in (by_class, by_rule):
                found = headline(deviations(observed, reference, limits), limits.step)
                if found:
                    return replace(found, data_changed=has_data_changed(observed, reference))
        raise AssertionError("a link between trajectories that agree")

    def is_confirmed(self, found: Anchored) -> bool:
        """Whether both sides of a link have all their fresh runs."""
        sides = (self.commits[found.link.parent], self.commits[found.link.child])
        return not any(missing_confirmations(self.results(sha, Role.CONFIRM)) for sha in sides)

    def _refutation(self, found: Anchored) -> str:
        """Return the readings of the fresh runs if one was on the wrong side, else an empty text."""
        readings = []
        is_refuted = False
        sides = ((found.link.parent, Verdict.GOOD), (found.link.child, Verdict.BAD))
        for position, side in sides:
            fresh = self.results(self.commits[position], Role.CONFIRM)
            verdicts = [
                judge([result], found.anchor, self.rule)
                or judge([result] * 2, found.anchor, self.rule)
                for result in fresh
                if result.status is not Status.TIMED_OUT or len(fresh) == 2
            ]
            is_refuted |= any(verdict is not side for verdict in verdicts)
            names = " and ".join(verdict.value for verdict in verdicts if verdict)
            readings.append(f"{self.commits[position][:10]} was {side.value}, run again {names}")
        return "; ".join(readings) if is_refuted else ""

    def _suspects(self) -> tuple[Suspect, ...]:
        return tuple(
            self._suspect(position, link)
            for link in self.open
            for position in range(link.parent + 1, link.child + 1)
        )

    def _suspect(self, position: int, link: Link) -> Suspect:
        sha, results = self.commits[position], self._at(position)
        if sha in self.hunt.skip:
            return Suspect(sha, "skipped", "you asked to skip it")
        if link.is_single:
            return Suspect(sha, "untested", "it moved the trajectory once, and was not confirmed")
        if position == link.child:
            return Suspect(
                sha, "untested", "the first commit that is bad; its parent was not judged"
            )
        if results:
            return Suspect(sha, "skipped", skip_reason(results))
        return Suspect(sha, "untested")

    def _words(self, found: Anchored, what: str, why: str) -> str:
        parent, child = (self.commits[p][:10] for p in (found.link.parent, found.link.child))
        return f"{what}, after {parent} and up to {child}: {why}"

    def _small_changes(self) -> list[str]:
        """Return a note for each pair of neighbours among the tested whose difference no link explains."""
        named = {(f.link.parent, f.link.child) for f in (*self.chain.links, *self.chain.transient)}
        tested = [
            (position, trajectory)
            for position in range(len(self.commits))
            if (trajectory := longest(self._at(position)).trajectory)
        ]
        notes = []
        for (before, old), (after, new) in pairwise(tested):
            found = largest_differences(new, old)
            is_small = all(found[m] <= self.rule.limits[m] for m in METRICS)
            if (before, after) in named or not is_small or not any(found.values()):
                continue
            notes.append(
                f"below the limit, after {self.commits[before][:10]} and up to "
                f"{self.commits[after][:10]}: loss moved by up to {found['loss']:.1e}, "
                f"grad_norm by up to {found['grad_norm']:.1e}"
            )
        return notes


def _side_by_side(
    observed: RunResult, parent: RunResult, anchor: Trajectory
) -> tuple[Trajectory, ...]:
    """Return the trajectories to compare; as long as the first where that was stopped before the others."""
    steps = len(observed.trajectory) if observed.status is Status.STOPPED_EARLY else None
    return observed.trajectory, parent.trajectory[:steps], anchor[:steps]


def missing_confirmations(results: Sequence[RunResult]) -> int:
    """Return how many fresh runs a commit still needs; none after two hangs, which say enough."""
    settled = sum(result.status is not Status.TIMED_OUT for result in results)
    return max(CONFIRMATIONS - settled, 0) if len(results) - settled < 2 else 0


def _noise_notes(ends: Ends) -> list[str]:
    if not any(ends.noise.values()):
        return []
    return [
        "this config does not repeat bit for bit here: runs of one commit differ by up to "
        f"{ends.noise['loss']:.1e} in loss and {ends.noise['grad_norm']:.1e} in grad_norm"
    ]


def not_reproduced(ends: Ends, hunt: Hunt) -> Conclusion:
    """Return the answer where the ends agree, or differ by too little beside their noise."""
    tolerances = EXACT if hunt.exact else hunt.config.tolerances
    largest = largest_differences(ends.bad, ends.good)
    beyond = end_deviations(ends, tolerances)
    notes = _noise_notes(ends)
    if any(largest.values()) and not beyond:
        notes.append(
            f"below tolerance the ends differ: loss by up to {largest['loss']:.1e}, grad_norm by up to "
            f"{largest['grad_norm']:.1e}; --exact hunts that"
        )
    if not is_finite(ends.good):
        notes.append("the good end itself has values that are not finite")
    return Conclusion(
        Outcome.NOT_REPRODUCED,
        "the ends differ by less than four times what runs of one commit differ by"
        if beyond
        else "the ends agree here, to the bit"
        if not any(largest.values())
        else "the ends agree within tolerance here",
        ends_deviation=headline(beyond, tolerances.step),
        noise=ends.noise,
        compared_steps=min(len(ends.good), len(ends.bad)),
        notes=tuple(notes),
    )


def environment(
    good: list[Trajectory] | Crash | RunResult, bad: list[Trajectory] | Crash | RunResult
) -> Conclusion:
    """Return the answer where the good end cannot be trained here, or the bad end cannot be set up."""
    obstacles = _obstacle(good), _obstacle(bad)
    messages = [f"good end: {obstacles[0]}", f"bad end: {obstacles[1]}"]
    if obstacles[0] == obstacles[1]:
        messages = [f"both ends: {obstacles[0]}"]
    crash = next((end for end in (good, bad) if isinstance(end, Crash)), None)
    return Conclusion(Outcome.ENVIRONMENT, "; ".join(messages), crash=crash)


def _obstacle(end: list[Trajectory] | Crash | RunResult) -> str:
    if isinstance(end, Crash):
        return HANG.message if end == HANG else f"{end.type}: {end.message}"
    return end.reason if isinstance(end, RunResult) else "trains"


def budget_at_ends(commits: Sequence[str]) -> Conclusion:
    """Return the answer where the allowed runs were used up before the ends were known."""
    return Conclusion(
        Outcome.BUDGET,
        "the allowed number of runs is used up before the ends are known",
        suspects=tuple(Suspect(sha, "untested") for sha in commits[1:]),
    )
