"""The way of messages to their channels: which one is due, what its answer means, when to try again.

A delivery is tried in a thread of its channel, so that a channel that hangs holds up nothing else. A kill
between the answer and its record repeats one delivery, with the same id.
"""

import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from bisector.background import begin
from bisector.config import ChannelSettings
from bisector.ledger import DEAD, DELIVERED, Ledger
from bisector.message import slack_body
from bisector.model import Event
from bisector.notify import Answer, Channel, Receipt, deliver, open_channel
from bisector.watched import Delivery

FIRST_WAIT = 5.0  # seconds until the second attempt; it doubles up to LONGEST_WAIT
LONGEST_WAIT = 3_600.0
GIVEN_UP_AFTER = 86_400.0  # seconds since the message was written

log = logging.getLogger(__name__)


def open_channels(settings: Sequence[ChannelSettings]) -> dict[str, Channel]:
    """Return the channels of the settings; BisectorError where one cannot work."""
    return {
        each.name: open_channel(
            name=each.name,
            kind=each.kind,
            url=each.url,
            url_file=each.url_file,
            url_env=each.url_env,
            secret_file=each.secret_file,
            command=tuple(each.command),
        )
        for each in settings
    }


class Outbox:
    """Delivers what the ledger holds. `announce` is told of a channel that is dead, and why."""

    def __init__(
        self,
        ledger: Ledger,
        channels: Mapping[str, Channel],
        announce: Callable[[str, str, str], None],
    ) -> None:
        self._ledger, self._channels, self._announce = ledger, dict(channels), announce
        self._trying: dict[str, tuple[Delivery, Future[Receipt]]] = {}

    def use(self, channels: Mapping[str, Channel]) -> None:
        """Take other channels, from changed settings."""
        self._channels = dict(channels)

    @property
    def is_busy(self) -> bool:
        """Whether a delivery is being tried."""
        return bool(self._trying)

    def tick(self) -> bool:
        """Record the answers that have come, then try what is due; say whether anything happened."""
        happened = False
        for name, (delivery, future) in list(self._trying.items()):
            if future.done():
                del self._trying[name]
                self._record(delivery, _receipt(future))
                happened = True
        idle = [name for name in self._channels if name not in self._trying]
        for delivery in self._ledger.due(time.time(), idle):
            channel, message = self._channels[delivery.channel], delivery.message
            document = json.loads(message.document)
            call = partial(deliver, channel, message.id, document, slack_body(document))
            self._trying[delivery.channel] = delivery, begin(call, f"deliver to {channel.name}")
            happened = True
        return happened

    def _record(self, delivery: Delivery, receipt: Receipt) -> None:
        now = time.time()
        tried = replace(delivery, attempts=delivery.attempts + 1, reason=receipt.reason)
        if receipt.answer is Answer.DELIVERED:
            self._ledger.mark(replace(tried, state=DELIVERED, reason=""))
            return
        is_old = now - delivery.message.created > GIVEN_UP_AFTER
        if receipt.answer is Answer.AGAIN and not is_old:
            wait = min(FIRST_WAIT * 2.0 ** min(delivery.attempts, 20), LONGEST_WAIT)
            wait = max(wait * random.uniform(0.8, 1.2), receipt.retry_after or 0.0)
            self._ledger.mark(replace(tried, due=now + wait))
            log.info("channel %s: %s; again in %.0f s", delivery.channel, receipt.reason, wait)
            return
        before = self._ledger.last_of(delivery.channel)
        is_known = before is not None and before.state == DEAD  # said when it died
        self._ledger.mark(replace(tried, state=DEAD))
        log.error("channel %s is dead: %s", delivery.channel, receipt.reason)
        # Two dead channels must not tell of each other for ever.
        if delivery.message.event != Event.CHANNEL and not is_known:
            self._announce(delivery.channel, delivery.message.id, receipt.reason)

    def close(self) -> None:
        """Leave what is being tried; it is tried again by whoever comes next."""
        for delivery, future in self._trying.values():
            if future.done():
                self._record(delivery, _receipt(future))
        self._trying.clear()


def _receipt(future: "Future[Receipt]") -> Receipt:
    error = future.exception()
    if error:  # a fault of ours must not stop the other messages
        log.error("a delivery failed", exc_info=error)
        return Receipt(Answer.AGAIN, f"failed: {type(error).__name__}", None)
    return future.result()
