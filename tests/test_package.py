"""Hunts over releases and environments, and `why`, with a folder of small packages as the index."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driving import assert_two_sentences, bisector, only_hunt
from packages import make_base, write_wheel, yank
from synthetic import make_repository

READ = "import alpha, beta; plan['loss'] = alpha.LOSS + beta.LOSS + alpha.BOTH * beta.BOTH"


@dataclass(frozen=True)
class Place:
    """A folder with a repository of two commits, an index, and a base that has alpha 1.0 and beta 1.0."""

    folder: Path
    python: str
    shas: list[str]

    def run(self, *args: object, code: int, **env: str) -> "subprocess.CompletedProcess[str]":
        where = ("--repo", "repo", "--suite", "toy.toml", "--python", self.python)
        variables = {"UV_DEFAULT_INDEX": (self.folder / "index").as_uri(), **env}
        done = bisector(self.folder, *args, *where, **variables)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def hunt(self, *args: object, code: int = 0) -> dict[str, Any]:
        return only_hunt(self.run("hunt", *args, "--json", code=code).stdout)


def release(
    place: Path,
    name: str,
    version: str,
    loss: float = 0.0,
    both: float = 0.0,
    *,
    requires: tuple[str, ...] = (),
) -> None:
    files = {f"{name}/__init__.py": f"LOSS = {loss}\nBOTH = {both}\n"}
    write_wheel(place / "index", name, version, requires=requires, files=files)


def make_place(folder: Path, *plans: dict[str, Any]) -> Place:
    for name in ("alpha", "beta"):
        release(folder, name, "1.0")
    python = make_base(folder / "base", folder / "index", "alpha==1.0", "beta==1.0")
    shas = make_repository(folder / "repo", list(plans or ({"code": READ}, {"code": READ})))
    return Place(folder, python, shas)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def test_the_release_that_moved_it_is_named(place: Place) -> None:
    for version, loss in (("1.1", 0.0), ("1.2", 0.0), ("1.3", 0.5), ("1.4", 0.5)):
        release(place.folder, "alpha", version, loss)
    release(place.folder, "alpha", "1.3rc1", 9.0)
    found = place.hunt("--package", "alpha", "1.0", "1.4", "--at", "HEAD")
    assert (found["axis"], found["package"], found["at"]) == ("package", "alpha", place.shas[-1])
    assert (found["good"], found["bad"], found["commits"]) == ("1.0", "1.4", 4)
    culprit = found["culprit"]
    assert (culprit["package"], culprit["version"], culprit["parent"]) == ("alpha", "1.3", "1.2")
    assert "sha" not in culprit
    assert "1.3rc1" not in {probe["version"] for probe in found["probes"]}
    shown = bisector(place.folder, "show", found["hunt"]).stdout
    assert "alpha 1.3 moved the trajectory" in shown
    assert "alpha 1.0 … 1.4, 4 releases" in shown


def test_what_cannot_be_installed_is_skipped_in_the_words_of_the_resolver(place: Place) -> None:
    release(place.folder, "alpha", "1.1")
    release(place.folder, "alpha", "1.2", requires=("nowhere>=2",))
    release(place.folder, "alpha", "1.3", 0.5)
    found = place.hunt("--package", "alpha", "1.0", "1.3", code=3)
    assert found["outcome"] == "suspects"
    assert [(s["version"], s["why"]) for s in found["suspects"]] == [
        ("1.2", "skipped"),
        ("1.3", "untested"),
    ]
    assert "nowhere" in found["suspects"][0]["reason"]


def test_what_moves_along_is_told(place: Place) -> None:
    release(place.folder, "beta", "2.0")
    release(place.folder, "alpha", "2.0", 0.5, requires=("beta>=2",))
    found = place.hunt("--package", "alpha", "1.0", "2.0")
    assert found["culprit"]["moved_along"] == {"beta": ["1.0", "2.0"]}


def test_a_release_that_moved_it_and_one_that_moved_it_back(place: Place) -> None:
    release(place.folder, "alpha", "1.1", 0.5)
    release(place.folder, "alpha", "1.2")
    assert place.hunt("--package", "alpha", "1.0", "1.2", code=3)["outcome"] == "not_reproduced"
    inside = place.hunt("--package", "alpha", "1.0", "1.2", "--probe-all", code=3)
    assert [change["version"] for change in inside["transient"]] == ["1.1", "1.2"]
    fixed = place.hunt("--package", "alpha", "1.1", "1.2", "--fixed")
    assert fixed["culprit"]["version"] == "1.2"


def test_two_versions_in_the_wrong_order_and_an_index_out_of_reach(place: Place) -> None:
    release(place.folder, "alpha", "1.1")
    wrong = place.run("hunt", "--package", "alpha", "1.1", "1.0", code=1)
    assert_two_sentences(wrong, 1, "1.1 is newer than 1.0")
    away = place.run(
        "hunt", "--package", "alpha", "1.0", "1.1", code=4, UV_DEFAULT_INDEX="", UV_OFFLINE="1"
    )
    assert_two_sentences(away, 4, "index cannot be reached")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--package", "trl", "1.0", "1.2"), "each commit brings its own"),
        (("--package", "Bisector", "1.0", "1.2"), "each commit brings its own"),
        (("--package", "alpha", "1.0", "v1.00"), "same release"),
        (("--package", "-r x", "1.0", "1.2"), "no name of a package"),
        (("--package", "alpha", "1.0", "1.2", "--skip", "1.7"), "not between"),
    ],
)
def test_ranges_of_releases_that_are_none(place: Place, args: tuple[str, ...], words: str) -> None:
    for version in ("1.1", "1.2"):
        release(place.folder, "alpha", version)
    assert_two_sentences(place.run("hunt", *args, code=1), 1, words)


def test_names_and_versions_are_read_however_they_are_written(place: Place) -> None:
    for version in ("1.1", "1.2", "1.3"):
        release(place.folder, "alpha", version, 0.5 if version == "1.3" else 0.0)
    entry = place.hunt("--package", "ALPHA", "v1.00", "1.3", "--skip", "1.1.0")
    assert (entry["culprit"]["package"], entry["culprit"]["version"]) == ("alpha", "1.3")
    assert "1.1" not in {probe["version"] for probe in entry["probes"]}


def test_a_release_that_was_yanked_is_named_all_the_same(place: Place) -> None:
    for version in ("1.1", "1.2", "1.3"):
        release(place.folder, "alpha", version, 0.0 if version == "1.1" else 0.5)
    for version in ("1.1", "1.2"):
        yank(place.folder / "index", "alpha", version)
    entry = place.hunt("--package", "alpha", "1.0", "1.3")
    assert (entry["culprit"]["version"], entry["culprit"]["parent"]) == ("1.2", "1.1")


@pytest.mark.parametrize("index", ["", "file:///no/such/folder"])
def test_an_index_out_of_reach_is_no_answer_of_environments(place: Place, index: str) -> None:
    release(place.folder, "alpha", "1.1", 0.5)
    old, new = record(place, "old", alpha="1.0"), record(place, "new", alpha="1.1")
    away = {"UV_DEFAULT_INDEX": index, "UV_OFFLINE": "" if index else "1"}
    for command in (
        ("hunt", "--environment", old, new),
        ("why", new, "--old", "HEAD~1", "--config", "toy"),
    ):
        done = place.run(*command, code=4, **away)
        assert "index cannot be reached" in done.stdout + done.stderr
    entry = json.loads(place.run("hunt", "--environment", old, new, "--json", code=0).stdout)
    assert entry["hunts"][0]["culprit"]["version"] == "1.1"


def test_a_local_build_never_stands_for_the_release(place: Place) -> None:
    release(place.folder, "alpha", "1.1")
    for version in ("1.1+local", "1.2"):
        release(place.folder, "alpha", version, 0.5)
    entry = place.hunt("--package", "alpha", "1.0", "1.2")
    assert (entry["culprit"]["version"], entry["culprit"]["parent"]) == ("1.1+local", "1.1")


def record(place: Place, name: str, **versions: str) -> Path:
    path = place.folder / f"{name}.json"
    path.write_text(json.dumps({"python": "3.11.7", "packages": versions}))
    return path


def test_the_packages_that_moved_it_and_their_releases(place: Place) -> None:
    for version in ("1.1", "1.2"):
        release(place.folder, "beta", version, 0.5 if version == "1.2" else 0.0)
    release(place.folder, "alpha", "1.5")
    old = record(place, "old", alpha="1.0", beta="1.0")
    new = record(place, "new", alpha="1.5", beta="1.2")
    done = place.run("hunt", "--environment", old, new, "--json", code=0)
    first, *rest = json.loads(done.stdout)["hunts"]
    assert first["axis"] == "environment"
    assert (first["culprit"]["package"], first["culprit"]["version"]) == ("beta", "1.2")
    assert rest[-1]["axis"] == "package"
    assert (rest[-1]["culprit"]["version"], rest[-1]["culprit"]["parent"]) == ("1.2", "1.1")


def test_a_package_that_goes_back_is_searched_forwards(place: Place) -> None:
    for version in ("1.1", "1.2"):
        release(place.folder, "alpha", version, 0.5)
    old = record(place, "old", alpha="1.2", beta="1.0")
    new = record(place, "new", alpha="1.0", beta="1.0")
    done = place.run("hunt", "--environment", old, new, "--json", code=0)
    first, last = json.loads(done.stdout)["hunts"]
    assert (first["culprit"]["package"], first["culprit"]["version"]) == ("alpha", "1.0")
    assert (last["good"], last["bad"]) == ("1.0", "1.2")
    assert (last["culprit"]["version"], last["culprit"]["parent"]) == ("1.1", "1.0")


def test_what_was_found_stands_where_its_releases_cannot_be_searched(place: Place) -> None:
    python = make_base(place.folder / "apart", place.folder / "index", "alpha==1.0", "beta==1.0")
    release(place.folder, "alpha", "1.2", 0.5)
    page = place.folder / "index" / "alpha" / "index.html"
    page.write_text("".join(x for x in page.read_text().splitlines(True) if "alpha-1.0-" not in x))
    place = Place(place.folder, python, place.shas)
    old = record(place, "old", alpha="1.0", beta="1.0")
    new = record(place, "new", alpha="1.2", beta="1.0")
    done = place.run("hunt", "--environment", old, new, "--json", code=0)
    document = json.loads(done.stdout)
    assert document["hunts"][0]["culprit"]["package"] == "alpha"
    assert any(
        "releases of alpha were not searched: 1.0 is no release" in n for n in document["notes"]
    )


def test_packages_that_move_it_only_together_are_both_found(place: Place) -> None:
    for name in ("alpha", "beta"):
        release(place.folder, name, "2.0", both=1.0)
    old = record(place, "old", alpha="1.0", beta="1.0")
    new = record(place, "new", alpha="2.0", beta="2.0")
    done = place.run("hunt", "--environment", old, new, "--json", code=0)
    hunts = json.loads(done.stdout)["hunts"]
    named = {h["package"] for h in hunts if h["axis"] == "package" and h["culprit"]}
    assert named == {"alpha", "beta"}


# why

MOVES = {"code": f"{READ} + 0.5"}
TAKES_ALPHA = {"code": "import alpha; plan['loss'] = alpha.BOTH"}
FLIPS = {
    "code": "import time; plan['loss'] = time.time() % 1000",
}


@pytest.mark.parametrize(
    ("new_code", "new_alpha", "cause", "code"),
    [
        (MOVES, 0.0, "code", 0),
        ({"code": READ}, 0.5, "environment", 0),
        (MOVES, 0.25, "both", 0),
        (TAKES_ALPHA, 0.0, "combination", 0),
        ({"code": READ, "x": 1}, 0.0, "neither", 3),
        (FLIPS, 0.0, "unstable", 3),
    ],
    ids=["code", "package", "both", "combination", "neither", "flake"],
)
def test_code_and_environment_are_told_apart(
    tmp_path: Path, new_code: dict[str, Any], new_alpha: float, cause: str, code: int
) -> None:
    release(tmp_path, "alpha", "2.0", new_alpha, both=0.5)
    place = make_place(tmp_path, {"code": READ}, new_code)
    python = make_base(tmp_path / "new", tmp_path / "index", "alpha==2.0", "beta==1.0")
    place = Place(place.folder, python, place.shas)
    old = tmp_path / "old.json"
    steps = [{"step": n, "loss": 1.0, "grad_norm": 2.0} for n in range(1, 6)]
    environment = {"alpha": "1.0", "trl": place.shas[0], "gpu": "cpu"}
    old.write_text(json.dumps({"config": {"name": "toy"}, "env": environment, "steps": steps}))
    done = place.run("why", old, "HEAD", "--json", code=code)
    document = json.loads(done.stdout)
    assert document["why"]["cause"] == cause
    culprits = [hunt["culprit"] for hunt in document["hunts"] if hunt["culprit"]]
    if cause == "code":
        assert [each["sha"] for each in culprits] == [place.shas[1]]
    if cause == "environment":
        assert (culprits[0]["package"], culprits[0]["version"], culprits[0]["parent"]) == (
            "alpha",
            "2.0",
            "1.0",
        )
    if cause == "both":
        assert {hunt["axis"] for hunt in document["hunts"]} >= {"commit", "environment"}


@pytest.mark.parametrize(
    ("recorded", "loss", "words"),
    [
        (
            {"data_fingerprint": "another"},
            7.0,
            [
                "the data or the model is another than what was recorded: the fingerprints differ",
                "old code in the old environment does not give the recorded values here",
            ],
        ),
        (
            {"gpu": "NVIDIA H100 80GB HBM3"},
            7.0,
            [
                "it was recorded on NVIDIA H100 80GB HBM3 and this is cpu: the recorded values say nothing here, "
                "only the four runs do"
            ],
        ),
        (
            {"machine": {"driver": "550.1"}},
            1.0,
            [
                "driver 550.1 was recorded; none is here",
                "old code in the old environment gives the recorded values",
            ],
        ),
    ],
    ids=["data", "device", "driver"],
)
def test_data_and_device_that_changed_are_told_and_nothing_is_accused_for_them(
    place: Place, recorded: dict[str, Any], loss: float, words: list[str]
) -> None:
    release(place.folder, "alpha", "2.0")
    python = make_base(place.folder / "new", place.folder / "index", "alpha==2.0", "beta==1.0")
    place = Place(place.folder, python, place.shas)
    old = place.folder / "old.json"
    steps = [{"step": n, "loss": loss, "grad_norm": 2.0} for n in range(1, 6)]
    environment = {"alpha": "1.0", "trl": place.shas[0], "gpu": "cpu", **recorded}
    old.write_text(json.dumps({"config": {"name": "toy"}, "env": environment, "steps": steps}))
    found = json.loads(place.run("why", old, "HEAD", "--json", code=3).stdout)
    assert (found["why"]["cause"], found["hunts"]) == ("neither", [])
    assert found["why"]["notes"] == words
    shown = place.run("why", old, "HEAD", code=3, COLUMNS="80").stdout
    assert shown.startswith("toy: neither: neither code nor environment moves it here")


def test_a_stored_run_stands_for_an_environment_that_cannot_be_built_again(place: Place) -> None:
    place.run("probe", "HEAD", "--against", "HEAD~1", code=0)
    (run, *_) = json.loads(bisector(place.folder, "status", "--json").stdout)["runs"]
    release(place.folder, "alpha", "2.0", 0.5)
    python = make_base(place.folder / "new", place.folder / "index", "alpha==2.0", "beta==1.0")
    for path in (place.folder / "index" / "alpha").iterdir():
        path.unlink()
    place = Place(place.folder, python, place.shas)
    done = place.run("why", run["run"], "HEAD", "--hunt", "none", "--json", code=0)
    found = json.loads(done.stdout)["why"]
    assert found["cause"] == "environment"
    assert "not run: new code in the old environment" in found["reason"]


def test_the_page_to_paste_reproduces_by_hand(place: Place) -> None:
    release(place.folder, "alpha", "1.1", 0.5)
    found = place.hunt("--package", "alpha", "1.0", "1.1")
    page = bisector(place.folder, "show", found["hunt"], "--format", "markdown").stdout
    assert "alpha 1.1 moved the trajectory" in page
    assert f"--package alpha 1.0 1.1 --at {place.shas[-1]}" in page
    assert "alpha==1.0" in page
    assert "alpha==1.1" in page
    assert f'worktree add --detach "$PWD/code" {place.shas[-1]}' in page


def test_packages_that_cannot_be_installed_apart_are_searched_together(place: Place) -> None:
    release(place.folder, "alpha", "1.5", requires=("beta==1.0",))
    release(place.folder, "alpha", "2.0", 0.5, requires=("beta>=2",))
    release(place.folder, "beta", "2.0")
    old = record(place, "old", alpha="1.0", beta="1.0")
    new = record(place, "new", alpha="2.0", beta="2.0")
    done = place.run("hunt", "--environment", old, new, "--json", code=0)
    first, releases = json.loads(done.stdout)["hunts"]
    assert first["outcome"] == "suspects"
    assert (releases["culprit"]["version"], releases["culprit"]["parent"]) == ("2.0", "1.5")
    assert releases["culprit"]["moved_along"] == {"beta": ["1.0", "2.0"]}
