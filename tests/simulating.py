"""The service's core on histories in memory: a trainer that is a function, and a ledger that is dicts."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bisector.acts import Make, Open, Revert, Snapshot
from bisector.agenda import Agenda, make_agenda
from bisector.case import Case, Start
from bisector.contents import Footprint
from bisector.model import (
    CONFLICTS,
    Conclusion,
    Config,
    Crash,
    Environment,
    Event,
    Hunt,
    Role,
    Run,
    RunResult,
    Status,
    Step,
    Tolerances,
)
from bisector.plan import Conclude
from bisector.ruling import Facts, accept, rule
from bisector.standing import Settled, Track
from bisector.telling import Record, Tell
from bisector.watched import Anchor, Epoch, Inquiry, Regression, Turn

READ = Footprint(frozenset({"t.py"}))
LIMITS = {"loss": 1e-3, "grad_norm": 1e-1}
TOLERANCES = Tolerances(LIMITS, {"loss": 1e-5, "grad_norm": 1e-3})


def make_config(
    name: str, class_name: str = "toy", *, is_canonical: bool = True, **args: str
) -> Config:
    return Config(
        *(name, "toy", class_name, is_canonical, None, "t.py", args, (), 1, (), TOLERANCES, ()),
        has_footprint=False,
        digest=name,
    )


def make_environment(version: str) -> Environment:
    return Environment(version, "3.11", {"lib": version}, "cpu", 0, 1, {}, "")


@dataclass
class World:
    """A branch whose commit n has `flags[n]`; flags move the trajectory together, not one by one.

    A flag "x@member" moves that member only; "crash" and "setup" do what they say. With `has_footprints`
    the commits that change a flag touch what runs read, and so do those pushed as "~".
    """

    configs: Sequence[Config] = (make_config("toy"),)
    max_backlog: int = 20
    flags: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    environment: str = "e1"
    drift: float = 0.0  # moves everything, unrecorded
    clean: bool = True  # whether commits revert cleanly
    now: float = 1000.0
    hunt_hold: str = ""
    has_footprints: bool = False

    def __post_init__(self) -> None:
        self.runs: dict[str, dict[str, tuple[Run, ...]]] = {c.name: {} for c in self.configs}
        self.epochs = [Epoch(c.name, self.environment, 0.0) for c in self.configs]
        self.turns = {(c.name, "c0"): Turn(c.name, "c0") for c in self.configs}
        self.anchors: dict[tuple[str, str, str, float], Anchor] = {}
        self.inquiries: dict[str, Inquiry] = {}
        self.regressions: dict[str, Regression] = {}
        self.told: dict[str, Tell] = {}
        self.hunts: dict[str, tuple[Hunt, tuple[str, ...], Conclusion | None]] = {}
        self.hunt_runs: dict[str, list[Run]] = {}
        self.made: dict[tuple[str, tuple[str, ...]], str] = {}
        self.extra: dict[str, frozenset[str]] = {}
        self.line = ["c0"]
        self.touching: set[str] = set()
        self.parents: dict[str, str] = {}
        self.agenda: Agenda | None = None

    # The branch

    def push(self, *changes: str) -> None:
        """Add commits: "+flag", "-flag", "~" for one that touches, anything else for a harmless one.

        "!flag" adds a flag without touching what runs read, which cannot be.
        """
        for change in changes:
            flags = self.flags_at(self.line[-1])
            flags = flags | {change[1:]} if change.startswith(("+", "!")) else flags
            flags = flags - {change[1:]} if change.startswith("-") else flags
            sha = f"c{len(self.flags)}"
            self.flags.append(flags)
            if change.startswith(("+", "-", "~")):
                self.touching.add(sha)
            self.parents[sha] = self.line[-1]
            self.line.append(sha)

    def rewind(self, sha: str) -> None:
        """Push the branch anew: what came after a commit is gone."""
        self.line = self.line[: self.line.index(sha) + 1]

    def change_environment(self, version: str) -> None:
        self.environment = version
        for config in self.configs:
            self.epochs.append(Epoch(config.name, version, 0.0))

    def flags_at(self, sha: str) -> frozenset[str]:
        return self.extra[sha] if sha in self.extra else self.flags[int(sha[1:])]

    def train(self, config: Config, sha: str) -> RunResult:
        flags = self.flags_at(sha)
        mine = [f for f in flags if "@" not in f or f.endswith(f"@{config.name}")]
        if "crash" in mine:
            return RunResult(
                Status.CRASHED, (), Crash("ValueError", "t.py:main", "broken"), "broken"
            )
        if "nan" in mine:
            return RunResult(Status.COMPLETED, tuple(Step(n, math.nan, 2.0) for n in range(1, 4)))
        if "hang" in mine:
            return RunResult(Status.TIMED_OUT, reason="passed its time-out")
        if "setup" in mine:
            return RunResult(Status.SETUP_FAILED, reason="asks for more")
        moves = sorted(f for f in mine if not f.startswith("quiet"))
        text = repr((moves, self.environment if self.environment != "e1" else ""))
        size = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 1000 / 1000 + 0.01
        shift = (size if moves or self.environment != "e1" else 0.0) + self.drift
        small = 2e-4 * sum(f.startswith("quiet") for f in mine)
        steps = tuple(Step(n, 1.0 + shift + small / 1e3, 2.0) for n in range(1, 4))
        return RunResult(Status.COMPLETED, steps)

    # The service

    def settle(self, limit: int = 2000) -> None:
        """Do all that is to be done."""
        for _ in range(limit):
            if not self._step():
                return
        raise AssertionError("the service never comes to rest")

    def _step(self) -> bool:
        self.now += 1.0
        snapshot = self.snapshot()
        self.agenda = make_agenda(snapshot, [])
        for act in self.agenda.acts:
            if isinstance(act, Conclude):
                hunt, commits, _ = self.hunts[act.hunt]
                self.hunts[act.hunt] = hunt, commits, act.conclusion
                return True
            if isinstance(act, Revert):
                self._revert(act)
                return True
            hunt_id = self._begin(act) if isinstance(act, Open) and act.begins_hunt else ""
            environments = {e.environment: make_environment(e.environment) for e in self.epochs}
            if self.write(rule(act, snapshot, Facts(environments, hunt_id))):
                return True
        for work in self.agenda.work[:1]:
            self._run(work)
            return True
        return False

    def start(self, config: str, sha: str) -> None:
        """Have a commit tested out of turn."""
        self.now += 1.0
        self._run(Make(config, sha, Role.TEST))

    def _run(self, work: Start | Make) -> None:
        name = self.hunts[work.hunt][0].config.name if isinstance(work, Start) else work.config
        config = next(c for c in self.configs if c.name == name)
        hunt = work.hunt if isinstance(work, Start) else None
        without = work.without if isinstance(work, Start) else ""
        result = self._with_footprint(self.train(config, work.sha))
        if without:
            made = self._without(work.sha, [without])
            is_clean = made is not None
            self.extra["without"] = made or frozenset()
            conflict = RunResult(Status.SETUP_FAILED, reason=CONFLICTS)
            result = self.train(config, "without") if is_clean else conflict
        count = sum(len(runs) for runs in self.runs[name].values())
        run = Run(
            f"{name}-{count}",
            hunt,
            work.sha,
            work.role,
            result,
            self.now,
            self.environment,
        )
        if work.role is Role.REVERT:
            assert hunt
            self.hunt_runs[hunt].append(run)
            return
        self.runs[name][work.sha] = (*self.runs[name].get(work.sha, ()), run)
        if hunt:
            self.hunt_runs[hunt].append(run)

    def _with_footprint(self, result: RunResult) -> RunResult:
        is_whole = self.has_footprints and result.status in (Status.COMPLETED, Status.CRASHED)
        return replace(result, footprint=READ) if is_whole else result

    def _marks(self, commits: Sequence[str]) -> dict[Footprint, tuple[int, ...]]:
        return {READ: tuple(n for n, sha in enumerate(commits) if n and sha in self.touching)}

    def _begin(self, act: Open) -> str:
        config = next(c for c in self.configs if c.name == act.config)
        id_ = f"h{len(self.hunts)}"
        commits = tuple(self.line[self.line.index(act.good) : self.line.index(act.bad) + 1])
        found = make_environment(self.environment)
        hunt = Hunt(id_, "r", act.good, act.bad, len(commits) - 1, config, found)
        self.hunts[id_] = hunt, commits, None
        self.hunt_runs[id_] = []
        return id_

    def _without(self, sha: str, reverts: Sequence[str]) -> frozenset[str] | None:
        """Return the flags of a commit with others reverted; None where that is not clean."""
        flags = self.flags_at(sha)
        for each in reverts:
            after, before = self.flags_at(each), self.flags_at(self.parents[each])
            flags = (flags - (after - before)) | (before - after)
        return flags if self.clean else None

    def _revert(self, act: Revert) -> None:
        made, flags = "", self._without(act.sha, act.reverts)
        if flags is not None:
            made = f"m{len(self.made)}"
            self.extra[made] = flags
        self.made[act.sha, act.reverts] = made

    def write(self, record: Record) -> bool:
        tells = [
            tell
            for tell in record.tells
            if tell.key not in self.told and (not tell.answers or tell.answers in self.told)
        ]
        changed = any(getattr(record, name) for name in Record.__slots__ if name != "tells")
        self.told |= {tell.key: tell for tell in tells}
        self.epochs += record.epochs
        for turn in (*record.restarts, *record.turns):
            self.turns[turn.config, turn.sha] = turn
        for turn in record.restarts:
            for key in [k for k in self.turns if k[0] == turn.config and k[1] != turn.sha]:
                del self.turns[key]
        for anchor in record.anchors:
            self.anchors[anchor.config, anchor.turn, anchor.environment, anchor.since] = anchor
        self.inquiries |= {inquiry.id: inquiry for inquiry in record.inquiries}
        for id_ in record.ended:
            del self.inquiries[id_]
        self.regressions |= {found.id: found for found in record.regressions}
        return bool(tells) or changed

    def accept(self, regression: str) -> None:
        self.write(accept(self.regressions[regression], "intended"))

    def snapshot(self) -> Snapshot:
        hunts = [self.hunts[i.hunt] for i in self.inquiries.values() if i.hunt]
        return Snapshot(
            now=self.now,
            tracks=tuple(self._track(config) for config in self.configs),
            inquiries=tuple(self.inquiries.values()),
            cases=tuple(
                Case(hunt, commits, tuple(self.hunt_runs[hunt.id]), marks=self._marks(commits))
                for hunt, commits, conclusion in hunts
                if not conclusion
            ),
            conclusions={hunt.id: c for hunt, _, c in hunts if c},
            regressions=dict(self.regressions),
            reverted=dict(self.made),
            hunt_hold=self.hunt_hold,
        )

    def _track(self, config: Config) -> Track:
        name = config.name
        turns = sorted(
            (t for t in self.turns.values() if t.config == name and t.sha in self.line),
            key=lambda t: self.line.index(t.sha),
        )
        by_id = {run.id: run for runs in self.runs[name].values() for run in runs}
        return Track(
            config=config,
            commits=tuple(self.line[self.line.index(turns[0].sha) :]),
            turns=tuple(turns),
            epochs=tuple(e for e in self.epochs if e.config == name),
            anchors={
                (a.turn, a.environment, a.since): Settled(a.run, a.sha, by_id[a.run].result)
                for a in self.anchors.values()
                if a.config == name
            },
            runs=self.runs[name],
            states={found.id: found.state for found in self.regressions.values()},
            max_backlog=self.max_backlog,
            backfilled_from="c0",
            touching={READ: self.touching},
        )

    # What came of it

    @property
    def events(self) -> list[Event]:
        """Return the events told, in order."""
        return [tell.event for tell in self.told.values()]

    def verdicts(self, config: str = "toy") -> list[str]:
        assert self.agenda
        return [str(standing.word) for standing in self.agenda.walks[config].standings]

    def states(self) -> dict[str, str]:
        """Return the state of each regression by its culprit."""
        return {found.culprit: str(found.state) for found in self.regressions.values()}

    def count_runs(self) -> int:
        return sum(len(runs) for by_sha in self.runs.values() for runs in by_sha.values())
