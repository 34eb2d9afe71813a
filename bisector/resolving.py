"""What uv is asked for, and what it answers, as text; pure.

`told` is what `cloner.py tell` says of the base: its Python, and its distributions by name.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ASIDE = (
    "trl",
    "bisector",
)  # each commit brings its own trl: what the installed one asks for is void
KEPT = ("torch",)  # moves only when it is pinned: it is gigabytes, and its build is the platform's
REASON_LIMIT = 300  # characters


def requirement(name: str, pin: str) -> str:
    """Return what asks for a package at a version and no local build of it, or from a URL."""
    return f"{name} @ {pin}" if "://" in pin else f"{name}==={pin}"


def wanted_line(name: str, distribution: Mapping[str, Any], pins: Mapping[str, str]) -> str:
    """Return what is asked for a package of the base: itself, or itself at its version; "" where it is pinned."""
    version = distribution["version"]
    if name in pins:
        return ""
    if name in KEPT or distribution["is_direct"]:
        return f"{name}=={version}"
    return f"{name}>=0.dev0" if Version(version).is_prerelease else name


def extras_of(name: str, version: str, told: Mapping[str, Any], pins: Mapping[str, str]) -> str:
    """Return the extras, in brackets, that the base has all packages of, and that may move with a pin.

    So transformers 5.7 takes kernels along to the release that its extra asks for; with another it is not
    even imported. What an extra asks for is not asked of packages that are pinned or kept.
    """
    distributions = told["distributions"]
    found = distributions.get(name)
    if found is None or _is_same(found["version"], version):
        return ""
    asked: dict[str, set[str]] = {}
    for text in found["requires"]:
        with suppress(InvalidRequirement):
            for extra in re.findall(r"extra *== *['\"]([^'\"]+)", text):
                asked.setdefault(extra, set()).add(str(canonicalize_name(Requirement(text).name)))
    kept = {each for each in distributions if distributions[each]["is_direct"]}
    moving = distributions.keys() - kept - pins.keys() - {*KEPT, *ASIDE, name}
    extras = sorted(extra for extra, names in asked.items() if names <= moving)
    return f"[{','.join(extras)}]" if extras else ""


def is_met(text: str, told: Mapping[str, Any]) -> bool:
    """Whether the base satisfies a requirement of its own, or has no need to."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return False
    if wanted.url or canonicalize_name(wanted.name) in ASIDE:
        return False
    python = told["python"]
    minor = ".".join(python.split(".")[:2])
    here = {
        **default_environment(),
        "python_version": minor,
        "python_full_version": python,
        "extra": "",
    }
    if wanted.marker and not wanted.marker.evaluate({k: str(v) for k, v in here.items()}):
        return True
    found = told["distributions"].get(canonicalize_name(wanted.name))
    return found is not None and wanted.specifier.contains(found["version"], prereleases=True)


def read_resolved(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return versions by name, and by name the packages that asked for it, from `uv pip compile`."""
    versions, users = {}, {}
    for line in text.splitlines():
        pinned, _, comment = line.partition(" #")
        if found := re.fullmatch(r"([^=@\s]+) ?(?:==|@) ?(\S+)\s*", pinned):
            name, version = found.groups()
            name = str(canonicalize_name(name.partition("[")[0]))
            if name not in ASIDE:
                versions[name] = version
                asked = comment.strip().removeprefix("via ").split(", ")
                users[name] = ", ".join(each for each in asked if not each.startswith("-r "))
    return versions, users


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the packages whose versions are not the same, with both; "" for none."""
    return {
        name: (old.get(name, ""), new.get(name, ""))
        for name in sorted({*old, *new})
        if not _is_same(old.get(name, ""), new.get(name, ""))
    }


def _is_same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def is_version(text: str) -> bool:
    """Whether a text is a version as the index has them."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def shorten(errors: str) -> str:
    """Return the part of uv's message that says why, on one line."""
    lines = [
        re.sub(r"^[\s×├│╰─▶]*(?:(?:error|cause): )?", "", line).rstrip()
        for line in errors.splitlines()
    ]
    lines = [line for line in lines if line and not line.startswith("warning:")]
    lines = list(takewhile(lambda line: not line.startswith("hint:"), lines)) or lines
    if "[stderr]" in lines[:-1]:  # a builder's traceback: what failed, and how it ended
        lines = [lines[0], lines[-1]]
    elif any(line.startswith("No solution found") for line in lines[:1]):
        lines = lines[1:]
    text = re.sub(r"@ git\+\S+@([0-9a-f]{10})[0-9a-f]*", r"at \1", " ".join(lines))
    return text if len(text) <= REASON_LIMIT else text[: REASON_LIMIT - 1].rstrip() + "…"
