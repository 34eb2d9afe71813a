"""A warm process: it has imported the training stack of one interpreter, and trainings are forked from it.

Its side is `warm_worker.py`. This one starts it, hands it runs, and knows when it is of no more use;
which runs are made so is decided elsewhere.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

WARM_WORKER = Path(__file__).with_name("warm_worker.py")
PACKET = 1 << 20  # bytes
END_PATIENCE = 5.0  # seconds that a supervisor has to end all below it
EXTENSIONS = (".so", ".py")
# Else pyarrow starts a thread at its import, and a process with two cannot be forked.
ONE_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


class Template:
    """A process to fork trainings from, in `folder`, which does not exist yet.

    `variables` are those of a training whose scratch directory is `folder / "root"`. The mark among them
    must be as long as the runs' marks.
    """

    def __init__(self, python: str, variables: Mapping[str, str], folder: Path) -> None:
        self._names: frozenset[str] | None = None
        self.forks = 0
        root = folder / "root"
        for name in ("home", "work", "tmp", "datasets"):
            (root / name).mkdir(parents=True)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (folder / "template.log").open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(WARM_WORKER), str(theirs.fileno()), str(root)],
                env={**variables, **ONE_THREAD},
                cwd=root / "work",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._folder = folder

    def is_ready(self) -> bool:
        """Whether it has imported everything."""
        if self._names is None and select.select([self._control], [], [], 0)[0]:
            with suppress(ConnectionError):
                packet = self._control.recv(PACKET)
                self._names = frozenset(json.loads(packet)["names"]) if packet else None
        return self._names is not None

    def is_dead(self) -> bool:
        """Whether it has ended, however that was."""
        return self._process.poll() is not None

    def why_dead(self) -> str:
        """Return the last line that it wrote."""
        lines = (self._folder / "template.log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._process.returncode}"

    def find_shadow(self, checkout: Path) -> str:
        """Return a file of the checkout that a cold training would import instead of what is imported here."""
        assert self._names is not None
        for folder in (checkout, checkout / "src"):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                is_module = path.suffix in EXTENSIONS or (path / "__init__.py").exists()
                if is_module and path.name.partition(".")[0] in self._names:
                    return str(path.relative_to(checkout))
        return ""

    def supervisor(self) -> "WarmSupervisor":
        """Return what supervises one more training."""
        self.forks += 1
        return WarmSupervisor(self._control)

    def close(self) -> None:
        """End it; the trainings that were forked from it go on."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class WarmSupervisor:
    """A supervisor that is forked from a template. It has ended when its end of a socket is closed."""

    is_warm = True

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._socket: socket.socket | None = None
        self._number = b""  # of its process, which it sends first

    def begin(self, specification: Mapping[str, object]) -> None:
        """Have the template fork it."""
        self._socket, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # the template is gone; poll says so
            packet = json.dumps(specification).encode()
            socket.send_fds(self._control, [packet], [theirs.fileno()])

    def poll(self) -> int | None:
        """Return an exit code, that of a killed process, or None while it runs."""
        return -signal.SIGKILL if self._wait(0) else None

    def _wait(self, seconds: float) -> bool:
        assert self._socket
        while self._socket.fileno() >= 0 and select.select([self._socket], [], [], seconds)[0]:
            try:
                text = self._socket.recv(20)
            except ConnectionError:
                text = b""
            self._number += text
            if not text:
                self._socket.close()
        return self._socket.fileno() < 0

    def ask_to_stop(self) -> None:
        """Write the byte that asks for it."""
        assert self._socket
        with suppress(OSError):
            self._socket.send(b"s")

    def let_go(self) -> None:
        """Close our side of the socket for writing."""
        assert self._socket
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Let go, and kill it if that is not heard."""
        self.let_go()
        if not self._wait(END_PATIENCE) and self._number:
            with suppress(ProcessLookupError):
                os.kill(int(self._number), signal.SIGKILL)
            self._wait(END_PATIENCE)
