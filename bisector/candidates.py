"""Which commits of a range can matter to runs, from their footprints and the repository."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from bisector.case import Case
from bisector.contents import CommitChange, Footprint
from bisector.declared import parse_declared
from bisector.footprint import Sieve, is_same_code, positions_touching, weigh
from bisector.model import Axis, Declared
from bisector.repo import Repository
from bisector.session import Session


class Candidates:
    """The commits of a range, oldest first, and which of them touch a footprint.

    `same_code` remembers pairs of blobs (old, new): do they hold the same code?
    """

    def __init__(
        self,
        repository: Repository,
        commits: Sequence[str],
        same_code: dict[tuple[str, str], bool] | None = None,
    ) -> None:
        self._repository, self._commits = repository, commits
        self._known: dict[Footprint, tuple[int, ...]] = {}
        self._same = {} if same_code is None else same_code

    def mark(self, case: Case) -> Case:
        """Return a case of this range with the positions that touch the footprints of its runs."""
        footprints = {run.result.footprint for run in case.runs}
        marks = {footprint: self.touching(footprint) for footprint in footprints if footprint}
        return replace(case, marks=marks, weights=case.weights or self._weigh(case))

    def _weigh(self, case: Case) -> dict[int, float]:
        """Return how likely each commit is to be the one, by what the good end read."""
        good = (run.result.footprint for run in case.runs if run.sha == case.hunt.good)
        footprint = next((each for each in good if each), None)
        if footprint is None:
            return {}
        method = case.hunt.config.method or ""
        return {
            position: weigh(self._changes[position - 1], footprint, method)
            for position in self.touching(footprint)
        }

    def touching(self, footprint: Footprint) -> tuple[int, ...]:
        """Return the positions, ascending, of the commits that can matter to a run of this footprint."""
        if footprint not in self._known:
            sieve = Sieve(footprint)
            undecided = [
                (position, None if position in self._redeclared else sieve.undecided(change))
                for position, change in enumerate(self._changes, 1)
            ]
            pairs = {(f.old_blob, f.new_blob) for _, files in undecided for f in files or ()}
            if unknown := pairs - self._same.keys():
                self._compare(unknown)
            same = {pair for pair, is_same in self._same.items() if is_same}
            self._known[footprint] = positions_touching(undecided, same)
        return self._known[footprint]

    @cached_property
    def _changes(self) -> list[CommitChange]:
        return self._repository.changes(self._commits)

    @cached_property
    def _redeclared(self) -> frozenset[int]:
        """The positions of the commits that change what the checkout declares about itself."""
        found = set()
        declared, read = self._declare(self._commits[0])
        for position, change in enumerate(self._changes, 1):
            if read.isdisjoint(file.path for file in change.files):
                continue
            before = declared
            declared, read = self._declare(self._commits[position])
            if declared != before:
                found.add(position)
        return frozenset(found)

    def _declare(self, sha: str) -> tuple[Declared, set[str]]:
        """Return what a commit declares, and the files that were read, or looked for, to know it."""
        names: set[str] = set()

        def read(name: str) -> bytes:
            names.add(name)
            (content,) = self._repository.read([f"{sha}:{name}"])
            if content is None:
                raise FileNotFoundError(name)
            return content

        return parse_declared(read), names

    def _compare(self, pairs: set[tuple[str, str]]) -> None:
        wanted = sorted(pairs)
        contents = iter(self._repository.read([blob for pair in wanted for blob in pair]))
        for pair, old, new in zip(wanted, contents, contents, strict=True):
            self._same[pair] = old is not None and new is not None and is_same_code(old, new)


class Ranges:
    """The candidates of each range that is asked for; None while the settings do not ask for footprints."""

    def __init__(self, session: Session, repository: Repository) -> None:
        self._session, self._repository = session, repository
        self._known: dict[tuple[str, ...], Candidates] = {}
        self._same_code: dict[tuple[str, str], bool] = {}

    def candidates(self, commits: tuple[str, ...]) -> Candidates | None:
        """Return what tells which of these commits can matter."""
        if not self._session.settings.train.footprints:
            return None
        if commits not in self._known:
            self._known[commits] = Candidates(self._repository, commits, self._same_code)
        return self._known[commits]

    def mark(self, case: Case) -> Case:
        """Return a case with the commits that can matter to its runs."""
        candidates = self.candidates_of(case)
        return candidates.mark(case) if candidates else case

    def candidates_of(self, case: Case) -> Candidates | None:
        """Return what tells which places of a case's range can matter; None where they are no commits."""
        return self.candidates(case.commits) if case.hunt.axis is Axis.COMMIT else None

    def forget(self) -> None:
        """Drop the ranges, of a branch that has moved; what was compared stays known."""
        self._known.clear()
