"""Prints how long `status` and `show` take with 100,000 runs in the database; run by hand.

python benchmarks/answers.py                 # builds the state in a temporary directory
python benchmarks/answers.py --state DIR     # builds it there, or uses what an earlier call built there
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from synthetic import make_repository  # noqa: E402

from bisector import viewing  # noqa: E402
from bisector.branch import Branch  # noqa: E402
from bisector.config import load_suite  # noqa: E402
from bisector.ledger import Ledger  # noqa: E402
from bisector.model import (  # noqa: E402
    Change,
    Conclusion,
    Config,
    Deviation,
    Environment,
    Hunt,
    Outcome,
    Role,
    Status,
    Step,
)
from bisector.repo import Repository  # noqa: E402
from bisector.series import dump_steps  # noqa: E402
from bisector.session import Options, Session  # noqa: E402
from bisector.store import Store  # noqa: E402
from bisector.watched import (  # noqa: E402
    Anchor,
    Epoch,
    Message,
    Regression,
    RegressionState,
    Turn,
)

RUNS = 100_000
HUNTS = 250
RUNS_OF_A_HUNT = 16
STEPS = 50
DAY = 86_400.0
COMMITS_A_DAY = 6
SPACING, LENGTH = 400, 15  # commits from one regression to the next, and until it is mended
LOGS = 1000
FOOTPRINTS, FILES_READ = 24, 150
TIMES = 5
BISECTOR = [sys.executable, "-m", "bisector"]
ENVIRONMENT = Environment(
    "e1", "3.11.9", {f"package{n}": "1.0" for n in range(80)}, "cpu", 0, 1, {"cpu": "any"}, "tiny"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = (args.state or Path(folder)).resolve()
        if not (place / "built.json").exists():
            place.mkdir(parents=True, exist_ok=True)
            Built(place).build()
        time_answers(place)


class Built:
    """A state directory as a service of seven years would have left it."""

    def __init__(self, place: Path) -> None:
        self.place, self.state = place, place / "state"
        suite = load_suite("tiny")
        self.configs = [suite.canonical(name) for name in suite.class_names]
        own = (RUNS - HUNTS * RUNS_OF_A_HUNT) // len(self.configs)
        self.rng = random.Random(1)
        self.shas = make_repository(place / "repo", [{}] * own)
        self.began = time.time() - own / COMMITS_A_DAY * DAY
        self.rows: list[tuple[object, ...]] = []
        self.plain = dump_steps(self._steps(0.0))
        self.moved = dump_steps(self._steps(0.5))

    def _steps(self, shift: float) -> tuple[Step, ...]:
        rng = random.Random(2)
        return tuple(
            Step(n, 5.5 + shift - n * rng.random() / 50, 2 + rng.random(), 1287.0 * n)
            for n in range(1, STEPS + 1)
        )

    def build(self) -> None:
        location = f"file://{self.place}/repo"
        Repository(location, self.state).fetch()
        store = Store(self.state)
        ledger = Ledger(store.db, store.transaction, self.configs)
        store.add_environment(ENVIRONMENT)
        for config in self.configs:
            self._watch(ledger, config)
        regressions = self._regress(ledger)
        hunts = [self._hunt(store, number, location) for number in range(HUNTS)]
        with store.transaction() as db:
            marks = ", ".join("?" * len(self.rows[0]))
            db.executemany(f"INSERT INTO runs VALUES ({marks})", sorted(self.rows, key=_started))
            db.executemany("INSERT INTO footprints VALUES (?, ?)", _footprints())
        ledger.set("about", json.dumps([location, "main", "tiny"]))
        ledger.set("configs", json.dumps([config.name for config in self.configs]))
        ledger.set("start", self.shas[0])
        ledger.set("floor", self.shas[0])
        ledger.set("head", self.shas[-1])
        ledger.set("fetched", str(time.time()))
        store.close()
        (self.state / "logs").mkdir()
        for number in range(LOGS):
            (self.state / "logs" / f"{number}.log").write_text("the end of a log\n" * 50)
        (self.place / "bisector.toml").write_text(
            f'[watch]\nrepository = "{location}"\nsuite = "tiny"\n'
            f'[state]\ndir = "{self.state}"\n'
            '[[notify]]\nname = "team"\nkind = "json"\nurl = "http://127.0.0.1:9/hook"\n'
        )
        run = str(self.rows[len(self.rows) // 2][0])
        ids = {"hunt": hunts[HUNTS // 2], "run": run, "regression": regressions[0]}
        (self.place / "built.json").write_text(json.dumps(ids))
        self._keep_view(location)

    def _keep_view(self, location: str) -> None:
        """Keep what a service that has nothing to do keeps."""
        session = Session(Options(settings=str(self.place / "bisector.toml")))
        ledger = Ledger(session.store.db, session.store.transaction, self.configs)
        repository = Repository(location, self.state)
        branch = Branch(session, repository, ledger, self.configs, drives_hunts=False)
        branch.recall()
        stamp = viewing.stamp(session, ledger, self.configs)
        viewing.keep(ledger, stamp, viewing.make(branch.snapshot(time.time()), repository))

    def _watch(self, ledger: Ledger, config: Config) -> None:
        """One run a commit, as the service makes them; every so often the trajectory moves and returns."""
        first = self.shas[0]
        ledger.write(
            epochs=[Epoch(config.name, ENVIRONMENT.id, 0.0)], restarts=[Turn(config.name, first)]
        )
        for position, sha in enumerate(self.shas):
            is_moved = position >= SPACING and position % SPACING < LENGTH
            self._add(
                f"{config.digest[:4]}{position:08x}",
                None,
                position,
                config,
                Role.TEST,
                is_moved=is_moved,
            )
            is_turn = position >= SPACING and position % SPACING in (0, LENGTH)
            if is_turn or position == 0:
                run = str(self.rows[-1][0])
                id_ = _regression_id(config, position - position % SPACING)
                turn = Turn(
                    config.name,
                    sha,
                    opens=(id_,) if is_moved else (),
                    closes=() if is_moved or not position else (id_,),
                    back_to=first if position and not is_moved else "",
                )
                anchor = Anchor(config.name, sha, ENVIRONMENT.id, 0.0, sha, run)
                ledger.write(turns=[turn], anchors=[anchor])

    def _regress(self, ledger: Ledger) -> list[str]:
        found = []
        for config in self.configs:
            for position in range(SPACING, len(self.shas) - LENGTH, SPACING):
                opened = self.began + position / COMMITS_A_DAY * DAY
                regression = Regression(
                    id=_regression_id(config, position),
                    class_name=config.class_name,
                    config=config.name,
                    state=RegressionState.FIXED,
                    good=self.shas[position - 1],
                    bad=self.shas[position],
                    opened=opened,
                    environment=ENVIRONMENT.id,
                    deviation=Deviation("loss", "step", 1, 6.0, 5.5, 1e-3),
                    culprit=self.shas[position],
                    parent=self.shas[position - 1],
                    hunt=_hunt_id(len(found)) if len(found) < HUNTS else "",
                    ended_by=self.shas[position + LENGTH],
                )
                messages = [
                    Message(f"{regression.id} {event}", event, regression.id, opened, "{}")
                    for event in ("regression", "culprit", "fixed")
                ]
                ledger.write(
                    regressions=[regression], messages=[(message, ["team"]) for message in messages]
                )
                found.append(regression.id)
        with ledger._transaction() as db:
            db.execute("UPDATE deliveries SET state = 'delivered', attempts = 1")
        return found

    def _hunt(self, store: Store, number: int, location: str) -> str:
        config = self.configs[number % len(self.configs)]
        low = self.rng.randrange(len(self.shas) - 500)
        high, culprit = low + 400, low + self.rng.randrange(1, 400)
        hunt = Hunt(
            _hunt_id(number), location, self.shas[low], self.shas[high], 400, config, ENVIRONMENT
        )
        store.add_hunt(hunt, f"question {number}")
        deviation = Deviation("loss", "step", 1, 6.0, 5.5, 1e-3)
        change = Change(self.shas[culprit], self.shas[culprit - 1], deviation)
        answer = Conclusion(Outcome.CULPRIT, "", change, ends_deviation=deviation, confirmed=True)
        store.conclude(hunt.id, replace(answer, explained=True, compared_steps=STEPS))
        tested = [low, low, high, high, culprit, culprit - 1, culprit, culprit - 1]
        tested[4:4] = [self.rng.randrange(low, high) for _ in range(RUNS_OF_A_HUNT - len(tested))]
        roles = [Role.END] * 4 + [Role.SEARCH] * (RUNS_OF_A_HUNT - 8) + [Role.CONFIRM] * 4
        for index, (position, role) in enumerate(zip(tested, roles, strict=True)):
            is_moved = position >= culprit
            self._add(
                f"{number:04x}{index:08x}", hunt.id, position, config, role, is_moved=is_moved
            )
        return hunt.id

    def _add(
        self,
        id_: str,
        hunt: str | None,
        position: int,
        config: Config,
        role: Role,
        *,
        is_moved: bool,
    ) -> None:
        started = self.began + position / COMMITS_A_DAY * DAY
        self.rows.append(
            (
                *(id_, hunt, self.shas[position], config.digest, config.name, ENVIRONMENT.id),
                *(role, Status.COMPLETED, started, 14.2, None, "", "a line of the log\n" * 20),
                self.moved if is_moved else self.plain,
                *(f"f{position % FOOTPRINTS}", False),
            )
        )


def _footprints() -> list[tuple[str, str]]:
    code = [f"library/part{file}.py" for file in range(FILES_READ)]
    return [
        (f"f{number}", json.dumps([[*code, f"library/{number}.py"], [], [], ["."], ["library/x"]]))
        for number in range(FOOTPRINTS)
    ]


def _hunt_id(number: int) -> str:
    return f"h{number:010x}"


def _regression_id(config: Config, position: int) -> str:
    return f"r{config.name}-{position:05x}"


def _started(row: tuple[object, ...]) -> float:
    return float(str(row[8]))


def time_answers(place: Path) -> None:
    ids = json.loads((place / "built.json").read_text())
    settings = ["--settings", str(place / "bisector.toml")]
    commands = {
        "status": ["status", *settings],
        "status --json": ["status", *settings, "--json"],
    }
    for what, id_ in ids.items():
        commands[f"show, a {what}"] = ["show", id_, *settings]
        commands[f"show, a {what}, json"] = ["show", id_, *settings, "--format", "json"]
    environment = {key: value for key, value in os.environ.items() if key not in UNUSUAL}
    environment["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")
    start = time_command(["--help"], environment)
    python = time_command([], environment, program=[sys.executable, "-c", "pass"])
    print(f"{'':24} seconds     CPU  times --help (CPU)")
    print(f"{'python -c pass':24} {python[0]:7.3f} {python[1]:7.3f}")
    print(f"{'--help':24} {start[0]:7.3f} {start[1]:7.3f}")
    for name, command in commands.items():
        seconds, cpu = time_command(command, environment)
        print(f"{name:24} {seconds:7.3f} {cpu:7.3f}  {cpu / start[1]:12.1f}")


UNUSUAL = {"PYTHONDONTWRITEBYTECODE"}  # an installed program has its bytecode


def time_command(
    command: list[str], environment: dict[str, str], program: list[str] | None = None
) -> tuple[float, float]:
    """Return the medians of wall and CPU time, the latter with what a busy machine cannot stretch as much;
    the first call, which may compile, is left out."""
    seconds, cpu = [], []
    for _ in range(TIMES + 1):
        began, used = time.monotonic(), _cpu_of_children()
        done = subprocess.run(
            [*(program or BISECTOR), *command],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        seconds.append(time.monotonic() - began)
        cpu.append(_cpu_of_children() - used)
        assert done.returncode == 0, done.stderr
    return statistics.median(seconds[1:]), statistics.median(cpu[1:])


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
