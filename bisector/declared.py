"""Reads what a checkout declares about itself: name, version, requirements, scripts. Reads syntax, runs nothing."""

import ast
import configparser
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bisector.model import UNKNOWN_VERSION, Declared

Read = Callable[[str], bytes]  # returns a file of the checkout; OSError where there is none


def read_declared(checkout: Path) -> Declared:
    """Return the metadata in `pyproject.toml` or, in older checkouts, in `setup.cfg` or `setup.py`."""
    return parse_declared(lambda name: (checkout / name).read_bytes())


def parse_declared(read: Read) -> Declared:
    """Return the metadata of the checkout whose files `read` returns."""
    project: dict[str, Any] = {}
    dynamic: dict[str, Any] = {}
    try:
        parsed = tomllib.loads(_text(read, "pyproject.toml"))
        project = parsed.get("project", {})
        dynamic = parsed.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    except tomllib.TOMLDecodeError:
        pass
    if not project.get("name"):
        found = _read_cfg(read)
        return found if found.name else _read_setup(read)
    name = project["name"]
    return Declared(
        name=name,
        version=project.get("version")
        or _dynamic_version(read, dynamic.get("version", {}))
        or _version_constant(read, f"{name}/__init__.py")
        or UNKNOWN_VERSION,
        requirements=tuple(project.get("dependencies", ())),
        requires_python=project.get("requires-python", ""),
        scripts=tuple(sorted(map(str, project.get("scripts", {}).items()))),
    )


def _text(read: Read, name: str) -> str:
    """Return a file's text; empty where there is none, or no text in it."""
    try:
        return read(name).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _dynamic_version(read: Read, source: Mapping[str, Any]) -> str:
    """Follow setuptools' `version = {file = …}` or `{attr = "package.name"}`."""
    files = source.get("file", [])
    for file in [files] if isinstance(files, str) else files:
        if version := _text(read, file).strip():
            return version
    module = str(source.get("attr", "")).rpartition(".")[0].replace(".", "/")
    if not module:
        return ""
    return _version_constant(read, f"{module}/__init__.py") or _version_constant(
        read, f"{module}.py"
    )


def _read_cfg(read: Read) -> Declared:
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(read, "setup.cfg"))
    except configparser.Error:
        return Declared()
    name, version = (parser.get("metadata", key, fallback="") for key in ("name", "version"))
    kind, _, source = version.partition(":")
    if kind in ("file", "attr"):
        version = _dynamic_version(read, {kind: source.strip()})
    return Declared(
        name=name,
        version=version or UNKNOWN_VERSION,
        requirements=_lines(parser.get("options", "install_requires", fallback="")),
        requires_python=parser.get("options", "python_requires", fallback=""),
        scripts=_lines(parser.get("options.entry_points", "console_scripts", fallback="")),
    )


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _read_setup(read: Read) -> Declared:
    tree = _parse(read, "setup.py")
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
        or _version_constant(read, f"{name}/__init__.py")
        or UNKNOWN_VERSION,
        requirements=tuple(r for r in requirements if isinstance(r, str))
        if isinstance(requirements, list)
        else (),
        requires_python=str(given.get("python_requires") or ""),
        scripts=(str(given["entry_points"]),) if given.get("entry_points") else (),
    )


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """Return a literal, following one name; None for what would have to be run."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _version_constant(read: Read, name: str) -> str:
    for node in ast.walk(_parse(read, name)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "__version__" in names and re.match(r"\d", str(node.value.value)):
                return str(node.value.value)
    return ""


def _parse(read: Read, name: str) -> ast.Module:
    try:
        return ast.parse(_text(read, name))
    except (SyntaxError, ValueError):
        return ast.Module([], [])
