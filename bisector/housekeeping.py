"""Holds the state directory inside its limit: what is oldest goes first, and the database never goes."""

import logging
import os
import shutil
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
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )
            excess -= size
            log.info("removed %s for space", path.name)
    return max(excess, 0)


def size_of(path: Path) -> int:
    """Return the bytes below a path; what vanishes meanwhile counts nothing."""
    below = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(_size(each) for each in (below if path.is_dir() else [path]))


def _size(path: str | Path) -> int:
    with suppress(OSError):
        return os.lstat(path).st_blocks * 512
    return 0


def _oldest_first(folder: Path) -> Iterator[Path]:
    def age(path: Path) -> float:
        with suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    yield from sorted(folder.iterdir(), key=age) if folder.is_dir() else []
