"""Which commits can matter to a run: real runs, real git, one change at a time."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driving import bisector, hunt
from synthetic import git

from bisector.candidates import Candidates
from bisector.contents import Footprint
from bisector.footprint import is_same_code
from bisector.repo import Repository
from bisector.store import Store

SUITE = """
[class.toy]
script = "train.py"
canonical = "toy"
footprint = true
tol = { loss = 1e-3, grad_norm = 1e-1 }
residual_tol = { loss = 1e-5, grad_norm = 1e-3 }
[class.toy.members.toy]
"""
TRAIN = """
import json, os, subprocess, sys
import lib.core
from lib import extra_or_not
try:
    import optional_top
except ImportError:
    pass
here = os.path.dirname(os.path.abspath(__file__))
value = lib.core.value()
value += float(open(os.path.join(here, "data", "table.txt")).read())
value += len(os.listdir(os.path.join(here, "parts")))
open(os.path.join(here, "link", "inner.txt")).close()
subprocess.run([sys.executable, os.path.join(here, "child.py")], check=True)
if os.fork() == 0:
    open(os.path.join(here, "forked.txt")).close()
    os._exit(0)
os.wait()
out = sys.argv[sys.argv.index("--output_dir") + 1]
with open(os.path.join(out, "metrics.jsonl"), "w") as file:
    for step in (1, 2, 3):
        file.write(json.dumps({"step": step, "loss": value, "grad_norm": 1.0}) + "\\n")
"""
CORE = "def value():\n    return 1.0  # as agreed\n"
PROJECT = """
[project]
name = "thing"
version = "1.0"
requires-python = ">=3.8"
dependencies = []
[project.scripts]
thing = "thing:main"
[project.optional-dependencies]
extra = ["pytest"]
"""
BASE = {
    "train.py": TRAIN,
    "lib/__init__.py": "try:\n    from lib import extra\nexcept ImportError:\n    pass\n",
    "lib/core.py": CORE,
    "lib/extra_or_not.py": "",
    "lib/unused.py": "x = 1\n",
    "data/table.txt": "1.0",
    "parts/a.txt": "",
    "parts/sub/b.txt": "",
    "place/inner.txt": "",
    "other/inner.txt": "",
    "child.py": "open(__file__.replace('.py', '.txt')).close()\n",
    "child.txt": "",
    "forked.txt": "",
    "docs/index.md": "",
    "tests/test_it.py": "",
    "pyproject.toml": PROJECT,
}
LINK = "link to "  # a file with this text is a symbolic link
EXECUTABLE = "#! "

Change = Mapping[str, str | None]

TOUCHING: dict[str, Change] = {
    "a data file changes": {"data/table.txt": "2.0"},
    "a data file goes": {"data/table.txt": None},
    "imported code changes": {"lib/core.py": CORE.replace("1.0", "2.0")},
    "imported code cannot be parsed": {"lib/core.py": "def"},
    "the main script changes": {"train.py": TRAIN + "\nx = 1\n"},
    "the mode of the main script changes": {"train.py": EXECUTABLE + TRAIN},
    "a child's script changes": {"child.py": "pass\n"},
    "what a child reads changes": {"child.txt": "x"},
    "what a fork reads changes": {"forked.txt": "x"},
    "a link on the way leads elsewhere": {"link": LINK + "other"},
    "a link comes that could be a package": {"newpackage": LINK + "place"},
    "what a link leads to changes": {"place/inner.txt": "x"},
    "a module is there that was missed": {"lib/extra.py": ""},
    "a package is there that was missed": {"lib/extra/__init__.py": ""},
    "a top-level module is there that was missed": {"optional_top.py": ""},
    "a package lies beside a module": {"lib/core/__init__.py": CORE},
    "a compiled module lies beside a module": {"lib/core.abi3.so": ""},
    "a top-level module shadows an installed one": {"json.py": ""},
    "a top-level package shadows an installed one": {"numpy/__init__.py": ""},
    "a directory becomes a package": {"tests/__init__.py": ""},
    "a top-level directory could be a namespace package": {"optional_top/readme.txt": ""},
    "there is a src directory, which is on the import path": {"src/thing.py": ""},
    "sitecustomize": {"sitecustomize.py": ""},
    "usercustomize": {"usercustomize.py": ""},
    "a path file": {"x.pth": ""},
    "metadata of a distribution": {"thing.egg-info/PKG-INFO": ""},
    "metadata in a new style": {"thing-1.0.dist-info/METADATA": ""},
    "a listed directory has one more": {"parts/c.txt": ""},
    "a listed directory has one less": {"parts/a.txt": None},
    "a listed directory has one more directory": {"parts/deep/down/c.txt": ""},
    "a listed directory has one less directory": {"parts/sub/b.txt": None},
    "a template lies in an imported package": {"lib/template.jinja": ""},
    "a file lies deep in an imported package": {"lib/sub/deep/config.yaml": ""},
    "how files are written changes": {".gitattributes": "* text eol=crlf\n"},
    "the version": {"pyproject.toml": PROJECT.replace('"1.0"', '"1.1"')},
    "the Python asked for": {"pyproject.toml": PROJECT.replace("3.8", "3.9")},
    "what is asked for": {"pyproject.toml": PROJECT.replace("= []", '= ["six"]')},
    "the scripts": {"pyproject.toml": PROJECT.replace("thing:main", "thing:run")},
    "no metadata any more": {"pyproject.toml": None},
}
INNOCENT: dict[str, Change] = {
    "words": {"docs/index.md": "x", "docs/new/page.md": "x"},
    "tests": {"tests/test_it.py": "x = 1", "tests/test_more.py": ""},
    "a comment": {"lib/core.py": CORE.replace("as agreed", "as was agreed")},
    "formatting": {"lib/core.py": "def value():\n\n    return (\n        1.0\n    )\n"},
    "code that was not imported": {"lib/unused.py": "x = 2\n"},
    "a module that nobody looked for": {"lib/new.py": ""},
    "a package that nobody looked for": {"lib/new/__init__.py": "", "lib/new/a.py": ""},
    "what is in a file that was listed only": {"parts/a.txt": "x"},
    "more in a directory that was listed only": {"parts/sub/c.txt": "x"},
    "a top-level file that is no module": {"LICENSE": "x"},
    "what an extra asks for": {"pyproject.toml": PROJECT.replace("pytest", "ruff")},
    "words about the project": {"pyproject.toml": PROJECT + "[tool.ruff]\nline-length = 9\n"},
}


def commit_each(folder: Path, changes: Sequence[Change]) -> list[str]:
    """Make a repository whose commits are these changes, one on the other; None deletes a file."""
    git(folder.parent, "init", "-q", "-b", "main", str(folder))
    for number, change in enumerate(changes):
        for name, text in change.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if text is None:
                continue
            if text.startswith(LINK):
                path.symlink_to(text.removeprefix(LINK))
                continue
            path.write_text(text.removeprefix(EXECUTABLE))
            path.chmod(0o755 if text.startswith(EXECUTABLE) else 0o644)
        git(folder, "add", "-A", "-f")
        git(folder, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
    return git(folder, "rev-list", "--reverse", "main").split()


def run_of(folder: Path, sha: str) -> Footprint | None:
    """Run one commit through the command line; return what is stored of its footprint."""
    (folder / "toy.toml").write_text(SUITE)
    done = bisector(folder, "record", sha, "--repo", "repo", "--suite", "toy.toml")
    assert done.returncode == 0, done.stderr + done.stdout
    store = Store(folder / "state")
    found = store.recent_runs(1)[0][0].result.footprint
    store.close()
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Footprint]:
    """A repository of one commit, and the footprint of its run."""
    folder = tmp_path_factory.mktemp("footprint")
    (sha,) = commit_each(folder / "repo", [{**BASE, "link": LINK + "place"}])
    footprint = run_of(folder, sha)
    assert footprint
    return folder, sha, footprint


def test_a_run_leaves_all_that_its_processes_read(base: tuple[Path, str, Footprint]) -> None:
    footprint = base[2]
    assert {"train.py", "lib/__init__.py", "lib/core.py", "child.py"} <= footprint.code
    read = {"data/table.txt", "child.txt", "forked.txt", "link", "place/inner.txt"}
    assert read <= footprint.data
    assert not footprint.data & footprint.code
    assert footprint.listed == {"parts"}
    assert footprint.roots == {"."}
    assert {"lib/core", "lib/extra"} <= footprint.sought
    assert not any("unused" in path or "docs" in path for path in footprint.code | footprint.data)


@pytest.mark.parametrize(
    ("change", "is_touching"),
    [
        *(pytest.param(change, True, id=name) for name, change in TOUCHING.items()),
        *(pytest.param(change, False, id=name) for name, change in INNOCENT.items()),
    ],
)
def test_a_commit_touches_a_footprint_if_it_can_matter(
    base: tuple[Path, str, Footprint], tmp_path: Path, change: Change, is_touching: bool
) -> None:
    folder, sha, footprint = base
    subprocess.run(["git", "clone", "-q", str(folder / "repo"), str(tmp_path / "repo")], check=True)
    (tmp_path / "repo" / ".git" / "info").mkdir(exist_ok=True)
    commits = commit_each(tmp_path / "repo", [change])
    assert commits[0] == sha
    found = Candidates(Repository(str(tmp_path / "repo"), tmp_path), commits).touching(footprint)
    assert found == ((1,) if is_touching else ())


@pytest.mark.parametrize(
    ("code", "is_whole"),
    [
        ("import subprocess; subprocess.run(['cat', here + '/parts/a.txt'])", False),
        ("import os; os.system('cat ' + here + '/parts/a.txt')", False),
        ("import subprocess; subprocess.run(['cat', 'a.txt'], cwd=here + '/parts')", False),
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-I', here + '/child.py'])",
            False,
        ),
        (
            "import subprocess, sys; subprocess.run([sys.executable, here + '/child.py'], env={})",
            False,
        ),
        ("import subprocess; subprocess.run(['true'])", True),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])", True),
        ("import shutil; shutil.rmtree(os.environ['BISECTOR_RUN_DIR'])", False),
    ],
)
def test_what_cannot_be_followed_leaves_no_footprint(
    tmp_path: Path, code: str, is_whole: bool
) -> None:
    script = TRAIN.replace("value = lib", f"{code}\nvalue = lib")
    (sha,) = commit_each(tmp_path / "repo", [{**BASE, "link": LINK + "place", "train.py": script}])
    assert (run_of(tmp_path, sha) is not None) == is_whole


def test_a_script_leaves_none_unless_its_suite_says_so(tmp_path: Path) -> None:
    (sha,) = commit_each(tmp_path / "repo", [{**BASE, "link": LINK + "place"}])
    (tmp_path / "toy.toml").write_text(SUITE.replace("footprint = true\n", ""))
    done = bisector(tmp_path, "record", sha, "--repo", "repo", "--suite", "toy.toml")
    assert done.returncode == 0, done.stderr
    assert Store(tmp_path / "state").recent_runs(1)[0][0].result.footprint is None


def hunt_over(
    folder: Path, changes: Sequence[Change], *options: str
) -> tuple[dict[str, object], list[str]]:
    shas = commit_each(folder / "repo", [{**BASE, "link": LINK + "place"}, *changes])
    (folder / "toy.toml").write_text(SUITE)
    return hunt(folder, shas[0], shas[-1], *options), shas


def test_a_hunt_runs_only_commits_that_can_matter(tmp_path: Path) -> None:
    words = [{"docs/index.md": str(n)} for n in range(40)]
    changes: list[Change] = list(words)
    changes[11] = {"lib/core.py": CORE + "x = 1\n"}
    changes[17] = {"data/table.txt": "2.0"}
    changes[29] = {"lib/core.py": CORE + "x = 2\n"}
    entry, shas = hunt_over(tmp_path, changes, "--jobs", "1")
    assert isinstance(entry["culprit"], dict)
    assert entry["culprit"]["sha"] == shas[18]
    assert (entry["commits"], entry["candidates"]) == (40, 3)
    assert isinstance(entry["probes"], list)
    searched = [probe["sha"] for probe in entry["probes"] if probe["role"] == "search"]
    assert set(searched) <= {shas[12], shas[18], shas[30]}
    assert len(searched) == 2


def test_the_culprit_is_found_where_the_bad_end_alone_has_run_after_it(tmp_path: Path) -> None:
    changes: list[Change] = [{"docs/index.md": str(n)} for n in range(9)]
    changes[2] = {"data/table.txt": "2.0"}
    entry, shas = hunt_over(tmp_path, changes)
    assert isinstance(entry["culprit"], dict)
    assert (entry["culprit"]["sha"], entry["culprit"]["parent"]) == (shas[3], shas[2])
    assert isinstance(entry["probes"], list)
    assert {p["sha"] for p in entry["probes"] if p["role"] == "confirm"} == {shas[2], shas[3]}
    assert not [p for p in entry["probes"] if p["role"] == "search"]
    assert entry["explained"] is True


def test_a_file_that_matters_only_in_the_middle_is_found_by_a_hunt(tmp_path: Path) -> None:
    """The culprit changes a file that neither end reads: the script reads it between two other commits."""
    reads_more = TRAIN.replace('data", "table', 'data", "other')
    changes: list[Change] = [{"docs/index.md": str(n)} for n in range(30)]
    changes[0] = {"data/other.txt": "1.0"}
    changes[5] = {"train.py": reads_more}
    changes[14] = {"data/other.txt": "3.0"}
    changes[20] = {"data/table.txt": "3.0"}
    changes[24] = {"train.py": TRAIN}
    entry, shas = hunt_over(tmp_path, changes)
    assert isinstance(entry["culprit"], dict)
    assert entry["culprit"]["sha"] == shas[15]


def test_one_setting_switches_footprints_off(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("[train]\nfootprints = false\n")
    changes: list[Change] = [{"docs/index.md": str(n)} for n in range(9)]
    changes[2] = {"data/table.txt": "2.0"}
    entry, shas = hunt_over(tmp_path, changes, "--settings", "settings.toml")
    assert isinstance(entry["culprit"], dict)
    assert entry["culprit"]["sha"] == shas[3]
    assert entry["candidates"] == 9
    assert isinstance(entry["probes"], list)
    assert [p for p in entry["probes"] if p["role"] == "search"]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("x = 1", "x = 1  # one", True),
        ("f(a, b)", "f(\n    a,\n    b,\n)", True),
        ("x = 'a'", 'x = "a"', True),
        ("x = '#1'", "x = '#2'", False),
        ("x = 'a b'", "x = 'ab'", False),
        ("x = 1", "x = 1.0", False),
        ("x = a, b", "x = (a, b)", True),
        ("x = f(a), b", "x = f(a, b)", False),
        ("if a:\n    b\nc", "if a:\n    b\n    c", False),
        ('"""Doc."""', '"""Doc. """', False),
        ("# coding: latin-1\nx = 'é'", "# coding: utf-8\nx = 'é'", False),
        ("def", "def #", False),
        ("x = '\\d'", "x = '\\d'  # warns", True),
    ],
)
def test_code_is_the_same_if_only_comments_and_formatting_differ(
    old: str, new: str, is_same: bool
) -> None:
    assert is_same_code(old.encode(), new.encode()) == is_same


def test_paths_that_are_no_text_are_followed_too(tmp_path: Path) -> None:
    code = (
        "import os\nname = os.fsencode(here) + b'/parts/\\xff odd\\n'\n"
        "open(name, 'w').close(); os.remove(name)"
    )
    script = TRAIN.replace("value = lib", f"{code}\nvalue = lib")
    (sha,) = commit_each(tmp_path / "repo", [{**BASE, "link": LINK + "place", "train.py": script}])
    footprint = run_of(tmp_path, sha)
    assert footprint
    assert "parts/\udcff odd\n" in footprint.data
    assert json.dumps(sorted(footprint.data))
    assert sys.getfilesystemencoding() == "utf-8"


def test_an_audit_runs_commits_that_would_inherit_and_says_where_that_was_wrong(
    tmp_path: Path,
) -> None:
    """What the hook cannot see, a file whose size alone is asked for, is what an audit is for."""
    peeks = TRAIN.replace(
        "out = sys", "value += os.stat(os.path.join(here, 'docs', 'index.md')).st_size\nout = sys"
    )
    changes: list[Change] = [{"lib/unused.py": f"x = {n}\n"} for n in range(12)]
    changes[3] = {"data/table.txt": "2.0"}
    changes[7] = {"docs/index.md": "longer"}
    shas = commit_each(
        tmp_path / "repo", [{**BASE, "link": LINK + "place", "train.py": peeks}, *changes]
    )
    (tmp_path / "toy.toml").write_text(SUITE)
    toy = ("--repo", "repo", "--suite", "toy.toml", "--json")
    done = bisector(tmp_path, "audit", shas[0], shas[6], *toy)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["audited"]
    assert [each["sha"] for each in found] == [shas[n] for n in (1, 2, 3, 5, 6)]
    assert {each["source"] for each in found} == {shas[0], shas[4]}
    done = bisector(tmp_path, "audit", shas[0], shas[-1], *toy, "--sample", "20")
    assert done.returncode == 3, done.stderr
    wrong = [e for e in json.loads(done.stdout)["audited"] if e["is_contradicted"]]
    assert [each["sha"] for each in wrong] == shas[8:]
    assert wrong[0]["source"] == shas[4]
    assert wrong[0]["reason"].startswith("loss differs by up to 6.0e+00")
    text = bisector(tmp_path, "audit", shas[0], shas[-1], *toy[:-1], "--sample", "20").stdout
    assert text.startswith("6 inherited verdicts held, 5 did not")


def test_commits_that_cannot_be_set_up_for_one_reason_are_tried_once(tmp_path: Path) -> None:
    changes: list[Change] = [{"docs/index.md": str(n)} for n in range(30)]
    changes[3] = {"train.py": None}
    changes[12] = {"train.py": TRAIN}
    changes[16] = {"data/table.txt": "2.0"}
    entry, shas = hunt_over(tmp_path, changes, "--jobs", "1")
    assert isinstance(entry["culprit"], dict)
    assert entry["culprit"]["sha"] == shas[17]
    assert isinstance(entry["probes"], list)
    failed = [probe for probe in entry["probes"] if probe["status"] == "setup_failed"]
    assert len(failed) <= 1


ROUNDABOUT: dict[str, tuple[str, Change]] = {
    "a chain of links": (
        "open(here + '/first/inner.txt').close()",
        {"second": LINK + "other"},
    ),
    "through a link and back": (
        "open(here + '/link/../data/table.txt').close()",
        {"link": LINK + "other"},
    ),
    "a link from outside": (
        "os.symlink(here + '/parts', 'way'); open('way/a.txt').close()",
        {"parts/a.txt": "x"},
    ),
    "by the working directory": (
        "os.chdir(here); open('/proc/self/cwd/parts/a.txt').close()",
        {"parts/a.txt": "x"},
    ),
    "a directory that was moved away": (
        "os.rename(here + '/parts', 'away'); open('away/a.txt').close(); os.rename('away', here + '/parts')",
        {"parts/a.txt": "x"},
    ),
    "beneath an open directory": (
        "fd = os.open(here + '/parts', os.O_RDONLY); os.open('a.txt', os.O_RDONLY, dir_fd=fd)",
        {"parts/a.txt": "x"},
    ),
    "a database": (
        "import sqlite3; sqlite3.connect(here + '/parts/a.txt')",
        {"parts/a.txt": "x"},
    ),
    "a database by its address": (
        "import sqlite3; sqlite3.connect('file:' + here + '/parts/a.txt?mode=ro', uri=True)",
        {"parts/a.txt": "x"},
    ),
    "a directory in place of a file that was missing": (
        "suppress = __import__('contextlib').suppress\n"
        "with suppress(OSError): open(here + '/absent').close()",
        {"absent/a.txt": "x"},
    ),
    "a child with an import path of its own": (
        "subprocess.run([sys.executable, '-c', 'import unused'],"
        " env={**os.environ, 'PYTHONPATH': here + '/lib'}, check=True)",
        {"lib/unused.py": "x = 9\n"},
    ),
    "a child of an import path that was changed before": (
        "os.environ['PYTHONPATH'] = here + '/lib'\n"
        "import multiprocessing.util as u\n"
        "u.spawnv_passfds(os.fsencode(sys.executable), [sys.executable, '-c', 'import unused'], [])",
        {"lib/unused.py": "x = 9\n"},
    ),
    "options written together": (
        "subprocess.run([sys.executable, '-Es', here + '/parts/../lib/unused.py'], check=True)",
        {"lib/unused.py": "x = 9\n"},
    ),
    "a child that is told by a variable": (
        "subprocess.run(['sh', '-c', 'cat $PLACE/a.txt'], env={**os.environ, 'PLACE': here + '/parts'})",
        {"parts/a.txt": "x"},
    ),
    "a child that is given a way from where it starts": (
        "subprocess.run(['sh', '-c', 'cat ' + os.path.relpath(here) + '/parts/a.txt'])",
        {"parts/a.txt": "x"},
    ),
    "a child that is given a link from outside": (
        "os.symlink(here + '/parts/a.txt', 'way'); subprocess.run(['cat', 'way'])",
        {"parts/a.txt": "x"},
    ),
    "distributions": (
        "import importlib.metadata as m; list(m.distributions(path=[here + '/data']))",
        {"data/x-1.dist-info/METADATA": "Name: x\nVersion: 1\n"},
    ),
    "a directory in the place of a listed file": (
        "list(os.walk(here + '/parts'))",
        {"parts/a.txt": None, "parts/a.txt/b": ""},
    ),
}


@pytest.mark.parametrize(("code", "change"), ROUNDABOUT.values(), ids=ROUNDABOUT.keys())
def test_what_is_read_in_a_roundabout_way_is_seen_or_there_is_no_footprint(
    tmp_path: Path, code: str, change: Change
) -> None:
    script = TRAIN.replace("value = lib", f"{code}\nvalue = lib")
    links = {"link": LINK + "place", "first": LINK + "second", "second": LINK + "place"}
    shas = commit_each(tmp_path / "repo", [{**BASE, **links, "train.py": script}, change])
    footprint = run_of(tmp_path, shas[0])
    if footprint:
        repository = Repository(str(tmp_path / "repo"), tmp_path)
        assert Candidates(repository, shas).touching(footprint) == (1,)


def test_one_stored_run_never_stands_for_both_ends(tmp_path: Path) -> None:
    """What the hook cannot see must not make ends agree of which one was never run."""
    peeks = TRAIN.replace(
        "out = sys", "value += os.stat(os.path.join(here, 'docs', 'index.md')).st_size\nout = sys"
    )
    changes: list[Change] = [{"lib/unused.py": f"x = {n}\n"} for n in range(6)]
    changes[3] = {"docs/index.md": "longer"}
    shas = commit_each(
        tmp_path / "repo", [{**BASE, "link": LINK + "place", "train.py": peeks}, *changes]
    )
    run_of(tmp_path, shas[0])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[4]


def test_a_script_behind_a_link_that_is_missing_for_a_while_hides_nothing(tmp_path: Path) -> None:
    changes: list[Change] = [{"docs/index.md": str(n)} for n in range(18)]
    changes[3] = {"real/train.py": None}
    changes[11] = {"real/train.py": TRAIN}
    changes[14] = {"data/table.txt": "2.0"}
    script = TRAIN.replace("os.path.abspath(__file__)", "os.path.abspath(sys.argv[0])")
    base = {**BASE, "link": LINK + "place", "train.py": LINK + "real/train.py"}
    shas = commit_each(tmp_path / "repo", [{**base, "real/train.py": script}, *changes])
    (tmp_path / "toy.toml").write_text(SUITE)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[15]
