"""The supervisor of a training in processes of its own: `worker.py supervise`, which outlives neither this
process nor the training.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


class ColdSupervisor:
    """`worker.py supervise` in a process of its own."""

    is_warm = False

    def __init__(self, scratch: Path) -> None:
        with (scratch / "supervisor.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER), "supervise", str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def begin(self, specification: Mapping[str, object]) -> None:
        """Send the specification."""
        self._write(json.dumps(specification).encode() + b"\n")

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Write the byte that asks for it."""
        self._write(b"s")

    def _write(self, text: bytes) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # killed already; poll says so
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def let_go(self) -> None:
        """Close its standard input."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Close its standard input, and kill it if that is not heard."""
        self.let_go()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
