"""Decisions of the service on histories in memory."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import World, make_config

from bisector.agenda import make_agenda
from bisector.model import Config, Event, Role, RunResult, Tolerances
from bisector.standing import is_audited

MEMBERS = (
    make_config("toy"),
    make_config("toy_acc", is_canonical=False, gradient_accumulation_steps="8"),
)
HUNTING = (Role.CONTROL, Role.END, Role.SEARCH, Role.CONFIRM)


def test_good_commits_are_tested_once_each_and_nobody_is_told() -> None:
    world = World()
    world.push("a", "b", "c")
    world.settle()
    assert world.verdicts() == ["good"] * 4
    assert world.events == []
    assert world.count_runs() == 4


def test_a_change_is_told_once_and_later_commits_are_judged_by_it() -> None:
    world = World()
    world.push("a", "+x", "b")
    world.settle()
    world.push(*"abcde")
    world.settle()
    assert world.events == [Event.REGRESSION, Event.CULPRIT]
    assert world.states() == {"c2": "culprit"}
    assert world.verdicts() == ["good", "good", *["bad"] * 7]


def test_a_second_change_on_top_is_found() -> None:
    world = World()
    world.push("+x", "a")
    world.settle()
    world.push("+y", "a")
    world.settle()
    assert world.states() == {"c1": "culprit", "c3": "culprit"}


def test_two_changes_in_one_push_are_both_found() -> None:
    world = World()
    world.push("+x", "a", "+y", "a")
    world.settle()
    assert world.states() == {"c1": "culprit", "c3": "culprit"}


def test_a_mend_is_named_and_needs_no_title() -> None:
    world = World()
    world.push("+x", "a")
    world.settle()
    world.push("b", "-x", "c")
    world.settle()
    assert world.events == [Event.REGRESSION, Event.CULPRIT, Event.FIXED]
    (found,) = world.regressions.values()
    assert (found.state, found.ended_by) == ("fixed", "c4")
    assert world.verdicts()[-2:] == ["good", "good"]


def test_a_commit_that_says_revert_and_reverts_nothing_claims_nothing() -> None:
    world = World()
    world.push("+x")
    world.settle()
    world.push("Revert x")
    world.settle()
    assert world.states() == {"c1": "culprit"}
    assert Event.FIXED not in world.events


def test_the_mend_of_the_lower_of_two_shows_with_the_upper_reverted() -> None:
    world = World()
    world.push("+x")
    world.settle()
    world.push("+y")
    world.settle()
    world.push("-x")
    world.settle()
    assert world.states() == {"c1": "fixed", "c2": "culprit"}
    world.push("-y")
    world.settle()
    assert world.states() == {"c1": "fixed", "c2": "fixed"}
    assert world.verdicts()[-1] == "good"


def test_where_the_upper_does_not_revert_cleanly_it_is_only_changed_and_linked() -> None:
    world = World(clean=False)
    world.push("+x")
    world.settle()
    world.push("+y")
    world.settle()
    world.push("-x")
    world.settle()
    assert world.events[-1] == Event.CHANGED
    changed = list(world.regressions.values())[-1]
    assert changed.state == "changed"
    assert set(changed.links) == set(list(world.regressions)[:2])


def test_a_third_change_on_top_of_two_is_a_regression_of_its_own() -> None:
    world = World()
    for flag in ("+x", "+y", "+z"):
        world.push(flag)
        world.settle()
    assert world.states() == {"c1": "culprit", "c2": "culprit", "c3": "culprit"}
    assert Event.CHANGED not in world.events


def test_what_was_fixed_and_comes_back_is_the_same_regression() -> None:
    world = World()
    for flag in ("+x", "-x", "a", "+x"):
        world.push(flag)
        world.settle()
    assert world.events[-1] == Event.REOPENED
    assert world.states() == {"c4": "culprit"}


def test_a_bug_and_its_mend_between_two_tests_do_not_stay_hidden() -> None:
    world = World(max_backlog=3)
    world.settle()
    world.push("a", "+x", "b", "c", "-x", "d")
    world.settle()
    assert world.states() == {"c2": "fixed"}
    assert next(iter(world.regressions.values())).ended_by == "c5"


def test_a_long_backlog_is_tested_at_its_newest_commit_first() -> None:
    world = World(max_backlog=3)
    world.settle()
    world.push(*"abcdef")
    world._step()
    assert world.runs["toy"].keys() == {"c0", "c6"}
    world._step()
    assert world.verdicts() == ["good", *["presumed"] * 5, "good"]


def test_a_long_backlog_that_ends_bad_is_hunted_in() -> None:
    world = World(max_backlog=3)
    world.settle()
    world.push(*"abcde", "+x", *"fghij")
    world.settle()
    assert world.states() == {"c6": "culprit"}


def test_a_change_is_found_behind_one_that_came_to_nothing_at_the_same_commit() -> None:
    world = World(max_backlog=1)
    world.push("+y")
    world.settle()
    world.push("-y", "+x", "-x", "+x")
    world.settle()
    turned = {sha for _, sha in world.turns} - {"c0"}
    assert turned == {"c1", "c2", "c3", "c4", "c5"}
    assert world.verdicts()[1:] == ["bad", "good", "bad", "good", "bad"]


def test_members_of_one_backlog_that_are_first_tested_at_different_commits_are_one_regression() -> (
    None
):
    world = World(MEMBERS, max_backlog=3)
    world.settle()
    world.push("a", "b", "+x", "c", "d", "e")
    world.start("toy", "c6")
    world.push("f")
    world.start("toy_acc", "c7")
    world.settle()
    (found,) = world.regressions.values()
    assert (found.culprit, found.moved) == ("c3", ("toy", "toy_acc"))
    told = {label: text for tell in world.told.values() for label, text in tell.details}
    assert told["points to"] == "all members moved: semantics or data"


def test_a_branch_pushed_anew_without_the_culprit_is_believed_when_its_head_is_in_line() -> None:
    world = World()
    world.push("a", "+x", "b")
    world.settle()
    world.rewind("c1")
    world.push("c")
    assert make_agenda(world.snapshot(), []).acts == (), "nothing is known of the new head"
    world.settle()
    assert world.states() == {"c2": "fixed"}
    (found,) = world.regressions.values()
    assert found.ended_by == "", "no commit did it"
    assert world.verdicts() == ["good"] * 3


def test_a_branch_pushed_anew_with_the_culprit_under_another_name_is_the_same_regression() -> None:
    world = World()
    world.push("a", "+x", "b")
    world.settle()
    world.rewind("c1")
    world.push("c", "+x", "d")
    world.settle()
    assert world.states() == {"c5": "culprit"}
    assert world.events == [Event.REGRESSION, Event.CULPRIT, Event.CULPRIT]
    world.push("-x")
    world.settle()
    assert world.states() == {"c5": "fixed"}


def test_a_branch_pushed_anew_with_another_change_is_not_called_fixed() -> None:
    world = World()
    world.push("a", "+x", "b")
    world.settle()
    world.rewind("c1")
    world.push("c", "+y", "d")
    world.settle()
    assert world.states() == {"c2": "not_reproduced", "c5": "culprit"}
    assert world.events[2:] == [Event.REGRESSION, Event.CULPRIT, Event.CHANGED]


def test_a_crash_that_ends_in_another_trajectory_is_described_by_how_far_it_moved() -> None:
    world = World()
    world.push("a", "+crash")
    world.settle()
    world.push("+x")
    world.settle()
    world.push("-crash")
    world.settle()
    first, second = world.regressions.values()
    assert first.state == "fixed"
    assert "though not" in first.reason
    assert second.deviation
    assert second.deviation.kind == "step"


def test_an_alarm_is_told_while_hunts_are_held_back_and_hunted_later() -> None:
    world = World(hunt_hold="enough for today")
    world.push("a", "+x", "b")
    world.settle()
    (tell,) = world.told.values()
    assert tell.event == Event.REGRESSION
    assert ("next", "the hunt waits: enough for today") in tell.details
    world.hunt_hold = ""
    world.settle()
    assert world.events == [Event.REGRESSION, Event.CULPRIT]
    assert world.states() == {"c2": "culprit"}


def test_commits_that_do_not_train_are_told_once_for_all_configs_and_so_is_their_end() -> None:
    world = World(MEMBERS)
    world.push("a", "+setup", "b")
    world.settle()
    (tell,) = world.told.values()
    assert (tell.event, tell.commit) == (Event.BROKEN, "c2")
    assert tell.text.startswith("toy, toy_acc do not train here since c2")
    world.push("c")
    world.settle()
    world.push("-setup", "d")
    world.settle()
    assert world.events == [Event.BROKEN, Event.FIXED]
    assert list(world.told.values())[1].text.startswith("toy, toy_acc train again since c5")
    world.push("+setup", "d")
    world.settle()
    assert world.events == [Event.BROKEN, Event.FIXED, Event.BROKEN]


def test_other_tolerances_judge_the_runs_that_are_there() -> None:
    world = World()
    world.push("a", "+quiet", "b")
    world.settle()
    assert world.verdicts() == ["good"] * 4
    count = world.count_runs()
    strict = Tolerances({"loss": 1e-8, "grad_norm": 1e-8}, {"loss": 1.0, "grad_norm": 1.0})
    world.configs = [replace(MEMBERS[0], tolerances=strict)]
    world.settle()
    assert world.states() == {"c2": "culprit"}
    assert {run.role for runs in world.runs["toy"].values() for run in runs[1:]} <= set(HUNTING)
    assert count == 4


def test_a_new_environment_moves_the_baseline_and_accuses_nobody() -> None:
    world = World()
    world.push("a")
    world.settle()
    world.change_environment("e2")
    world.push("b")
    world.settle()
    assert world.events == [Event.ENVIRONMENT]
    assert world.verdicts() == ["good"] * 3
    (tell,) = world.told.values()
    assert ("differs", "lib: e1 → e2") in tell.details


def test_two_causes_in_one_night_are_told_apart() -> None:
    world = World()
    world.push("a")
    world.settle()
    world.change_environment("e2")
    world.push("b", "+x", "c")
    world.settle()
    assert world.events == [Event.ENVIRONMENT, Event.REGRESSION, Event.CULPRIT]
    assert world.states() == {"c3": "culprit"}


def test_what_moves_without_a_trace_is_the_environment_too() -> None:
    world = World()
    world.push("a")
    world.settle()
    world.drift = 0.5
    world.push("b")
    world.settle()
    assert world.events == [Event.ENVIRONMENT]
    assert world.regressions == {}
    assert world.verdicts() == ["good"] * 3


def test_a_mend_in_another_environment_than_the_change_is_seen() -> None:
    world = World()
    world.push("+x", "a")
    world.settle()
    world.change_environment("e2")
    world.push("b")
    world.settle()
    world.push("-x")
    world.settle()
    assert world.states() == {"c1": "fixed"}


def test_a_crash_is_hunted_and_its_end_is_named() -> None:
    world = World()
    world.push("a", "+crash", "b")
    world.settle()
    assert world.events == [Event.BROKEN, Event.CULPRIT]
    assert world.states() == {"c2": "culprit"}
    world.push("-crash", "c")
    world.settle()
    assert world.events[-1] == Event.FIXED
    assert world.states() == {"c2": "fixed"}


def test_a_trajectory_that_turns_to_nan_is_one_regression_until_it_is_mended() -> None:
    world = World()
    world.push("a", "+nan", "b")
    world.settle()
    world.push("c", "-nan", "d")
    world.settle()
    assert world.events == [Event.REGRESSION, Event.CULPRIT, Event.FIXED]
    assert world.states() == {"c2": "fixed"}


def test_a_config_whose_runs_all_differ_accuses_nobody_and_comes_to_rest() -> None:
    class Restless(World):
        def train(self, config: Config, sha: str) -> RunResult:
            self.drift += 0.5
            return super().train(config, sha)

    world = Restless()
    world.push(*"abc")
    world.settle()
    assert set(world.events) <= {
        Event.ENVIRONMENT,
        Event.BROKEN,
        Event.REGRESSION,
        Event.INCONCLUSIVE,
    }
    assert world.count_runs() < 100
    assert not any(found.culprit for found in world.regressions.values())


def test_a_commit_that_hangs_is_skipped_and_told() -> None:
    world = World()
    world.push("a", "+hang")
    world.settle()
    world.push("-hang", "b")
    world.settle()
    assert world.verdicts() == ["good", "good", "skipped", "good", "good"]
    assert world.events == [Event.BROKEN, Event.FIXED]


def test_a_commit_that_cannot_be_set_up_is_skipped_and_told_once() -> None:
    world = World()
    world.push("a", "+setup", "b")
    world.settle()
    assert world.verdicts() == ["good", "good", "skipped", "skipped"]
    assert world.events == [Event.BROKEN]
    world.push("-setup")
    world.settle()
    assert world.verdicts()[-1] == "good"
    assert world.events == [Event.BROKEN, Event.FIXED]


def test_members_that_move_together_are_one_regression() -> None:
    world = World(configs=MEMBERS)
    world.push("+x")
    world.settle()
    (found,) = world.regressions.values()
    assert found.moved == ("toy", "toy_acc")
    assert world.events == [Event.REGRESSION, Event.CULPRIT]
    culprit = list(world.told.values())[-1]
    assert ("points to", "all members moved: semantics or data") in culprit.details


def test_a_member_that_moves_alone_says_what_that_points_to() -> None:
    world = World(configs=MEMBERS)
    world.push("a", "+x@toy_acc")
    world.settle()
    (found,) = world.regressions.values()
    assert (found.moved, found.unmoved) == (("toy_acc",), ("toy",))
    culprit = list(world.told.values())[-1]
    assert ("points to", "only accumulation moved: normalisation of the loss") in culprit.details


def test_members_that_move_at_different_commits_are_two_regressions() -> None:
    world = World(configs=MEMBERS)
    world.push("+x@toy", "a", "+y@toy_acc", "b")
    world.settle()
    assert world.states() == {"c1": "culprit", "c3": "culprit"}


def test_a_mend_of_one_member_is_no_mend_of_the_other() -> None:
    world = World(configs=MEMBERS)
    world.push("+x")
    world.settle()
    world.push("-x", "a")
    world.flags[2:] = [frozenset({"y@toy_acc"})] * 2
    world.settle()
    assert Event.FIXED not in world.events
    assert world.verdicts("toy_acc")[-1] == "bad"


def test_an_accepted_change_is_good_from_its_culprit_on() -> None:
    world = World()
    world.push("+x", "a")
    world.settle()
    world.accept(next(iter(world.regressions)))
    world.push("b")
    world.settle()
    assert world.verdicts() == ["good"] * 4
    assert world.events == [Event.REGRESSION, Event.CULPRIT, Event.ACCEPTED]


def test_small_changes_whose_sum_is_too_large_accuse_nobody() -> None:
    world = World()
    for number in range(80):
        world.push(f"+quiet{number}")
        if number % 10 == 9:
            world.settle()
    assert world.events == [Event.REGRESSION]
    assert world.states() == {"": "inconclusive"}


def test_a_control_is_made_once_a_day() -> None:
    world = World()
    world.settle()
    world.now += 86_400.0
    world.settle()
    assert [run.role for run in world.runs["toy"]["c0"]] == ["control", "control"]
    world.settle()
    assert len(world.runs["toy"]["c0"]) == 2


CHANGES = st.lists(
    st.sampled_from(["a", "b", "c", "+x", "-x", "+y", "-y", "+z", "-z"]), min_size=1, max_size=14
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(1, 6), st.booleans(), st.booleans())
def test_whatever_is_pushed_only_commits_that_moved_are_accused_and_every_verdict_is_right(
    pushes: list[list[str]], max_backlog: int, clean: bool, has_footprints: bool
) -> None:
    world = World(max_backlog=max_backlog, clean=clean, has_footprints=has_footprints)
    world.settle()
    for push in pushes:
        world.push(*push)
        world.settle()
    moved = {f"c{n}" for n in range(1, len(world.flags)) if world.flags[n] != world.flags[n - 1]}
    for found in world.regressions.values():
        assert not found.culprit or found.culprit in moved
        assert not found.ended_by or found.ended_by in moved
    track = world.snapshot().tracks[0]
    turned = {turn.sha for turn in track.turns[1:]}
    assert turned == moved, "nothing stays hidden, and nothing harmless turned"
    for verdict, flags in zip(world.verdicts(), world.flags, strict=True):
        assert verdict == "good" or flags or not clean, "a commit without a change is good"
    if not world.flags[-1]:
        assert world.verdicts()[-1] == "good"
        assert all(found.state.is_over for found in world.regressions.values())


# Verdicts that are inherited


def test_a_commit_that_touches_nothing_that_was_read_needs_no_run() -> None:
    world = World(has_footprints=True)
    world.push(*"abc", "~", *"def")
    world.settle()
    assert world.verdicts() == ["good"] * 8
    assert set(world.runs["toy"]) == {"c0", "c4"}
    assert world.agenda
    standing = world.agenda.walks["toy"].standings[6]
    assert standing.run
    assert (standing.run.sha, standing.reason) == (
        "c4",
        "as c4: it touches nothing that was read there",
    )


def test_commits_behind_one_that_touches_wait_for_its_run() -> None:
    world = World(has_footprints=True)
    world.settle()
    world.push("~", "a", "b", "~", "c")
    agenda = make_agenda(world.snapshot(), [])
    assert [work.sha for work in agenda.work] == ["c1", "c4"]


def test_a_regression_is_found_among_commits_that_inherit_with_fewer_runs() -> None:
    pushes = [*"abcdef", "~", *"ghi", "+x", *"jkl", "~", *"mno", "+y", "p", "-x", *"qrs"]
    plain, sparing = World(), World(has_footprints=True)
    for world in (plain, sparing):
        world.push(*pushes)
        world.settle()
    assert sparing.states() == plain.states()
    assert sparing.events == plain.events
    assert sparing.verdicts() == plain.verdicts()
    assert sparing.count_runs() < plain.count_runs() - 10


def test_what_is_not_known_whole_lets_nobody_inherit() -> None:
    world = World(has_footprints=True)
    world.push("+hang", "a", "b")
    world.settle()
    assert {"c1", "c2", "c3"} <= set(world.runs["toy"])


def test_one_commit_in_fifty_is_run_though_it_could_inherit() -> None:
    world = World(has_footprints=True)
    world.push(*["a"] * 200)
    world.settle()
    audited = {sha for sha in world.line[1:] if is_audited(sha)}
    assert set(world.runs["toy"]) == {"c0"} | audited
    assert len(audited) in range(1, 10)


def test_a_verdict_that_a_real_run_contradicts_is_told_and_the_commit_still_found() -> None:
    world = World(has_footprints=True)
    before = next(n for n in range(2, 300) if is_audited(f"c{n}")) - 1
    world.push(*["a"] * before, "!x", *"bcd")
    world.settle()
    sha = f"c{before + 1}"
    (told,) = [tell for tell in world.told.values() if tell.event is Event.IDENTITY]
    assert told.commit == sha
    assert f"at {sha}, though {sha} touches nothing that the run of c0 read" in told.text
    assert world.states() == {sha: "culprit"}
