"""Says on standard error what runs: one live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bisector.bench import InFlight
from bisector.case import Case
from bisector.model import Run, short
from bisector.plan import runs_left
from bisector.report import duration, printable

REDRAW = 0.5  # seconds


class TerminalProgress:
    """Tells a person how a hunt goes; `is_verbose` also names each run's end on a terminal."""

    def __init__(self, *, is_verbose: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._is_verbose = is_verbose or not self._console.is_terminal
        self._live: Live | None = None
        self._drawn = 0.0
        self._seconds: list[float] = []

    def __enter__(self) -> "TerminalProgress":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def finished(self, run: Run, config: str) -> None:
        """Name a run that ended."""
        self._seconds.append(run.result.seconds)
        if self._is_verbose:
            reason = f": {printable(run.result.reason)}" if run.result.reason else ""
            self.said(
                f"{config} {short(run.sha)} {run.role} {run.result.status} "
                f"in {duration(run.result.seconds)}{reason}"
            )

    def said(self, text: str) -> None:
        """Print one line."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def tick(self, running: Sequence[InFlight], cases: Sequence[Case]) -> None:
        """Redraw the live line."""
        now = time.monotonic()
        if not self._live or now - self._drawn < REDRAW:
            return
        self._drawn = now
        self._live.update(Text(self._line(running, cases), no_wrap=True), refresh=True)

    def _line(self, running: Sequence[InFlight], cases: Sequence[Case]) -> str:
        what = ", ".join(
            f"{short(flight.order.sha)} {flight.order.role} {flight.running.steps()} steps"
            for flight in running
        )
        if not running:
            what = "waiting for a free device"
        left = sum(runs_left(case) for case in cases)
        line = f"{cases[0].hunt.config.name if cases else ''}: {what} | about {left} runs left"
        if self._seconds:
            average = sum(self._seconds) / len(self._seconds)
            line += f", at most {duration(left * average)}"
        return line
