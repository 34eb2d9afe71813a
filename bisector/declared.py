"""Reads what a checkout declares about itself: name, version, requirements. Reads syntax, runs nothing."""

import ast
import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

from bisector.model import UNKNOWN_VERSION, Declared


def read_declared(checkout: Path) -> Declared:
    """Return the metadata in `pyproject.toml` or, in older checkouts, in `setup.cfg` or `setup.py`."""
    project: dict[str, Any] = {}
    dynamic: dict[str, Any] = {}
    try:
        parsed = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))
        project = parsed.get("project", {})
        dynamic = parsed.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        pass
    if not project.get("name"):
        found = _read_cfg(checkout)
        return found if found.name else _read_setup(checkout)
    name = project["name"]
    return Declared(
        name=name,
        version=project.get("version")
        or _dynamic_version(checkout, dynamic.get("version", {}))
        or _version_constant(checkout / name / "__init__.py")
        or UNKNOWN_VERSION,
        requirements=tuple(project.get("dependencies", ())),
        requires_python=project.get("requires-python", ""),
    )


def _dynamic_version(checkout: Path, source: dict[str, Any]) -> str:
    """Follow setuptools' `version = {file = …}` or `{attr = "package.name"}`."""
    files = source.get("file", [])
    for file in [files] if isinstance(files, str) else files:
        try:
            return (checkout / file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
    module = str(source.get("attr", "")).rpartition(".")[0].replace(".", "/")
    if not module:
        return ""
    return _version_constant(checkout / module / "__init__.py") or _version_constant(
        checkout / f"{module}.py"
    )


def _read_cfg(checkout: Path) -> Declared:
    parser = configparser.ConfigParser()
    try:
        parser.read(checkout / "setup.cfg", "utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return Declared()
    name, version = (parser.get("metadata", key, fallback="") for key in ("name", "version"))
    kind, _, source = version.partition(":")
    if kind in ("file", "attr"):
        version = _dynamic_version(checkout, {kind: source.strip()})
    wanted = parser.get("options", "install_requires", fallback="").splitlines()
    return Declared(
        name=name,
        version=version or UNKNOWN_VERSION,
        requirements=tuple(line.strip() for line in wanted if line.strip()),
        requires_python=parser.get("options", "python_requires", fallback=""),
    )


def _read_setup(checkout: Path) -> Declared:
    tree = _parse(checkout / "setup.py")
    call = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "setup"
        ),
        None,
    )
    if call is None:
        return Declared()
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = {
        keyword.arg: _literal(keyword.value, constants) for keyword in call.keywords if keyword.arg
    }
    name = str(given.get("name") or "")
    requirements = given.get("install_requires") or []
    return Declared(
        name=name,
        version=str(given.get("version") or "")
        or _version_constant(checkout / name / "__init__.py")
        or UNKNOWN_VERSION,
        requirements=tuple(r for r in requirements if isinstance(r, str))
        if isinstance(requirements, list)
        else (),
        requires_python=str(given.get("python_requires") or ""),
    )


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """Return a literal, following one name; None for what would have to be run."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _version_constant(file: Path) -> str:
    for node in ast.walk(_parse(file)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names and re.match(r"\d", str(node.value.value)):
                return str(node.value.value)
    return ""


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return ast.Module([], [])
