"""Decides the next runs of a hunt, or its conclusion, from the runs that are stored; pure.

Nothing is remembered between calls: killing the process and calling again gives the same answer. The
order is: both ends twice, their noise, the search along the chain of changes, the confirmation, the bad end
with the culprit reverted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from bisector import conclude, noisy, search
from bisector.bayes import Confirm, Found, NoCulprit, Undecided
from bisector.case import (
    END_RUNS,
    NOISE_RUNS,
    Case,
    Start,
    gather,
    look_at,
    read_ends,
    read_one_end,
    recalled_ends,
)
from bisector.chain import Anchored, Chain
from bisector.judge import (
    Ends,
    Rule,
    furthest,
    trusted,
)
from bisector.model import (
    Conclusion,
    Crash,
    Role,
    Status,
    Trajectory,
)
from bisector.search import Probes
from bisector.stopping import (
    may_stop,
    parted_stop,
    repeat_stop,
)

KEPT_FOR_CONFIRMATION = 2  # runs of a budget that the search may not use


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
    for case in sorted(cases, key=lambda case: read_ends(case) is not None):
        if waiting and read_ends(case) is not None:
            break
        running = Counter(start for start in in_flight if start.hunt == case.hunt.id)
        wanted = next_step(case, list(running.elements()), width)
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
        which = case.hunt.end_names[0]
        notes = (*notes, f"stored runs were left out: the {which} gives something else now")
    return replace(conclusion, candidates=case.candidates, notes=notes)


def next_step(
    case: Case, in_flight: Sequence[Start] = (), width: int = 1
) -> list[Start] | Conclusion:
    """Return the runs that this hunt needs now, in flight or not, or its conclusion."""
    width = 1 if case.max_runs else max(width // case.hunt.config.num_processes, 1)
    searching = [start.sha for start in in_flight if start.role is Role.SEARCH]
    look = look_at(case, searching, width)
    case, ends, rule, step, *_ = look
    if ends is None:
        return _afford(case, _end_runs(case), reserve=0, evidence=None)
    if not isinstance(ends, Ends | Crash):
        return ends
    if rule is None:
        assert isinstance(ends, Ends)
        if unseen := _unseen_end(case):  # that nothing moved is never said of stored runs alone
            return _afford(case, [unseen], reserve=0, evidence=None)
        return conclude.not_reproduced(ends, case.hunt)
    longest = gather(case).longest
    evidence = conclude.Evidence(
        *(case.hunt, case.commits, case.results, longest, ends, rule),
        do_ends_differ=look.do_ends_differ,
    )
    if isinstance(step, Probes):
        starts = [Start(case.hunt.id, case.commits[p], Role.SEARCH) for p in step.positions]
        return _afford(case, starts, reserve=KEPT_FOR_CONFIRMATION, evidence=evidence.within(step))
    if isinstance(step, Confirm):
        starts = _confirm_link(case, step)
        return _afford(case, starts, reserve=0, evidence=evidence.within_link(step.link))
    if isinstance(step, NoCulprit | Undecided):
        return evidence.undecided(step)
    if isinstance(step, Found):
        assert isinstance(ends, Ends)
        evidence, step = evidence.believing(step), noisy.as_chain(step, ends)
        return _check_by_revert(case, evidence, evidence.with_chain(step).conclude())
    assert step
    wanted = _confirmations(case, step, ends)
    evidence = evidence.with_chain(step)
    more = _afford(case, wanted, reserve=0, evidence=evidence) if wanted else []
    is_enough = isinstance(more, Conclusion) and evidence.is_culprit_confirmed
    if more and not is_enough:
        return more
    # where runs are missing all the same, only later changes are left without their confirmation
    return _check_by_revert(case, evidence, evidence.conclude())


def _check_by_revert(
    case: Case, evidence: conclude.Evidence, answer: Conclusion
) -> list[Start] | Conclusion:
    """Return the run of the bad end without the culprit, or the answer with what that run showed."""
    hunt, culprit = case.hunt, answer.culprit
    if culprit is None or not hunt.may_revert or culprit.sha == hunt.bad:
        return answer
    shown = case.results(hunt.bad, Role.REVERT)
    if shown:
        return evidence.with_revert(answer, shown[-1])
    wanted = [Start(hunt.id, hunt.bad, Role.REVERT, without=culprit.sha)]
    affordable = _afford(case, wanted, reserve=0, evidence=evidence)
    if isinstance(affordable, Conclusion):
        note = f"no run was left to revert it at {hunt.bad[:10]}"
        return replace(answer, notes=(*answer.notes, note))
    return affordable


def runs_left(case: Case) -> int:
    """Return how many more runs the hunt is expected to take, confirmation and revert included."""
    case, ends, _, step, *_ = look_at(case)
    revert = int(case.hunt.may_revert and not case.results(case.hunt.bad, Role.REVERT))
    confirm = 2 * conclude.CONFIRMATIONS + revert
    if ends is None:
        return _ends_left(case) + search.search_bound(len(case.commits) - 1) + confirm
    if isinstance(step, Probes):
        left = step.left if case.hunt.probe_all else search.search_bound(step.left)
        return left + confirm
    if isinstance(step, Confirm):
        return step.parent + step.child + revert
    if isinstance(step, Chain) and isinstance(ends, Ends | Crash):
        return len(_confirmations(case, step, ends)) + revert
    return 0


def places_left(case: Case) -> int | None:
    """Return how many commits a hunt that tests all that can matter has still to test, as far as is known; None
    for any other hunt, and while the ends are not known."""
    step = look_at(case).step if case.hunt.probe_all else None
    return len(step.positions) if isinstance(step, Probes) else None


def stop_after(
    case: Case, start: Start, so_far: Trajectory, others: Sequence[Trajectory] = ()
) -> int | None:
    """Return after how many of its steps so far a run in flight has shown enough; None: it goes on.

    A probe stops at the step that proves that it has left good, or with the ends, and so does the second run that
    confirms a culprit. The second run of an end stops where the ends part, and all others with the ends. `others`
    are the other end's runs in flight, where the ends are not known yet.
    """
    look = look_at(case)
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
    elif start.role is Role.END:
        stop = repeat_stop(look.horizon)
    elif look.rule and (anchor := _anchor(case, start, look.step)):
        stop = _left_at(so_far[: look.horizon], anchor, look.rule) or look.horizon
    else:
        stop = look.horizon
    return stop if stop is not None and len(so_far) >= stop else None


def _anchor(case: Case, start: Start, step: Chain | noisy.Step | None) -> Trajectory | None:
    """Return the trajectory which it is enough to see a run leave; None where all its steps are wanted."""
    if start.role is Role.SEARCH and isinstance(step, Probes):
        return step.anchor
    if start.role is Role.CONFIRM and not start.is_cold and isinstance(step, Chain):
        place = case.commits.index(start.sha)
        if all(found.link.parent != place for found in step.links):
            its = (f for f in step.links if f.link.child == place and not f.is_mend)
            return next((found.anchor for found in its), None)
    return None


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


def expected_runs(commits: int, width: int = 1) -> int:
    """Return the most runs of a hunt over `commits` commits without skips: ends, search, confirmation, and
    the bad end with the culprit reverted."""
    probes = min(search.search_bound(commits, width) * width, commits - 1)
    return 2 * END_RUNS + probes + 2 * conclude.CONFIRMATIONS + 1


def expected_runs_of_all(commits: int) -> int:
    """Return the most runs that test the ends and every place between them; none of it confirmed."""
    return 2 * END_RUNS + commits - 1


# The ends


def _end_runs(case: Case) -> list[Start]:
    wanted = []
    shas = (case.hunt.good, case.hunt.bad)
    made = {sha: len(case.results(sha, Role.END)) for sha in shas}
    is_first = not all(made.values())
    if is_first and may_stop(case.hunt):  # how far these go decides it for the second ones
        return [Start(case.hunt.id, sha, Role.END) for sha in shas if not made[sha]]
    if recalled_ends(case, case.hunt.bad):
        made[case.hunt.bad] = END_RUNS
    for sha in shas:
        missing = max(END_RUNS - made[sha], 0)
        if missing == 0 and read_one_end(case, sha) is None:
            missing = 1  # one of the two hung
        wanted += [Start(case.hunt.id, sha, Role.END)] * missing
    if wanted:  # in turn, so that the two ends run side by side and stop each other
        turns = {sha: count(made[sha]) for sha in shas}
        return sorted(wanted, key=lambda start: next(turns[start.sha]))
    return [
        Start(case.hunt.id, sha, Role.NOISE)
        for sha in shas
        for _ in range(_missing_noise(case, sha))
    ]


def _unseen_end(case: Case) -> Start | None:
    """Return the run of the bad end that is still to be made where only a stored one stands for it."""
    its = case.results(case.hunt.bad, Role.END)
    is_stored = len(recalled_ends(case, case.hunt.bad)) == len(its)
    return Start(case.hunt.id, case.hunt.bad, Role.END) if is_stored else None


def _ends_left(case: Case) -> int:
    """Return how many runs of the ends are still to be made, as far as is known."""
    made = [len(case.results(sha, Role.END)) for sha in (case.hunt.good, case.hunt.bad)]
    return max(len(_end_runs(case)), sum(max(END_RUNS - each, 0) for each in made))


def _missing_noise(case: Case, sha: str) -> int:
    """Return how many more runs as long as any an end needs, where runs do not repeat."""
    shown = read_one_end(case, sha)
    return END_RUNS + NOISE_RUNS - len(furthest(shown)) if isinstance(shown, list) else NOISE_RUNS


# The confirmation, and the budget


def _confirmations(case: Case, chain: Chain, ends: Ends | Crash) -> list[Start]:
    wanted = []
    links = (*chain.links, *(chain.transient if case.hunt.probe_all else ()))
    steps = len(ends.good) if isinstance(ends, Ends) else 0
    for place in confirmed_places(links):
        sha = case.commits[place]
        results = conclude.confirming(case.results(sha, Role.CONFIRM), place, chain, steps)
        is_cold = not any(r.status is not Status.TIMED_OUT and not r.warm for r in results)
        for number in range(conclude.missing_confirmations(results)):
            wanted.append(Start(case.hunt.id, sha, Role.CONFIRM, is_cold and number == 0))
    return wanted


def _confirm_link(case: Case, step: Confirm) -> list[Start]:
    """Return the fresh runs that the sides of a link still need where runs do not repeat; the first is cold."""
    wanted = []
    for position, number in ((step.link.parent, step.parent), (step.link.child, step.child)):
        sha = case.commits[position]
        is_cold = not any(not result.warm for result in case.results(sha, Role.CONFIRM))
        wanted += [
            Start(case.hunt.id, sha, Role.CONFIRM, is_cold and n == 0) for n in range(number)
        ]
    return wanted


def confirmed_places(links: Sequence[Anchored]) -> list[int]:
    """Return the positions to confirm: parent and child of each link that names one commit, once each."""
    singles = [found.link for found in links if found.link.is_single]
    return list(dict.fromkeys(p for link in singles for p in (link.parent, link.child)))


def _afford(
    case: Case, wanted: list[Start], *, reserve: int, evidence: "conclude.Evidence | None"
) -> list[Start] | Conclusion:
    if case.max_runs is None:
        return wanted
    affordable = case.max_runs - reserve - case.spent
    if affordable >= 1:
        return wanted[:affordable]
    return (
        evidence.out_of_budget() if evidence else conclude.budget_at_ends(case.hunt, case.commits)
    )
