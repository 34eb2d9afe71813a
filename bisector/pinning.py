"""Which versions to install, in place of what is here, to have a recorded environment; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from bisector.versions import Nearest


@dataclass(frozen=True, slots=True)
class Pins:
    """Versions to install by package, and what a person should know of how they were chosen."""

    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()


def missing_releases(packages: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return the packages recorded in a development version that is not installed: what their releases are has
    to be known."""
    return [
        name
        for name, version in packages.items()
        if installed.get(name) != version and (found := _parse(version)) and found.is_devrelease
    ]


def pin(
    packages: Mapping[str, str],
    installed: Mapping[str, str],
    near: Mapping[str, Nearest],
) -> Pins:
    """Return the versions that make the installed packages the recorded ones.

    `near` has the releases around each development version; the later one is taken, which has most of it. A
    version that only one builder has (`2.11.0+cu128`) cannot be had from an index, so the installed one is kept.
    """
    versions: dict[str, str] = {}
    notes: list[str] = []
    for name, recorded in packages.items():
        here = installed.get(name, "")
        version = _parse(recorded)
        if version is None:
            notes.append(f"{name} {recorded} is no version, so {name} {here or 'is not there'}")
        elif here and _is_same(version, here):
            continue
        elif version.local:
            kept = f"{here} is kept" if here else "it is left out"
            notes.append(f"{name} {recorded} is a build that no index has: {kept}")
        elif version.is_devrelease:
            chosen = near[name].after or near[name].before
            taken = f"{chosen} is taken" if chosen else f"{here or 'none'} is kept"
            notes.append(f"{name} {near[name].sentence.rstrip('.')}: {taken}")
            if chosen and not (here and _is_same(Version(chosen), here)):
                versions[name] = chosen
        else:
            versions[name] = recorded
    return Pins(versions, tuple(notes))


def _parse(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _is_same(version: Version, installed: str) -> bool:
    """Whether they are one version; builds of it count as the same."""
    here = _parse(installed)
    return here is not None and version.public == here.public
