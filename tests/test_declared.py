from pathlib import Path

import pytest

from bisector.declared import read_declared
from bisector.model import UNKNOWN_VERSION, Declared

PROJECT = """
[project]
name = "trl"
requires-python = ">=3.10"
dependencies = ["accelerate>=1.4.0", "packaging>20.0"]
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_version_in_a_file(tmp_path: Path) -> None:
    text = (
        PROJECT
        + 'dynamic = ["version"]\n[tool.setuptools.dynamic]\nversion = { file = "VERSION" }\n'
    )
    write(tmp_path, pyproject_dot_toml=text, VERSION="1.10.0.dev0\n")
    assert read_declared(tmp_path) == Declared(
        "trl", "1.10.0.dev0", ("accelerate>=1.4.0", "packaging>20.0"), ">=3.10"
    )


def test_a_version_in_an_attribute(tmp_path: Path) -> None:
    text = PROJECT + '[tool.setuptools.dynamic]\nversion = { attr = "trl.__version__" }\n'
    write(tmp_path, pyproject_dot_toml=text)
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "__init__.py").write_text('__version__ = "0.9"\n')
    assert read_declared(tmp_path).version == "0.9"


def test_an_older_setup_is_read_as_syntax_and_never_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        setup_dot_py="""
import sys
from setuptools import find_packages, setup
sys.exit("was run")
__version__ = "0.16.0.dev0"
REQUIRED = ["accelerate>=0.34.0", "rich"]
setup(name="trl", version=__version__, install_requires=REQUIRED, python_requires=">=3.9",
      packages=find_packages())
""",
    )
    assert read_declared(tmp_path) == Declared(
        "trl", "0.16.0.dev0", ("accelerate>=0.34.0", "rich"), ">=3.9"
    )


def test_a_setup_cfg_is_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        VERSION="0.17.0",
        setup_dot_cfg="[metadata]\nname = trl\nversion = file: VERSION\n"
        "[options]\npython_requires = >=3.9\ninstall_requires =\n    accelerate>=0.34\n    rich\n",
    )
    assert read_declared(tmp_path) == Declared(
        "trl", "0.17.0", ("accelerate>=0.34", "rich"), ">=3.9"
    )


@pytest.mark.parametrize("text", ["", "[project", "[tool.x]\n"])
def test_a_repository_that_declares_nothing_is_no_error(tmp_path: Path, text: str) -> None:
    write(tmp_path, pyproject_dot_toml=text)
    assert read_declared(tmp_path) == Declared("", UNKNOWN_VERSION)
