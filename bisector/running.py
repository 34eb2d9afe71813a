"""A run in progress: started, led from step to step, stopped, and read when it has ended."""

import json
import os
import time
from dataclasses import replace

from bisector.cold import ColdSupervisor
from bisector.errors import InfraError, SupervisorKilledError
from bisector.job import Job, Supervisor
from bisector.model import RunResult, Trajectory
from bisector.results import (
    METRICS_LIMIT,
    RECORD_LIMIT,
    check_disk,
    count_memory_kills,
    read_ended,
    read_stopped,
    read_text,
)
from bisector.runner import prepare
from bisector.series import parse_lines

PATIENCE = 60.0  # seconds that a run waits for another's step


class Running:
    """A run in progress, by default in a process of its own."""

    def __init__(self, job: Job, supervisor: Supervisor | None = None) -> None:
        self.job = job
        self._output = job.scratch / "output"
        self._result = job.scratch / "result.json"
        self._kills = count_memory_kills()
        self._stop_at: int | None = None
        self._progressed = time.monotonic()
        self._size = 0
        self.seen: Trajectory = ()  # the steps logged when `look` was called last
        job.scratch.mkdir(parents=True)
        # starts while the rest is prepared
        self._supervisor = supervisor or ColdSupervisor(job.scratch)
        specification = prepare(job)
        self._go = job.scratch / "record" / "go"
        if job.is_led:
            self._go.touch()
        self._supervisor.begin(specification)

    @property
    def is_warm(self) -> bool:
        """Whether the training is forked from a process that had imported what it needs."""
        return self._supervisor.is_warm

    def poll(self) -> RunResult | None:
        """Return what the run showed, or None while it runs; InfraError where that is nothing."""
        code = self._supervisor.poll()
        if code is None:
            return None
        self._supervisor.let_go()
        if not self._result.exists():
            check_disk(self.job)
            if code > 0:
                text = read_text(self.job.scratch / "supervisor.log", RECORD_LIMIT)
                last = "".join(text.strip().splitlines()[-1:]) or "its folder is gone"
                raise InfraError(f"The supervisor failed: {last}.", "Run it again.")
            raise SupervisorKilledError(
                "The run's supervisor was killed.", "The run is made again."
            )
        result = json.loads(self._result.read_text())
        if self._stop_at is not None and not result["cancelled"]:
            shown = read_stopped(self.job, result, self._output, self._stop_at)
        else:
            shown = read_ended(self.job, result, self._output, count_memory_kills() > self._kills)
        return replace(shown, warm=self.is_warm)

    def steps(self) -> int:
        """Return how many steps the run has logged so far."""
        logged = read_text(self.job.scratch / "record" / "metrics.jsonl", METRICS_LIMIT)
        return logged.count("\n")

    def look(self) -> None:
        """Read the steps that were logged since the last look."""
        folder = self._output if self.job.config.script else self.job.scratch / "record"
        path = folder / "metrics.jsonl"
        try:
            size = path.stat().st_size
        except OSError:
            return
        if size != self._size:
            self._size = size
            self.seen = parse_lines(read_text(path, METRICS_LIMIT))
            self._progressed = time.monotonic()

    @property
    def is_patient(self) -> bool:
        """Whether the run may still wait for another; it must not pass its time-out for that."""
        return time.monotonic() - self._progressed < min(PATIENCE, self.job.timeout / 4)

    def allow(self, steps: int) -> None:
        """Let the run go on after so many steps."""
        if self.job.is_led and self._go.exists():
            os.truncate(self._go, steps)

    def stop(self, steps: int) -> None:
        """Have the run end; it will have shown its first `steps` steps."""
        if self._stop_at is None:
            self._stop_at = steps
            self._supervisor.ask_to_stop()

    def cancel(self) -> None:
        """End the run and everything below it; nothing is observed."""
        self._supervisor.end()
