"""The range that a hunt searches: the commits from one to another or, at one commit, the releases of a package,
or the changes of packages from one environment to another."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from bisector.errors import BisectorError
from bisector.model import Axis
from bisector.releases import list_releases
from bisector.repo import Repository
from bisector.resolving import ASIDE
from bisector.session import Range, Session
from bisector.versions import between, package_name, read_version

BEFORE = "no change"  # the first place on the way from one environment to another


@dataclass(frozen=True, slots=True)
class Asked:
    """A range as a person gave it: two commits or, with `package`, two of its versions at commit `at`."""

    good: str
    bad: str
    skip: tuple[str, ...] = ()
    package: str = ""
    at: str = ""
    source: str = ""  # the package's repository, to go on to its commits
    pins: Mapping[str, str] = field(default_factory=dict)  # of every place of a package's range


@dataclass(frozen=True, slots=True)
class AskedChanges:
    """The way from one environment to another at commit `at`: `pins` holds for all of it, and each of `changes`
    (package, version before, version since; "" for none) is made on top of those before it."""

    at: str
    pins: Mapping[str, str]
    changes: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class AskedSource:
    """The commits of a package's repository from one release, or revision, to a newer one, installed at commit
    `at` of the one that is hunted in."""

    package: str
    source: str
    older: str
    newer: str
    at: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)


Ask = Asked | AskedChanges | AskedSource


def resolve(session: Session, asked: Ask) -> Range:
    """Return the places from good to bad; BisectorError where they cannot be a range."""
    if isinstance(asked, AskedSource):
        return _commits_of_package(session, asked)
    if isinstance(asked, AskedChanges):
        return _changes(session, asked)
    if asked.package:
        return _releases(session, asked)
    if asked.at:
        raise BisectorError(
            "--at holds the repository at one commit, and this hunt searches commits.",
            "Name a package too (--package), or leave --at away.",
        )
    repository = session.repository
    good, bad = repository.resolve(asked.good), repository.resolve(asked.bad)
    commits = tuple(repository.first_parents(good, bad))
    skip = tuple(repository.resolve(revision) for revision in asked.skip)
    return Range(commits, _inside(skip, commits))


def _releases(session: Session, asked: Asked) -> Range:
    name = package_name(asked.package)
    if name in ASIDE:
        raise BisectorError(
            f"No release of {name} is installed in a hunt: each commit brings its own.",
            f"Hunt {name}'s commits: leave --package away.",
        )
    versions = tuple(between(list_releases(name), asked.good, asked.bad))
    known = {read_version(version): version for version in versions}
    skip = tuple(known.get(read_version(each), each) for each in asked.skip)
    return Range(
        versions,
        _inside(skip, versions),
        axis=Axis.PACKAGE,
        package=name,
        at=session.repository.resolve(asked.at or "HEAD"),
        pins={version: {**asked.pins, name: version} for version in versions},
    )


def _commits_of_package(session: Session, asked: AskedSource) -> Range:
    """Return the commits of the newer release that the older one has not, behind the one where they part."""
    repository = Repository(asked.source, session.state)
    repository.update()
    older, newer = (
        _commit_of(repository, asked.package, end) for end in (asked.older, asked.newer)
    )
    commits = tuple(repository.commits_since(older, newer))
    place = f"git+{repository.path.absolute().as_uri()}"
    return Range(
        commits,
        axis=Axis.SOURCE,
        package=asked.package,
        source=repository.home,
        at=session.repository.resolve(asked.at or "HEAD"),
        pins={sha: {**asked.pins, asked.package: f"{place}@{sha}"} for sha in commits},
    )


def _commit_of(repository: Repository, package: str, version: str) -> str:
    """Return the commit of a release, by the names that projects give their tags, or of a revision."""
    names = [f"{start}{version}" for start in ("v", "", f"{package}-", f"{package}-v", "release-")]
    for name in (*(f"refs/tags/{name}" for name in names), version):
        with suppress(BisectorError):
            return repository.resolve(name)
    raise BisectorError(
        f"{repository.location} has no tag of {package} {version}: looked for {', '.join(names)}.",
        "Name the repository whose releases are tagged so, or leave --source away.",
    )


def _changes(session: Session, asked: AskedChanges) -> Range:
    pins = {**asked.pins, **{name: before for name, before, _ in asked.changes}}
    places = {BEFORE: dict(pins)}
    for name, _, since in asked.changes:
        pins = {**pins, name: since}
        places[f"{name} {since or 'removed'}"] = pins
    return Range(
        tuple(places),
        axis=Axis.ENVIRONMENT,
        at=session.repository.resolve(asked.at or "HEAD"),
        pins=places,
    )


def _inside(skip: tuple[str, ...], places: tuple[str, ...]) -> tuple[str, ...]:
    for place in skip:
        if place not in places[1:-1]:
            raise BisectorError(
                f"--skip {place[:10]} is not between good and bad.",
                "Skip only what is inside the range.",
            )
    return skip
