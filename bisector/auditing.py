"""`audit`: runs commits whose verdict would be inherited, and says where a real run contradicts it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bisector import report
from bisector.bench import Order
from bisector.candidates import Candidates
from bisector.compare import largest_differences
from bisector.daemon import Progress
from bisector.errors import BisectorError
from bisector.model import Config, Environment, Role, Run
from bisector.probing import make_runs
from bisector.session import Session


@dataclass(frozen=True, slots=True)
class Audited:
    """One commit that touches nothing that the run of `source` read, with what its own run showed."""

    config: str
    sha: str
    source: str
    contradiction: str  # how the two runs differ; empty if they are equal to the bit


@dataclass(slots=True)
class _Audit:
    """The runs of one config over the range: each position's, as far as they are known."""

    config: Config
    environment: Environment
    commits: Sequence[str]
    candidates: Candidates
    runs: dict[int, Run] = field(default_factory=dict)

    def source(self, position: int) -> int:
        """Return the position that vouches for another, as far as is known: the next one to be run, or
        the position itself where it touches what was read before."""
        place = 0
        while place in self.runs and place < position:
            footprint = self.runs[place].result.footprint
            if footprint is None:
                place += 1
                continue
            later = [m for m in self.candidates.touching(footprint) if place < m <= position]
            if not later:
                return place
            place = later[-1]
        return place

    def sampled(self, size: int) -> list[int]:
        """Return positions that may inherit from what is known, spread evenly over the range."""
        first = self.runs.get(0)
        footprint = first.result.footprint if first else None
        touching = set(self.candidates.touching(footprint)) if footprint else set()
        free = [p for p in range(1, len(self.commits)) if p not in touching] if footprint else []
        return [free[n * len(free) // size] for n in range(size)] if len(free) > size else free

    def missing(self, size: int) -> set[int]:
        """Return the positions that are still to be run."""
        pairs = ((self.source(p), p) for p in self.sampled(size))
        wanted = {0} | {each for source, p in pairs if source != p for each in (source, p)}
        return wanted - self.runs.keys()

    def found(self, size: int) -> Iterator[Audited]:
        """Yield what was audited, oldest first."""
        for position in self.sampled(size):
            source = self.source(position)
            if source != position:
                before, after = self.runs[source], self.runs[position]
                pair = self.commits[position], self.commits[source]
                yield Audited(self.config.name, *pair, _contradiction(before, after))


def audit(session: Session, good: str, bad: str, sample: int, progress: Progress) -> list[Audited]:
    """Return, for each config, what was audited between two commits: at most `sample` commits, spread evenly."""
    repository = session.repository
    commits = repository.first_parents(repository.resolve(good), repository.resolve(bad))
    candidates = Candidates(repository, commits)
    audits = [
        _Audit(config, session.environment_of(config), commits, candidates)
        for config in session.configs()
        if config.method or config.has_footprint
    ]
    if not audits:
        raise BisectorError(
            "No config here leaves a footprint.",
            "Say `footprint = true` in the suite of a script that may inherit verdicts.",
        )
    while wanted := {(n, p) for n, each in enumerate(audits) for p in each.missing(sample)}:
        orders = {key: _order(audits[key[0]], key[1]) for key in sorted(wanted)}
        stored = {key: _stored(session, order) for key, order in orders.items()}
        made = make_runs(session, [o for key, o in orders.items() if not stored[key]], progress)
        for (number, position), order in orders.items():
            audits[number].runs[position] = stored[number, position] or made[order]
    for each in audits:
        result = each.runs[0].result
        if result.footprint is None:
            raise BisectorError(
                f"{each.config.name} left no footprint at {commits[0][:10]}: "
                f"{result.reason or 'something could not be followed'}.",
                "Begin with a commit that trains here.",
            )
    return [found for each in audits for found in each.found(sample)]


def _order(audit: _Audit, position: int) -> Order:
    sha = audit.commits[position]
    return Order(None, sha, Role.TEST, audit.config, audit.environment)


def _stored(session: Session, order: Order) -> Run | None:
    return session.store.completed_run(order.sha, order.config.digest, order.environment.id)


def _contradiction(before: Run, after: Run) -> str:
    """Return how two runs that must be equal differ; empty if they do not."""
    one, other = before.result, after.result
    if one.crash or other.crash or not (one.has_trained and other.has_trained):
        crashes = [r.crash.signature if r.crash else None for r in (one, other)]
        is_same = one.status is other.status and crashes[0] == crashes[1]
        return "" if is_same else f"one {one.status}, the other {other.status}"
    found = largest_differences(one.trajectory, other.trajectory)
    if not any(found.values()):
        return ""
    return f"loss differs by up to {found['loss']:.1e}, grad_norm by up to {found['grad_norm']:.1e}"


def lines(found: Sequence[Audited]) -> list[tuple[str, str]]:
    """Return how many inherited verdicts held, and those that did not, as (label, text) lines."""
    wrong = [each for each in found if each.contradiction]
    held = report.count(len(found) - len(wrong), "inherited verdict")
    head = f"{held} held" + (f", {len(wrong)} did not" if wrong else "")
    told = [("", head)]
    for each in wrong:
        told.append((each.config, f"{each.sha[:10]} touches nothing that {each.source[:10]} read"))
        told.append(("", f"but {each.contradiction}"))
    return told


def to_json(found: Sequence[Audited]) -> list[dict[str, object]]:
    """Return what was audited as JSON."""
    return [
        {
            "config": each.config,
            "sha": each.sha,
            "source": each.source,
            "is_contradicted": bool(each.contradiction),
            "reason": each.contradiction,
        }
        for each in found
    ]
