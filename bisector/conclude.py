"""Turns what a hunt has seen into its answer; pure. Accuses only what fresh runs confirmed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from bisector import noisy
from bisector.bayes import Found, NoCulprit, Undecided
from bisector.chain import Anchored, Chain, longest
from bisector.compare import deviations, has_data_changed, headline, is_finite, largest_differences
from bisector.judge import (
    HANG,
    Ends,
    Rule,
    UnclearError,
    as_far,
    end_deviations,
    judge,
    skip_reason,
)
from bisector.model import (
    CONFLICTS,
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
    short,
)
from bisector.search import Probes

CONFIRMATIONS = 2  # fresh runs of culprit and of parent
SHOWN_SKIPS = 5
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
    do_ends_differ: bool = True
    found: Found | None = None  # the answer of a search whose runs do not repeat
    untested: tuple[int, ...] = ()  # the positions that a hunt that tests all has still to test

    def within(self, probe: Probes) -> "Evidence":
        """Return the evidence while the search runs: links found, and where it looks now."""
        untested = probe.positions if self.hunt.probe_all else ()
        return replace(self, open=(*probe.found, Link(probe.good, probe.bad)), untested=untested)

    def within_link(self, link: Link) -> "Evidence":
        """Return the evidence while a link is confirmed that runs which do not repeat point to."""
        return replace(self, open=(link,))

    def believing(self, found: Found) -> "Evidence":
        """Return the evidence with the answer that was found among runs that do not repeat."""
        return replace(self, found=found)

    def undecided(self, step: NoCulprit | Undecided) -> Conclusion:
        """Return the answer where runs that do not repeat tell no change, or no single one."""
        leading = step.leading if isinstance(step, Undecided) else ()
        reason = noisy.words(step)
        likely = [(self.commits[link.child], chance) for link, chance in leading]
        if likely:
            named = ", ".join(f"{short(place)} {chance:.0%}" for place, chance in likely)
            reason += f"; likeliest: {named}"
        return replace(self._frame(), outcome=Outcome.CONTRADICTION, reason=reason)

    def with_chain(self, chain: Chain) -> "Evidence":
        """Return the evidence with the chain of changes found."""
        changes = chain.links[:1] if self.do_ends_differ else chain.transient
        return replace(self, chain=chain, open=tuple(found.link for found in changes))

    def conclude(self) -> Conclusion:
        """Return the answer once the chain is found and the oldest link has its confirmations."""
        if not self.do_ends_differ:
            return self._came_and_went()
        oldest, *later = self.chain.links
        others = [found for found in later if not self._doubt(found)]
        answer = replace(
            self._frame(),
            others=tuple(self._change(found) for found in others),
            transient=self._transient(),
            explained=len(others) == len(later),
        )
        answer = replace(answer, notes=(*answer.notes, *self._chain_notes()))
        if self.found:
            answer = self._as_far_as_known(answer, oldest)
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

    def _as_far_as_known(self, answer: Conclusion, found: Anchored) -> Conclusion:
        """Return an answer that rests on runs which do not repeat, with how sure it is."""
        assert self.found
        assert isinstance(self.ends, Ends)
        newest = self.longest(found.link.child).trajectory
        notes = (*answer.notes, noisy.words(self.found), "later changes were not looked for")
        is_whole = not self.rule.has_left(self.ends.bad[: len(newest)], newest)
        return replace(answer, explained=is_whole, notes=notes)

    def _came_and_went(self) -> Conclusion:
        """Return the answer where the ends agree: what moved between them, and what moved it back."""
        answer, changes = self._frame(), self._transient()
        story = ", ".join(f"{'back' if c.back_to else 'moved'} at {short(c.sha)}" for c in changes)
        if story:
            reason = f"{answer.reason}, but not all between them: {story}"
        elif self.chain.transient:
            reason = f"{answer.reason}; what differs between them could not be told apart"
        else:
            reason = f"{answer.reason}, and so does every commit between them that could be judged"
        notes = (*answer.notes, *self._small_changes(), *self._chain_notes())
        return replace(answer, reason=reason, transient=changes, notes=notes)

    def _transient(self) -> tuple[Change, ...]:
        """Return what came and went, in the order of time; confirmed where the hunt tests everything."""
        every = sorted((*self.chain.links, *self.chain.transient), key=lambda f: f.link.child)
        in_time = reversed(every) if self.hunt.fixed else every
        begin = len(self.commits) - 1 if self.hunt.fixed else 0
        seen, changes = [begin], []
        for found in in_time:
            after = found.link.parent if self.hunt.fixed else found.link.child
            back = next((p for p in seen if self._is_same(after, p)), None)
            seen.append(after)
            is_sure = not self._doubt(found) if self.hunt.probe_all else self._may_tell(found)
            if is_sure and found not in self.chain.links:
                back_to = "" if back is None else self.commits[back]
                changes.append(replace(self._change(found), back_to=back_to))
        return tuple(changes)

    def _may_tell(self, found: Anchored) -> bool:
        """Whether to tell a change that was undone and not run again: not where any commit's runs strayed."""
        return found.link.is_single and not self._has_strayed

    @property
    def _has_strayed(self) -> bool:
        """Whether runs of one commit did not do the same."""
        return any(
            not self._do_same(one, other)
            for position in range(len(self.commits))
            for one, other in pairwise(
                r for r in self._at(position) if r.has_trained or r.crash is not None
            )
        )

    def _is_same(self, position: int, other: int) -> bool:
        return self._do_same(self.longest(position), self.longest(other))

    def _do_same(self, one: RunResult, two: RunResult) -> bool:
        if self.rule.crash:
            return one.has_trained is two.has_trained
        return not self.rule.has_left(*as_far(one, two))

    def with_revert(self, answer: Conclusion, shown: RunResult) -> Conclusion:
        """Return the answer with what the bad end showed with the culprit reverted."""
        if shown.status is Status.SETUP_FAILED and shown.reason == CONFLICTS:
            return replace(answer, reverted="conflicts")
        anchor = () if isinstance(self.ends, Crash) else self.ends.good
        try:
            verdict = judge([shown], anchor, self.rule)
        except UnclearError:
            verdict = None
        if verdict is Verdict.GOOD:
            return replace(answer, reverted="restores")
        if verdict is Verdict.BAD:
            return replace(answer, reverted="does_not_restore")
        why = skip_reason([shown]) if verdict or shown.crash else shown.reason or shown.status
        note = f"with it reverted, {self.hunt.bad[:10]} could not be judged: {why}"
        return replace(answer, notes=(*answer.notes, note))

    def _doubt(self, found: Anchored) -> str:
        """Return why a link accuses nobody; empty if its commit was told apart and confirmed."""
        if not found.link.is_single:
            return "commits that could not be judged hide which one it is"
        if not self.is_confirmed(found):
            return "no runs were left to confirm it"
        return self._refutation(found)

    def _chain_notes(self) -> list[str]:
        notes = [
            self._words(found, "an earlier change" if self.hunt.fixed else "a later change", doubt)
            for found in self.chain.links[1:]
            if (doubt := self._doubt(found))
        ]
        notes += [
            self._words(found, "a change that was undone", doubt)
            for found in self.chain.transient
            if (doubt := self._doubt(found)) and (self.hunt.probe_all or not found.link.is_single)
        ]
        if self.hunt.probe_all:
            return notes + self._unjudged()
        if any(found.link.is_single for found in self.chain.transient):
            strayed = "; runs of one commit differ, so it is not told" if self._has_strayed else ""
            notes.append(f"what was undone again was not run a second time{strayed}")
        return notes

    def _unjudged(self) -> list[str]:
        """Return a note for each commit that was run and could not be judged; the first few, and how many more."""
        anchor = self.longest(0).trajectory
        found = []
        for position, sha in enumerate(self.commits):
            results = self._at(position)
            if results and judge(results, anchor, self.rule) is Verdict.SKIP:
                found.append(f"{short(sha)} could not be judged: {skip_reason(results)}")
        more = len(found) - SHOWN_SKIPS
        return found[:SHOWN_SKIPS] + ([f"{more} more could not be judged"] if more > 0 else [])

    @property
    def is_culprit_confirmed(self) -> bool:
        """Whether there is a culprit that has all its fresh runs."""
        return bool(self.chain.links) and self.is_confirmed(self.chain.links[0])

    def out_of_budget(self) -> Conclusion:
        """Return what is known when the allowed runs are used up."""
        if self.untested:
            places = sorted(self.untested, reverse=self.hunt.fixed)
            return replace(
                self._frame(),
                outcome=Outcome.BUDGET,
                suspects=tuple(Suspect(self.commits[p], "untested") for p in places),
                reason="the allowed number of runs is used up before every place was tested",
            )
        reason = "the allowed number of runs is used up"
        if self.chain.links and self.chain.links[0].link.is_single:
            reason += " before the commit that is left was confirmed"
        elif not self.do_ends_differ:
            reason += " before what moved between the ends was confirmed"
        return replace(
            self._frame(), outcome=Outcome.BUDGET, suspects=self._suspects(), reason=reason
        )

    def _frame(self) -> Conclusion:
        if isinstance(self.ends, Ends) and not self.do_ends_differ:
            return not_reproduced(self.ends, self.hunt)
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
                *_side_by_side(
                    self._showing(child, Verdict.BAD, found.anchor),
                    self._showing(parent, Verdict.GOOD, found.anchor),
                    found.anchor,
                )
            )
        )
        before, after = self._in_time(Link(child - 1, child))
        return Change(after, before, deviation)

    def _showing(self, position: int, side: Verdict, anchor: Trajectory) -> RunResult:
        """Return the run that shows most of a position: where runs do not repeat, of those on its side."""
        its = [r for r in self._at(position) if judge([r], anchor, self.rule) is side]
        return longest(its) if its else self.longest(position)

    def _in_time(self, link: Link) -> tuple[str, str]:
        """Return the older and the newer commit of a link."""
        good, bad = self.commits[link.parent], self.commits[link.child]
        return (bad, good) if self.hunt.fixed else (good, bad)

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
        return not any(
            missing_confirmations(self._fresh(p)) for p in (found.link.parent, found.link.child)
        )

    def _fresh(self, position: int) -> list[RunResult]:
        results = self.results(self.commits[position], Role.CONFIRM)
        steps = len(self.ends.good) if isinstance(self.ends, Ends) else 0
        return confirming(results, position, self.chain, steps)

    def _refutation(self, found: Anchored) -> str:
        """Return the readings of the fresh runs if one was on the wrong side, else an empty text.

        Where runs do not repeat they have been weighed with all others, and more are on their side.
        """
        if self.found:
            return ""
        readings = []
        is_refuted = False
        before, after = Verdict.GOOD, Verdict.BAD
        if found.is_mend:
            before, after = after, before
        sides = ((found.link.parent, before), (found.link.child, after))
        for position, side in sides:
            fresh = self._fresh(position)
            verdicts = [
                judge([result], found.anchor, self.rule)
                or judge([result] * 2, found.anchor, self.rule)
                for result in fresh
                if result.status is not Status.TIMED_OUT or len(fresh) == 2
            ]
            is_refuted |= any(verdict is not side for verdict in verdicts)
            names = " and ".join(verdict.value for verdict in verdicts if verdict)
            readings.append(f"{short(self.commits[position])} was {side.value}, run again {names}")
        return "; ".join(readings) if is_refuted else ""

    def _suspects(self) -> tuple[Suspect, ...]:
        found = [
            self._suspect(position, link)
            for link in self.open
            for position in _changers(link, self.hunt)
        ]
        return tuple(reversed(found) if self.hunt.fixed else found)

    def _suspect(self, position: int, link: Link) -> Suspect:
        sha, results = self.commits[position], self._at(position)
        if sha in self.hunt.skip:
            return Suspect(sha, "skipped", "you asked to skip it")
        if link.is_single:
            return Suspect(sha, "untested", "it moved the trajectory once, and was not confirmed")
        if position == (link.parent if self.hunt.fixed else link.child):
            which = "at which it is gone" if self.hunt.fixed else "that is bad"
            return Suspect(sha, "untested", f"the first {which}; the one before was not judged")
        if results:
            return Suspect(sha, "skipped", skip_reason(results))
        return Suspect(sha, "untested")

    def _words(self, found: Anchored, what: str, why: str) -> str:
        older, newer = self._in_time(found.link)
        return f"{what}, after {short(older)} and up to {short(newer)}: {why}"

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
            older, newer = self._in_time(Link(before, after))
            notes.append(
                f"below the limit, after {short(older)} and up to {short(newer)}: loss moved by up to "
                f"{found['loss']:.1e}, grad_norm by up to {found['grad_norm']:.1e}"
            )
        return notes


def _changers(link: Link, hunt: Hunt) -> range:
    """Return the positions of the commits that may have made a link's change."""
    if hunt.fixed:
        return range(link.parent, link.child)
    return range(link.parent + 1, link.child + 1)


def _side_by_side(
    observed: RunResult, parent: RunResult, anchor: Trajectory
) -> tuple[Trajectory, ...]:
    """Return the trajectories to compare; as long as the first where that was stopped before the others."""
    steps = len(observed.trajectory) if observed.status is Status.STOPPED_EARLY else None
    return observed.trajectory, parent.trajectory[:steps], anchor[:steps]


def confirming(
    results: Sequence[RunResult], position: int, chain: Chain, steps: int
) -> list[RunResult]:
    """Return the fresh runs of a position that can confirm it: all of a culprit's; of a commit that is the parent of
    a later change too, those that went as far as the ends, `steps`."""
    if all(found.link.parent != position for found in (*chain.links, *chain.transient)):
        return list(results)
    return [
        r for r in results if r.status is not Status.STOPPED_EARLY or len(r.trajectory) >= steps
    ]


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
        notes.append(f"the {hunt.end_names[0]} itself has values that are not finite")
    reason = (
        "the ends differ by less than four times what runs of one commit differ by"
        if beyond
        else "the ends agree here, to the bit"
        if not any(largest.values())
        else "the ends agree within tolerance here"
    )
    if hunt.fixed and not beyond:
        reason += ": the deviation is at both or at neither"
    return Conclusion(
        Outcome.NOT_REPRODUCED,
        reason,
        ends_deviation=headline(beyond, tolerances.step),
        noise=ends.noise,
        compared_steps=min(len(ends.good), len(ends.bad)),
        notes=tuple(notes),
    )


def environment(
    good: list[Trajectory] | Crash | RunResult,
    bad: list[Trajectory] | Crash | RunResult,
    names: tuple[str, str],
) -> Conclusion:
    """Return the answer where the good end cannot be trained here, or the bad end cannot be set up; `names`
    are what people call the two."""
    obstacles = _obstacle(good), _obstacle(bad)
    messages = [f"{name}: {obstacle}" for name, obstacle in zip(names, obstacles, strict=True)]
    if obstacles[0] == obstacles[1]:
        messages = [f"both ends: {obstacles[0]}"]
    crash = next((end for end in (good, bad) if isinstance(end, Crash)), None)
    return Conclusion(Outcome.ENVIRONMENT, "; ".join(messages), crash=crash)


def _obstacle(end: list[Trajectory] | Crash | RunResult) -> str:
    if isinstance(end, Crash):
        return HANG.message if end == HANG else f"{end.type}: {end.message}"
    return end.reason if isinstance(end, RunResult) else "trains"


def budget_at_ends(hunt: Hunt, commits: Sequence[str]) -> Conclusion:
    """Return the answer where the allowed runs were used up before the ends were known."""
    return Conclusion(
        Outcome.BUDGET,
        "the allowed number of runs is used up before the ends are known",
        suspects=tuple(
            Suspect(sha, "untested") for sha in (commits[-2::-1] if hunt.fixed else commits[1:])
        ),
    )
