"""What holds the service's work back: a pause, or what it may spend a day."""

import time

from bisector.ledger import Ledger
from bisector.session import Session

DAY = 86_400.0


def find_holds(session: Session, ledger: Ledger) -> tuple[str, str]:
    """Return why no run, and why no hunt, may start now; empty where they may."""
    limits, store, since = session.settings.limits, session.store, time.time() - DAY
    hold = hunts = ""
    if ledger.get("paused"):
        hold = "paused by a person"
    elif limits.gpu_minutes_per_day:
        spent = store.seconds_trained_since(since) / 60
        if spent >= limits.gpu_minutes_per_day:
            hold = f"the limit of {limits.gpu_minutes_per_day} GPU minutes a day is reached"
    if limits.hunts_per_day and store.hunts_since(since) >= limits.hunts_per_day:
        hunts = f"the limit of {limits.hunts_per_day} hunts a day is reached"
    return hold, hunts
