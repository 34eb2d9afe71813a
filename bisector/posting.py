"""Writes decisions with the messages that they cause, in one transaction; nothing is told twice."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from bisector import bulletin
from bisector.bulletin import About
from bisector.config import ChannelSettings
from bisector.errors import BisectorError
from bisector.ledger import Ledger
from bisector.model import Commit
from bisector.repo import Repository
from bisector.report import Report
from bisector.reporting import report_of
from bisector.session import Session
from bisector.telling import Record, Tell, message_id
from bisector.watched import Message

log = logging.getLogger(__name__)


class Poster:
    """Puts records into the ledger, and their messages into the outbox of every channel that wants them."""

    def __init__(
        self, session: Session, repository: Repository, ledger: Ledger, about: About
    ) -> None:
        self._session, self._repository = session, repository
        self._ledger, self._about = ledger, about

    def write(self, record: Record) -> bool:
        """Store a record with its messages; False where it holds nothing new."""
        tells = [tell for tell in record.tells if self._is_new(tell)]
        changes = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "tells"}
        if not tells and not any(changes.values()):
            return False
        now = time.time()
        self._ledger.write(
            **changes,
            asked=[question for tell in tells for question in tell.asks],
            messages=[self._post(tell, now) for tell in tells],
        )
        for tell in tells:
            log.info("%s: %s", tell.event, tell.text)
        return True

    def _is_new(self, tell: Tell) -> bool:
        is_posted = self._ledger.is_posted
        has_cause = not tell.answers or is_posted(message_id(tell.answers))
        return has_cause and not is_posted(tell.id)

    def announce_dead(self, channel: str, message: str, reason: str) -> None:
        """Tell the other channels that one refused a message for good."""
        tell = bulletin.dead_channel(channel, message, reason)
        self._ledger.write(messages=[self._post(tell, time.time(), but=channel)])

    def _post(self, tell: Tell, now: float, but: str = "") -> tuple[Message, list[str]]:
        document = bulletin.compose(
            tell, self._about, now, words=self._words(tell), found=self._report(tell)
        )
        return address(tell, document, now, self._session.settings.notify, but=but)

    def _words(self, tell: Tell) -> Commit | None:
        try:
            return self._repository.describe(tell.commit) if tell.commit else None
        except BisectorError:
            return None

    def _report(self, tell: Tell) -> Report | None:
        stored = self._session.store.hunt(tell.hunt) if tell.hunt else None
        if not stored or not stored[1]:
            return None
        return report_of(self._session, lambda: self._repository, stored[0], stored[1])


def address(
    tell: Tell,
    document: Mapping[str, Any],
    now: float,
    channels: Sequence[ChannelSettings],
    *,
    but: str = "",
) -> tuple[Message, list[str]]:
    """Return a message as the ledger takes it, with the names of the channels that want to hear of it."""
    message = Message(tell.id, tell.event, tell.regression, now, json.dumps(document))
    wanted = [
        each.name
        for each in channels
        if each.name != but and (not each.events or tell.event in each.events)
    ]
    return message, wanted
