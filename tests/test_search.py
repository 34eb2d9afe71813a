from math import ceil, log2
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from racing import Race, verdict_of

from bisector.model import Link, Verdict
from bisector.search import Probes, Reading, narrow, search_bound


def search(commits: int, culprit: int, skips: set[int]) -> tuple[Link, list[int]]:
    """Search positions 0 … commits, of which `culprit` is the first bad one."""
    verdicts: dict[int, Verdict] = {}
    while True:
        step = narrow(0, commits, [Reading(p, v) for p, v in verdicts.items()])
        if isinstance(step, Link):
            return step, list(verdicts)
        assert isinstance(step, Probes)
        (position,) = step.positions
        assert position not in verdicts, "probed twice"
        assert step.good < position < step.bad
        verdicts[position] = verdict_of(position, culprit, skips)


def stretches_met(commits: int, skips: set[int], probed: list[int]) -> list[int]:
    found, length, is_met = [], 0, False
    for position in range(1, commits + 1):
        if position in skips and position < commits:
            length, is_met = length + 1, is_met or position in probed
        else:
            found += [length] if is_met else []
            length, is_met = 0, False
    return found


def bound(commits: int, skips: set[int], probed: list[int]) -> int:
    lengths = stretches_met(commits, skips, probed)
    return search_bound(commits) + sum(2 * ceil(log2(1 + length)) for length in lengths)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_without_skips_it_finds_the_culprit_in_log2_n_probes(data: st.DataObject) -> None:
    commits = data.draw(st.integers(1, 2000))
    culprit = data.draw(st.integers(1, commits))
    link, probed = search(commits, culprit, set())
    assert link == Link(culprit - 1, culprit)
    assert len(probed) <= ceil(log2(commits))


def test_every_small_history_with_every_set_of_skips_is_answered_within_the_bound() -> None:
    for commits in range(1, 10):
        for mask in range(2 ** (commits - 1)):
            skips = {1 + n for n in range(commits - 1) if mask >> n & 1}
            for culprit in range(1, commits + 1):
                link, probed = search(commits, culprit, skips)
                assert link.parent < culprit <= link.child
                assert len(probed) <= bound(commits, skips, probed)
                hidden = set(range(link.parent + 1, link.child))
                assert hidden <= skips, "a commit that could be tested was left among the suspects"


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_stretch_of_skips_costs_at_most_twice_its_logarithm(data: st.DataObject) -> None:
    commits = data.draw(st.integers(2, 3000))
    culprit = data.draw(st.integers(1, commits))
    start = data.draw(st.integers(1, commits - 1))
    length = data.draw(st.integers(1, commits - start))
    skips = set(range(start, start + length))
    link, probed = search(commits, culprit, skips)
    assert link.parent < culprit <= link.child
    assert len(probed) <= bound(commits, skips, probed)
    if culprit not in range(start, start + length + 1):
        assert link.is_single
    else:
        assert (link.parent, link.child) == (start - 1, start + length)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_several_stretches_keep_the_bound_and_never_lose_the_culprit(data: st.DataObject) -> None:
    commits = data.draw(st.integers(2, 400))
    culprit = data.draw(st.integers(1, commits))
    skips: set[int] = set()
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(1, commits))
        skips |= set(range(start, min(start + data.draw(st.integers(1, 40)), commits)))
    link, probed = search(commits, culprit, skips)
    assert link.parent < culprit <= link.child
    assert len(probed) <= bound(commits, skips, probed)


def test_planning_over_a_hundred_thousand_commits_asks_for_seventeen_positions() -> None:
    link, probed = search(100_000, 77_777, set())
    assert link == Link(77_776, 77_777)
    assert len(probed) <= 17


# Several at once


@given(st.integers(1, 3000), st.integers(1, 6), st.data())
@settings(max_examples=300, deadline=None)
def test_several_at_once_find_the_culprit_in_as_many_rounds_as_the_logarithm_says(
    commits: int, width: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    link, rounds, probes, _ = Race(commits, culprit, width).run()
    assert link == Link(culprit - 1, culprit)
    assert rounds <= search_bound(commits, width)
    assert probes <= width * search_bound(commits, width)


@given(st.integers(1, 800), st.integers(1, 5), st.integers(0, 2**32), st.data())
@settings(max_examples=200, deadline=None)
def test_how_many_run_at_once_and_how_long_they_take_changes_no_answer(
    commits: int, width: int, seed: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    start = data.draw(st.integers(0, commits))
    skips = frozenset(range(start + 1, min(start + data.draw(st.integers(0, 30)), commits)))
    rng = Random(seed)
    alone = Race(commits, culprit, 1, skips=skips).run()[0]
    many = Race(commits, culprit, width, lambda: rng.lognormvariate(0, 1), skips).run()[0]
    assert many == alone


@given(st.integers(1, 400), st.integers(1, 4), st.integers(0, 2**32), st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_likely_changes_the_order_and_no_answer(
    commits: int, width: int, seed: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, commits))
    rng = Random(seed)
    weights = {p: rng.choice([1.0, 1.0, 2.0, 5.0, 40.0]) for p in range(1, commits + 1)}
    link, _, probes, _ = Race(commits, culprit, width, weights=weights).run()
    assert link == Link(culprit - 1, culprit)
    if width == 1:
        assert probes <= search_bound(commits) + 1


def test_a_likely_commit_is_told_apart_sooner() -> None:
    weights = {700: 500.0}
    assert Race(1024, 700, 1, weights=weights).run()[2] <= 4
    assert Race(1024, 700, 1).run()[2] == 10
    assert Race(1024, 1, 1, weights=weights).run()[2] <= 11


def test_what_an_answer_has_made_useless_is_not_wanted_any_more() -> None:
    first = narrow(0, 90, [], width=2)
    assert isinstance(first, Probes)
    assert first.positions == (30, 60)
    second = narrow(0, 90, [Reading(30, Verdict.BAD)], width=2, in_flight=[60])
    assert isinstance(second, Probes)
    assert second.positions == (10, 20)
    third = narrow(0, 90, [Reading(30, Verdict.GOOD)], width=2, in_flight=[60])
    assert isinstance(third, Probes)
    assert third.positions[0] == 60
    assert len(third.positions) == 2


# Where most commits touch nothing that a run reads


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_file_that_exists_and_matters_only_in_the_middle_is_found(data: st.DataObject) -> None:
    """Commit n touches one file. Runs read file 0, and from `begins` to before `ends` file 1 as well."""
    commits = data.draw(st.integers(3, 60))
    files = data.draw(
        st.lists(st.sampled_from([0, 1, 2, 2, 2]), min_size=commits, max_size=commits)
    )
    begins = data.draw(st.integers(1, commits))
    ends = data.draw(st.integers(begins, commits))
    culprit = data.draw(st.integers(1, commits))
    files[begins - 1] = (
        0  # to begin and to end reading another file, a commit touches one that is read
    )
    files[ends - 1] = 0
    files[culprit - 1] = 1 if begins < culprit < ends else 0

    def marks(position: int) -> list[int]:
        read = {0, 1} if begins <= position < ends else {0}
        return [n for n in range(1, commits + 1) if files[n - 1] in read]

    readings: list[Reading] = [Reading(0, Verdict.GOOD, marks(0))]
    readings.append(Reading(commits, Verdict.BAD, marks(commits)))
    for _ in range(commits):
        step = narrow(0, commits, readings)
        if isinstance(step, Link):
            assert step == Link(culprit - 1, culprit)
            return
        (position,) = step.positions
        readings.append(Reading(position, verdict_of(position, culprit, set()), marks(position)))
    raise AssertionError("no end")


def test_commits_that_touch_nothing_that_was_read_are_never_tested() -> None:
    marks = [400, 777, 900]
    readings = [Reading(0, Verdict.GOOD, marks), Reading(1000, Verdict.BAD, marks)]
    step = narrow(0, 1000, readings)
    assert isinstance(step, Probes)
    assert (step.positions, step.left) == ((400,), 3)
    readings.append(Reading(400, Verdict.GOOD, marks))
    step = narrow(0, 1000, readings)
    assert isinstance(step, Probes)
    assert step.positions == (777,)
    readings.append(Reading(777, Verdict.BAD, marks))
    assert narrow(0, 1000, readings) == Link(776, 777)


def test_where_equal_runs_differ_what_they_read_counts_for_nothing() -> None:
    readings = [Reading(0, Verdict.GOOD, []), Reading(10, Verdict.BAD, [])]
    step = narrow(0, 10, readings)
    assert isinstance(step, Probes)
    assert (step.positions, step.left) == ((5,), 10)
