"""Hunts that go on from a release of a package to the commits of its repository."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from driving import assert_two_sentences, bisector
from packages import install, make_base, write_wheel
from synthetic import git, make_repository

BACKEND = """
import pathlib, zipfile

def _version():
    return pathlib.Path("VERSION").read_text().strip()

def build_wheel(folder, config_settings=None, metadata_directory=None):
    version = _version()
    name, info = f"alpha-{version}-py3-none-any.whl", f"alpha-{version}.dist-info"
    contents = {
        "alpha/__init__.py": pathlib.Path("alpha/__init__.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: alpha\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{path},,\\n" for path in contents)
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "alpha"
dynamic = ["version"]
"""
READ = "import alpha; plan['loss'] = 1.0 + alpha.LOSS"


class Source:
    """The repository of the package `alpha`; each commit says what it adds to the loss."""

    def __init__(self, folder: Path) -> None:
        self.path, self.number = folder / "alpha-source", 0
        (self.path / "alpha").mkdir(parents=True)
        git(self.path, "init", "-q", "-b", "main")
        (self.path / "backend.py").write_text(BACKEND)
        (self.path / "pyproject.toml").write_text(PROJECT)

    def commit(self, subject: str, loss: float, *, version: str, tag: str = "") -> str:
        self.number += 1
        (self.path / "VERSION").write_text(version)
        code = f"LOSS = {loss}\nNUMBER = {self.number}\n"
        (self.path / "alpha" / "__init__.py").write_text(code)
        git(self.path, "add", "-A")
        git(self.path, "commit", "-qm", f"{subject} (#{self.number})")
        if tag:
            git(self.path, "tag", tag)
        return git(self.path, "rev-parse", "HEAD")


class Place:
    """A repository to train in, an index with the releases of `alpha`, and its source."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.source = folder, folder / "index", Source(folder)
        self.shas = make_repository(folder / "repo", [{"code": READ}])
        self.python = ""

    def release(self, version: str, loss: float) -> None:
        files = {"alpha/__init__.py": f"LOSS = {loss}\n"}
        write_wheel(self.index, "alpha", version, files=files)
        if not self.python:
            self.python = make_base(self.folder / "base", self.index, f"alpha=={version}")

    def hunt(self, *args: object, code: int = 0) -> list[dict[str, Any]]:
        done = self.run(*args, "--json")
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        found: list[dict[str, Any]] = json.loads(done.stdout)["hunts"]
        return found

    def run(self, *args: object) -> "subprocess.CompletedProcess[str]":
        where = ("--repo", "repo", "--suite", "toy.toml", "--python", self.python)
        source = ("--package", "alpha", "--source", self.source.path)
        variables = {"UV_DEFAULT_INDEX": self.index.as_uri()}
        return bisector(self.folder, "hunt", *args, *source, *where, **variables)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_commit_of_the_release_that_moved_it_is_named(place: Place) -> None:
    source = place.source
    source.commit("release", 0.0, version="1.0", tag="v1.0")
    for number in range(3):
        source.commit(f"harmless {number}", 0.0, version="1.1.dev0")
    culprit = source.commit("count one token more", 0.5, version="1.1.dev0")
    source.commit("harmless", 0.5, version="1.1.dev0")
    source.commit("release", 0.5, version="1.1", tag="v1.1")
    place.release("1.0", 0.0)
    place.release("1.1", 0.5)
    releases, commits = place.hunt("1.0", "1.1")
    assert (releases["axis"], releases["culprit"]["version"]) == ("package", "1.1")
    assert (commits["axis"], commits["package"]) == ("source", "alpha")
    assert commits["source"] == str(source.path)
    assert (commits["commits"], commits["at"]) == (6, place.shas[-1])
    found = commits["culprit"]
    assert (found["sha"], found["subject"]) == (culprit, "count one token more (#5)")
    assert found["pull_request"] == 5
    page = bisector(place.folder, "show", commits["hunt"], "--format", "markdown").stdout
    assert f"alpha @ git+file://{source.path}@{culprit}" in page
    assert f"--package alpha {found['parent']} {culprit}" in page
    (again,) = place.hunt(found["parent"], culprit)
    assert again["culprit"]["sha"] == culprit


def test_a_release_on_a_branch_of_its_own_is_searched_from_where_it_left(place: Place) -> None:
    source = place.source
    base = source.commit("base", 0.0, version="1.0.dev0")
    git(source.path, "checkout", "-qb", "stable")
    source.commit("release", 0.0, version="1.0", tag="1.0")
    git(source.path, "checkout", "-q", "main")
    source.commit("harmless", 0.0, version="1.1.dev0")
    culprit = source.commit("count one token more", 0.5, version="1.1.dev0")
    source.commit("release", 0.5, version="1.1", tag="1.1")
    place.release("1.0", 0.0)
    place.release("1.1", 0.5)
    _, commits = place.hunt("1.0", "1.1")
    assert (commits["good"], commits["culprit"]["sha"]) == (base, culprit)


def test_a_commit_that_cannot_be_built_is_skipped_in_the_words_of_its_builder(place: Place) -> None:
    source = place.source
    source.commit("release", 0.0, version="1.0", tag="v1.0")
    (source.path / "backend.py").write_text("raise RuntimeError('no compiler for gears')")
    broken = source.commit("break the build", 0.0, version="1.1.dev0")
    (source.path / "backend.py").write_text(BACKEND)
    last = source.commit("release", 0.5, version="1.1", tag="v1.1")
    place.release("1.0", 0.0)
    place.release("1.1", 0.5)
    _, commits = place.hunt("1.0", "1.1")
    assert commits["outcome"] == "suspects"
    assert [(s["sha"], s["why"]) for s in commits["suspects"]] == [
        (broken, "skipped"),
        (last, "untested"),
    ]
    assert "no compiler for gears" in commits["suspects"][0]["reason"]


def test_the_release_stands_where_its_commits_cannot_be_searched(place: Place) -> None:
    source = place.source
    source.commit("release", 0.0, version="1.0", tag="v1.0")
    source.commit("release", 0.5, version="1.1")
    source.commit("release", 0.5, version="1.2", tag="v1.2")
    place.release("1.0", 0.0)
    place.release("1.1", 0.5)
    place.release("1.2", 0.5)
    done = place.run("1.0", "1.2", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    (releases,) = document["hunts"]
    assert releases["culprit"]["version"] == "1.1"
    assert "has no tag of alpha 1.1" in document["notes"][0]


def test_what_builds_a_commit_is_a_real_package_though_the_base_has_it_too(place: Place) -> None:
    for version in ("1.0", "1.1"):
        write_wheel(place.index, "gear", version)
    place.release("1.0", 0.0)
    install(place.folder / "base", place.index, "gear==1.1")
    project = place.source.path / "pyproject.toml"
    project.write_text(PROJECT.replace("requires = []", 'requires = ["gear"]'))
    (place.source.path / "backend.py").write_text(f"import gear\ngear.VERSION\n{BACKEND}")
    older = place.source.commit("harmless", 0.0, version="1.1.dev0")
    newer = place.source.commit("count one token more", 0.5, version="1.1.dev0")
    (commits,) = place.hunt(older, newer)
    assert commits["culprit"]["sha"] == newer


def test_what_has_no_tag_and_what_is_compiled_is_refused(place: Place) -> None:
    place.source.commit("release", 0.0, version="1.0")
    place.release("1.0", 0.0)
    place.release("1.1", 0.5)
    assert_two_sentences(place.run("1.0", "1.1"), 1, "has no tag of alpha 1.0")
    page = place.index / "alpha" / "index.html"
    page.write_text(page.read_text().replace("py3-none-any", "cp311-cp311-linux_x86_64"))
    assert_two_sentences(place.run("1.0", "1.1"), 1, "pure Python")
