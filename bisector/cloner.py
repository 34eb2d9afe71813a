"""Runs with an interpreter to tell which distributions it has, and to clone them into a new environment.

Run by path, never imported by bisector, with the standard library alone: `cloner.py tell` prints JSON,
`cloner.py clone` reads what to do from standard input. Files become hard links, so that a clone takes
no room; nothing is ever written through one. Only scripts are rewritten, since they name their interpreter.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import site
import sys
import sysconfig
from importlib import metadata

NO_LIST = 3  # the exit code where a package has no list of its files


def normalise(name: str) -> str:
    """Return a package's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions() -> dict[str, metadata.Distribution]:
    """Return what is installed by normalised name; of two with one name, what an import would find."""
    found: dict[str, metadata.Distribution] = {}
    for each in metadata.distributions():
        if each.metadata["Name"]:
            found.setdefault(normalise(each.metadata["Name"]), each)
    return found


def tell() -> None:
    """Print the interpreter's place, version and most specific wheel tag, and each distribution."""
    glibc = platform.libc_ver()[1].replace(".", "_") or "2_17"
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    told = {
        "prefix": sys.prefix,
        "python": platform.python_version(),
        "tag": f"{python}-{python}-manylinux_{glibc}_{platform.machine()}",
        "distributions": {
            name: {
                "version": each.version,
                "requires": each.requires or [],
                "requires_python": each.metadata["Requires-Python"] or "",
                "is_direct": each.read_text("direct_url.json") is not None,
            }
            for name, each in distributions().items()
        },
    }
    print(json.dumps(told))


def clone() -> None:
    """Link everything but the distributions `without`, and their compiled files, into another environment.

    Standard input: `prefix`, `site` and `python` of the new environment, and `without`, normalised names.
    """
    order = json.load(sys.stdin)
    installed = distributions()
    gone: set[str] = set()
    for name in order["without"]:
        files = _files_of(installed[name])
        if not files:
            print(f"{name} has no list of its files, so it cannot be replaced", file=sys.stderr)
            sys.exit(NO_LIST)
        gone |= files
    roots = _roots()
    for root in roots:
        _link_tree(root, order["site"], gone)
    for name, each in installed.items():
        if name not in order["without"]:
            for path in _files_of(each):
                _link_outside(path, roots, order)


def _roots() -> list[str]:
    """Return the directories that packages are imported from, the first found first."""
    known = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    return [os.path.realpath(path) for path in sys.path if path in known and os.path.isdir(path)]


def _files_of(distribution: metadata.Distribution) -> set[str]:
    return {
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for path in (str(distribution.locate_file(each)) for each in distribution.files or ())
    }


def _link_tree(root: str, target: str, gone: set[str]) -> None:
    for folder, subfolders, names in os.walk(root):
        place = os.path.normpath(os.path.join(target, os.path.relpath(folder, root)))
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        for name in (*names, *links):
            path = os.path.join(folder, name)
            if path not in gone and _source_of(path) not in gone:
                _link(path, os.path.join(place, name))


def _source_of(path: str) -> str:
    """Return the module that a compiled file was made from; the path itself for any other."""
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__":
        return path
    return os.path.join(os.path.dirname(folder), name.partition(".")[0] + ".py")


def _link(path: str, target: str) -> None:
    """Link, or copy where that cannot be; what an earlier directory brought stays."""
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:  # another file system, another owner, or no more links
        shutil.copy2(path, target, follow_symlinks=False)


def _link_outside(path: str, roots: list[str], order: dict[str, str]) -> None:
    """Bring one file that a distribution keeps beside the packages: a script, a header, data."""
    prefix = os.path.realpath(sys.prefix)
    if any(path.startswith(root + os.sep) for root in roots) or not os.path.isfile(path):
        return
    if not path.startswith(prefix + os.sep):
        return
    target = os.path.join(order["prefix"], os.path.relpath(path, prefix))
    if os.path.dirname(path) == os.path.realpath(sysconfig.get_path("scripts")):
        _bring_script(path, target, order["python"])
    else:
        _link(path, target)


def _bring_script(path: str, target: str, python: str) -> None:
    with open(path, "rb") as file:
        head = file.read(2)
        text = head + file.read() if head == b"#!" else b""
    places = {os.path.dirname(sys.executable), os.path.dirname(path)}
    own = rb"(?:%s)/python[0-9.]*" % b"|".join(re.escape(os.fsencode(each)) for each in places)
    text, count = re.subn(own, lambda _: os.fsencode(python), text, count=1)
    if not count or os.path.lexists(target):
        return _link(path, target)
    with open(target, "wb") as file:
        file.write(text)
    return shutil.copymode(path, target)


if __name__ == "__main__":
    {"tell": tell, "clone": clone}[sys.argv[1]]()
