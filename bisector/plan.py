"""Decides the next runs of a hunt, or its conclusion, from the runs that are stored; pure.

Nothing is remembered between calls: killing the process and calling again gives the same answer. The
order is: both ends twice, their noise, the search along the chain of changes, the confirmation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from bisector import conclude, search
from bisector.chain import Anchored, Chain, Tested, follow
from bisector.contents import Footprint
from bisector.judge import (
    Ends,
    Rule,
    UnclearError,
    Unstable,
    end_results,
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
from bisector.stopping import (
    are_ends_shown,
    cut,
    horizon,
    may_stop,
    parted_stop,
    prefix_length,
    whole,
)

END_RUNS = 2
NOISE_RUNS = 2  # more of each end where its two runs differ
KEPT_FOR_CONFIRMATION = 2  # runs of a budget that the search may not use


@dataclass(frozen=True, slots=True)
class Case:
    """A hunt with all that is known of it: `commits` oldest first, both ends included."""

    hunt: Hunt
    commits: tuple[str, ...]
    runs: tuple[Run, ...]  # oldest first
    max_runs: int | None = None
    ignored: int = 0  # runs that were stopped too early to be looked at
    # For each known footprint the positions, ascending, of the commits that touch it.
    marks: Mapping[Footprint, tuple[int, ...]] = field(default_factory=dict)

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

    @property
    def is_end(self) -> bool:
        """Whether it is a run of one of the ends."""
        return self.role is Role.END


@dataclass(frozen=True, slots=True)
class Conclude:
    """Store the hunt's answer."""

    hunt: str
    conclusion: Conclusion


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a run in flight: an answer has made it useless."""

    start: Start


Action = Start | Cancel | Conclude


def next_actions(cases: Sequence[Case], in_flight: Sequence[Start], width: int = 1) -> list[Action]:
    """Return what to start, cancel or conclude now, most urgent first; empty while runs in flight decide.

    The ends of all hunts come first, then the hunts in order, one at a time, each with up to `width`
    commits tested at once.
    """
    actions: list[Action] = []
    waiting = False
    for case in sorted(cases, key=lambda case: _ends(case) is not None):
        if waiting and _ends(case) is not None:
            break
        running = Counter(start for start in in_flight if start.hunt == case.hunt.id)
        wanted = next_step(case, list(running), width)
        if isinstance(wanted, Conclusion):
            actions += [Cancel(start) for start in running.elements()]
            actions.append(Conclude(case.hunt.id, _with_case(wanted, case)))
            continue
        useless = [s for s in running if s.role is Role.SEARCH and s not in wanted]
        actions += [Cancel(start) for start in useless]
        for start in wanted:
            its = next((s for s in (start, replace(start, is_cold=True)) if running[s] > 0), None)
            if its:  # a cold one is as good as any
                running[its] -= 1
            else:
                actions.append(start)
        waiting = True
    return actions


def _with_case(conclusion: Conclusion, case: Case) -> Conclusion:
    notes = conclusion.notes
    if trusted(case.hunt, case.runs) != case.runs:
        notes = (*notes, "stored runs were left out: the good end gives something else now")
    return replace(conclusion, candidates=case.candidates, notes=notes)


def next_step(
    case: Case, in_flight: Sequence[Start] = (), width: int = 1
) -> list[Start] | Conclusion:
    """Return the runs that this hunt needs now, in flight or not, or its conclusion."""
    width = 1 if case.max_runs else max(width // case.hunt.config.num_processes, 1)
    searching = [start.sha for start in in_flight if start.role is Role.SEARCH]
    case, ends, rule, step, *_ = _look(case, searching, width)
    if ends is None:
        return _afford(case, _end_runs(case), reserve=0, evidence=None)
    if not isinstance(ends, Ends | Crash):
        return ends
    if rule is None:
        assert isinstance(ends, Ends)
        return conclude.not_reproduced(ends, case.hunt)
    longest = _tested(case).longest
    evidence = conclude.Evidence(case.hunt, case.commits, case.results, longest, ends, rule)
    if isinstance(step, Probes):
        starts = [Start(case.hunt.id, case.commits[p], Role.SEARCH) for p in step.positions]
        return _afford(case, starts, reserve=KEPT_FOR_CONFIRMATION, evidence=evidence.within(step))
    assert step
    wanted = _confirmations(case, step)
    evidence = evidence.with_chain(step)
    more = _afford(case, wanted, reserve=0, evidence=evidence) if wanted else []
    if isinstance(more, Conclusion) and evidence.is_confirmed(step.links[0]):
        return evidence.conclude()  # only later changes are left without their confirmation
    return more or evidence.conclude()


def runs_left(case: Case) -> int:
    """Return how many more runs the hunt is expected to take, confirmation included."""
    case, ends, _, step, *_ = _look(case)
    confirm = 2 * conclude.CONFIRMATIONS
    if ends is None:
        return len(_end_runs(case)) + search.search_bound(len(case.commits) - 1) + confirm
    if isinstance(step, Probes):
        return search.search_bound(step.left) + confirm
    return len(_confirmations(case, step)) if step else 0


def stop_after(
    case: Case, start: Start, so_far: Trajectory, others: Sequence[Trajectory] = ()
) -> int | None:
    """Return after how many of its steps so far a run in flight has shown enough; None: it goes on.

    A probe stops at the step that proves that it has left good, or with the ends; all other runs stop with
    the ends. `others` are the other end's runs in flight, where the ends are not known yet.
    """
    look = _look(case)
    if look.horizon is None:
        stops = (
            [None]
            if look.is_whole
            else [
                parted_stop(case.hunt.config, so_far, other)
                for other in (*others, *_other_end(case, start))
            ]
        )
        stop = min((stop for stop in stops if stop is not None), default=None)
    elif start.role is Role.SEARCH and look.rule and isinstance(look.step, Probes):
        stop = _left_at(so_far[: look.horizon], look.step.anchor, look.rule) or look.horizon
    else:
        stop = look.horizon
    return stop if stop is not None and len(so_far) >= stop else None


def is_other_end(start: Start, other: Start) -> bool:
    """Whether two runs are of the two ends of one hunt."""
    are_ends = start.role is Role.END and other.role is Role.END
    return are_ends and start.hunt == other.hunt and start.sha != other.sha


def _left_at(so_far: Trajectory, anchor: Trajectory, rule: Rule) -> int | None:
    """Return the first number of steps that prove that a run has left the anchor, which may be a prefix."""
    known = min(len(so_far), len(anchor))
    return next((n for n in range(1, known + 1) if rule.has_left(so_far[:n], anchor[:n])), None)


def _other_end(case: Case, start: Start) -> list[Trajectory]:
    """Return the trajectories of the other end's stored runs, for a run of an end."""
    if start.role is not Role.END:
        return []
    other = case.hunt.bad if start.sha == case.hunt.good else case.hunt.good
    return [r.trajectory for r in case.results(other, Role.END) if r.crash is None]


class Look(NamedTuple):
    """What a case shows: how far its runs are compared (`horizon`; None: whole), and what follows from that.

    `is_whole` says that whole runs are needed, not only that no end of them is known yet.
    """

    case: Case
    ends: Ends | Crash | Conclusion | None
    rule: Rule | None = None
    step: Probes | Chain | None = None
    horizon: int | None = None
    is_whole: bool = False


def _look(case: Case, searching: Sequence[str] = (), width: int = 1) -> Look:
    """Look at as few steps as tell the ends apart; at whole runs where those do not tell enough."""
    case = replace(case, runs=trusted(case.hunt, case.runs))
    steps = horizon(case.hunt, case.runs)
    if steps is not None:
        try:
            short = _look_at(replace(case, runs=cut(case.runs, steps)), steps, searching, width)
            if short.ends is None or short.rule:
                return short
        except UnclearError:
            pass
    elif may_stop(case.hunt) and not are_ends_shown(case.hunt, case.runs):
        look = _look_at(case, None, searching, width)
        if not isinstance(look.ends, Crash):
            return look
    kept = whole(case.runs)
    view = replace(case, runs=kept, ignored=len(case.runs) - len(kept))
    return _look_at(view, None, searching, width)._replace(is_whole=True)


def _look_at(case: Case, steps: int | None, searching: Sequence[str], width: int) -> Look:
    ends = _ends(case)
    if not isinstance(ends, Ends | Crash):
        return Look(case, ends, horizon=steps)
    length = prefix_length(case.hunt.config) if steps else 0
    rule = _rule(case, ends, length)
    step = follow_chain(case, rule, searching, width) if rule else None
    return Look(case, ends, rule, step, steps)


def expected_runs(commits: int, width: int = 1) -> int:
    """Return the most runs of a hunt over `commits` commits without skips: ends, search, confirmation."""
    probes = min(search.search_bound(commits, width) * width, commits - 1)
    return 2 * END_RUNS + probes + 2 * conclude.CONFIRMATIONS


def follow_chain(
    case: Case, rule: Rule, in_flight: Sequence[str] = (), width: int = 1
) -> Probes | Chain:
    """Return the commits to test next, or the chain of changes, over the case's commits."""
    return follow(_tested(case, in_flight, width), rule)


def _tested(case: Case, in_flight: Sequence[str] = (), width: int = 1) -> Tested:
    order = {sha: position for position, sha in enumerate(case.commits)}
    results: dict[int, list[RunResult]] = {}
    fresh: dict[int, list[RunResult]] = {}
    marks: dict[int, set[int] | None] = {}
    for run in case.runs:
        if run.role in (Role.END, Role.SEARCH):
            results.setdefault(order[run.sha], []).append(run.result)
            footprint = run.result.footprint
            its, before = (
                case.marks.get(footprint) if footprint else None,
                marks.get(order[run.sha], set()),
            )
            marks[order[run.sha]] = None if its is None or before is None else before | set(its)
        elif run.role is Role.CONFIRM:
            fresh.setdefault(order[run.sha], []).append(run.result)
    skipped = [order[sha] for sha in case.hunt.skip]
    testing = [order[sha] for sha in in_flight]
    known = {position: sorted(its) for position, its in marks.items() if its is not None}
    return Tested(len(case.commits) - 1, results, skipped, testing, width, fresh, known)


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
    return is_first and bool(_recalled(case, case.hunt.good))


def _recalled(case: Case, sha: str) -> list[Run]:
    return [r for r in case.runs if r.is_recalled and r.sha == sha and r.role is Role.END]


# The ends


def _ends(case: Case) -> Ends | Crash | Conclusion | None:
    """Return what the ends say: trajectories, the bad end's crash, or a conclusion; None: not yet known."""
    good, bad = (_end(case, sha) for sha in (case.hunt.good, case.hunt.bad))
    if good is None or bad is None:
        return None
    if isinstance(good, Unstable):
        return Conclusion(Outcome.CONTRADICTION, f"the good end {good.reason}")
    if isinstance(bad, Unstable):
        return Conclusion(Outcome.CONTRADICTION, f"the bad end {bad.reason}")
    if isinstance(good, Crash | RunResult) or isinstance(bad, RunResult):
        return conclude.environment(good, bad)
    if isinstance(bad, Crash):
        return bad
    noise = measure_noise(good, bad)
    if any(noise.values()) and min(len(good), len(bad)) < END_RUNS + NOISE_RUNS:
        return None
    return Ends(good[0], bad[0], noise)


def _end(case: Case, sha: str) -> list[Trajectory] | Crash | RunResult | Unstable | None:
    return read_end(end_results(case.runs, sha, case.hunt))


def _end_runs(case: Case) -> list[Start]:
    wanted = []
    shas = (case.hunt.good, case.hunt.bad)
    made = {sha: len(case.results(sha, Role.END)) for sha in shas}
    if _recalled(case, case.hunt.bad):
        made[case.hunt.bad] = END_RUNS
    for sha in shas:
        missing = max(END_RUNS - made[sha], 0)
        if missing == 0 and _end(case, sha) is None:
            missing = 1  # one of the two hung
        wanted += [Start(case.hunt.id, sha, Role.END)] * missing
    if wanted:  # in turn, so that the two ends run side by side and stop each other
        turns = {sha: count(made[sha]) for sha in shas}
        return sorted(wanted, key=lambda start: next(turns[start.sha]))
    return [
        Start(case.hunt.id, sha, Role.NOISE)
        for sha in shas
        for _ in range(NOISE_RUNS - len(case.results(sha, Role.NOISE)))
    ]


def _rule(case: Case, ends: Ends | Crash, steps: int) -> Rule | None:
    if isinstance(ends, Crash):
        return Rule({}, crash=ends)
    return make_rule(ends, case.hunt.config.tolerances, exact=case.hunt.exact, whole=steps)


# The confirmation, and the budget


def _confirmations(case: Case, chain: Chain) -> list[Start]:
    wanted = []
    for sha in confirmed_commits(case, chain.links):
        results = case.results(sha, Role.CONFIRM)
        is_cold = not any(r.status is not Status.TIMED_OUT and not r.warm for r in results)
        for number in range(conclude.missing_confirmations(results)):
            wanted.append(Start(case.hunt.id, sha, Role.CONFIRM, is_cold and number == 0))
    return wanted


def confirmed_commits(case: Case, links: Sequence[Anchored]) -> list[str]:
    """Return the commits to confirm: parent and child of each link that names one commit, once each."""
    singles = [found.link for found in links if found.link.is_single]
    positions = [position for link in singles for position in (link.parent, link.child)]
    return [case.commits[position] for position in dict.fromkeys(positions)]


def _afford(
    case: Case, wanted: list[Start], *, reserve: int, evidence: "conclude.Evidence | None"
) -> list[Start] | Conclusion:
    if case.max_runs is None:
        return wanted
    affordable = case.max_runs - reserve - case.spent
    if affordable >= 1:
        return wanted[:affordable]
    return evidence.out_of_budget() if evidence else conclude.budget_at_ends(case.commits)
