"""Holds the state directory inside its limit: what is oldest goes first, and the database never goes.

A folder whose lock another has is in use, and stays.
"""

import fcntl
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# In the order in which they are given up; runs need the rest.
EXPENDABLE = ("logs", "pages", "envs")

log = logging.getLogger(__name__)


def keep_inside(state: Path, limit: int) -> int:
    """Remove the oldest logs and caches until the directory is inside `limit` bytes; return the bytes by which
    it is over the limit all the same."""
    excess = size_of(state) - limit
    for name in EXPENDABLE:
        for path in _oldest_first(state / name):
            if excess <= 0:
                return 0
            size = size_of(path)
            if _remove(path):
                excess -= size
                log.info("removed %s for space", path.name)
    return max(excess, 0)


def size_of(path: Path) -> int:
    """Return the bytes that removing a path would free; what vanishes meanwhile counts nothing.

    A file with several names counts once, and only if all of them are below the path.
    """
    below = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    whole, seen = 0, Counter[tuple[int, int]]()
    for each in below if path.is_dir() else [path]:
        with suppress(OSError):
            found = os.lstat(each)
            if found.st_nlink > 1:
                seen[found.st_dev, found.st_ino] += 1
            if found.st_nlink == 1 or seen[found.st_dev, found.st_ino] == found.st_nlink:
                whole += found.st_blocks * 512
    return whole


def _remove(path: Path) -> bool:
    """Remove a file, or a folder that nobody has locked; say whether it is gone."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return True
    with suppress(OSError):
        held = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(held)
    return not path.exists()


def _oldest_first(folder: Path) -> Iterator[Path]:
    def age(path: Path) -> float:
        with suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    yield from sorted(folder.iterdir(), key=age) if folder.is_dir() else []
