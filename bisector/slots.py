"""Locks between processes: one run a device slot on this machine, one process a hunt."""

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class Lock:
    """An advisory file lock; the kernel drops it when its holder dies, however it dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free; say whether it was."""
        file = _open_for_all(self._path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Slots:
    """The places for runs on this machine's devices: `names` such as "cpu0", "cuda1", or "cuda1.1", its second."""

    def __init__(self, names: list[str]) -> None:
        folder = Path(tempfile.gettempdir())
        self._locks = {name: Lock(folder / f"bisector-{name}.lock") for name in names}
        self._taken: set[str] = set()

    def take(self, count: int) -> list[str] | None:
        """Hold free slots of `count` devices, or of all if fewer, and return them; None if too few are free."""
        held: list[str] = []
        wanted = min(count, len({device_of(name) for name in self._locks}))
        for name, lock in self._locks.items():
            if device_of(name) in map(device_of, held):
                continue
            if len(held) < wanted and name not in self._taken and lock.acquire():
                self._taken.add(name)
                held.append(name)
        if len(held) == wanted:
            return held
        self.give(held)
        return None

    def give(self, names: list[str]) -> None:
        """Give slots back."""
        for name in names:
            self._taken.remove(name)
            self._locks[name].release()

    def keep_one_a_device(self) -> None:
        """Give up the places beside the first of each device, as soon as they are free."""
        self._taken |= {name for name in self._locks if name != device_of(name)}


def device_of(name: str) -> str:
    """Return the device of a slot."""
    return name.partition(".")[0]


def _open_for_all(path: Path) -> int:
    """Open a lock file that users share; creating it in a sticky directory works once only."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(PermissionError):
            os.fchmod(file, 0o666)
        return file
