"""Whole hunts through the command line, on a repository whose commit n says n."""

import json
import subprocess
import threading
from pathlib import Path

import pytest
from driving import bisector, hunt, only_hunt, processes_with
from synthetic import git, make_repository


def test_a_hunt_names_the_commit_and_says_all_that_the_contract_lists(tmp_path: Path) -> None:
    plans = [{"tokens": 7}] * 11 + [{"tokens": 8, "loss": 0.5}] * 6
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1], "--jobs", 1)
    assert entry["outcome"] == "culprit"
    found = entry["culprit"]
    assert (found["sha"], found["parent"]) == (shas[11], shas[10])
    assert (found["subject"], found["author"], found["pull_request"]) == (
        "commit 11 (#11)",
        "x",
        11,
    )
    assert found["deviation"] == {
        "metric": "loss",
        "kind": "step",
        "step": 1,
        "observed": 1.5,
        "reference": 1.0,
        "limit": 1e-3,
        "data_changed": True,
    }
    assert entry["ends_deviation"] == found["deviation"]
    assert (entry["confirmed"], entry["explained"], entry["compared_steps"]) == (True, True, 3)
    assert entry["noise"] == {"loss": 0.0, "grad_norm": 0.0}
    assert (entry["commits"], entry["candidates"], entry["axis"]) == (16, 16, "commit")
    *made, revert = entry["probes"]
    assert entry["runs"] == len(made) <= 4 + 4 + 4
    assert entry["training_steps"] == sum(probe["steps"] for probe in entry["probes"])
    assert {p["role"] for p in made} == {"end", "search", "confirm"}
    assert {p["verdict"] for p in made} == {"good", "bad"}
    assert {p["without"] for p in made} == {None}
    assert (revert["role"], revert["sha"], revert["without"]) == ("revert", shas[-1], shas[11])
    assert (revert["status"], entry["reverted"]) == ("setup_failed", "conflicts"), (
        "plan.json moved on"
    )
    assert not any(p["reused"] for p in entry["probes"])
    assert entry["environment"]["gpu"] == "cpu"
    assert entry["environment"]["threads"] == 1
    for key in ("others", "transient", "suspects", "notes", "advice"):
        assert entry[key] == []


def test_the_same_command_shows_the_same_hunt_and_again_runs_it_afresh(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [{"loss": 0.5}] * 2)
    first, second = (hunt(tmp_path, shas[0], shas[-1]) for _ in range(2))
    assert second == first
    afresh = hunt(tmp_path, shas[0], shas[-1], "--again")
    assert afresh["hunt"] != first["hunt"]
    assert afresh["culprit"] == first["culprit"]
    assert hunt(tmp_path, shas[0], shas[-1])["hunt"] == afresh["hunt"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise KeyError('gone')", "KeyError"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("sys.exit(3)", "Exit 3"),
        ("os.abort()", "SIGABRT"),
        ("sys.exit(0)", "NoMetrics"),
        (
            "open(os.path.join(out, 'metrics.jsonl'), 'w').write('{\"step\": 1'); sys.exit(0)",
            "NoMetrics",
        ),
    ],
)
def test_a_crash_at_the_bad_end_is_hunted(tmp_path: Path, code: str, kind: str) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [{"code": code}] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["outcome"] == "culprit"
    assert entry["culprit"]["sha"] == shas[3]
    assert entry["crash"]["type"] == kind
    assert entry["culprit"]["deviation"]["kind"] == "crash"


@pytest.mark.parametrize("literal", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite_are_found_and_written_as_strings(
    tmp_path: Path, literal: str
) -> None:
    bad = {"loss": float(literal)}
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [bad] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[3]
    deviation = entry["culprit"]["deviation"]
    assert (deviation["kind"], deviation["observed"]) == ("non_finite", literal)


def test_a_change_in_the_number_of_steps_is_found(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [{"steps": 4}] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[3]
    assert entry["culprit"]["deviation"]["kind"] == "length"


def test_suspects_and_two_changes_and_a_revert_end_as_the_contract_says(tmp_path: Path) -> None:
    broken = {"code": "raise ImportError('no')"}
    shas = make_repository(tmp_path / "repo", [{}] * 4 + [broken] * 10 + [{"loss": 0.5}] * 4)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert entry["outcome"] == "suspects"
    assert [s["sha"] for s in entry["suspects"]] == shas[4:15]
    assert {s["why"] for s in entry["suspects"]} <= {"skipped", "untested"}
    assert entry["culprit"] is None


def test_two_changes_are_named_oldest_first(tmp_path: Path) -> None:
    plans = [{}] * 4 + [{"loss": 0.02}] * 4 + [{"loss": 3.0}] * 4
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[4]
    assert [other["sha"] for other in entry["others"]] == [shas[8]]
    assert entry["others"][0]["deviation"]["reference"] == pytest.approx(1.02)


def test_a_change_and_its_revert_are_not_reproduced(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 2 + [{"loss": 1.0}] * 2 + [{}] * 2)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert (entry["outcome"], entry["runs"]) == ("not_reproduced", 4)


def test_a_hang_is_run_twice_and_skipped(tmp_path: Path) -> None:
    hang = {"code": "import time; time.sleep(600)"}
    shas = make_repository(tmp_path / "repo", [{}] * 2 + [hang] + [{"loss": 1.0}] * 1)
    (tmp_path / "bisector.toml").write_text('[train]\ntimeout = "2s"\n')
    entry = hunt(tmp_path, shas[0], shas[-1], "--settings", "bisector.toml", code=3)
    assert [s["sha"] for s in entry["suspects"]] == shas[2:]
    hung = [p for p in entry["probes"] if p["sha"] == shas[2]]
    assert [p["status"] for p in hung] == ["timed_out"] * 2


def test_a_training_that_kills_itself_each_time_is_skipped_in_the_end(tmp_path: Path) -> None:
    killed = {"code": "import signal; os.kill(os.getpid(), signal.SIGKILL)"}
    shas = make_repository(tmp_path / "repo", [{}] * 2 + [killed] + [{"loss": 1.0}] * 1)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    (skipped,) = (p for p in entry["probes"] if p["sha"] == shas[2])
    assert (skipped["status"], skipped["verdict"]) == ("crashed", "skip")
    assert "killed 5 times in a row" in skipped["reason"]


@pytest.mark.parametrize(
    "code",
    [
        "os.mkfifo(os.path.join(out, 'metrics.jsonl')); sys.exit(0)",
        "os.symlink('/dev/zero', os.path.join(out, 'metrics.jsonl')); sys.exit(0)",
        "os.mkdir(os.path.join(out, 'metrics.jsonl')); sys.exit(0)",
        "open(os.path.join(out, 'metrics.jsonl'), 'w').write('[1, 2]'); sys.exit(0)",
        "open(os.path.join(out, 'metrics.jsonl'), 'w').write('[' * 200_000); sys.exit(0)",
        "open(os.path.join(out, 'metrics.jsonl'), 'w').write('{\"step\": 1e400}'); sys.exit(0)",
    ],
)
def test_whatever_stands_where_the_steps_should_is_a_training_that_logged_none(
    tmp_path: Path, code: str
) -> None:
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["crash"]["type"] == "NoMetrics"


def test_a_message_without_end_or_encoding_is_kept_short(tmp_path: Path) -> None:
    code = "raise RuntimeError('\\ud800' + 'y' * 3_000_000)"
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["crash"]["type"] == "RuntimeError"
    assert 100 < len(entry["crash"]["message"]) <= 2000
    assert (tmp_path / "state" / "bisector.db").stat().st_size < 1_000_000


def test_a_training_that_writes_into_its_checkout_spoils_no_other_run(tmp_path: Path) -> None:
    code = "open(os.path.join(here, 'plan.json'), 'w').write('{\"loss\": 9.0}')"
    plans = [{"code": code}] * 3 + [{"code": code, "loss": 0.5}] * 3
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[3]
    assert entry["noise"] == {"loss": 0.0, "grad_norm": 0.0}


def test_a_training_that_kills_what_watches_it_ends_the_hunt_as_infrastructure(
    tmp_path: Path,
) -> None:
    code = "import signal; os.kill(os.getppid(), signal.SIGKILL)"
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    entry = hunt(tmp_path, shas[0], shas[-1], code=4)
    assert entry["outcome"] == "infra"
    assert "5 times" in entry["reason"]


def test_processes_that_clone_one_url_at_once_share_the_mirror(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}, {"loss": 0.5}])
    url = f"file://{tmp_path}/repo"
    codes: list[int] = []

    def ask() -> None:
        args = ("hunt", shas[0], shas[1], "--repo", url, "--suite", "toy.toml")
        codes.append(bisector(tmp_path, *args).returncode)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 4


def test_a_flood_of_output_is_cut_and_its_end_kept(tmp_path: Path) -> None:
    flood = {"code": "[print('x' * 99) for _ in range(300_000)]; raise ValueError('at the end')"}
    shas = make_repository(tmp_path / "repo", [{}, flood])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["crash"]["message"] == "at the end"
    logs = list((tmp_path / "state" / "logs").iterdir())
    assert max(log.stat().st_size for log in logs) < 6_000_000
    assert any("ValueError: at the end" in log.read_text()[-2000:] for log in logs)


def test_the_subject_of_a_commit_cannot_steer_the_terminal(tmp_path: Path) -> None:
    shas = make_repository(
        tmp_path / "repo",
        [{}, {"loss": 1.0}],
        subject=lambda n: "red \x1b[31m bell \x07 [bold]markup[/bold] \u202e reversed",
    )
    done = bisector(
        tmp_path, "hunt", shas[0], shas[1], "--repo", "repo", "--suite", "toy.toml", "-v"
    )
    assert done.returncode == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)
    assert "[bold]markup[/bold]" in done.stdout
    entry = hunt(tmp_path, shas[0], shas[1])
    markdown = bisector(tmp_path, "show", entry["hunt"], "--format", "markdown").stdout
    assert "\\[bold\\]" in markdown
    assert not {"\x1b", "\x07", "\u202e"} & set(markdown)


def test_only_first_parents_are_candidates(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3)
    repo = tmp_path / "repo"
    git(repo, "checkout", "-q", "-b", "side", shas[1])
    (repo / "plan.json").write_text(json.dumps({"loss": 1.0}))
    git(repo, "commit", "-qam", "on the side")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge the side", "side", "-X", "theirs")
    entry = hunt(tmp_path, shas[0], "main")
    assert entry["culprit"]["sha"] == git(repo, "rev-parse", "main")
    assert entry["commits"] == 3


def test_a_budget_ends_the_hunt_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 9 + [{"loss": 0.5}] * 8)
    entry = hunt(tmp_path, shas[0], shas[-1], "--max-runs", 7, code=3)
    assert entry["outcome"] == "budget"
    assert entry["runs"] <= 7
    assert shas[9] in [s["sha"] for s in entry["suspects"]]
    again = hunt(tmp_path, shas[0], shas[-1], "--max-runs", 40)
    assert again["culprit"]["sha"] == shas[9]
    assert again["hunt"] == entry["hunt"]
    assert again["probes"][: entry["runs"]] == entry["probes"]


def test_two_processes_that_ask_the_same_share_one_hunt(tmp_path: Path) -> None:
    slow = {"code": "import time; time.sleep(0.3)"}
    shas = make_repository(tmp_path / "repo", [slow] * 3 + [{"loss": 0.5}] * 3)
    answers: list[subprocess.CompletedProcess[str]] = []

    def ask() -> None:
        args = ("hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "toy.toml", "--json")
        answers.append(bisector(tmp_path, *args))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = [only_hunt(answer.stdout) for answer in answers]
    assert entries[0] == entries[1] == entries[2]
    assert entries[0]["culprit"]["sha"] == shas[3]
    assert entries[0]["runs"] <= 4 + 3 + 4


def test_two_hunts_share_one_state_directory(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [{"loss": 0.5}] * 3 + [{"norm": 1.0}] * 3)
    found: dict[str, str] = {}

    def ask(good: str, bad: str) -> None:
        found[bad] = hunt(tmp_path, good, bad)["culprit"]["sha"]

    threads = [
        threading.Thread(target=ask, args=(shas[0], shas[5])),
        threading.Thread(target=ask, args=(shas[4], shas[8])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {shas[5]: shas[3], shas[8]: shas[6]}


def test_how_many_runs_go_side_by_side_changes_no_answer_and_useless_ones_are_ended(
    tmp_path: Path,
) -> None:
    slow = {"code": "import time; time.sleep(0.4 if plan['n'] % 2 else 0.1)"}
    plans = [slow] * 7 + [{**slow, "loss": 0.2}] * 6 + [{**slow, "loss": 0.5}] * 8
    shas = make_repository(tmp_path / "repo", plans)
    found = {}
    for jobs in (1, 2, 5):
        entry = hunt(tmp_path, shas[0], shas[-1], "--jobs", jobs, "--state", f"state{jobs}")
        found[jobs] = entry["culprit"]["sha"], [other["sha"] for other in entry["others"]]
        assert not list((tmp_path / f"state{jobs}" / "scratch").iterdir())
    assert set(map(str, found.values())) == {str((shas[7], [shas[13]]))}
    assert not processes_with(str(tmp_path))


def test_people_see_the_answer_first_in_eighty_columns(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 3 + [{"loss": 0.5}] * 3)
    args = ("--repo", "repo", "--suite", "toy.toml", "--jobs", 1)
    done = bisector(tmp_path, "hunt", shas[0], shas[-1], *args, COLUMNS="80")
    first, *rest = done.stdout.splitlines()
    assert first == f"toy: {shas[3][:10]} moved the trajectory: commit 3 (#3)"
    assert all(len(line) <= 80 for line in rest)
    assert "confirmed" in done.stdout
    expected, *progress = done.stderr.splitlines()
    assert "5 commits" in expected
    assert "12 runs" in expected
    assert 11 <= len(progress) <= 12
    assert all(line.startswith("toy ") for line in progress)


STEPWISE = """
import time
def line(step):
    return {"step": step, "loss": 1.0 + plan.get("loss", 0.0) * (step >= plan.get("since", 1)), "grad_norm": 2.0}
with open(os.path.join(out, "metrics.jsonl"), "w") as file:
    for step in range(1, 41):
        file.write(json.dumps(line(step)) + "\\n")
        file.flush()
        time.sleep(0.15)
sys.exit(0)
"""


def test_runs_stop_at_the_step_that_decides_and_thorough_ones_do_not(tmp_path: Path) -> None:
    good, bad = {"code": STEPWISE}, {"code": STEPWISE, "loss": 0.5, "since": 4}
    shas = make_repository(tmp_path / "repo", [good] * 4 + [bad] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert (entry["culprit"]["sha"], entry["compared_steps"]) == (shas[4], 6)
    assert entry["culprit"]["deviation"]["step"] == 4
    steps: dict[tuple[str, str], list[int]] = {}
    for probe in entry["probes"][:-1]:  # behind them the revert, which conflicts
        assert probe["status"] == "stopped_early"
        steps.setdefault((probe["role"], probe["verdict"]), []).append(probe["steps"])
    assert steps["end", "good"] == steps["end", "bad"] == [6, 4]
    assert set(steps["search", "good"]) == {6}
    assert set(steps["search", "bad"]) == {4}
    assert steps["confirm", "good"] == [6, 6]
    assert sorted(steps["confirm", "bad"]) in ([4, 6], [6, 6])  # where it cannot wait it may go on
    assert entry["training_steps"] < 6 * entry["runs"]
    shown = bisector(tmp_path, "show", entry["hunt"]).stdout
    assert "compared   the first 6 steps of each run" in shown
    whole = hunt(tmp_path, shas[0], shas[-1], "--thorough", "--max-runs", 5, code=3)
    assert {(p["status"], p["steps"]) for p in whole["probes"]} == {("completed", 40)}


def test_ends_that_do_not_part_run_to_their_end(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{"code": STEPWISE}] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert (entry["outcome"], entry["compared_steps"]) == ("not_reproduced", 40)
    assert {probe["status"] for probe in entry["probes"]} == {"completed"}
