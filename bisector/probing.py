"""`probe` and `record`: single commits, against a reference, another commit or a file."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisector import documents, report
from bisector.bench import POLL, Bench, Order
from bisector.compare import deviations, headline
from bisector.config import references_dir
from bisector.daemon import Progress
from bisector.errors import BisectorError, StopError
from bisector.hunting import Stop
from bisector.judge import skip_reason
from bisector.model import Config, Deviation, Environment, Role, Run, Status, Trajectory, Verdict
from bisector.references import Reference, load_reference, save_reference
from bisector.session import Session
from bisector.stopping import whole_steps

# What must be equal for a recorded reference to say anything about a commit.
COMPARABLE = ("gpu", "torch", "transformers", "accelerate")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one config showed at the commit: verdict, deviations, or why it was skipped."""

    config: Config
    verdict: Verdict
    run: Run
    against: str  # what it was compared with, in words
    deviations: tuple[Deviation, ...] = ()
    reason: str = ""


def probe(session: Session, revision: str, against: str, progress: Progress) -> list[Finding]:
    """Return what each config shows at a commit; everything that could be refused is before any run."""
    sha = session.repository.resolve(revision)
    configs = session.configs()
    environments = {config.name: session.environment_of(config) for config in configs}
    baselines = {c.name: _baseline(session, c, environments[c.name], against) for c in configs}
    orders = {
        config.name: Order(None, sha, Role.CONTROL, config, environments[config.name])
        for config in configs
    }
    others = [
        replace(order, sha=baselines[name].sha)
        for name, order in orders.items()
        if baselines[name].sha not in ("", sha)
    ]
    runs = make_runs(session, [*others, *orders.values()], progress)
    found = {
        name: _find(order, runs[order], baselines[name], runs) for name, order in orders.items()
    }
    doubtful = {
        name: replace(orders[name], sha=baselines[name].stored)
        for name, each in found.items()
        if each.verdict is Verdict.BAD and baselines[name].stored
    }
    # Nobody is called bad for a stored run alone: what it depended on may have changed unseen.
    fresh = make_runs(session, list(doubtful.values()), progress)
    for name, order in doubtful.items():
        baseline = Baseline(f"{order.sha[:10]}, run again as {fresh[order].id}", sha=order.sha)
        found[name] = _find(orders[name], runs[orders[name]], baseline, fresh)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a probe is compared with: a trajectory, or the commit whose run will give one; `stored` is the commit of
    which the trajectory is a stored run."""

    words: str
    trajectory: Trajectory = ()
    sha: str = ""
    stored: str = ""


def _baseline(session: Session, config: Config, environment: Environment, against: str) -> Baseline:
    if against.endswith(".json") or (against and Path(against).is_file()):
        reference = load_reference(Path(against))
        device = reference.environment.get("gpu", environment.gpu)
        if device != environment.gpu:
            raise BisectorError(
                f"{against} was recorded on {device}, and this machine has {environment.gpu}.",
                "Compare with a commit instead (--against COMMIT), or look at two files with "
                "`bisector compare`.",
            )
        last, steps = reference.trajectory[-1].step, whole_steps(config)
        if steps and last != steps:
            raise BisectorError(
                f"{against} ends at step {last}, and {config.name} at step {steps}.",
                "Record it again with this suite, or compare with a commit (--against COMMIT).",
            )
        return Baseline(against, reference.trajectory)
    if against:
        sha = session.repository.resolve(against)
        stored = session.store.completed_run(sha, config.digest, environment.id)
        if stored:
            words = f"{sha[:10]}, stored run {stored.id}"
            return Baseline(words, stored.result.trajectory, stored=sha)
        return Baseline(sha[:10], sha=sha)
    return _own_reference(session, config, environment)


def _own_reference(session: Session, config: Config, environment: Environment) -> Baseline:
    """Return the class's reference for this device and environment; BisectorError says how to get one."""
    remedy = (
        f"Record one here with `bisector record COMMIT {config.class_name}`, "
        "or compare with a commit: --against COMMIT."
    )
    here = reference_environment(environment, "")
    refusal = f"class {config.class_name} has no reference for this machine"
    for folder in (own_references(session), references_dir()):
        path = folder / f"{config.class_name}.json"
        if not path.exists() or (folder == references_dir() and session.suite.name != "h100"):
            continue
        reference = load_reference(path)
        differing = [key for key in COMPARABLE if reference.environment.get(key) != here[key]]
        if not differing:
            return Baseline(str(path), reference.trajectory)
        key = differing[0]
        refusal = (
            f"the reference {path.name} was recorded with {key} "
            f"{reference.environment.get(key, 'unknown')}, and this machine has {here[key]}"
        )
    raise BisectorError(f"{config.name} cannot be judged: {refusal}.", remedy)


def own_references(session: Session) -> Path:
    """Return where this machine's own references of the session's suite are."""
    return session.state / "references" / Path(session.suite.name).stem


def make_runs(session: Session, orders: Sequence[Order], progress: Progress) -> dict[Order, Run]:
    """Make the runs side by side and return them; a run that hangs is made once more."""
    runs: dict[Order, Run] = {}
    hung: set[Order] = set()
    with Stop().listening() as stop, Bench(session, progress.said) as bench:
        while len(runs) < len(orders):
            if stop.is_set:
                raise StopError
            for order, run in bench.collect():
                progress.finished(run, order.config.name)
                if run.result.status is Status.TIMED_OUT and order not in hung:
                    hung.add(order)
                else:
                    runs[order] = run
            busy = [flight.order for flight in bench.in_flight]
            for order in orders:
                if order not in runs and order not in busy and not bench.start(order):
                    break
            progress.tick(bench.in_flight, [])
            time.sleep(POLL)
    return runs


def _find(order: Order, run: Run, baseline: Baseline, runs: dict[Order, Run]) -> Finding:
    trajectory = baseline.trajectory
    if baseline.sha:
        base = runs[replace(order, sha=baseline.sha)]
        if base.result.status is not Status.COMPLETED:
            raise BisectorError(
                f"--against {baseline.sha[:10]} did not train: {skip_reason([base.result])}.",
                "Compare with a commit that trains here.",
            )
        trajectory = base.result.trajectory
    if run.result.status is not Status.COMPLETED:
        return Finding(
            order.config, Verdict.SKIP, run, baseline.words, reason=skip_reason([run.result])
        )
    found = deviations(run.result.trajectory, trajectory, order.config.tolerances)
    verdict = Verdict.BAD if found else Verdict.GOOD
    return Finding(order.config, verdict, run, baseline.words, tuple(found))


def record(
    session: Session, revision: str, class_names: Sequence[str], folder: Path, progress: Progress
) -> list[Path]:
    """Write the references of the classes at a commit (by default of all that can run here)."""
    if folder.exists() and not folder.is_dir():
        raise BisectorError(f"{folder} is a file, and references go to a folder.", "Name a folder.")
    sha = session.repository.resolve(revision)
    for name in class_names:
        if name not in session.suite.class_names:
            raise BisectorError(
                f"suite {session.suite.name} has no class {name!r}.",
                f"It has: {', '.join(session.suite.class_names)}.",
            )
    configs = [
        config
        for config in (
            [session.suite.canonical(name) for name in class_names]
            if class_names
            else session.configs()
        )
        if config.is_canonical
    ]
    for config in configs:
        if lack := session.find_lack(config):
            raise BisectorError(
                f"{config.name} cannot run here: {lack}.", "Record the classes that can."
            )
    orders = [
        Order(None, sha, Role.CONTROL, config, session.environment_of(config)) for config in configs
    ]
    runs = make_runs(session, orders, progress)
    written = []
    for order in orders:
        result, config = runs[order].result, order.config
        if result.status is not Status.COMPLETED:
            raise BisectorError(
                f"{config.name} did not train at {sha[:10]}: {skip_reason([result])}.",
                "Record a commit that trains here.",
            )
        written.append(write_reference(folder, config, order.environment, runs[order]))
    return written


def write_reference(folder: Path, config: Config, environment: Environment, run: Run) -> Path:
    """Write the reference of a config's class from a run of it; return its path."""
    path = folder / f"{config.class_name}.json"
    method = config.method or config.script
    described = {"name": config.name, "method": method, "args": dict(config.args)}
    recorded = reference_environment(environment, run.sha)
    save_reference(path, Reference(described, recorded, run.result.trajectory))
    return path


def reference_environment(environment: Environment, sha: str) -> dict[str, str]:
    """Return the `env` table of a reference file; `trl` holds the commit."""
    versions = {n: environment.packages.get(n, "") for n in ("accelerate", "torch", "transformers")}
    return {**versions, "trl": sha, "python": environment.python, "gpu": environment.gpu}


def finding_lines(finding: Finding) -> list[tuple[str, str]]:
    """Return a finding as (label, text) lines, the answer first."""
    run, config = finding.run, finding.config
    lines = [("", f"{config.name}: {finding.verdict} at {run.sha[:10]}")]
    if finding.reason:
        lines.append(("why", report.printable(finding.reason)))
    found = headline(list(finding.deviations), config.tolerances.step)
    if found:
        lines.append(("what", report.describe_deviation(found)))
        if len(finding.deviations) > 1:
            lines.append(("", f"and {len(finding.deviations) - 1} more; --json lists all"))
    lines.append(("against", finding.against))
    lines.append(
        ("cost", f"{len(run.result.trajectory)} steps, {report.duration(run.result.seconds)}")
    )
    lines.append(("run", run.id))
    return lines


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON."""
    run = finding.run
    return {
        "config": finding.config.name,
        "suite": finding.config.suite,
        "sha": run.sha,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "against": finding.against,
        "run": run.id,
        "status": run.result.status,
        "steps": len(run.result.trajectory),
        "seconds": round(run.result.seconds, 3),
        "deviations": [documents.deviation_json(deviation) for deviation in finding.deviations],
    }
