"""What the service remembers of its branch, and its outbox; tables of the same database as the runs.

A decision and the messages that it causes are written in one transaction. Configs are kept by name and
digest: a config whose arguments changed begins anew.
"""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from bisector.model import Config
from bisector.series import dump, load
from bisector.watched import Anchor, Delivery, Epoch, Inquiry, Message, Question, Regression, Turn

DELIVERED, DEAD = "delivered", "dead"  # beside "waiting"
LONGEST_DUE = 2 * 86_400.0  # seconds; no delivery is put off as long
KEPT_FOR = 30 * 86_400.0  # seconds that a delivered message stays
REVISION = "revision"
QUESTION = "question "  # before the key of one, among the single values
LAST = "\U0010ffff"  # behind whatever may follow the beginning of an id


class Ledger:
    """The service's tables; `transaction` and `db` are the store's."""

    def __init__(
        self,
        db: sqlite3.Connection,
        transaction: Callable[[], AbstractContextManager[sqlite3.Connection]],
        configs: Sequence[Config] = (),
    ) -> None:
        self._db, self._transaction = db, transaction
        self._keys = {config.name: f"{config.name} {config.digest[:12]}" for config in configs}
        self._names = {key: name for name, key in self._keys.items()}

    # Single values

    def get(self, key: str) -> str:
        """Return a value; empty where it was never set."""
        row = self._db.execute("SELECT value FROM watch WHERE key = ?", (key,)).fetchone()
        return str(row["value"]) if row else ""

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO watch VALUES (?, ?)", (key, value))

    def values(self, prefix: str) -> dict[str, str]:
        """Return the values whose keys begin so, by the rest of the key."""
        rows = self._db.execute(
            "SELECT * FROM watch WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)
        )
        return {row["key"][len(prefix) :]: row["value"] for row in rows}

    def drop(self, prefix: str) -> None:
        """Forget the values whose keys begin so."""
        with self._transaction() as db:
            db.execute("DELETE FROM watch WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))

    @property
    def revision(self) -> int:
        """Return how many decisions were stored."""
        return int(self.get(REVISION) or 0)

    # What is known of the branch

    def epochs(self) -> list[Epoch]:
        """Return the epochs of the configs, oldest first."""
        rows = self._db.execute("SELECT * FROM epochs ORDER BY number")
        return [
            Epoch(self._names[row["config"]], row["environment"], row["since"])
            for row in rows
            if row["config"] in self._names
        ]

    def turns(self) -> list[Turn]:
        """Return the turns of the configs, in no order."""
        return [
            Turn(
                self._names[r["config"]],
                r["sha"],
                _split(r["opens"]),
                _split(r["closes"]),
                r["back_to"],
            )
            for r in self._db.execute("SELECT * FROM turns")
            if r["config"] in self._names
        ]

    def anchors(self) -> list[Anchor]:
        """Return the anchors of the configs, in the order in which they were set."""
        return [
            Anchor(self._names[r["config"]], *(r[key] for key in tuple(r.keys())[1:]))
            for r in self._db.execute("SELECT * FROM anchors ORDER BY rowid")
            if r["config"] in self._names
        ]

    def inquiries(self) -> list[Inquiry]:
        """Return the inquiries that have not ended, oldest first."""
        rows = self._db.execute("SELECT data FROM inquiries WHERE ended IS NULL ORDER BY rowid")
        return [load(Inquiry, row["data"]) for row in rows]

    def questions(self) -> list[Question]:
        """Return the questions that have no answer, oldest first."""
        rows = self._db.execute(
            "SELECT value FROM watch WHERE substr(key, 1, ?) = ? ORDER BY rowid",
            (len(QUESTION), QUESTION),
        )
        return [load(Question, row["value"]) for row in rows]

    def regressions(self) -> list[Regression]:
        """Return all regressions, oldest first."""
        rows = self._db.execute("SELECT data FROM regressions ORDER BY opened, id")
        return [load(Regression, row["data"]) for row in rows]

    def regression(self, prefix: str) -> Regression | None:
        """Return the regression whose id begins so; None if no single one does."""
        rows = self._db.execute(
            "SELECT data FROM regressions WHERE id BETWEEN ? AND ? LIMIT 2", (prefix, prefix + LAST)
        ).fetchall()
        if len(rows) != 1 or not prefix:
            return None
        return load(Regression, rows[0]["data"])

    def write(
        self,
        *,
        epochs: Sequence[Epoch] = (),
        restarts: Sequence[Turn] = (),
        turns: Sequence[Turn] = (),
        anchors: Sequence[Anchor] = (),
        inquiries: Sequence[Inquiry] = (),
        ended: Sequence[str] = (),
        regressions: Sequence[Regression] = (),
        asked: Sequence[Question] = (),
        answered: Sequence[str] = (),
        messages: Sequence[tuple[Message, Sequence[str]]] = (),
    ) -> None:
        """Store a decision; each message comes with the names of its channels."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO watch VALUES (?, ?)", (REVISION, self.revision + 1))
            for epoch in epochs:
                db.execute(
                    "INSERT INTO epochs (config, environment, since) VALUES (?, ?, ?)",
                    (self._keys[epoch.config], epoch.environment, epoch.since),
                )
            for turn in restarts:
                key = (self._keys[turn.config],)
                db.execute("DELETE FROM turns WHERE config = ?", key)
                db.execute("DELETE FROM anchors WHERE config = ?", key)
            for turn in (*restarts, *turns):
                db.execute(
                    "INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?, ?)",
                    (
                        self._keys[turn.config],
                        turn.sha,
                        " ".join(turn.opens),
                        " ".join(turn.closes),
                        turn.back_to,
                    ),
                )
            for a in anchors:
                db.execute(
                    "INSERT OR REPLACE INTO anchors VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(self._keys[a.config], a.turn, a.environment, a.since),
                        *(a.sha, a.run, a.path),
                    ),
                )
            for inquiry in inquiries:
                db.execute(
                    "INSERT OR REPLACE INTO inquiries VALUES (?, ?, NULL)",
                    (inquiry.id, dump(inquiry)),
                )
            for id_ in ended:
                db.execute("UPDATE inquiries SET ended = ? WHERE id = ?", (time.time(), id_))
            for found in regressions:
                db.execute(
                    "INSERT OR REPLACE INTO regressions VALUES (?, ?, ?)",
                    (found.id, found.opened, dump(found)),
                )
            for question in asked:
                db.execute(
                    "INSERT OR REPLACE INTO watch VALUES (?, ?)",
                    (QUESTION + question.key, dump(question)),
                )
            for name in answered:
                db.execute("DELETE FROM watch WHERE key = ?", (QUESTION + name,))
            for message, channels in messages:
                _post(db, message, channels)

    # The outbox

    def is_posted(self, message: str) -> bool:
        """Whether a message of that id was written."""
        found = self._db.execute("SELECT 1 FROM messages WHERE id = ?", (message,))
        return found.fetchone() is not None

    def due(self, now: float, channels: Sequence[str]) -> list[Delivery]:
        """Return for each channel the delivery to try now, if any.

        Within one regression a message waits until those before it are delivered or dead.
        """
        return [found for channel in channels if (found := self._due(now, channel))]

    def _due(self, now: float, channel: str) -> Delivery | None:
        row = self._db.execute(
            "SELECT m.*, d.* FROM deliveries d JOIN messages m ON m.number = d.message"
            " WHERE d.channel = ? AND d.state = 'waiting'"
            " AND (d.due <= ? OR d.due > ?)"  # so far ahead only where the clock was set back
            " AND (m.regression = '' OR NOT EXISTS ("
            "   SELECT 1 FROM deliveries e JOIN messages n ON n.number = e.message"
            "   WHERE e.channel = d.channel AND e.state = 'waiting'"
            "   AND n.regression = m.regression AND n.number < m.number))"
            " ORDER BY m.number LIMIT 1",
            (channel, now, now + LONGEST_DUE),
        ).fetchone()
        return _delivery(row) if row else None

    def mark(self, delivery: Delivery) -> None:
        """Store how far a delivery is."""
        with self._transaction() as db:
            db.execute(
                "UPDATE deliveries SET state = ?, attempts = ?, due = ?, reason = ?"
                " WHERE channel = ? AND message = (SELECT number FROM messages WHERE id = ?)",
                (
                    *(delivery.state, delivery.attempts, delivery.due, delivery.reason),
                    *(delivery.channel, delivery.message.id),
                ),
            )

    def channels(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many deliveries of each channel are in each state."""
        found: dict[str, dict[str, int]] = {}
        for row in self._db.execute(
            "SELECT channel, state, count(*) AS n FROM deliveries GROUP BY channel, state"
        ):
            found.setdefault(row["channel"], {})[row["state"]] = row["n"]
        return found

    def last_of(self, channel: str) -> Delivery | None:
        """Return the newest delivery of a channel that was tried."""
        row = self._db.execute(
            "SELECT m.*, d.* FROM deliveries d JOIN messages m ON m.number = d.message"
            " WHERE d.channel = ? AND d.attempts > 0 ORDER BY m.number DESC LIMIT 1",
            (channel,),
        ).fetchone()
        return _delivery(row) if row else None

    def forget(self, now: float) -> None:
        """Drop messages that were delivered long ago; ids that must not come again stay."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM deliveries WHERE state <> 'waiting' AND message IN"
                " (SELECT number FROM messages WHERE created < ?)",
                (now - KEPT_FOR,),
            )
            db.execute("UPDATE messages SET document = '' WHERE created < ?", (now - KEPT_FOR,))


def _post(db: sqlite3.Connection, message: Message, channels: Sequence[str]) -> None:
    done = db.execute(
        "INSERT OR IGNORE INTO messages (id, event, regression, created, document)"
        " VALUES (?, ?, ?, ?, ?)",
        (message.id, message.event, message.regression, message.created, message.document),
    )
    if done.rowcount:
        db.executemany(
            "INSERT INTO deliveries VALUES (?, ?, 'waiting', 0, 0, '')",
            [(done.lastrowid, channel) for channel in channels],
        )


def _delivery(row: sqlite3.Row) -> Delivery:
    message = Message(row["id"], row["event"], row["regression"], row["created"], row["document"])
    return Delivery(
        message, row["channel"], row["state"], row["attempts"], row["due"], row["reason"]
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())
