"""A hunt with all that is known of it, and what that shows: how far runs are compared, what the ends say, and
where the search along the chain of changes has got to. Pure; nothing is remembered between calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bisector import conclude, noisy
from bisector.chain import Chain, Tested, follow, survey
from bisector.contents import Footprint
from bisector.judge import (
    Ends,
    Rule,
    UnclearError,
    Unstable,
    end_results,
    furthest,
    make_class_rule,
    make_rule,
    measure_noise,
    read_end,
    trusted,
)
from bisector.model import (
    Conclusion,
    Crash,
    Hunt,
    Outcome,
    Role,
    Run,
    RunResult,
    Status,
    Trajectory,
)
from bisector.search import Probes
from bisector.stopping import are_ends_shown, cut, horizon, may_stop, prefix_length, whole

END_RUNS = 2
NOISE_RUNS = 2  # more of each end where its two runs differ


@dataclass(frozen=True, slots=True)
class Case:
    """A hunt with all that is known of it: `commits` from the good end to the bad one, both included, so
    that those of a hunt for what fixed a deviation run backwards in time."""

    hunt: Hunt
    commits: tuple[str, ...]
    runs: tuple[Run, ...]  # oldest first
    max_runs: int | None = None
    ignored: int = 0  # runs that were stopped too early to be looked at
    # For each known footprint the positions, ascending, of the commits that touch it.
    marks: Mapping[Footprint, tuple[int, ...]] = field(default_factory=dict)
    # How likely the commit at a position is to be the one, beside others; 1 where nothing is said.
    weights: Mapping[int, float] = field(default_factory=dict)

    def results(self, sha: str, *roles: Role) -> list[RunResult]:
        """Return the results of the runs made at `sha` for one of `roles`; for any role if none is given."""
        return [r.result for r in self.runs if r.sha == sha and (not roles or r.role in roles)]

    @property
    def candidates(self) -> int:
        """Return how many commits can matter, as far as is known: those that touch what a run read."""
        marks = [
            self.marks.get(r.result.footprint) if r.result.footprint else None for r in self.runs
        ]
        first = next(
            (m for m, r in zip(marks, self.runs, strict=True) if r.sha == self.hunt.good), None
        )
        return self.hunt.commits if first is None else len({p for m in marks if m for p in m})

    @property
    def spent(self) -> int:
        """Return how many runs gave an observation; a run that could not be set up costs none."""
        made = [r for r in self.runs if not r.is_recalled]
        return sum(r.result.status is not Status.SETUP_FAILED for r in made) + self.ignored


@dataclass(frozen=True, slots=True)
class Start:
    """Run the hunt's config at `sha`."""

    hunt: str
    sha: str
    role: Role
    is_cold: bool = False  # in processes of its own, through the users' command
    without: str = ""  # a commit that is reverted for it

    @property
    def is_end(self) -> bool:
        """Whether it is a run of one of the ends."""
        return self.role is Role.END


class Look(NamedTuple):
    """What a case shows: how far its runs are compared (`horizon`; None: whole), and what follows from that.

    `is_whole` says that whole runs are needed, not only that no end of them is known yet. `rule` is None where
    the ends agree, but for a hunt that looks inside all the same; `do_ends_differ` is False then too.
    """

    case: Case
    ends: Ends | Crash | Conclusion | None
    rule: Rule | None = None
    step: Chain | noisy.Step | None = None
    horizon: int | None = None
    is_whole: bool = False
    do_ends_differ: bool = True


def look_at(case: Case, searching: Sequence[str] = (), width: int = 1) -> Look:
    """Look at as few steps as tell the ends apart; at whole runs where those do not tell enough."""
    case = replace(case, runs=trusted(case.hunt, case.runs))
    steps = horizon(case.hunt, case.runs)
    if steps is not None:
        try:
            short = _look_over(replace(case, runs=cut(case.runs, steps)), steps, searching, width)
            if short.ends is None or short.rule:
                return short
        except UnclearError:
            pass
    elif may_stop(case.hunt) and not are_ends_shown(case.hunt, case.runs):
        look = _look_over(case, None, searching, width)
        if not isinstance(look.ends, Crash):
            return look
    kept = whole(case.runs)
    view = replace(case, runs=kept, ignored=len(case.runs) - len(kept))
    return _look_over(view, None, searching, width)._replace(is_whole=True)


def _look_over(case: Case, steps: int | None, searching: Sequence[str], width: int) -> Look:
    ends = read_ends(case)
    if not isinstance(ends, Ends | Crash):
        return Look(case, ends, horizon=steps)
    length = prefix_length(case.hunt.config) if steps else 0
    rule = _rule(case, ends, length)
    if isinstance(ends, Ends) and any(ends.noise.values()) and not case.hunt.probe_all:
        return _look_at_noisy(case, ends, rule, steps, gather(case, searching, width))
    tested = gather(case, searching, width) if rule or case.hunt.probe_all else None
    if tested is None:
        return Look(case, ends, horizon=steps, do_ends_differ=False)
    if case.hunt.probe_all:
        differ = rule is not None
        rule = rule or _class_rule(case, ends)
        step = survey(tested, rule, do_ends_differ=differ)
        return Look(case, ends, rule, step, steps, do_ends_differ=differ)
    assert rule
    return Look(case, ends, rule, follow(tested, rule), steps)


def _look_at_noisy(
    case: Case,
    ends: Ends,
    rule: Rule | None,
    steps: int | None,
    tested: Tested,
) -> Look:
    """Look at a case whose ends do not repeat: runs that stray do not hide how the ends differ."""
    repeats = [end_results(case.runs, sha, case.hunt) for sha in (case.hunt.good, case.hunt.bad)]
    repeats = [[r for r in runs if r.has_trained] for runs in repeats]
    if rule is None:
        typical = noisy.typical_ends(*(furthest([r.trajectory for r in runs]) for runs in repeats))
        rule = _rule(case, typical, prefix_length(case.hunt.config) if steps else 0)
        ends = replace(typical, noise=ends.noise) if rule else ends
    if rule is None:
        return Look(case, ends, horizon=steps, do_ends_differ=False)
    again = [case.results(sha, Role.SEARCH) for sha in (case.hunt.good, case.hunt.bad)]
    read = [[*runs, *more] for runs, more in zip(repeats, again, strict=True)]
    step = noisy.ask(tested, ends, rule, read)
    if isinstance(step, Probes):
        step = replace(step, anchor=ends.good)
    return Look(case, ends, rule, step, steps)


def _class_rule(case: Case, ends: Ends | Crash) -> Rule:
    assert isinstance(ends, Ends)
    return make_class_rule(ends, case.hunt.config.tolerances, exact=case.hunt.exact)


def _rule(case: Case, ends: Ends | Crash, steps: int) -> Rule | None:
    if isinstance(ends, Crash):
        return Rule({}, crash=ends)
    return make_rule(ends, case.hunt.config.tolerances, exact=case.hunt.exact, whole=steps)


def gather(case: Case, in_flight: Sequence[str] = (), width: int = 1) -> Tested:
    """Return what is known of each position of the range; `in_flight` are commits that are being tested."""
    order = {sha: position for position, sha in enumerate(case.commits)}
    results: dict[int, list[RunResult]] = {}
    fresh: dict[int, list[RunResult]] = {}
    for run in case.runs:
        if run.role in (Role.END, Role.SEARCH):
            results.setdefault(order[run.sha], []).append(run.result)
        elif run.role is Role.CONFIRM:
            fresh.setdefault(order[run.sha], []).append(run.result)
    skipped = [order[sha] for sha in case.hunt.skip]
    testing = [order[sha] for sha in in_flight]
    marks = _known_marks(case, order)
    length, weights = len(case.commits) - 1, case.weights
    return Tested(length, results, skipped, testing, width, fresh, marks, weights, case.hunt.fixed)


def _known_marks(case: Case, order: Mapping[str, int]) -> dict[int, list[int]]:
    """Return, for each position all of whose runs have known footprints, the positions that touch them."""
    found: dict[int, list[Sequence[int] | None]] = {}
    for run in case.runs:
        if run.role in (Role.END, Role.SEARCH):
            footprint = run.result.footprint
            its = case.marks.get(footprint) if footprint else None
            found.setdefault(order[run.sha], []).append(its)
    return {
        position: sorted({mark for its in known if its is not None for mark in its})
        for position, known in found.items()
        if None not in known
    }


# The ends


def read_ends(case: Case) -> Ends | Crash | Conclusion | None:
    """Return what the ends say: trajectories, the bad end's crash, or a conclusion; None: not yet known."""
    good, bad = (read_one_end(case, sha) for sha in (case.hunt.good, case.hunt.bad))
    if good is None or bad is None:
        return None
    names = case.hunt.end_names
    if isinstance(good, Unstable):
        return Conclusion(Outcome.CONTRADICTION, f"the {names[0]} {good.reason}")
    if isinstance(bad, Unstable):
        return Conclusion(Outcome.CONTRADICTION, f"the {names[1]} {bad.reason}")
    if isinstance(good, Crash | RunResult) or isinstance(bad, RunResult):
        return conclude.environment(good, bad, names)
    if isinstance(bad, Crash):
        return bad
    noise = measure_noise(case.hunt, case.runs)
    good, bad = furthest(good), furthest(bad)
    if any(noise.values()) and min(len(good), len(bad)) < END_RUNS + NOISE_RUNS:
        return None
    return Ends(good[0], bad[0], noise)


def read_one_end(case: Case, sha: str) -> list[Trajectory] | Crash | RunResult | Unstable | None:
    """Return what one end does; None: run it once more."""
    return read_end(end_results(case.runs, sha, case.hunt))


# Runs that were made before


def may_recall(case: Case, start: Start) -> bool:
    """Whether a stored run may stand for this one.

    The good end has one recalled and one fresh run, which is the control: without it, or where it gives
    something else, nothing is recalled. No confirmation is.
    """
    if not case.hunt.recalls or trusted(case.hunt, case.runs) != case.runs:
        return False
    if start.role is Role.END and start.sha == case.hunt.good:
        return not case.results(start.sha, Role.END)
    is_first = start.role in (Role.END, Role.SEARCH) and not case.results(start.sha, start.role)
    return is_first and bool(recalled_ends(case, case.hunt.good))


def recalled_ends(case: Case, sha: str) -> list[Run]:
    """Return the stored runs that stand for an end."""
    return [r for r in case.runs if r.is_recalled and r.sha == sha and r.role is Role.END]
