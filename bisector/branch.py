"""The watched branch as it is stored: reads ledger, runs and history into the tracks that the core looks at."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bisector.acts import Snapshot
from bisector.candidates import Candidates, Ranges
from bisector.case import Case
from bisector.config import references_dir
from bisector.contents import Footprint
from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.model import (
    Conclusion,
    Config,
    Environment,
    Outcome,
    Run,
    RunResult,
    Status,
)
from bisector.references import load_reference
from bisector.repo import Repository
from bisector.session import Session
from bisector.slots import Lock
from bisector.standing import Settled, Track
from bisector.watched import Anchor, Epoch, RegressionState, Turn

WINDOW = 200  # commits that are looked at; what is older has its verdict, or is left alone


class Branch:
    """One branch of one repository, for the configs that are watched."""

    def __init__(
        self,
        session: Session,
        repository: Repository,
        ledger: Ledger,
        configs: Sequence[Config],
        *,
        drives_hunts: bool = True,
    ) -> None:
        self._drives_hunts = drives_hunts
        self._session, self._repository, self._ledger = session, repository, ledger
        self.configs = {config.name: config for config in configs}
        self._by_digest: dict[str, list[str]] = {}
        for config in configs:
            self._by_digest.setdefault(config.digest, []).append(config.name)
        self._windows = Ranges(session, repository)
        self._take([])
        self._runs: dict[str, dict[str, tuple[Run, ...]]] = {name: {} for name in self.configs}
        self._kept: set[str] = set()
        self._number = 0
        self._memo: dict[str, dict[tuple[str, str], list[object]]] = {n: {} for n in self.configs}
        self._locks: dict[str, Lock] = {}
        self._ranges: dict[str, tuple[str, ...]] = {}
        self.head = ""

    # The history

    def _take(self, line: list[str]) -> None:
        self._line = line
        self._order = {sha: position for position, sha in enumerate(line)}
        self._windows.forget()

    def move_to(self, head: str) -> None:
        """Take a head, of a branch that may have been pushed anew."""
        start = self._ledger.get("start") or head
        line = self._repository.line(start, head)
        if not line:
            start, line = head, [head]
        self._take(line)
        self.head = head
        if self._ledger.get("start") != start:
            self._ledger.set("start", start)
            self._ledger.set("floor", head)
        if self._ledger.get("head") != head:
            self._ledger.set("head", head)

    def recall(self) -> bool:
        """Take the head that is stored; False where nothing was watched yet."""
        start, self.head = self._ledger.get("start"), self._ledger.get("head")
        self._take(self._repository.line(start, self.head) if start and self.head else [])
        on_line = {turn.config for turn in self._ledger.turns() if turn.sha in self._order}
        return on_line >= self.configs.keys() and bool(self._line)

    def begin(self, environments: Mapping[str, Environment]) -> None:
        """Give every config a start and an epoch, and the reference of its class where it has one here."""
        started = {turn.config for turn in self._ledger.turns() if turn.sha in self._order}
        now = {epoch.config: epoch for epoch in self._ledger.epochs()}
        since = {(e.config, e.environment): e.since for e in self._ledger.epochs()}
        for name, config in self.configs.items():
            environment = environments[name]
            if name not in now or now[name].environment != environment.id:
                self._session.store.add_environment(environment)
                again = since.get((name, environment.id), 0.0)
                self._ledger.write(epochs=[Epoch(name, environment.id, again)])
            if name not in started:
                self._start(config, environment)

    def _start(self, config: Config, environment: Environment) -> None:
        found = find_reference(self._session, config, environment)
        sha = self._before_what_is_open(config)
        if found:
            line = self._repository.line(found[1], self.head) if found[1] else []
            sha = line[0] if line else sha
            if line and sha not in self._order:
                self._take(line)
                self._ledger.set("start", sha)
        anchors = []
        if found:
            anchors.append(Anchor(config.name, sha, environment.id, 0.0, sha, path=str(found[0])))
        self._ledger.write(restarts=[Turn(config.name, sha)], anchors=anchors)

    def _before_what_is_open(self, config: Config) -> str:
        """Return where a config that is new here starts: at the head, but before its class's open regressions.

        Begun in the middle of one, its mend would look like a change.
        """
        goods = [
            self._order[found.good]
            for found in self._ledger.regressions()
            if found.class_name == config.class_name
            and not found.state.is_over
            and found.good in self._order
        ]
        return self._line[min(goods)] if goods else self.head

    # The snapshot

    def snapshot(self, now: float, *, hold: str = "", hunt_hold: str = "") -> Snapshot:
        """Return all that is known, for the core."""
        ledger = self._ledger
        regressions = {found.id: found for found in ledger.regressions()}
        turns, anchors = ledger.turns(), ledger.anchors()
        reverted = self.reverted()
        wanted = {turn.sha for turn in turns} | {a.sha for a in anchors} | set(reverted.values())
        for found in regressions.values():
            if not found.state.is_over:
                wanted |= {found.good, found.bad, found.culprit, found.parent}
        self._load(wanted | set(self._line[-WINDOW:]))
        states = {found.id: found.state for found in regressions.values()}
        epochs = ledger.epochs()
        tracks = tuple(
            self._track(
                name,
                [turn for turn in turns if turn.config == name],
                [anchor for anchor in anchors if anchor.config == name],
                [epoch for epoch in epochs if epoch.config == name],
                states=states,
            )
            for name in self.configs
        )
        inquiries = tuple(ledger.inquiries())
        cases, conclusions = self._hunts([i.hunt for i in inquiries if i.hunt])
        return Snapshot(
            now=now,
            tracks=tracks,
            inquiries=inquiries,
            cases=tuple(cases),
            conclusions=conclusions,
            regressions=regressions,
            reverted=reverted,
            hold=hold,
            hunt_hold=hunt_hold,
        )

    def _track(
        self,
        name: str,
        turns: list[Turn],
        anchors: list[Anchor],
        epochs: list[Epoch],
        *,
        states: Mapping[str, RegressionState],
    ) -> Track:
        order = self._order
        on_line = sorted((t for t in turns if t.sha in order), key=lambda t: order[t.sha])
        first = max(order[on_line[0].sha], len(self._line) - WINDOW)
        settled = {}
        for anchor in anchors:
            found = self._settle(name, anchor)
            if found:
                settled[anchor.turn, anchor.environment, anchor.since] = found
        return Track(
            config=self.configs[name],
            commits=tuple(self._line[first:]),
            turns=tuple(on_line),
            epochs=tuple(epochs),
            anchors=settled,
            runs=self._runs[name],
            states=states,
            max_backlog=self._session.settings.watch.max_backlog,
            backfilled_from=self._ledger.get("floor"),
            touching=self._touching(self._runs[name]),
            memo=self._memo[name],  # type: ignore[arg-type]
        )

    def _touching(self, runs: Mapping[str, Sequence[Run]]) -> dict[Footprint, frozenset[str]]:
        """Return the commits of the window that touch each footprint of these runs."""
        window = tuple(self._line[-WINDOW:])
        candidates = self.candidates(window)
        if candidates is None:
            return {}
        footprints = {run.result.footprint for some in runs.values() for run in some}
        return {
            footprint: frozenset(window[position] for position in candidates.touching(footprint))
            for footprint in footprints
            if footprint
        }

    def candidates(self, commits: tuple[str, ...]) -> Candidates | None:
        """Return what tells which of these commits can matter; None where the settings do not ask for it."""
        return self._windows.candidates(commits)

    def _settle(self, name: str, anchor: Anchor) -> Settled | None:
        if anchor.path:
            reference = load_reference(Path(anchor.path))
            result = RunResult(Status.COMPLETED, reference.trajectory)
            return Settled(anchor.path, anchor.sha, result)
        runs = self._runs[name].get(anchor.sha, ())
        run = next((run for run in runs if run.id == anchor.run), None)
        return Settled(run.id, anchor.sha, run.result) if run else None

    def _load(self, wanted: set[str]) -> None:
        """Read the runs that are new, of commits that are looked at; forget those that no longer are."""
        store = self._session.store
        digests = list(self._by_digest)
        newest = store.last_number()  # first: what is stored meanwhile is read the next time
        found = store.runs_after(self._number, digests, self._kept) if self._kept else []
        fresh = store.runs_at(digests, sorted(wanted - self._kept))
        self._number, self._kept = newest, wanted
        for run, digest in (*fresh, *found):
            if run.result.status is Status.STOPPED_EARLY:
                continue  # of a hunt by hand: the service compares whole runs
            for name in self._by_digest[digest]:
                known = self._runs[name].get(run.sha, ())
                if run.id not in {each.id for each in known}:
                    runs = sorted((*known, run), key=lambda run: (run.started, run.id))
                    self._runs[name][run.sha] = tuple(runs)
        for name, by_sha in self._runs.items():
            for sha in by_sha.keys() - wanted:
                del by_sha[sha]
            if len(self._memo[name]) > 20 * WINDOW:
                self._memo[name].clear()

    def _hunts(self, ids: Iterable[str]) -> tuple[list[Case], dict[str, Conclusion]]:
        """Return the hunts to drive and the answers of those that have one; a hunt that another process
        runs is only waited for."""
        cases, conclusions = [], {}
        store = self._session.store
        for id_ in ids:
            stored = store.hunt(id_)
            if stored is None:
                continue
            hunt, conclusion = stored
            if conclusion:
                conclusions[id_] = conclusion
                if id_ in self._locks:
                    self._locks.pop(id_).release()
            elif self._is_ours(id_):
                if id_ not in self._ranges:
                    self._ranges[id_] = tuple(self._repository.line(hunt.good, hunt.bad))
                if not self._ranges[id_]:  # pushed away
                    reason = "its commits left the branch"
                    conclusions[id_] = Conclusion(Outcome.CONTRADICTION, reason)
                    continue
                case = Case(hunt, self._ranges[id_], store.runs_of(id_))
                cases.append(self._windows.mark(case))
        return cases, conclusions

    def _is_ours(self, hunt: str) -> bool:
        if hunt in self._locks or not self._drives_hunts:
            return True
        lock = Lock(self._session.state / "locks" / f"{hunt}.lock")
        if not lock.acquire():
            return False
        self._locks[hunt] = lock
        return True

    def close(self) -> None:
        """Give the hunts to whoever goes on with them."""
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    def reverted(self) -> dict[tuple[str, tuple[str, ...]], str]:
        """Return the commits that were made by reverting."""
        stored = self._ledger.values("reverted ")
        return {
            (sha, tuple(reverts)): made
            for key, made in stored.items()
            for sha, *reverts in [json.loads(key)]
        }

    def forget_reverted(self) -> None:
        """Have the reverts made again: the mirror is another one."""
        self._ledger.drop("reverted ")

    def keep_reverted(self, sha: str, reverts: Sequence[str], made: str) -> None:
        """Remember a commit that was made by reverting; empty: it is not clean."""
        self._ledger.set(f"reverted {json.dumps([sha, *reverts])}", made)


def find_reference(
    session: Session, config: Config, environment: Environment
) -> tuple[Path, str] | None:
    """Return the class's reference for this device and environment, and the commit of its label."""
    from bisector.probing import COMPARABLE, own_references, reference_environment

    here = reference_environment(environment, "")
    for folder in (own_references(session), references_dir()):
        path = folder / f"{config.class_name}.json"
        if folder == references_dir() and session.suite.name != "h100":
            continue
        try:
            recorded = load_reference(path).environment
        except BisectorError:
            continue
        if all(recorded.get(key) == here[key] for key in COMPARABLE):
            return path, recorded.get("trl", "")
    return None
