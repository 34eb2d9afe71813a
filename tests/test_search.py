from math import ceil, log2

from hypothesis import given, settings
from hypothesis import strategies as st

from bisector.model import Link, Verdict
from bisector.search import Probe, narrow, search_bound


def search(commits: int, culprit: int, skips: set[int]) -> tuple[Link, list[int]]:
    """Search positions 0 … commits, of which `culprit` is the first bad one."""
    verdicts: dict[int, Verdict] = {}
    while True:
        step = narrow(0, commits, verdicts.get)
        if isinstance(step, Link):
            return step, list(verdicts)
        assert isinstance(step, Probe)
        assert step.position not in verdicts, "probed twice"
        assert step.good < step.position < step.bad
        if step.position in skips:
            verdicts[step.position] = Verdict.SKIP
        else:
            is_good = step.position < culprit
            verdicts[step.position] = Verdict.GOOD if is_good else Verdict.BAD


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
