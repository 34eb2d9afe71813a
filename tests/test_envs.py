import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import make_base, run, write_broken_sdist, write_wheel

from bisector.envs import Built, Environments, Refused
from bisector.errors import InfraError
from bisector.housekeeping import keep_inside, size_of
from bisector.interpreter import describe

ASK = """
import sys, time
from pathlib import Path
from bisector.envs import Environments
from bisector.interpreter import describe
state, base, *pins = sys.argv[1:]
environments = Environments(Path(state), base, describe(base)["packages"])
while not (found := environments.ask(dict(each.split("==") for each in pins))):
    time.sleep(0.02)
print(found.python)
environments.close()
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gears 1 and 2 each need their own teeth; rack needs any gears but the third; the rest break."""
    place = tmp_path_factory.mktemp("index")
    shared = {"shop/shared.py": "WHOSE = 'old'\n"}
    write_wheel(place, "torch", "2.0.0+cpu")
    write_wheel(place, "torch", "2.1.0")
    write_wheel(place, "teeth", "1.0")
    write_wheel(place, "teeth", "1.5")
    write_wheel(place, "teeth", "2.0")
    write_wheel(place, "gears", "1.0", requires=["teeth<2"], files=shared, script=True)
    new = {"shop/shared.py": "WHOSE = 'new'\n"}
    write_wheel(place, "gears", "2.0", requires=["teeth>=2"], files=new, script=True)
    write_wheel(place, "gears", "3.0", requires=["teeth>=2"])
    write_wheel(place, "gears", "4.0", requires=["torch>=2.1"])
    write_broken_sdist(place, "gears", "5.0")
    write_wheel(place, "gears", "6.0", python=">=9")
    write_wheel(place, "rack", "1.0", requires=["gears!=3.0"], files=shared)
    write_wheel(place, "trl", "1.0", requires=["gears<2"], script=True)
    write_wheel(place, "oil", "1.0")
    write_wheel(place, "grease", "1.0", requires=["gears"])
    write_wheel(place, "pump", "1.0", requires=["oil<2; extra == 'wet'", "air; extra == 'dry'"])
    write_wheel(place, "pump", "2.0", requires=["oil>=2; extra == 'wet'", "air; extra == 'dry'"])
    write_wheel(place, "oil", "2.0")
    write_wheel(place, "air", "1.0")
    return place


@pytest.fixture(scope="module")
def base(index: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("base") / "venv"
    pins = (
        "torch==2.0.0+cpu",
        "teeth==1.0",
        "gears==1.0",
        "rack==1.0",
        "trl==1.0",
        "oil==1.0",
        "pump==1.0",
    )
    python = make_base(place, index, *pins)
    run(python, "-m", "compileall", "-q", str(place))
    site = Path(run(python, "-c", "import gears; print(gears.__file__)").strip()).parents[1]
    (place / "own").mkdir()
    (place / "own" / "mine.py").write_text("HERE = 1\n")
    (site / "mine.pth").write_text(f"{place / 'own'}\n")
    return python


@pytest.fixture
def environments(
    index: Path, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Environments]:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.as_uri())
    made = Environments(tmp_path / "state", base, describe(base)["packages"])
    yield made
    made.close()


def wait(environments: Environments, **pins: str) -> Built | Refused:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        started = time.monotonic()
        found = environments.ask(pins)
        assert time.monotonic() - started < 0.5, "a tick may not wait"
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("no answer")


def built(environments: Environments, **pins: str) -> Built:
    found = wait(environments, **pins)
    assert isinstance(found, Built), found
    return found


def refused(environments: Environments, **pins: str) -> str:
    found = wait(environments, **pins)
    assert isinstance(found, Refused), found
    assert "\n" not in found.reason
    assert len(found.reason) <= 300
    return found.reason


def snapshot(base: str) -> dict[str, tuple[str, float, int]]:
    """Return content, time and inode of everything in the base."""
    root = Path(base).parents[1]
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime,
            path.stat().st_ino,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_only_what_must_moves_with_the_pin(environments: Environments, base: str) -> None:
    found = built(environments, gears="2.0")
    assert found.moved == {"gears": ("1.0", "2.0"), "teeth": ("1.0", "2.0")}
    before, after = describe(base)["packages"], describe(str(found.python))["packages"]
    assert after == {**before, "gears": "2.0", "teeth": "2.0"}


def test_what_needs_not_move_stays_though_the_index_has_a_newer_one(
    environments: Environments,
) -> None:
    assert built(environments, oil="").moved == {"oil": ("1.0", "")}


def test_the_base_is_linked_and_untouched(environments: Environments, base: str) -> None:
    before = snapshot(base)
    found = built(environments, gears="2.0")
    assert snapshot(base) == before
    show = "import torch, gears, shop.shared as s, mine; print(torch.__file__, gears.VERSION, s.WHOSE, mine.HERE)"
    new, old = run(str(found.python), "-c", show).split(), run(base, "-c", show).split()
    assert new[1:] == ["2.0", "new", "1"]
    assert old[1:] == ["1.0", "old", "1"]
    assert os.path.samefile(new[0], old[0])
    caches = found.python.parents[1].rglob("gears/__pycache__/*")
    assert not list(caches), "compiled files of another version"


def test_scripts_start_the_environments_own_interpreter(
    environments: Environments, base: str
) -> None:
    found = built(environments, gears="2.0")
    assert run(str(found.python.with_name("gears-tool"))) == "2.0\n"
    assert str(found.python) in found.python.with_name("trl-tool").read_text()
    assert base in Path(base).with_name("trl-tool").read_text()


def test_no_change_is_the_base_itself(environments: Environments, base: str) -> None:
    assert built(environments, gears="1.0") == Built(Path(base), {})


def test_the_installed_trl_asks_for_nothing_and_stays(environments: Environments) -> None:
    found = built(environments, gears="2.0", trl="9.9")
    assert describe(str(found.python))["packages"]["trl"] == "1.0"


def test_a_package_can_come_in(environments: Environments) -> None:
    assert built(environments, grease="1.0").moved == {"grease": ("", "1.0")}


def test_an_extra_that_the_base_has_moves_along_and_no_other_comes_in(
    environments: Environments,
) -> None:
    moved = {"oil": ("1.0", "2.0"), "pump": ("1.0", "2.0")}
    assert built(environments, pump="2.0").moved == moved


def test_a_pin_at_the_bases_own_version_holds_it(environments: Environments) -> None:
    assert built(environments, pump="2.0", oil="1.0").moved == {"pump": ("1.0", "2.0")}


def test_a_conflict_is_refused_in_the_resolvers_words(environments: Environments) -> None:
    reason = refused(environments, gears="3.0")
    assert reason.startswith("Because ")
    assert "rack" in reason


def test_torch_moves_only_when_it_is_pinned(environments: Environments) -> None:
    assert "torch" in refused(environments, gears="4.0")
    assert built(environments, gears="4.0", torch="2.1.0").moved["torch"] == ("2.0.0+cpu", "2.1.0")


def test_what_is_needed_cannot_be_removed(environments: Environments) -> None:
    assert refused(environments, teeth="") == "teeth cannot be removed: gears needs it"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("7.0", "there is no version of gears==7.0"),
        ("6.0", "Python"),
        ("5.0", "no compiler for gears"),
    ],
)
def test_a_release_that_cannot_be_had_is_refused(
    environments: Environments, version: str, words: str
) -> None:
    assert words in refused(environments, gears=version)


def test_an_index_out_of_reach_is_no_answer(
    environments: Environments, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for _ in range(2):
        with pytest.raises(InfraError, match="package index cannot be reached"):
            wait(environments, gears="2.0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.as_uri())
    built(environments, gears="2.0")


def test_a_known_environment_needs_neither_uv_nor_a_wait(
    environments: Environments, base: str, tmp_path: Path
) -> None:
    found = built(environments, gears="2.0")
    os.utime(found.python.parents[1], (1, 1))
    again = Environments(tmp_path / "state", base, describe(base)["packages"])
    assert again.ask({"gears": "2.0"}) == found
    assert found.python.parents[1].stat().st_mtime > 1, "it counts as used"
    again.close()


def test_a_known_resolution_rebuilds_a_removed_environment(
    environments: Environments, base: str, tmp_path: Path
) -> None:
    found = built(environments, gears="2.0")
    environments.close()
    (found.python.parents[1] / "complete").unlink()
    again = Environments(tmp_path / "state", base, describe(base)["packages"])
    assert built(again, gears="2.0") == found
    again.close()


def start(state: Path, base: str, *pins: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASK, str(state), base, *pins], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_at_once_get_one_environment(
    environments: Environments, base: str, tmp_path: Path
) -> None:
    both = [start(tmp_path / "state", base, "gears==2.0") for _ in range(2)]
    first, second = (each.communicate(timeout=60)[0] for each in both)
    assert first == second != ""
    assert run(first.strip(), "-c", "import gears; print(gears.VERSION)") == "2.0\n"


@pytest.mark.parametrize("after", [0.1, 0.3, 0.5, 0.8])
def test_a_kill_in_the_middle_leaves_nothing_half_made(
    environments: Environments, base: str, tmp_path: Path, after: float
) -> None:
    victim = start(tmp_path / "state", base, "gears==2.0")
    time.sleep(after)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    found = built(environments, gears="2.0")
    assert json.loads((found.python.parents[1] / "complete").read_text())["gears"] == "2.0"
    assert describe(str(found.python))["packages"]["teeth"] == "2.0"


def test_closing_ends_a_preparation(environments: Environments) -> None:
    assert environments.ask({"gears": "2.0"}) is None
    environments.close()
    with pytest.raises(InfraError):
        wait(environments, gears="2.0")


def test_housekeeping_removes_what_nobody_uses_and_counts_what_it_frees(
    environments: Environments, tmp_path: Path
) -> None:
    found = built(environments, gears="2.0")
    place, state = found.python.parents[1], tmp_path / "state"
    assert size_of(place) < size_of(state)
    keep_inside(state, 0)
    assert found.python.exists(), "it is in use"
    environments.close()
    keep_inside(state, 0)
    assert not place.exists()
