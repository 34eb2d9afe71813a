"""Runs that were made before stand for runs that a hunt would make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driving import bisector, hunt
from synthetic import make_repository
from test_footprint import BASE, LINK, SUITE, commit_each

PLANS: list[Mapping[str, Any]] = [{}] * 9 + [{"loss": 0.5}] * 8


def by_role(entry: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    return [probe for probe in entry["probes"] if probe["role"] == role]


def probe_whole(folder: Path, *shas: str) -> None:
    """Run commits whole, as the service does."""
    for sha in shas:
        done = bisector(folder, "record", sha, "--repo", "repo", "--suite", "toy.toml")
        assert done.returncode == 0, done.stderr


def test_ends_that_were_run_before_cost_one_control(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", PLANS)
    probe_whole(tmp_path, shas[0], shas[-1])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[9]
    ends = [(probe["sha"], probe["reused"]) for probe in by_role(entry, "end")]
    assert sorted(ends) == sorted([(shas[0], True), (shas[0], False), (shas[-1], True)])
    assert not any(probe["reused"] for probe in by_role(entry, "confirm"))
    assert len(by_role(entry, "confirm")) == 4
    assert entry["runs"] == len(entry["probes"]) - 2 - len(by_role(entry, "revert"))
    made = [probe for probe in entry["probes"] if not probe["reused"]]
    assert entry["training_steps"] == sum(probe["steps"] for probe in made)


def test_probes_of_another_hunt_are_found_again(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", PLANS)
    hunt(tmp_path, shas[0], shas[-1])
    entry = hunt(tmp_path, shas[0], shas[-2])
    assert entry["culprit"]["sha"] == shas[9]
    assert any(probe["reused"] for probe in by_role(entry, "search"))
    again = hunt(tmp_path, shas[0], shas[-2])
    assert again == entry


def test_the_same_answer_comes_of_stored_runs_as_of_fresh_ones(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", PLANS)
    fresh = hunt(tmp_path, shas[0], shas[-1])
    probe_whole(tmp_path, *shas[::2])
    (tmp_path / "off.toml").write_text("[train]\nrecall = false\n")
    entry = hunt(tmp_path, shas[0], shas[-2])
    other = hunt(tmp_path, shas[0], shas[-3], "--settings", "off.toml")
    afresh = hunt(tmp_path, shas[0], shas[-1], "--again")
    for each in (entry, other, afresh):
        assert each["culprit"] == fresh["culprit"]
    assert any(probe["reused"] for probe in entry["probes"])
    assert not any(probe["reused"] for probe in (*other["probes"], *afresh["probes"]))


def test_a_prefix_stands_for_no_whole_run(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", PLANS)
    hunt(tmp_path, shas[0], shas[-1])
    entry = hunt(tmp_path, shas[0], shas[-1], "--thorough")
    made = [probe for probe in entry["probes"] if probe["role"] != "revert"]
    assert all(probe["status"] == "completed" for probe in made)
    assert entry["culprit"]["sha"] == shas[9]


def test_a_stored_run_that_the_machine_no_longer_gives_counts_for_nothing(tmp_path: Path) -> None:
    """What runs read beside the checkout changed, and nothing that is recorded says so."""
    drift = tmp_path / "drift"
    drift.write_text("0.0")
    code = f"plan['loss'] = plan.get('loss', 0.0) + float(open({str(drift)!r}).read())"
    plans = [{**plan, "code": code} for plan in PLANS]
    shas = make_repository(tmp_path / "repo", plans)
    probe_whole(tmp_path, *shas)
    drift.write_text("0.25")
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[9]
    assert entry["culprit"]["deviation"]["reference"] == 1.25
    made = [probe for probe in entry["probes"] if not probe["reused"]]
    assert len([p for p in made if p["role"] == "end"]) >= 4
    assert [p for p in made if p["role"] == "search"]
    assert entry["notes"] == ["stored runs were left out: the good end gives something else now"]


def test_a_run_of_a_commit_that_gives_the_same_is_found_again(tmp_path: Path) -> None:
    words = [{"docs/index.md": str(n)} for n in range(12)]
    changes = [{**BASE, "link": LINK + "place"}, *words]
    changes[8] = {"data/table.txt": "2.0"}
    shas = commit_each(tmp_path / "repo", changes)
    (tmp_path / "toy.toml").write_text(SUITE)
    probe_whole(tmp_path, shas[1], shas[10])
    entry = hunt(tmp_path, shas[3], shas[-1])
    assert (entry["culprit"]["sha"], entry["candidates"]) == (shas[8], 1)
    ends = [(probe["sha"], probe["reused"]) for probe in by_role(entry, "end")]
    fresh = [(shas[3], False), (shas[-1], False), (shas[-1], False)]
    assert sorted(ends) == sorted([(shas[3], True), *fresh]), "one run never stands for both ends"
    assert not by_role(entry, "search")


def test_a_stored_bad_end_never_says_alone_that_nothing_moved(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("1.0")
    reads: dict[str, Any] = {"code": f"plan['loss'] = float(open({str(outside)!r}).read())"}
    shas = make_repository(tmp_path / "repo", [{"loss": 1.0}] * 3 + [reads] * 3)
    first = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert first["outcome"] == "not_reproduced"
    same = hunt(tmp_path, shas[0], shas[-1], "--thorough", code=3)
    assert same["outcome"] == "not_reproduced"
    assert [probe["reused"] for probe in by_role(same, "end") if probe["sha"] == shas[-1]] == [
        True,
        False,
    ]
    outside.write_text("1.5")
    moved = hunt(tmp_path, shas[0], shas[-1], "--exact")
    assert moved["culprit"]["sha"] == shas[3]
