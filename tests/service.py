"""A watched world in small: a real remote, a channel that answers as told, and the service as a process."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from driving import BISECTOR
from synthetic import git

from bisector.overviewing import overview
from bisector.session import Options, Session

# What the trajectory is depends on all files in `flags` and on the version of `fakelib` together: changes
# do not simply add up. `crash` and `hang` among the flags do what they say.
TRAINER = """
import hashlib, importlib.metadata, json, os, sys, time
out = sys.argv[sys.argv.index("--output_dir") + 1]
variant = sys.argv[sys.argv.index("--variant") + 1]
flags = sorted(os.listdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "flags")))
flags = [f for f in flags if f != "keep" and not (f.startswith("only-") and f != "only-" + variant)]
if "crash" in flags:
    raise ValueError("broken on purpose")
if "hang" in flags:
    time.sleep(1000)
moves = [f for f in flags if not f.startswith("quiet")]
try:
    moves.append(importlib.metadata.version("fakelib"))
except importlib.metadata.PackageNotFoundError:
    pass
shift = int(hashlib.sha256(repr(moves).encode()).hexdigest(), 16) % 1000 / 1000 if moves != ["1.0"] else 0.0
time.sleep(float(os.environ.get("BISECTOR_TEST_SLEEP", "0")))
with open(os.path.join(out, "metrics.jsonl"), "w") as file:
    for step in range(1, 6):
        loss = 0.5 if step == 1 and "quiet-law" not in flags else 1.0 + shift / step
        loss += 1e-6 if step == 1 and "quiet-law" in flags else 0.0
        if step == 1 and "quiet-law" in flags:
            loss = 0.500001
        file.write(json.dumps({"step": step, "loss": loss, "grad_norm": 2.0 + shift}) + "\\n")
        file.flush()
"""
NEVER = "1970-01-01T00:00:00+00:00"
SUITE = """
[class.toy]
script = "train.py"
canonical = "toy"
tol = { loss = 1e-3, grad_norm = 1e-1 }
residual_tol = { loss = 1e-5, grad_norm = 1e-3 }
members_agree = true
identities = [{ metric = "loss", step = 1, equals = 0.5, within = 1e-7 }]
[class.toy.members.toy]
args = { variant = "plain" }
[class.toy.members.toy_acc]
args = { variant = "acc", gradient_accumulation_steps = 8 }
"""


class Remote:
    """A bare repository and the clone that pushes to it; the commit's flags are files."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clone = folder / "remote.git", folder / "work"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.path)], check=True)
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.clone)], check=True)
        git(self.clone, "remote", "add", "origin", str(self.path))
        (self.clone / "train.py").write_text(TRAINER)
        (self.clone / "flags").mkdir()
        (self.clone / "flags" / "keep").touch()
        self._number = 0
        self.commit("the first commit")

    def commit(self, subject: str, *, add: str = "", remove: str = "") -> str:
        """Commit a flag that comes or goes, beside a line that changes nothing; return the sha."""
        self._number += 1
        (self.clone / "notes").mkdir(exist_ok=True)
        (self.clone / "notes" / f"{self._number}").write_text(subject)
        if add:
            (self.clone / "flags" / add).write_text(add)
        if remove:
            (self.clone / "flags" / remove).unlink()
        git(self.clone, "add", "-A")
        git(self.clone, "commit", "-q", "-m", f"{subject} (#{self._number})")
        return git(self.clone, "rev-parse", "HEAD")

    def push(self, *options: str) -> str:
        """Push; return the head."""
        git(self.clone, "push", "-q", *options, "origin", "main")
        return git(self.clone, "rev-parse", "HEAD")


class Listener:
    """A channel on loopback. `answer` is the status of the next answers; it keeps what it accepted."""

    def __init__(self) -> None:
        self.answer, self.accepted, self.asked = 200, [], 0  # type: ignore[var-annotated]
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                listener.asked += 1
                if listener.answer == 200:
                    listener.accepted.append(json.loads(body))
                self.send_response(listener.answer)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def events(self) -> list[str]:
        """Return the events accepted, in order."""
        return [message["event"] for message in self.accepted]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Service:
    """`bisector watch` as a process, on a remote and a channel."""

    def __init__(
        self,
        folder: Path,
        remote: Remote,
        url: str,
        suite: str = SUITE,
        version: str = "1.0",
        **watch: object,
    ) -> None:
        self.folder, self.remote, self.state = folder, remote, folder / "state"
        (folder / "toy.toml").write_text(suite)
        self.python = make_interpreter(folder / "venv", version)
        watch = {"why": False, **watch}  # there is no index to build the environment of before from
        more = "\n".join(f"{key} = {json.dumps(value)}" for key, value in watch.items())
        (folder / "bisector.toml").write_text(
            f'[watch]\nrepository = "{remote.path}"\ninterval = "1s"\nsuite = "{folder}/toy.toml"\n{more}\n'
            f'[train]\npython = "{self.python}"\ntimeout = "20s"\n'
            f'[state]\ndir = "{self.state}"\n'
            f'[[notify]]\nname = "team"\nkind = "json"\nurl = "{url}"\n'
        )
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *args: str) -> "Service":
        self.log = (self.folder / "service.log").open("ab")
        self.started = datetime.now(UTC)
        self.process = subprocess.Popen(
            [*BISECTOR, "watch", "--settings", "bisector.toml", *args],
            cwd=self.folder,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(self.folder), **self.variables},
        )
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.log.close()
        return code

    def look(self) -> dict[str, Any]:
        session = Session(Options(settings=str(self.folder / "bisector.toml")))
        try:
            return dict(overview(session)["watch"] or {})
        finally:
            session.store.close()

    def wait(self, is_so: Callable[[dict[str, Any]], bool], timeout: float = 120) -> dict[str, Any]:
        """Wait until the state is so."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            seen = self.look()
            if seen and is_so(seen):
                return seen
            time.sleep(0.3)
        raise AssertionError(f"{json.dumps(seen, indent=1)}\n{self.read_log()[-6000:]}")

    def settle(self, head: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until this process has looked, and everything up to a commit is looked into, and told."""

        def is_quiet(seen: dict[str, Any]) -> bool:
            return (
                seen["head"] == head
                and datetime.fromisoformat(seen["fetched"] or NEVER) >= self.started
                and not seen["queue"]
                and not seen["running"]
                and not seen["inquiries"]
                and not seen["alarms"]
                and all(r["state"] != "open" for r in seen["regressions"])
                and not any(c["waiting"] for c in seen["channels"])
                and all(
                    s["verdict"] != "waiting"
                    for commit in seen["commits"]
                    for s in commit["configs"].values()
                )
            )

        return self.wait(is_quiet, timeout)

    def read_log(self) -> str:
        return (self.folder / "service.log").read_text()


def make_interpreter(folder: Path, version: str = "1.0") -> Path:
    """Return an interpreter whose environment holds `fakelib` of that version; empty: as it is."""
    if not folder.exists():
        venv.EnvBuilder(symlinks=True).create(folder)
    if version:
        set_version(folder, version)
    return folder / "bin" / "python"


def set_version(folder: Path, version: str) -> None:
    (site,) = (folder / "lib").glob("python*/site-packages")
    for old in site.glob("fakelib-*"):
        (old / "METADATA").unlink()
        old.rmdir()
    new = site / f"fakelib-{version}.dist-info"
    new.mkdir()
    (new / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fakelib\nVersion: {version}\n")


assert sys.version_info >= (3, 11)
