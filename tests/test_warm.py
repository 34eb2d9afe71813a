"""Trainings forked from a warm process, beside the same trainings in processes of their own."""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driving import bisector, only_hunt, processes_with

from bisector import processes, runner
from bisector.bench import Bench, Order
from bisector.config import load_suite
from bisector.declared import read_declared
from bisector.demonstrating import SCALED, Edit, make_history
from bisector.errors import SupervisorKilledError
from bisector.job import Job
from bisector.model import Config, Role, Run, RunResult, Status
from bisector.running import Running
from bisector.session import Options, Session
from bisector.warm import Template
from bisector.warming import Warming

pytestmark = pytest.mark.trains

SINGLE = [c for c in load_suite("tiny").configs.values() if c.num_processes == 1]
LINE = "\n# One more line.\n"


class Place:
    """A checkout of the installed trl, a template, and runs of the one in forks of the other."""

    def __init__(self, folder: Path, *edits: Edit) -> None:
        self.folder, self.session = folder, Session(Options(suite="tiny", state=str(folder)))
        self.checkout = folder / "repo"
        make_history(self.checkout, self.session, [Edit("Add a line", "README.md", LINE), *edits])
        self.template = self.new_template()

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.template.close()

    def new_template(self) -> Template:
        folder, hub = self.folder / "w0123456789", self.folder / "hub"
        python, owner = self.session.python, self.session.owner
        variables = runner.variables_of_place(python, folder / "root", hub, "")
        template = Template(python, {**variables, **processes.mark(owner, folder.name)}, folder)
        while not template.is_ready():
            assert not template.is_dead(), template.why_dead()
            time.sleep(0.01)
        return template

    def start(self, config: Config, *, is_warm: bool, **changes: Any) -> Running:
        run = f"r{uuid.uuid4().hex[:10]}"
        job = Job(
            run=run,
            config=config,
            checkout=self.checkout,
            declared=read_declared(self.checkout),
            scratch=self.folder / run,
            log=self.folder / "logs" / run,
            hub=self.folder / "hub",
            assets=self.session.assets_of(config),
            python=self.session.python,
            devices="",
            timeout=300,
            mark=processes.mark(self.session.owner, run),
        )
        job = replace(job, **changes)
        if self.template.is_dead():  # a session that opens its store ends what this process left
            self.template.close()
            self.template = self.new_template()
        return Running(job, self.template.supervisor() if is_warm else None)


def short(name: str, steps: int = 3) -> Config:
    config = load_suite("tiny").config(name)
    return replace(config, args={**config.args, "max_steps": str(steps)})


def wait(running: Running) -> RunResult:
    while (result := running.poll()) is None:
        time.sleep(0.01)
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("place")) as found:
        yield found
    assert processes_with(str(found.folder)) == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(c.name, marks=() if c.is_canonical else pytest.mark.slow) for c in SINGLE],
)
def test_a_warm_run_is_the_cold_one_to_the_bit_and_reads_the_same(place: Place, name: str) -> None:
    cold = place.start(short(name), is_warm=False)
    warm = [wait(place.start(short(name), is_warm=True)) for _ in range(2)]
    assert warm[0].status is Status.COMPLETED, warm[0].reason + warm[0].log_tail
    alone = wait(cold)
    assert warm[0].trajectory == warm[1].trajectory == alone.trajectory
    assert len(warm[0].trajectory) == 3
    assert warm[0].warm
    assert warm[0].footprint == warm[1].footprint == alone.footprint
    assert alone.footprint
    assert {"trl/cli/__init__.py", "trl/trainer/utils.py"} <= alone.footprint.code


def test_forks_go_side_by_side(place: Place) -> None:
    forks = [place.start(short(name), is_warm=True) for name in ("sft_default", "dpo_default")]
    assert [wait(fork).status for fork in forks] == [Status.COMPLETED] * 2


LOOK = """
def _look():
    import gc, json, os, pathlib, random, signal, sys
    import dill, numpy, torch
    root = os.path.dirname(os.environ["BISECTOR_RUN_DIR"])
    run = os.path.basename(root)
    def told(value):
        text = str(value).replace(root, "SCRATCH").replace(run, "RUN")
        return [type(value).__name__, text] if root in str(value) or "w0123456789" in text else None
    main = sys.modules["__main__"]
    seen = {
        "paths": {
            f"{module.__name__}.{name}": told(value)
            for module in list(sys.modules.values())
            for name, value in list(vars(module).items())
            if issubclass(type(value), (str, pathlib.PurePath)) and told(value) and "trl" not in module.__name__
        },
        "left": [
            text
            for holder in gc.get_objects()
            for text in gc.get_referents(holder)
            if type(text) is str and "w0123456789" in text
        ],
        "env": {
            name: told(value) or value
            for name, value in os.environ.items()
            if name not in ("BISECTOR_SUPERVISOR", "BISECTOR_OWNER")
        },
        "sys": [
            [str(each).replace(root, "SCRATCH") for each in (*sys.path, *sys.argv, *sys.orig_argv)],
            str(sys.flags),
            sys.stdout.encoding,
            sys.stdout.isatty(),
            sys.stdin.read(),
        ],
        "process": [
            os.getcwd().replace(root, "SCRATCH"),
            os.umask(0o022),
            [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD)],
            len(os.listdir("/proc/self/task")),
        ],
        "torch": [torch.get_num_threads(), torch.cuda.is_initialized(), torch.is_grad_enabled(), str(torch.get_default_dtype())],
        "main": [main.__file__.replace(root, "SCRATCH"), main.__name__, str(main.__spec__), type(main.__loader__).__name__,
                 dill._dill._main_module is main],
        "drawn": [random.random(), float(numpy.random.random()), float(torch.rand(1))],
    }
    pathlib.Path(root, "seen-" + os.path.basename(sys.argv[0])).write_text(json.dumps(seen))
_look()
"""


def test_a_warm_process_finds_what_a_cold_one_finds(tmp_path: Path) -> None:
    entry = 'if __name__ == "__main__":\n'
    edits = (
        Edit("Look in the launcher", "trl/cli/__init__.py", LOOK),
        Edit("Look in the trainer", "trl/scripts/sft.py", LOOK + entry, old=entry),
    )
    with Place(tmp_path, *edits) as place:
        runs = [place.start(short("sft_default", 1), is_warm=warm) for warm in (False, True)]
        results = [wait(run) for run in runs]
    for result in results:
        assert result.status is Status.COMPLETED, result.reason + result.log_tail
    for process in ("trl", "sft.py"):
        cold, warm = (json.loads((run.job.scratch / f"seen-{process}").read_text()) for run in runs)
        left = {text for text in warm.pop("left") if text not in cold["left"]}
        assert left == set(), "a path of the template is left"
        del cold["left"]
        assert not set(cold["drawn"]) & set(warm.pop("drawn"))
        paths = warm.pop("paths")
        for name, value in cold.pop("paths").items():
            assert paths[name] == value, name
        if process == "trl":  # it looks before a cold launcher has imported what sets variables
            warm["env"] = {name: warm["env"][name] for name in cold["env"]}
        for key, value in warm.items():
            assert value == cold[key], key


def test_a_training_is_stopped_timed_out_and_cancelled_as_a_cold_one(place: Place) -> None:
    long = short("sft_default", 5000)
    stopped = place.start(long, is_warm=True, is_led=True)
    while len(stopped.seen) < 2:
        stopped.look()
        stopped.allow(len(stopped.seen))
        time.sleep(0.01)
    stopped.stop(2)
    cancelled = place.start(long, is_warm=True)
    late = wait(place.start(long, is_warm=True, timeout=3.0))
    result = wait(stopped)
    assert (result.status, len(result.trajectory)) == (Status.STOPPED_EARLY, 2)
    assert late.status is Status.TIMED_OUT
    cancelled.cancel()
    for running in (stopped, cancelled):
        assert processes_with(running.job.mark["BISECTOR_OWNER"]) == []


def test_a_training_outlives_the_template_and_a_mark_finds_its_processes(place: Place) -> None:
    running = place.start(short("sft_default", 20), is_warm=True)
    while running.steps() < 1:
        time.sleep(0.01)
    own = processes_with(running.job.mark["BISECTOR_OWNER"])
    assert len(own) == 3, "supervisor, launcher and trainer"
    place.template.close()
    assert wait(running).status is Status.COMPLETED
    assert processes_with(str(place.folder)) == []
    running = place.start(short("sft_default", 5000), is_warm=True)
    while running.steps() < 1:
        time.sleep(0.01)
    processes.kill_run(place.session.owner, running.job.run)
    with pytest.raises(SupervisorKilledError):
        wait(running)


def test_a_file_that_a_cold_training_would_import_is_seen(place: Place, tmp_path: Path) -> None:
    assert place.template.find_shadow(place.checkout) == ""
    for name in ("torch.py", "datasets/__init__.py", "src/peft.py", "usercustomize.py"):
        checkout = tmp_path / name.replace("/", "-")
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).touch()
        (checkout / "trl").mkdir()
        (checkout / "trl" / "__init__.py").touch()
        assert place.template.find_shadow(checkout) == name.removesuffix("/__init__.py")


def make_run(bench: Bench, order: Order) -> Run:
    while True:
        for ended, run in bench.collect():
            assert ended == order
            return run
        if not bench.in_flight:
            bench.start(order)
        time.sleep(0.01)


# It fails in a fork alone: there the process was started by another command.
ODD = 'import pathlib\nif b"warm_worker" in pathlib.Path("/proc/self/cmdline").read_bytes():\n    raise KeyError("odd")\n'
BROKEN = '\nraise LookupError("always")\n'


def test_a_crash_counts_only_if_a_cold_run_shows_it(tmp_path: Path) -> None:
    session = Session(Options(repo=str(tmp_path / "repo"), suite="tiny", state=str(tmp_path)))
    path = "trl/scripts/sft.py"
    steps = [
        Edit("Add a line", "README.md", LINE),
        Edit("Fail in a fork", path, ODD),
        Edit("Fail", path, BROKEN),
    ]
    shas = make_history(tmp_path / "repo", session, steps)
    config, said = short("sft_default"), list[str]()
    found = session.environment_of(config)
    with Bench(session, said.append) as bench:

        def run(sha: str, role: Role = Role.SEARCH) -> tuple[Status, bool]:
            result = make_run(bench, Order(None, sha, role, config, found)).result
            return result.status, result.warm

        assert run(shas[0]) == (Status.COMPLETED, True)
        assert run(shas[0], Role.CONTROL) == (Status.COMPLETED, False)
        assert run(shas[-1]) == (Status.CRASHED, False)
        assert said == []
        assert run(shas[-2]) == (Status.COMPLETED, False)
        assert "KeyError" in said[0], "the warm process is said to be at fault"
        assert run(shas[0]) == (Status.COMPLETED, True)
        (template,) = set(processes_with("warm_worker.py")) & set(processes_with(str(tmp_path)))
        os.kill(template, signal.SIGKILL)
        assert run(shas[1]) == (Status.COMPLETED, False), "no more after two failures"
    assert processes_with(str(tmp_path)) == []


def test_a_hunt_searches_warm_and_confirms_once_cold(tmp_path: Path) -> None:
    edits = [Edit("Add a line", "README.md", LINE), Edit("x", "trl/trainer/sft_trainer.py", SCALED)]
    shas = make_history(tmp_path / "repo", Session(Options()), edits)
    args = ("hunt", shas[0], shas[-1], "--repo", "repo", "--suite", "tiny", "--json")
    done = bisector(tmp_path, *args, "--config", "sft_default")
    assert done.returncode == 0, done.stderr
    entry = only_hunt(done.stdout)
    assert entry["culprit"]["sha"] == shas[-1]
    for probe in entry["probes"]:
        assert probe["warm"] or probe["role"] == "confirm"
    for sha in shas[-2:]:
        fresh = [p for p in entry["probes"] if (p["role"], p["sha"]) == ("confirm", sha)]
        assert sorted(probe["warm"] for probe in fresh) == [False, True]
    assert processes_with(str(tmp_path)) == []


def test_warm_runs_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "off.toml").write_text("[train]\nwarm = false\n")
    off = str(tmp_path / "off.toml")
    config = short("sft_default")
    for options, is_warm in (
        (Options(), True),
        (Options(warm=False), False),
        (Options(settings=off), False),
        (Options(settings=off, warm=True), True),
    ):
        warming = Warming(Session(options), tmp_path, print)
        assert warming.may_be_warm(config, Role.SEARCH) == is_warm
        assert not warming.may_be_warm(config, Role.CONTROL)
        assert not warming.may_be_warm(replace(config, num_processes=2), Role.SEARCH)
        assert not warming.may_be_warm(replace(config, method=None, script="x"), Role.SEARCH)
