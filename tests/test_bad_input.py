"""Everything people can get wrong ends in one sentence that says what is wrong and one that says what to do."""

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from driving import assert_two_sentences, bisector
from synthetic import SUITE, git, make_repository


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_repository(folder / "repo", [{}] * 3 + [{"loss": 0.5}] * 3)
    git(folder / "repo", "branch", "side", "main~3")
    git(folder / "repo", "checkout", "-q", "side")
    git(folder / "repo", "commit", "-q", "--allow-empty", "-m", "aside")
    git(folder / "repo", "checkout", "-q", "main")
    git(folder, "clone", "-q", "--depth", "2", f"file://{folder}/repo", "shallow")
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    return folder


HERE = ("--repo", "repo", "--suite", "toy.toml")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("main~2", "nowhere", *HERE), 1, ("'nowhere'",)),
        (("deadbeef", "main", *HERE), 1, ("'deadbeef'",)),
        (("main", "main~3", *HERE), 1, ("Swap",)),
        (("main", "main", *HERE), 1, ("same commit",)),
        (("side", "main", *HERE), 1, ("first-parent",)),
        (("a", "b", "--repo", "empty", "--suite", "toy.toml"), 1, ("not a git repository",)),
        (("a", "b", "--repo", "absent", "--suite", "toy.toml"), 1, ("not a git repository",)),
        (("a", "b", "--repo", "shallow", "--suite", "toy.toml"), 1, ("unshallow",)),
        (("a", "b", "--repo", "ext::sh -c true", "--suite", "toy.toml"), 1, ("ext::",)),
        (("a", "b", "--repo=-upload-pack=x", "--suite", "toy.toml"), 1, ("-upload-pack",)),
        (
            ("a", "b", "--repo", "http://127.0.0.1:1/x.git", "--suite", "toy.toml"),
            4,
            ("127.0.0.1",),
        ),
        (("main~3", "main", *HERE, "--config", "tou"), 1, ("'tou'", "'toy'")),
        (("main~3", "main", "--repo", "repo", "--suite", "tyni"), 1, ("tiny",)),
        (("main~3", "main", "--repo", "repo", "--suite", "absent.toml"), 1, ("absent.toml",)),
        (("main~3", "main", *HERE, "--max-runs", "4"), 1, ("at least 5",)),
        (("main~3", "main", *HERE, "--skip", "main"), 1, ("--skip",)),
        (("main~3", "main", *HERE, "--state", "file/state"), 1, ("--state",)),
        (("main~3", "main", *HERE, "--python", "absent-python"), 1, ("absent-python",)),
        (("main~3", "main", *HERE, "--settings", "absent.toml"), 1, ("absent.toml",)),
        (
            ("main~3", "main", "--repo", "repo", "--suite", "h100", "--config", "sft_fa2"),
            1,
            ("sft_fa2 cannot run here", "CUDA"),
        ),
    ],
)
def test_a_hunt_that_cannot_begin(
    place: Path, args: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    assert_two_sentences(bisector(place, "hunt", *args), code, *words)


def test_an_ambiguous_commit_is_called_so(tmp_path: Path) -> None:
    shas = make_repository(tmp_path / "repo", [{}] * 300)
    prefixes = [sha[:4] for sha in shas]
    twice = [prefix for prefix in prefixes if prefixes.count(prefix) > 1]
    if not twice:
        pytest.skip("no two of 300 commits share four digits this time")
    done = bisector(tmp_path, "hunt", twice[0], "main", *HERE)
    assert_two_sentences(done, 1, "ambiguous")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("tol =", "tool ="), ("class.toy.tool", "'tol'")),
        (("canonical", "cannonical"), ("class.toy.cannonical", "'canonical'")),
        (
            ("[class.toy.members.toy]", "[class.toy.members.toy]\nargz = {}"),
            ("members.toy.argz", "'args'"),
        ),
        (('script = "train.py"', ""), ("method", "script")),
        (('canonical = "toy"', 'canonical = "tou"'), ("'tou'", "'toy'")),
        (("loss = 1e-3", "loss = -1.0"), ("tol.loss",)),
        (("train.py", ""), ("class.toy.script",)),
        (("train.py", "../train.py"), ("class.toy.script",)),
        ((SUITE, "[class]"), ("no class",)),
        (("[class.toy]", "[class.toy"), ("TOML",)),
        (('canonical = "toy"', 'canonical = "toy"\nrequires = ["cuba"]'), ("'cuba'",)),
    ],
)
def test_a_wrong_suite_file_is_named_with_place_and_nearest_key(
    place: Path, tmp_path: Path, change: tuple[str, str], words: tuple[str, ...]
) -> None:
    suite = tmp_path / "wrong.toml"
    suite.write_text(SUITE.replace(*change))
    done = bisector(place, "hunt", "main~3", "main", "--repo", "repo", "--suite", suite)
    assert_two_sentences(done, 1, "wrong.toml", *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[watch]\nintervall = '5m'", ("watch.intervall", "'interval'")),
        ("[train]\ntimeout = 30", ("train.timeout", "duration")),
        ("[train]\njobs = 'many'", ("train.jobs",)),
        ("[train]\ntimeout = '0s'", ("train.timeout",)),
        ("[trian]\n", ("trian", "'train'")),
        ("[state]\nmax_size = '50'", ("state.max_size", "size")),
        ("[[notify]]\nname = 'x'\nkind = 'mail'", ("notify.0.kind",)),
    ],
)
def test_wrong_settings_are_named(
    place: Path, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    settings = tmp_path / "bisector.toml"
    settings.write_text(text)
    done = bisector(place, "hunt", "main~3", "main", *HERE, "--settings", settings)
    assert_two_sentences(done, 1, "bisector.toml", *words)
    done = bisector(place, "hunt", "main~3", "main", *HERE, BISECTOR_SETTINGS=str(settings))
    assert_two_sentences(done, 1, *words)


def test_state_of_a_newer_version_is_left_alone(place: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "bisector.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    done = bisector(place, "hunt", "main~3", "main", *HERE, "--state", tmp_path)
    assert_two_sentences(done, 1, "newer")


def test_a_file_that_is_no_database_is_left_alone(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bisector.db").write_text("not a database, but long enough to be read as one" * 99)
    done = bisector(place, "status", "--state", tmp_path)
    assert_two_sentences(done, 1, "no database")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"steps": []}',
        '{"steps": 3}',
        "[1]",
        '{"steps": [{"step": 1, "loss": 1.0}]}',
        '{"steps": [[1, 2]]}',
        '{"steps": [5]}',
        '{"steps": [{"step": 1e400, "loss": 1.0, "grad_norm": 1.0}]}',
        pytest.param('{"steps": [{"step": 1, "loss": 1' + "0" * 400 + "}]}", id="huge"),
        pytest.param("[" * 200_000, id="deep"),
        "\xff",
    ],
)
def test_an_unreadable_reference_is_refused(place: Path, tmp_path: Path, content: str) -> None:
    reference = tmp_path / "reference.json"
    reference.write_text(content, "latin-1")
    done = bisector(place, "compare", reference, reference)
    assert_two_sentences(done, 1, "reference.json")
    done = bisector(place, "probe", "main", *HERE, "--against", reference)
    assert_two_sentences(done, 129, "reference.json")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"environment": {"packages": ["torch"]}}, "packages must be a table"),
        ({"packages": "torch", "torch": "2.13.0"}, "packages must be a table"),
        ([], "records no environment"),
        ({"steps": []}, "records no environment"),
    ],
)
def test_a_record_of_no_environment_is_refused(
    place: Path, tmp_path: Path, environment: object, words: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(environment))
    done = bisector(place, "hunt", "--environment", path, path, *HERE)
    assert_two_sentences(done, 1, "a.json", words)


def test_wrong_usage_is_two(place: Path) -> None:
    assert bisector(place, "hunt", "main").returncode == 2
    assert bisector(place, "hunt", "main", "x", "--colour").returncode == 2
    assert bisector(place, "hnut").returncode == 2


def test_no_room_on_the_disk_is_infrastructure(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(state)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted only by root")
    try:
        code = "open(os.path.join(out, 'large'), 'w').write('x' * 10_000_000)"
        shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
        done = bisector(tmp_path, "hunt", shas[0], shas[1], *HERE, "--json")
        assert done.returncode == 4, done.stderr
        (entry,) = json.loads(done.stdout)["hunts"]
        assert entry["outcome"] == "infra"
        assert "space" in entry["reason"].lower()
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_a_commit_that_only_says_that_the_disk_is_full_is_judged_like_any_other(
    tmp_path: Path,
) -> None:
    code = "raise OSError(28, 'No space left on device')"
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    done = bisector(tmp_path, "hunt", shas[0], shas[1], *HERE, "--json")
    assert json.loads(done.stdout)["hunts"][0]["outcome"] == "culprit"


@pytest.mark.parametrize("location", ["foo://bar", "http://", "ssh://-oProxyCommand=x", "fd::3"])
def test_what_is_no_location_is_the_users_mistake(place: Path, location: str) -> None:
    done = bisector(place, "hunt", "a", "b", "--repo", location, "--suite", "toy.toml")
    assert_two_sentences(done, 1, location)


@pytest.mark.parametrize("name", ["scratch", "checkouts"])
def test_a_file_where_a_folder_belongs_is_said(place: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    done = bisector(place, "status", "--state", tmp_path)
    assert_two_sentences(done, 1, name)


def test_an_expression_that_excludes_a_commit_is_no_commit(place: Path) -> None:
    assert_two_sentences(bisector(place, "hunt", "main~3", "^HEAD", *HERE), 1, "'^HEAD'")
    assert_two_sentences(bisector(place, "probe", "^HEAD", *HERE), 129, "'^HEAD'")


def test_an_interpreter_that_is_none_is_said(place: Path) -> None:
    done = bisector(place, "hunt", "main~3", "main", *HERE, "--python", "/bin/true")
    assert_two_sentences(done, 1, "/bin/true")
