"""Decides which releases of a package a hunt goes over. Pure: the releases are given."""

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from bisector.errors import BisectorError
from bisector.model import Release


@dataclass(frozen=True, slots=True)
class Nearest:
    """The last release before a version and the first after it ("" where there is none).

    Both are the version itself, and `sentence` is empty, where it is a release.
    """

    before: str
    after: str
    sentence: str


def between(releases: Sequence[Release], old: str, new: str) -> list[str]:
    """Return the versions from `old` to `new`, both included, oldest first.

    Pre-releases in between count only when an end is one. What was yanked counts, and so does what cannot be
    installed here: either may have moved what the releases after it show.
    """
    first, last = read_version(old), read_version(new)
    if first == last:
        raise BisectorError(
            "Both ends are the same release, so there is nothing to hunt.", "Give two releases."
        )
    if first > last:
        raise BisectorError(
            f"{old} is newer than {new}.", f"Give the older release first: {new} {old}."
        )
    known = {read_version(each.version): each for each in releases}
    for end in (first, last):
        if end not in known:
            raise BisectorError(
                f"{end} is no release of this package.", _advise(nearest(str(end), releases))
            )
    has_previews = first.is_prerelease or last.is_prerelease
    return [
        each.version
        for version, each in sorted(known.items(), key=lambda item: item[0])
        if version in (first, last)
        or (first < version < last and (has_previews or not version.is_prerelease))
    ]


def nearest(version: str, releases: Sequence[Release]) -> Nearest:
    """Return the releases around a version, such as a development version in a record.

    Only final releases that were not yanked stand for another; a local build stands for its release.
    """
    wanted = Version(read_version(version).public)
    known = sorted(read_version(each.version) for each in releases)
    if wanted in known:
        return Nearest(str(wanted), str(wanted), "")
    final = sorted(
        found
        for each in releases
        if not each.is_yanked and not (found := read_version(each.version)).is_prerelease
    )
    before = str(max(older)) if (older := [each for each in final if each < wanted]) else ""
    after = str(min(newer)) if (newer := [each for each in final if each > wanted]) else ""
    around = [f"{before}, the last before it"] * bool(before)
    around += [f"{after}, the first after it"] * bool(after)
    found_text = f"its nearest are {' and '.join(around)}" if around else "and none is near it"
    return Nearest(before, after, f"{version} is no release; {found_text}.")


def _advise(found: Nearest) -> str:
    around = " or ".join(each for each in (found.before, found.after) if each)
    return f"The nearest releases: {around}." if around else "The package has no release."


def read_version(text: str) -> Version:
    """Return what a person wrote as a version; BisectorError where it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        raise BisectorError(
            f"{text!r} is no version.", "Write it as the index does, such as 5.7.0."
        ) from None


def package_name(text: str) -> str:
    """Return the one spelling of a package's name; BisectorError where it is none."""
    try:
        return str(canonicalize_name(text, validate=True))
    except InvalidName:
        raise BisectorError(
            f"{text!r} is no name of a package.", "Write it as `pip list` does."
        ) from None
