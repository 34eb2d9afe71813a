"""The database: observations appended, hunts and their answers; SQL stands beside its function."""

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from bisector.contents import Footprint
from bisector.errors import BisectorError, InfraError
from bisector.model import (
    SHA_LENGTH,
    Conclusion,
    Crash,
    Environment,
    Hunt,
    Role,
    Run,
    RunResult,
    Status,
)
from bisector.series import dump, dump_steps, load, load_steps

BUSY_TIMEOUT = 30.0  # seconds; transactions are short, so a wait this long means a stuck disk
OF_COMMITS = "role != 'revert'"  # the runs of what was committed, not of a commit without another
LAST = "\U0010ffff"  # behind whatever may follow the beginning of an id, so that the index finds it

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
    """
    CREATE TABLE watch (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE epochs (
        number INTEGER PRIMARY KEY,
        config TEXT NOT NULL,        -- here and below: the config's name and digest
        environment TEXT NOT NULL,
        since REAL NOT NULL
    );
    CREATE TABLE turns (
        config TEXT NOT NULL,
        sha TEXT NOT NULL,
        opens TEXT NOT NULL,
        closes TEXT NOT NULL,
        back_to TEXT NOT NULL,
        PRIMARY KEY (config, sha)
    );
    CREATE TABLE anchors (
        config TEXT NOT NULL,
        turn TEXT NOT NULL,
        environment TEXT NOT NULL,
        since REAL NOT NULL,
        sha TEXT NOT NULL,
        run TEXT NOT NULL,
        path TEXT NOT NULL,
        PRIMARY KEY (config, turn, environment, since)
    );
    CREATE TABLE inquiries (id TEXT PRIMARY KEY, data TEXT NOT NULL, ended REAL);
    CREATE TABLE regressions (
        id TEXT PRIMARY KEY,
        opened REAL NOT NULL,
        data TEXT NOT NULL
    );
    CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        event TEXT NOT NULL,
        regression TEXT NOT NULL,
        created REAL NOT NULL,
        document TEXT NOT NULL
    );
    CREATE TABLE deliveries (
        message INTEGER NOT NULL REFERENCES messages (number),
        channel TEXT NOT NULL,
        state TEXT NOT NULL,         -- waiting, delivered, dead
        attempts INTEGER NOT NULL,
        due REAL NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (message, channel)
    );
    CREATE INDEX deliveries_by_state ON deliveries (state, channel);
    """,
    """
    CREATE TABLE footprints (id TEXT PRIMARY KEY, data TEXT NOT NULL);
    CREATE TABLE recalled (          -- runs that stand for others in a hunt
        hunt TEXT NOT NULL,
        run TEXT NOT NULL,
        sha TEXT NOT NULL,
        role TEXT NOT NULL,
        PRIMARY KEY (hunt, run, sha)
    );
    CREATE INDEX runs_by_config ON runs (config, environment, started);
    ALTER TABLE runs ADD COLUMN footprint TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN warm INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE hunts ADD COLUMN account TEXT;  -- what the repository says of the conclusion
    """,
)


class Store:
    """The database in a state directory."""

    def __init__(self, state: Path) -> None:
        try:
            state.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(state / "bisector.db", timeout=BUSY_TIMEOUT)
            self._db.isolation_level = None
            self._db.row_factory = sqlite3.Row
            self._footprints: dict[str, Footprint] = {}  # those that were read
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
        with self.transaction():
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
    def reading(self) -> Iterator[None]:
        """Have everything that is read meanwhile be of one moment, whatever other processes write."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Do all of it or nothing; InfraError where the disk or another process is in the way."""
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

    @property
    def db(self) -> sqlite3.Connection:
        """Return the connection, for reading."""
        return self._db

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def add_hunt(self, hunt: Hunt, question: str) -> None:
        """Store a hunt if it is new."""
        with self.transaction() as db:
            self._add_environment(db, hunt.environment)
            db.execute(
                "INSERT OR IGNORE INTO hunts (id, question, created, data) VALUES (?, ?, ?, ?)",
                (hunt.id, question, time.time(), dump(hunt)),
            )

    def hunts_asking(self, question: str) -> list[str]:
        """Return the ids of the hunts that asked this, oldest first."""
        rows = self._db.execute(
            "SELECT id FROM hunts WHERE question = ? ORDER BY created", (question,)
        )
        return [row["id"] for row in rows]

    def conclude(self, hunt: str, conclusion: Conclusion) -> None:
        """Store a hunt's answer."""
        with self.transaction() as db:
            db.execute(
                "UPDATE hunts SET conclusion = ?, finished = ?, account = NULL WHERE id = ?",
                (dump(conclusion), time.time(), hunt),
            )

    def keep_account(self, hunt: str, account: str) -> None:
        """Store what the repository says of a hunt's answer; nothing happens while it has none."""
        with self.transaction() as db:
            db.execute(
                "UPDATE hunts SET account = ? WHERE id = ? AND conclusion IS NOT NULL",
                (account, hunt),
            )

    def account(self, hunt: str) -> str:
        """Return what was kept of a hunt's answer; empty if nothing was."""
        row = self._db.execute("SELECT account FROM hunts WHERE id = ?", (hunt,)).fetchone()
        return (row and row["account"]) or ""

    def reopen(self, hunt: str) -> None:
        """Take a hunt's answer back, to go on with it."""
        with self.transaction() as db:
            db.execute(
                "UPDATE hunts SET conclusion = NULL, finished = NULL, account = NULL WHERE id = ?",
                (hunt,),
            )

    def hunt(self, prefix: str) -> tuple[Hunt, Conclusion | None] | None:
        """Return the hunt whose id begins so, and its answer if it has one; None if no single one does."""
        rows = self._db.execute(
            "SELECT data, conclusion FROM hunts WHERE id BETWEEN ? AND ? LIMIT 2",
            (prefix, prefix + LAST),
        ).fetchall()
        if len(rows) != 1 or not prefix:
            return None
        answer = rows[0]["conclusion"]
        return (
            load(Hunt, rows[0]["data"]),
            load(Conclusion, answer) if answer else None,
        )

    def recent_hunts(self, limit: int) -> list[tuple[Hunt, Conclusion | None, float]]:
        """Return the newest hunts, their answers and when they were asked, newest first."""
        rows = self._db.execute(
            "SELECT data, conclusion, created FROM hunts ORDER BY created DESC LIMIT ?", (limit,)
        )
        return [
            (
                load(Hunt, row["data"]),
                load(Conclusion, row["conclusion"]) if row["conclusion"] else None,
                row["created"],
            )
            for row in rows
        ]

    def add_run(self, run: Run, *, config: str, name: str, environment: Environment) -> None:
        """Append one observation."""
        result = run.result
        with self.transaction() as db:
            self._add_environment(db, environment)
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
                    dump(result.crash) if result.crash else None,
                    result.reason,
                    result.log_tail,
                    dump_steps(result.trajectory),
                    self._add_footprint(db, result.footprint),
                    result.warm,
                ),
            )

    def _add_footprint(self, db: sqlite3.Connection, footprint: Footprint | None) -> str:
        """Store a footprint if it is new, and return its id; most runs share one with others."""
        if footprint is None:
            return ""
        data = json.dumps([sorted(getattr(footprint, field.name)) for field in fields(Footprint)])
        digest = hashlib.sha256(data.encode()).hexdigest()[:16]
        db.execute("INSERT OR IGNORE INTO footprints VALUES (?, ?)", (digest, data))
        return digest

    def _footprint(self, digest: str) -> Footprint | None:
        if digest and digest not in self._footprints:
            row = self._db.execute("SELECT data FROM footprints WHERE id = ?", (digest,)).fetchone()
            self._footprints[digest] = Footprint(*map(frozenset, json.loads(row["data"])))
        return self._footprints.get(digest)

    def _add_environment(self, db: sqlite3.Connection, environment: Environment) -> None:
        db.execute(
            "INSERT OR IGNORE INTO environments VALUES (?, ?)", (environment.id, dump(environment))
        )

    def runs_of(self, hunt: str) -> tuple[Run, ...]:
        """Return a hunt's runs in the order in which they started, with those that it recalled."""
        rows = self._db.execute("SELECT * FROM runs WHERE hunt = ?", (hunt,))
        recalled = self._db.execute(
            "SELECT runs.*, recalled.sha AS place, recalled.role AS purpose FROM recalled"
            " JOIN runs ON runs.id = recalled.run WHERE recalled.hunt = ?",
            (hunt,),
        )
        found = [self._run(row) for row in rows]
        for row in recalled:
            found.append(_stand_in(self._run(row), hunt, row["place"], Role(row["purpose"])))
        return tuple(sorted(found, key=lambda run: (run.started, run.id)))

    def recall(self, run: Run, hunt: str, sha: str, role: Role) -> Run:
        """Let a stored run stand for a commit in a hunt; return it as the hunt's."""
        with self.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO recalled VALUES (?, ?, ?, ?)", (hunt, run.id, sha, role)
            )
        return _stand_in(run, hunt, sha, role)

    def runs_answering(self, config: str, environment: str, sha: str) -> list[Run]:
        """Return the runs of a config at a commit in an environment."""
        rows = self._db.execute(
            f"SELECT * FROM runs WHERE sha = ? AND config = ? AND environment = ? AND {OF_COMMITS}",
            (sha, config, environment),
        )
        return [self._run(row) for row in rows]

    def newest_runs(self, config: str, environment: str, limit: int) -> list[Run]:
        """Return the newest runs of a config in an environment, newest first."""
        rows = self._db.execute(
            f"SELECT * FROM runs WHERE config = ? AND environment = ? AND {OF_COMMITS}"
            " ORDER BY started DESC LIMIT ?",
            (config, environment, limit),
        )
        return [self._run(row) for row in rows]

    def runs_after(
        self, number: int, configs: Sequence[str], shas: Container[str]
    ) -> list[tuple[Run, str]]:
        """Return the runs stored after the `number`th, each with its config's digest.

        Only runs of the given digests and commits are read.
        """
        marks = ", ".join("?" * len(configs))
        rows = self._db.execute(
            f"SELECT * FROM runs WHERE rowid > ? AND config IN ({marks}) AND {OF_COMMITS}"
            " ORDER BY rowid",
            (number, *configs),
        )
        return [(self._run(row), row["config"]) for row in rows if row["sha"] in shas]

    def runs_at(self, configs: Sequence[str], shas: Sequence[str]) -> list[tuple[Run, str]]:
        """Return the runs of commits, each with its config's digest, for the given digests."""
        found = []
        for sha in shas:
            found_at = f"SELECT * FROM runs WHERE sha = ? AND {OF_COMMITS}"
            for row in self._db.execute(found_at, (sha,)):
                if row["config"] in configs:
                    found.append((self._run(row), row["config"]))
        return found

    def newest_start(self) -> float:
        """Return when the newest run began; 0 where there is none."""
        return float(self._db.execute("SELECT coalesce(max(started), 0) FROM runs").fetchone()[0])

    def count_concluded(self) -> int:
        """Return how many hunts have an answer."""
        found = self._db.execute("SELECT count(*) FROM hunts WHERE finished IS NOT NULL")
        return int(found.fetchone()[0])

    def last_number(self) -> int:
        """Return the number of the newest run."""
        return int(self._db.execute("SELECT coalesce(max(rowid), 0) FROM runs").fetchone()[0])

    def seconds_trained_since(self, moment: float) -> float:
        """Return the seconds of all runs that began since then, times the devices that each used."""
        rows = self._db.execute(
            "SELECT sum(seconds) AS seconds, data FROM runs"
            " JOIN environments ON environments.id = environment"
            " WHERE started >= ? GROUP BY environment",
            (moment,),
        )
        return math.fsum(
            row["seconds"] * max(json.loads(row["data"])["devices"], 1) for row in rows
        )

    def hunts_since(self, moment: float) -> int:
        """Return how many hunts were begun since then."""
        row = self._db.execute("SELECT count(*) FROM hunts WHERE created >= ?", (moment,))
        return int(row.fetchone()[0])

    def environments(self, ids: Sequence[str]) -> dict[str, Environment]:
        """Return the environments of those ids."""
        marks = ", ".join("?" * len(ids))
        rows = self._db.execute(f"SELECT * FROM environments WHERE id IN ({marks})", tuple(ids))
        return {row["id"]: load(Environment, row["data"]) for row in rows}

    def add_environment(self, environment: Environment) -> None:
        """Store an environment if it is new."""
        with self.transaction() as db:
            self._add_environment(db, environment)

    def completed_run(self, sha: str, config: str, environment: str) -> Run | None:
        """Return the newest completed run of a config at a commit in an environment."""
        row = self._db.execute(
            "SELECT * FROM runs WHERE sha = ? AND config = ? AND environment = ? AND status = ?"
            f" AND {OF_COMMITS} ORDER BY started DESC LIMIT 1",
            (sha, config, environment, Status.COMPLETED),
        ).fetchone()
        return self._run(row) if row else None

    def run(self, prefix: str) -> tuple[Run, str, Environment] | None:
        """Return the run whose id begins so, its config's name and environment; None if no single one does."""
        rows = self._db.execute(
            "SELECT runs.*, data FROM runs JOIN environments ON environments.id = environment"
            " WHERE runs.id BETWEEN ? AND ? LIMIT 2",
            (prefix, prefix + LAST),
        ).fetchall()
        if len(rows) != 1 or not prefix:
            return None
        environment = load(Environment, rows[0]["data"])
        return self._run(rows[0]), rows[0]["name"], environment

    def repeated_runs(self) -> list[tuple[Run, str, str]]:
        """Return the runs that trained of each commit that did so twice in one environment, with the config's
        name and digest; oldest first. Runs with a commit reverted, or at no commit, are left out."""
        trained = f"length(sha) = ? AND {OF_COMMITS} AND status IN (?, ?)"
        rows = self._db.execute(
            f"SELECT * FROM runs WHERE {trained} AND (sha, config, environment) IN ("
            f"SELECT sha, config, environment FROM runs WHERE {trained}"
            " GROUP BY sha, config, environment HAVING count(*) > 1) ORDER BY started",
            2 * (SHA_LENGTH, Status.COMPLETED, Status.STOPPED_EARLY),
        )
        return [(self._run(row), row["name"], row["config"]) for row in rows]

    def recent_runs(self, limit: int) -> list[tuple[Run, str]]:
        """Return the newest runs and their configs' names, newest first."""
        rows = self._db.execute("SELECT * FROM runs ORDER BY started DESC LIMIT ?", (limit,))
        return [(self._run(row), row["name"]) for row in rows]

    def _run(self, row: sqlite3.Row) -> Run:
        crash = load(Crash, row["crash"]) if row["crash"] else None
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
                footprint=self._footprint(row["footprint"]),
                warm=bool(row["warm"]),
            ),
            started=row["started"],
            environment=row["environment"],
        )


def _stand_in(run: Run, hunt: str, sha: str, role: Role) -> Run:
    return replace(run, hunt=hunt, sha=sha, role=role, is_recalled=True)
