"""Assembles what a command works with: state, repository, suite, devices, environment of each config."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisector import environment, interpreter, runner, tiny
from bisector.config import Settings, Suite, load_settings, load_suite
from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.model import Axis, Config, Environment, Hunt
from bisector.processes import is_alive, kill_orphans, own_identity
from bisector.store import Store

if TYPE_CHECKING:
    from bisector.repo import Repository

# bytes: weights, gradients and Adam's moments of half a billion parameters in fp32 take 8 GB, logits of eight
# sequences of 1,024 tokens over 152,000 words 5 GB, some three times; computed, not measured
MEMORY_PER_GPU_JOB = 32 * 10**9
MEMORY_PER_JOB = 2 * 10**9  # bytes; a tiny training of trl peaks at 1.1 GB here


@dataclass(frozen=True, slots=True)
class Options:
    """The options that recur, as given; empty or None means that the option was not given."""

    repo: str = ""
    suite: str = ""
    configs: tuple[str, ...] = ()
    state: str = ""
    settings: str = ""
    python: str = ""
    jobs: int = 0
    warm: bool | None = None


@dataclass
class Session:
    """One command's view of the world; opens nothing that it is not asked for."""

    options: Options
    owner: str = field(default_factory=own_identity)
    _described: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Settings:
        """Return the settings of the file named by option or environment, else the defaults."""
        name = self.options.settings or os.environ.get("BISECTOR_SETTINGS", "")
        return load_settings(Path(name) if name else None)

    @cached_property
    def state(self) -> Path:
        """Return the state directory."""
        return Path(self.options.state or self.settings.state.dir).resolve()

    @cached_property
    def store(self) -> Store:
        """Return the database; what killed processes left is swept first."""
        store = Store(self.state)
        _sweep(self.state)
        return store

    @property
    def ledger(self) -> Ledger:
        """Return the service's tables, without the configs that it watches."""
        return Ledger(self.store.db, self.store.transaction)

    @cached_property
    def repository(self) -> "Repository":
        """Return the repository asked for, up to date."""
        from bisector.repo import Repository, enclosing_repository

        location = (
            self.options.repo or enclosing_repository(Path.cwd()) or self.settings.watch.repository
        )
        repository = Repository(location, self.state)
        repository.update()
        return repository

    @cached_property
    def gpus(self) -> list[environment.Gpu]:
        """Return the GPUs that the settings allow."""
        chosen = self.settings.train.devices
        if chosen == "cpu":
            return []
        found = environment.list_gpus()
        return found if chosen == "all" else [g for g in found if int(g.index) in chosen]

    @cached_property
    def suite(self) -> Suite:
        """Return the suite asked for; by default h100 where there is CUDA, else tiny."""
        name = self.options.suite or self.settings.watch.suite
        return load_suite(name or ("h100" if self.gpus else "tiny"))

    @cached_property
    def python(self) -> str:
        """Return the training interpreter."""
        python = self.options.python or self.settings.train.python or sys.executable
        return shutil.which(python) or python

    @property
    def described(self) -> dict[str, Any]:
        """Return what the training interpreter says of itself."""
        return self._describe(self.python)

    def _describe(self, python: str) -> dict[str, Any]:
        if python not in self._described:
            self._described[python] = interpreter.describe(python)
        return self._described[python]

    @property
    def suite_gpus(self) -> list[environment.Gpu]:
        """Return the GPUs that the suite trains on; empty: the CPU."""
        return [] if self.suite.device == "cpu" else self.gpus

    @cached_property
    def jobs(self) -> int:
        """Return how many runs go side by side: what the GPUs' memory holds, or cores and memory."""
        on_gpu = sum(max(gpu.memory // MEMORY_PER_GPU_JOB, 1) for gpu in self.suite_gpus)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        on_cpu = max(min(os.cpu_count() or 1, memory // MEMORY_PER_JOB), 1)
        return self.options.jobs or self.settings.train.jobs or on_gpu or on_cpu

    @property
    def warm(self) -> bool:
        """Return whether runs may be forked from a process that has imported the training stack."""
        asked = self.options.warm
        return self.settings.train.warm if asked is None else asked

    def configs(self) -> list[Config]:
        """Return the configs asked for, by default each class's canonical one that can run here."""
        if self.options.configs:
            chosen = [self.suite.config(name) for name in dict.fromkeys(self.options.configs)]
            for config in chosen:
                if lack := self.find_lack(config):
                    raise BisectorError(
                        f"{config.name} cannot run here: {lack}.",
                        "Choose another with --config, or run it on a machine that has what it needs.",
                    )
            return chosen
        canonical = [self.suite.canonical(name) for name in self.suite.class_names]
        runnable = [config for config in canonical if not self.find_lack(config)]
        if not runnable:
            raise BisectorError(
                f"No config of suite {self.suite.name} can run here: "
                f"{self.find_lack(canonical[0])}.",
                "Use --suite tiny, which trains on any CPU.",
            )
        return runnable

    def find_lack(self, config: Config) -> str:
        """Return why this machine cannot run the config; empty if it can."""
        return environment.find_lack(config.requires, self.described["packages"], self.suite_gpus)

    @cached_property
    def _assets(self) -> Path:
        return tiny.make_assets(self.state)

    def assets_of(self, config: Config) -> Path | None:
        """Return the directory that `{tiny}` stands for; None for a config that does not name it."""
        return self._assets if any("{tiny}" in value for value in config.args.values()) else None

    def environment_of(self, config: Config, python: str = "") -> Environment:
        """Return the environment in which the config trains, by default with the training interpreter;
        brings its model and data here first."""
        return environment.make_environment(
            self._describe(python or self.python),
            self.suite_gpus[: config.num_processes],
            runner.base_variables(self.python),
            threads=runner.THREADS,
            data_fingerprint=self._prepare_data(config),
        )

    def _prepare_data(self, config: Config) -> str:
        assets = self.assets_of(config)
        if assets:
            return assets.name
        if config.script:
            return ""
        return interpreter.fetch(self.python, config.args, self.state / "hub")


def ask(
    session: Session,
    config: Config,
    range_: "Range",
    options: "HuntOptions",
    found: Environment,
) -> tuple[Hunt, str]:
    """Return the hunt that asks this, in the environment `found`, with an id that depends on the question,
    and the question's digest."""
    good, bad = range_.places[0], range_.places[-1]
    asked_for: list[object] = [
        *(good, bad, config.name, config.digest, found.id),
        *(dict(config.tolerances.step), dict(config.tolerances.drift)),
        *(options.exact, options.thorough, sorted(set(range_.skip))),
    ]
    asked_for += ["fixed"] * options.fixed + ["probe all"] * options.probe_all
    if range_.axis is not Axis.COMMIT:
        asked_for += [range_.axis, range_.at, {p: dict(pins) for p, pins in range_.pins.items()}]
    question = hashlib.sha256(json.dumps(asked_for).encode()).hexdigest()
    asked = session.store.hunts_asking(question)
    if asked and not options.again:
        stored = session.store.hunt(asked[-1])
        assert stored
        return stored[0], question
    digest = hashlib.sha256(f"{question}/{len(asked)}".encode()).hexdigest()
    hunt = Hunt(
        id=f"h{digest[:10]}",
        repository=session.repository.location,
        good=good,
        bad=bad,
        commits=len(range_.places) - 1,
        config=config,
        environment=found,
        exact=options.exact,
        thorough=options.thorough,
        skip=range_.skip,
        recalls=range_.axis is Axis.COMMIT and session.settings.train.recall and not options.again,
        axis=range_.axis,
        package=range_.package,
        source=range_.source,
        at=range_.at,
        pins=range_.pins,
        fixed=options.fixed,
        probe_all=options.probe_all,
    )
    return hunt, question


@dataclass(frozen=True, slots=True)
class Range:
    """The places that a hunt searches, the good end first: commits, or what `pins` installs at commit `at`."""

    places: tuple[str, ...]
    skip: tuple[str, ...] = ()
    axis: Axis = Axis.COMMIT
    package: str = ""
    source: str = ""
    at: str = ""
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HuntOptions:
    """What `hunt` can be told beside its ends; `max_runs` None means no limit."""

    exact: bool = False
    thorough: bool = False
    max_runs: int | None = None
    again: bool = False
    fixed: bool = False
    probe_all: bool = False


def _sweep(state: Path) -> None:
    """Remove what processes that are gone have left: trainings, checkouts, scratch, half a clone."""
    kill_orphans()
    try:
        clones = (state / "mirror.git").glob("*.partial")
        left = [path for path in clones if not Path("/proc", path.name.split(".")[-2]).exists()]
        for folder in (state / "checkouts", state / "scratch"):
            folder.mkdir(exist_ok=True)
            left += [path for path in folder.iterdir() if not is_alive(path.name)]
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise BisectorError(
            f"{state} cannot be cleared of what a killed process left: {error}.",
            "Mend or remove that path; run it again.",
        ) from None
