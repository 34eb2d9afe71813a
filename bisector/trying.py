"""`notify-test`: one message to every channel, past the outbox, so that the answer is seen at once."""

import time
from dataclasses import dataclass

from bisector import bulletin
from bisector.bulletin import About
from bisector.delivering import open_channels
from bisector.errors import BisectorError
from bisector.message import slack_body
from bisector.notify import Answer, deliver
from bisector.report import printable
from bisector.session import Session


@dataclass(frozen=True, slots=True)
class Tried:
    """What one channel answered."""

    channel: str
    is_delivered: bool
    words: str

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"channel": self.channel, "delivered": self.is_delivered, "reason": self.words}


def send_test(session: Session) -> list[Tried]:
    """Return what each channel of the settings answered to a test message."""
    settings = session.settings
    if not settings.notify:
        raise BisectorError(
            "The settings name no channel.", "Write a [[notify]] table; --settings names the file."
        )
    now = time.time()
    tell = bulletin.trial(f"{now:.6f}")
    about = About(settings.watch.repository, settings.watch.branch, settings.watch.suite)
    document = bulletin.compose(tell, about, now)
    found = []
    for name, channel in open_channels(settings.notify).items():
        receipt = deliver(channel, tell.id, document, slack_body(document))
        is_delivered = receipt.answer is Answer.DELIVERED
        words = "delivered" if is_delivered else printable(receipt.reason)
        found.append(Tried(name, is_delivered, words))
    return found
