"""One run to make, and what stands between bisector and its training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bisector.model import Config, Declared


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make. `scratch` is a directory that does not exist yet."""

    run: str
    config: Config
    checkout: Path
    declared: Declared
    scratch: Path
    log: Path
    hub: Path
    assets: Path | None  # what `{tiny}` stands for
    python: str
    devices: str  # CUDA indexes, comma-separated; empty: the CPU
    timeout: float
    mark: Mapping[str, str]  # variables by which every process of the run can be found
    is_led: bool = False  # it waits after each step until it is allowed the next


class Supervisor(Protocol):
    """What stands between bisector and a training; it ends all that came of the training."""

    is_warm: bool

    def begin(self, specification: Mapping[str, object]) -> None:
        """Have the training start; whether that worked shows when it has ended."""

    def poll(self) -> int | None:
        """Return the supervisor's exit code, or None while it runs."""

    def ask_to_stop(self) -> None:
        """Have the training end, with what it has shown."""

    def let_go(self) -> None:
        """Have everything end, if it has not."""

    def end(self) -> None:
        """Have everything end, and wait for that."""
