"""Goes on from a release that moved a trajectory to the commits that it is made of."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bisector import hunting
from bisector.case import Case
from bisector.daemon import Progress
from bisector.dissecting import begin
from bisector.errors import BisectorError
from bisector.ranges import Asked, AskedSource, resolve
from bisector.releases import list_releases
from bisector.report import Report
from bisector.session import HuntOptions, Session


def hunt_source(
    session: Session,
    asked: Asked,
    options: HuntOptions,
    progress: Progress,
    expect: Callable[[list[Case]], None],
) -> tuple[list[Report], list[str]]:
    """Return a report of the releases for each config, and behind each that names one a report of its commits,
    which stand in the repository `asked.source`, or a note of why they could not be searched; the commits alone
    where the ends are no releases."""
    name = asked.package
    if not name:
        raise BisectorError(
            "--source names the repository of a package, and no package is searched.",
            "Name it with --package, or leave --source away.",
        )
    releases = list_releases(name)
    if not any(release.is_pure for release in releases):
        raise BisectorError(
            f"No release of {name} is pure Python, so its commits would have to be compiled.",
            "Leave --source away, and search its releases alone.",
        )

    def commits(older: str, newer: str) -> AskedSource:
        return AskedSource(name, asked.source, older, newer, asked.at, asked.pins)

    whole = commits(asked.good, asked.bad)
    if {asked.good, asked.bad}.isdisjoint(release.version for release in releases):
        return hunting.hunt(session, whole, options, progress, expect), []
    resolve(session, whole)  # before anything is spent
    reports: list[Report] = []
    notes: list[str] = []
    for found in hunting.hunt(session, asked, options, progress, expect):
        reports.append(found)
        if culprit := found.conclusion.culprit:
            inside = Session(replace(session.options, configs=(found.hunt.config.name,)))
            within = commits(culprit.parent, culprit.sha)
            hunt = partial(hunting.hunt, inside, within, options, progress, expect)
            made, lack = begin(f"the commits of {name} {culprit.sha}", hunt)
            reports += made
            notes += lack
    return reports, notes
