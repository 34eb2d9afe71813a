"""The database: observations appended, hunts and their answers; SQL stands beside its function."""

import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bisector.errors import BisectorError, InfraError
from bisector.model import Conclusion, Crash, Environment, Hunt, Role, Run, RunResult, Status
from bisector.series import dump_steps, load_steps, plain

BUSY_TIMEOUT = 30.0  # seconds; transactions are short, so a wait this long means a stuck disk

MIGRATIONS = (
    """
    CREATE TABLE environments (id TEXT PRIMARY KEY, data TEXT NOT NULL);
    CREATE TABLE hunts (
        id TEXT PRIMARY KEY,
        question TEXT NOT NULL,      -- digest of what is asked; `--again` asks it anew
        created REAL NOT NULL,
        data TEXT NOT NULL,
        conclusion TEXT,
        finished REAL
    );
    CREATE INDEX hunts_by_question ON hunts (question, created);
    CREATE TABLE runs (
        id TEXT PRIMARY KEY,
        hunt TEXT,                   -- null: made by probe or record
        sha TEXT NOT NULL,
        config TEXT NOT NULL,        -- the config's digest
        name TEXT NOT NULL,          -- the config's name
        environment TEXT NOT NULL,
        role TEXT NOT NULL,
        status TEXT NOT NULL,
        started REAL NOT NULL,
        seconds REAL NOT NULL,
        crash TEXT,
        reason TEXT NOT NULL,
        log_tail TEXT NOT NULL,
        steps TEXT NOT NULL
    );
    CREATE INDEX runs_by_hunt ON runs (hunt, started);
    CREATE INDEX runs_by_question ON runs (sha, config, environment);
    CREATE INDEX runs_by_start ON runs (started);
    """,
)

_HUNT = TypeAdapter(Hunt)
_CONCLUSION = TypeAdapter(Conclusion)
_ENVIRONMENT = TypeAdapter(Environment)
_CRASH = TypeAdapter(Crash)


class Store:
    """The database in a state directory."""

    def __init__(self, state: Path) -> None:
        try:
            state.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(state / "bisector.db", timeout=BUSY_TIMEOUT)
            self._db.isolation_level = None
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._migrate(state)
        except (OSError, sqlite3.OperationalError) as error:
            raise BisectorError(
                f"The state directory {state} cannot be written: {error}.",
                "Make it writable, or name another with --state.",
            ) from None
        except sqlite3.DatabaseError as error:
            raise BisectorError(
                f"{state / 'bisector.db'} is no database of bisector: {error}.",
                "Move it away, or name another directory with --state.",
            ) from None

    def _migrate(self, state: Path) -> None:
        with self._transaction():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise BisectorError(
                    f"The state in {state} was written by a newer bisector.",
                    "Upgrade bisector, or name another directory with --state.",
                )
            for number, script in enumerate(MIGRATIONS[version:], version + 1):
                for statement in filter(str.strip, script.split(";\n")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise InfraError(
                f"The database could not be written: {error}.",
                "Free space under the state directory; run it again.",
            ) from None
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def add_hunt(self, hunt: Hunt, question: str) -> None:
        """Store a hunt if it is new."""
        with self._transaction() as db:
            self._add_environment(db, hunt.environment)
            db.execute(
                "INSERT OR IGNORE INTO hunts (id, question, created, data) VALUES (?, ?, ?, ?)",
                (hunt.id, question, time.time(), _dump(hunt)),
            )

    def hunts_asking(self, question: str) -> list[str]:
        """Return the ids of the hunts that asked this, oldest first."""
        rows = self._db.execute(
            "SELECT id FROM hunts WHERE question = ? ORDER BY created", (question,)
        )
        return [row["id"] for row in rows]

    def conclude(self, hunt: str, conclusion: Conclusion) -> None:
        """Store a hunt's answer."""
        with self._transaction() as db:
            db.execute(
                "UPDATE hunts SET conclusion = ?, finished = ? WHERE id = ?",
                (_dump(conclusion), time.time(), hunt),
            )

    def reopen(self, hunt: str) -> None:
        """Take a hunt's answer back, to go on with it."""
        with self._transaction() as db:
            db.execute("UPDATE hunts SET conclusion = NULL, finished = NULL WHERE id = ?", (hunt,))

    def hunt(self, prefix: str) -> tuple[Hunt, Conclusion | None] | None:
        """Return the hunt whose id begins so, and its answer if it has one; None if no single one does."""
        rows = self._db.execute(
            "SELECT data, conclusion FROM hunts WHERE substr(id, 1, ?) = ? LIMIT 2",
            (len(prefix), prefix),
        ).fetchall()
        if len(rows) != 1 or not prefix:
            return None
        answer = rows[0]["conclusion"]
        return (
            _HUNT.validate_python(json.loads(rows[0]["data"])),
            _CONCLUSION.validate_python(json.loads(answer)) if answer else None,
        )

    def recent_hunts(self, limit: int) -> list[tuple[Hunt, Conclusion | None, float]]:
        """Return the newest hunts, their answers and when they were asked, newest first."""
        rows = self._db.execute(
            "SELECT data, conclusion, created FROM hunts ORDER BY created DESC LIMIT ?", (limit,)
        )
        return [
            (
                _HUNT.validate_python(json.loads(row["data"])),
                _CONCLUSION.validate_python(json.loads(row["conclusion"]))
                if row["conclusion"]
                else None,
                row["created"],
            )
            for row in rows
        ]

    def add_run(self, run: Run, *, config: str, name: str, environment: Environment) -> None:
        """Append one observation."""
        result = run.result
        with self._transaction() as db:
            self._add_environment(db, environment)
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run.id,
                    run.hunt,
                    run.sha,
                    config,
                    name,
                    run.environment,
                    run.role,
                    result.status,
                    run.started,
                    result.seconds,
                    _dump(result.crash) if result.crash else None,
                    result.reason,
                    result.log_tail,
                    dump_steps(result.trajectory),
                ),
            )

    def _add_environment(self, db: sqlite3.Connection, environment: Environment) -> None:
        db.execute(
            "INSERT OR IGNORE INTO environments VALUES (?, ?)", (environment.id, _dump(environment))
        )

    def runs_of(self, hunt: str) -> tuple[Run, ...]:
        """Return a hunt's runs in the order in which they started."""
        rows = self._db.execute("SELECT * FROM runs WHERE hunt = ? ORDER BY started, id", (hunt,))
        return tuple(_run(row) for row in rows)

    def completed_run(self, sha: str, config: str, environment: str) -> Run | None:
        """Return the newest completed run of a config at a commit in an environment."""
        row = self._db.execute(
            "SELECT * FROM runs WHERE sha = ? AND config = ? AND environment = ? AND status = ?"
            " ORDER BY started DESC LIMIT 1",
            (sha, config, environment, Status.COMPLETED),
        ).fetchone()
        return _run(row) if row else None

    def run(self, prefix: str) -> tuple[Run, str, Environment] | None:
        """Return the run whose id begins so, its config's name and environment; None if no single one does."""
        rows = self._db.execute(
            "SELECT runs.*, data FROM runs JOIN environments ON environments.id = environment"
            " WHERE substr(runs.id, 1, ?) = ? LIMIT 2",
            (len(prefix), prefix),
        ).fetchall()
        if len(rows) != 1 or not prefix:
            return None
        environment = _ENVIRONMENT.validate_python(json.loads(rows[0]["data"]))
        return _run(rows[0]), rows[0]["name"], environment

    def recent_runs(self, limit: int) -> list[tuple[Run, str]]:
        """Return the newest runs and their configs' names, newest first."""
        rows = self._db.execute("SELECT * FROM runs ORDER BY started DESC LIMIT ?", (limit,))
        return [(_run(row), row["name"]) for row in rows]


def _run(row: sqlite3.Row) -> Run:
    crash = _CRASH.validate_python(json.loads(row["crash"])) if row["crash"] else None
    return Run(
        id=row["id"],
        hunt=row["hunt"],
        sha=row["sha"],
        role=Role(row["role"]),
        result=RunResult(
            status=Status(row["status"]),
            trajectory=load_steps(row["steps"]),
            crash=crash,
            reason=row["reason"],
            seconds=row["seconds"],
            log_tail=row["log_tail"],
        ),
        started=row["started"],
        environment=row["environment"],
    )


def _dump(value: Any) -> str:
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    """Return a dataclass as what JSON can hold, so that the adapters above read it back."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
