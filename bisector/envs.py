"""Builds training environments: the base one with some packages at other versions. Runs uv; decides nothing.

An environment is `state/envs/<digest>/`, a clone of the base by hard links in which only what differs was
installed, so torch is never stored or downloaded again. `complete` is written into it last; a lock on
the folder is exclusive while it is built and shared while it is used, and housekeeping respects both.
What was resolved is kept beside, so that a known environment costs neither uv nor the network.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import uv
from packaging.utils import canonicalize_name

from bisector import resolving
from bisector.errors import InfraError

CLONER = Path(__file__).with_name("cloner.py")
WORKER = Path(__file__).with_name("worker.py")
BUILD_LIMIT = 1800.0  # seconds for one call of uv; a source build of a tokenizer takes minutes
UNREACHABLE = re.compile(
    r"network was disabled|Network connectivity is disabled|error sending request|Could not connect"
    r"|dns error|timed out|Failed to fetch|Failed to download",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Built:
    """An environment that is there: its interpreter, and name -> (old, new), "" where there is none."""

    python: Path
    moved: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be resolved or built, in the resolver's or builder's own words, on one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """A resolved environment: its name in the cache, and what differs from the base."""

    digest: str
    moved: Mapping[str, tuple[str, str]]


class _RefusedError(Exception):
    """Carries a reason out of a preparation."""


class Environments:
    """Environments made from one base. Not for several threads; preparations run in one of its own."""

    def __init__(self, state: Path, base: str, installed: Mapping[str, str]) -> None:
        """Take the base's interpreter, and its packages and versions as `worker.py describe` tells them."""
        self._folder = state.absolute() / "envs"
        self._base = base
        self._installed = {str(canonicalize_name(name)): each for name, each in installed.items()}
        self._answers: dict[str, Built | Refused] = {}
        self._jobs: dict[str, Future[Built | Refused]] = {}
        self._held: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, "envs")
        self._children: set[subprocess.Popen[str]] = set()
        self._starting = Lock()
        self._is_closed = False

    def ask(self, pins: Mapping[str, str]) -> Built | Refused | None:
        """Return the base with `pins` changed; None while it is prepared: ask again.

        A pin is a version, a URL that pip could install, or "", which removes the package.

        Other packages move only as far as they must; a pin at the base's own version holds one in place.
        Raises InfraError when the index cannot be reached; asking again then tries again.
        """
        wanted = {
            name: version
            for each, version in pins.items()
            if (name := str(canonicalize_name(each))) not in resolving.ASIDE
        }
        if all(version == self._installed.get(name, "") for name, version in wanted.items()):
            return Built(Path(self._base), {})
        key = self._key_of(wanted)
        if key not in self._jobs and key not in self._answers:
            if found := self._recall(key):
                self._answers[key] = found
            else:
                self._jobs[key] = self._thread.submit(self._prepare, wanted, key)
        if key in self._jobs:
            if not self._jobs[key].done():
                return None
            self._answers[key] = self._jobs.pop(key).result()
        return self._answers[key]

    def close(self) -> None:
        """End what is being prepared, and let go of every environment."""
        with self._starting:
            self._is_closed = True
            for child in self._children:
                _kill(child)
        self._thread.shutdown(cancel_futures=True)
        for held in self._held.values():
            os.close(held)
        self._held.clear()

    def _key_of(self, pins: Mapping[str, str]) -> str:
        settings = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
        return _digest([self._base, self._installed, dict(pins), settings])

    def _recall(self, key: str) -> Built | None:
        """Return an environment that another call or process completed, without waiting for any."""
        with suppress(OSError, ValueError, TypeError):
            plan = _read_plan(self._folder / f"{key}.json")
            held = self._held.get(plan.digest) or _lock(self._folder / plan.digest, fcntl.LOCK_SH)
            if held is not None:
                return self._take(plan, held)
        return None

    def _take(self, plan: _Plan, held: int) -> Built | None:
        """Hold a complete environment and mark it as used now; give the lock back otherwise."""
        folder = self._folder / plan.digest
        python = folder / "bin" / "python"
        if not ((folder / "complete").exists() and os.access(python, os.X_OK)):
            self._held.pop(plan.digest, None)
            os.close(held)
            return None
        self._held[plan.digest] = held
        os.utime(folder)
        return Built(python, plan.moved)

    # In the thread.

    def _prepare(self, pins: Mapping[str, str], key: str) -> Built | Refused:
        self._sweep()
        record = self._folder / f"{key}.json"
        try:
            plan = None
            with suppress(OSError, ValueError, TypeError):
                plan = _read_plan(record)
            if plan is None:
                plan = self._resolve(pins)
                _write_whole(record, json.dumps({"digest": plan.digest, "moved": dict(plan.moved)}))
            return self._build(plan)
        except _RefusedError as refused:
            return Refused(str(refused))

    def _sweep(self) -> None:
        """Take uv's cache into use, and remove what a killed resolution left."""
        cache = self._folder / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        while "cache" not in self._held:
            if (held := _lock(cache, fcntl.LOCK_SH)) is not None:
                self._held["cache"] = held
            cache.mkdir(parents=True, exist_ok=True)
            self._check_open()
        for left in (*self._folder.glob("resolve-*"), *self._folder.glob("*.partial")):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > BUILD_LIMIT:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _resolve(self, pins: Mapping[str, str]) -> _Plan:
        """Ask uv for versions that agree with the pins, as near to the base as can be."""
        told = json.loads(self._run([self._base, str(CLONER), "tell"]))
        base = {
            name: each
            for name, each in told["distributions"].items()
            if name not in resolving.ASIDE and resolving.is_version(each["version"])
        }
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="resolve-") as place:
            scratch = Path(place)
            (scratch / "stubs").mkdir()
            for name, each in base.items():
                _write_stub(scratch / "stubs", name, each, told)
            wanted, resolved = scratch / "wanted.in", scratch / "resolved.txt"
            no_stubs = scratch / "no-stubs.txt"  # a package that must be built cannot use them
            no_stubs.write_text("\n".join(f"{n}!={each['version']}" for n, each in base.items()))
            lines = [resolving.wanted_line(name, each, pins) for name, each in base.items()]
            lines += [
                resolving.requirement(f"{name}{resolving.extras_of(name, each, told, pins)}", each)
                for name, each in pins.items()
                if each
            ]
            wanted.write_text(
                "\n".join([f"--find-links {scratch / 'stubs'}", *filter(None, lines)])
            )
            preferred = (f"{n}=={each['version']}" for n, each in base.items() if n not in pins)
            resolved.write_text("\n".join(preferred))
            self._uv(
                *("pip", "compile", str(wanted), "--output-file", str(resolved)),
                *("--python", self._base, "--no-header", "--annotation-style", "line"),
                *("--build-constraints", str(no_stubs)),
                *("--quiet", "--no-emit-index-url", "--no-emit-find-links"),
            )
            after, users = resolving.read_resolved(resolved.read_text())
        for name in pins:
            if not pins[name] and name in after:
                raise _RefusedError(
                    f"{name} cannot be removed: {users[name] or 'another package'} needs it"
                )
        moved = resolving.differences({name: each["version"] for name, each in base.items()}, after)
        whole = {name: each["version"] for name, each in told["distributions"].items()}
        whole |= {name: new for name, (_, new) in moved.items()}
        return _Plan(_digest([told["prefix"], told["python"], whole]), moved)

    def _build(self, plan: _Plan) -> Built:
        folder = self._folder / plan.digest
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            if (held := _lock(folder, fcntl.LOCK_SH)) is not None:
                if found := self._take(plan, held):
                    return found
                if (held := _lock(folder, fcntl.LOCK_EX)) is not None:
                    try:
                        if not (folder / "complete").exists():
                            self._make(folder, plan, held)
                    finally:
                        os.close(held)
                    continue
            self._check_open()
            time.sleep(0.2)

    def _make(self, folder: Path, plan: _Plan, held: int) -> None:
        """Make the environment in its final place, which its scripts name. A child keeps the lock if we die."""
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        python = folder / "bin" / "python"
        self._uv(
            "venv", str(folder), "--python", self._base, "--allow-existing", "--quiet", hold=held
        )
        shown = "import sysconfig; print(sysconfig.get_path('purelib'))"
        order = {
            "prefix": str(folder),
            "site": self._run([str(python), "-c", shown], hold=held).strip(),
            "python": str(python),
            "without": sorted(name for name, (old, _) in plan.moved.items() if old),
        }
        self._run([self._base, str(CLONER), "clone"], text=json.dumps(order), hold=held)
        news = sorted(
            resolving.requirement(name, new) for name, (_, new) in plan.moved.items() if new
        )
        if news:
            self._uv(
                "pip", "install", "--no-deps", "--quiet", "--python", str(python), *news, hold=held
            )
        described = json.loads(self._run([str(python), str(WORKER), "describe"], hold=held))
        seen = {str(canonicalize_name(name)): each for name, each in described["packages"].items()}
        expected = self._installed | {name: new for name, (_, new) in plan.moved.items()}
        expected |= {name: seen[name] for name in seen if "://" in expected.get(name, "")}
        wrong = resolving.differences({name: each for name, each in expected.items() if each}, seen)
        for name, (want, got) in wrong.items():
            raise _RefusedError(
                f"the environment has {name} {got or 'not at all'}, not {want or 'without'}"
            )
        _write_whole(folder / "complete", json.dumps(seen))

    def _uv(self, *args: str, hold: int | None = None) -> None:
        variables = {
            "UV_CACHE_DIR": str(self._folder / "cache"),
            "UV_LINK_MODE": "hardlink",
            **os.environ,
            "UV_COMPILE_BYTECODE": "0",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
        }
        self._run([uv.find_uv_bin(), *args], variables=variables, hold=hold)

    def _run(
        self,
        argv: Sequence[str],
        *,
        text: str = "",
        variables: Mapping[str, str] | None = None,
        hold: int | None = None,
    ) -> str:
        """Return what a child prints; a failure is a refusal in its words, or the index out of reach."""
        with self._starting:
            self._check_open()
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self._folder,
                env=variables,
                pass_fds=() if hold is None else (hold,),
                start_new_session=True,
            )
            self._children.add(child)
        try:
            output, errors = child.communicate(text, BUILD_LIMIT)
        except subprocess.TimeoutExpired:
            raise _RefusedError(
                f"building took longer than {BUILD_LIMIT / 60:.0f} minutes"
            ) from None
        finally:
            _kill(child)
            with self._starting:
                self._children.discard(child)
        self._check_open()
        if child.returncode:
            _raise_failure(errors)
        return output

    def _check_open(self) -> None:
        if self._is_closed:
            raise InfraError("The preparation of an environment was ended.", "Run it again.")


def _raise_failure(errors: str) -> None:
    words = resolving.shorten(errors)
    if UNREACHABLE.search(errors) and "404 Not Found" not in errors:
        raise InfraError(
            f"The package index cannot be reached: {words.rstrip('.')}.",
            "Connect this machine, or set UV_DEFAULT_INDEX or UV_FIND_LINKS to an index that it reaches; run it again.",
        )
    if "No space left on device" in errors:
        raise InfraError("The disk is full.", "Make room; run it again.")
    raise _RefusedError(words)


def _write_stub(
    folder: Path, name: str, distribution: Mapping[str, Any], told: Mapping[str, Any]
) -> None:
    """Write a wheel that has only the metadata of an installed distribution, for the resolver alone.

    So each version of the base can be chosen, be it local, editable or gone from the index. What the base
    itself leaves unmet is not asked for. The tag is the most specific, so that this wheel is preferred.
    """
    name, version = name.replace("-", "_"), distribution["version"]
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if distribution["requires_python"]:
        lines.append(f"Requires-Python: {distribution['requires_python']}")
    asked = [text for text in distribution["requires"] if resolving.is_met(text, told)]
    extras = {extra for text in asked for extra in re.findall(r"extra *== *['\"]([^'\"]+)", text)}
    lines += [f"Provides-Extra: {extra}" for extra in sorted(extras)]
    lines += [f"Requires-Dist: {text}" for text in asked]
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-{told['tag']}.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {told['tag']}\n")
        wheel.writestr(f"{info}/RECORD", "")


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _read_plan(path: Path) -> _Plan:
    told = json.loads(path.read_text())
    os.utime(path)
    return _Plan(told["digest"], {name: (old, new) for name, (old, new) in told["moved"].items()})


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)


def _lock(folder: Path, kind: int) -> int | None:
    """Return an open lock on a folder; None if another process has it, or it was removed meanwhile."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):
        fcntl.flock(held, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), folder.stat()):
            return held
    os.close(held)
    return None


def _kill(child: "subprocess.Popen[str]") -> None:
    """End a child and what it started; nothing happens where it has ended."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
