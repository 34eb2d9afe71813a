"""What surrounds a training: its environment, its metadata, the recorder. Real children."""

import json
import sys
from pathlib import Path
from typing import Any

from driving import bisector, hunt
from synthetic import git, make_repository


def run_once(folder: Path, code: str, **env: str) -> dict[str, Any]:
    """Train one commit whose script runs `code`; return what `show` says of the run."""
    make_repository(folder / "repo", [{"code": code}])
    toy = ("--repo", "repo", "--suite", "toy.toml")
    done = bisector(folder, "record", "main", *toy, **env)
    assert done.returncode == 0, done.stderr
    run = json.loads(bisector(folder, "status", "--json").stdout)["runs"][0]["run"]
    return dict(json.loads(bisector(folder, "show", run, "--format", "json").stdout))


def test_nothing_of_the_users_environment_reaches_a_training(tmp_path: Path) -> None:
    code = (
        "assert 'SECRET_TOKEN' not in os.environ and 'CI' not in os.environ\n"
        "assert os.listdir(os.environ['HOME']) == [] and os.listdir('.') == []\n"
        "assert os.environ['HF_HUB_OFFLINE'] == os.environ['OMP_NUM_THREADS'] == '1'\n"
        "assert os.environ['PYTHONHASHSEED'] == '0' and sys.dont_write_bytecode\n"
    )
    run = run_once(tmp_path, code, SECRET_TOKEN="x", CI="true", HOME=str(tmp_path))
    assert run["status"] == "completed"


def test_no_two_runs_share_a_cache_of_prepared_data(tmp_path: Path) -> None:
    code = (
        "cache = os.environ['HF_DATASETS_CACHE']\n"
        "os.makedirs(cache, exist_ok=True)\n"
        "plan['loss'] = float(len(os.listdir(cache)))\n"
        "open(os.path.join(cache, 'prepared'), 'w').close()\n"
    )
    shas = make_repository(tmp_path / "repo", [{"code": code}] * 3)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert (entry["outcome"], entry["noise"]["loss"]) == ("not_reproduced", 0.0)


def test_the_metadata_is_that_of_the_checkout(tmp_path: Path) -> None:
    code = "import importlib.metadata as m; plan['loss'] = float(m.version('trl'))"
    plans = [
        {"code": code, "pyproject": f'[project]\nname = "trl"\nversion = "{version}"\n'}
        for version in ("7.5", "7.5", "8.5")
    ]
    shas = make_repository(tmp_path / "repo", plans)
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["culprit"]["sha"] == shas[2]
    deviation = entry["culprit"]["deviation"]
    assert (deviation["reference"], deviation["observed"]) == (8.5, 9.5)


def test_a_crash_is_placed_in_the_checkout_by_file_and_function(tmp_path: Path) -> None:
    code = "def inner():\n    return {}['gone']\ninner()"
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    entry = hunt(tmp_path, shas[0], shas[-1])
    assert entry["crash"] == {
        "type": "KeyError",
        "place": "train.py:<module>",
        "message": "'gone'",
    }


def test_a_crash_in_a_process_below_the_training_is_the_one_reported(tmp_path: Path) -> None:
    code = (
        "import subprocess\n"
        "subprocess.run([sys.executable, '-c', 'raise LookupError(3)'], check=True)"
    )
    shas = make_repository(tmp_path / "repo", [{}, {"code": code}])
    assert hunt(tmp_path, shas[0], shas[-1])["crash"]["type"] == "LookupError"


def test_the_training_interpreter_may_be_another_one(tmp_path: Path) -> None:
    code = "assert sys.executable.endswith('other-python')"
    shas = make_repository(tmp_path / "repo", [{"code": code}] * 2)
    other = tmp_path / "other-python"
    other.symlink_to(sys.executable)
    entry = hunt(tmp_path, shas[0], shas[-1], "--python", str(other), code=3)
    assert [probe["status"] for probe in entry["probes"]] == ["completed"] * 4


def test_a_requirement_that_is_not_met_is_known_before_training(tmp_path: Path) -> None:
    suite = (
        '[class.toy]\nmethod = "sft"\ncanonical = "toy"\n'
        "tol = { loss = 1e-3, grad_norm = 1e-1 }\n"
        "residual_tol = { loss = 1e-5, grad_norm = 1e-3 }\n[class.toy.members.toy]\n"
    )
    project = '[project]\nname = "trl"\nversion = "1"\ndependencies = ["packaging>=999"]\n'
    shas = make_repository(tmp_path / "repo", [{"pyproject": project}] * 2)
    (tmp_path / "toy.toml").write_text(suite.replace('method = "sft"', 'method = "sft"', 1))
    (tmp_path / "state" / "hub").mkdir(parents=True)
    entry = hunt(tmp_path, shas[0], shas[-1], code=3)
    assert entry["outcome"] == "environment"
    assert "packaging>=999" in entry["reason"]
    assert entry["runs"] == 0
    assert git(tmp_path / "repo", "status", "--porcelain") == ""
