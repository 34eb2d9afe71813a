"""Turns what a hunt has seen into its answer; pure. Accuses only what fresh runs confirmed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bisector.chain import Anchored, Chain, trajectory_of
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
    Outcome,
    Role,
    RunResult,
    Status,
    Suspect,
    Tolerances,
    Trajectory,
    Verdict,
)
from bisector.search import Probe

CRASHED = Deviation(None, "crash", None, float("nan"), float("nan"), 0.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a conclusion rests on; `bounds` while the search runs, `chain` once it is done."""

    hunt: Hunt
    commits: Sequence[str]
    results: Callable[..., list[RunResult]]
    ends: Ends | Crash
    rule: Rule
    bounds: tuple[int, int] = (0, 0)
    chain: Chain = field(default_factory=lambda: Chain((), ()))

    def within(self, probe: Probe) -> "Evidence":
        """Return the evidence while the answer lies between the probe's bounds."""
        return replace(self, bounds=(probe.good, probe.bad))

    def with_chain(self, chain: Chain) -> "Evidence":
        """Return the evidence with the chain of changes found."""
        oldest = chain.links[0].link
        return replace(self, chain=chain, bounds=(oldest.parent, oldest.child))

    def conclude(self) -> Conclusion:
        """Return the answer once the chain is found and every confirmation has run."""
        oldest, *later = self.chain.links
        told_apart = [found for found in later if found.link.is_single]
        refuted = {found: reading for found in told_apart if (reading := self._refutation(found))}
        answer = replace(
            self._frame(),
            others=tuple(self._change(f) for f in told_apart if f not in refuted),
            transient=tuple(self._change(found) for found in self.chain.transient),
            explained=len(told_apart) == len(later) and not refuted,
        )
        answer = _noted(
            answer, [f"a later change was not confirmed: {r}" for r in refuted.values()]
        )
        answer = _noted(answer, [self._unresolved(f) for f in later if not f.link.is_single])
        if not oldest.link.is_single:
            return replace(
                answer,
                outcome=Outcome.SUSPECTS,
                suspects=self._suspects(),
                explained=False,
                reason="commits that could not be judged hide which one it is",
            )
        refutation = self._refutation(oldest)
        if refutation:
            return replace(
                answer,
                outcome=Outcome.CONTRADICTION,
                suspects=self._suspects(),
                explained=False,
                reason=refutation,
            )
        return replace(
            answer, outcome=Outcome.CULPRIT, culprit=self._change(oldest), confirmed=True
        )

    def out_of_budget(self) -> Conclusion:
        """Return what is known when the allowed runs are used up."""
        reason = "the allowed number of runs is used up"
        if self.chain.links and self.chain.links[0].link.is_single:
            reason += " before the one commit that is left was confirmed"
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
                compared_steps=len(trajectory_of(self._at(0))),
            )
        return Conclusion(
            Outcome.CULPRIT,
            ends_deviation=self._deviation(self.ends.bad, self.ends.good),
            noise=self.ends.noise,
            compared_steps=min(len(self.ends.good), len(self.ends.bad)),
            notes=(*_noise_notes(self.ends), *self._small_changes()),
        )

    def _at(self, position: int) -> list[RunResult]:
        return self.results(self.commits[position], Role.END, Role.SEARCH)

    def _change(self, found: Anchored) -> Change:
        parent, child = found.link.parent, found.link.child
        deviation = (
            CRASHED
            if self.rule.crash
            else self._deviation(trajectory_of(self._at(child)), trajectory_of(self._at(parent)))
        )
        return Change(self.commits[child], self.commits[child - 1], deviation)

    def _deviation(self, observed: Trajectory, reference: Trajectory) -> Deviation:
        """Return what to show of a change: against the class's tolerances, else against the rule's."""
        tolerances = EXACT if self.hunt.exact else self.hunt.config.tolerances
        by_rule = Tolerances(self.rule.limits, {metric: float("inf") for metric in METRICS})
        for limits in (tolerances, by_rule):
            found = headline(deviations(observed, reference, limits), limits.step)
            if found:
                return replace(found, data_changed=has_data_changed(observed, reference))
        raise AssertionError("a link between trajectories that agree")

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
        good, bad = self.bounds
        return tuple(self._suspect(position) for position in range(good + 1, bad + 1))

    def _suspect(self, position: int) -> Suspect:
        sha, results = self.commits[position], self._at(position)
        if sha in self.hunt.skip:
            return Suspect(sha, "skipped", "you asked to skip it")
        if position == self.bounds[1]:
            return Suspect(
                sha, "untested", "the first commit that is bad; its parent was not judged"
            )
        if results:
            return Suspect(sha, "skipped", skip_reason(results))
        return Suspect(sha, "untested")

    def _unresolved(self, found: Anchored) -> str:
        parent, child = (self.commits[p][:10] for p in (found.link.parent, found.link.child))
        return f"a later change, after {parent} and up to {child}, is hidden by commits that were skipped"

    def _small_changes(self) -> list[str]:
        """Return a note for each pair of neighbours among the tested whose difference no link explains."""
        named = {(f.link.parent, f.link.child) for f in (*self.chain.links, *self.chain.transient)}
        tested = [
            (position, trajectory)
            for position in range(len(self.commits))
            if (trajectory := trajectory_of(self._at(position)))
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


def _noted(answer: Conclusion, notes: Sequence[str]) -> Conclusion:
    return replace(answer, notes=(*answer.notes, *notes))


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
