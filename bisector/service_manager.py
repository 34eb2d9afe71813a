"""Tells the service manager how the service fares, by the sd_notify protocol; silent where there is none."""

import os
import socket

SEND_TIMEOUT = 1.0  # seconds; a tick may block no longer, and a manager this slow is not listening


def tell(*lines: str) -> bool:
    """Send assignments such as "READY=1" or "STATUS=…" as one message; return whether it was sent.

    A line break inside one becomes a space: what stands behind it would be an assignment of its own,
    and a status may quote a commit's subject. With "RELOADING=1" goes "MONOTONIC_USEC=", the clock of
    `time.monotonic_ns` in microseconds.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    message = "\n".join(" ".join(line.splitlines()) for line in lines)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SEND_TIMEOUT)
        try:
            manager.connect(address)
            manager.send(message.encode("utf-8", "replace"))
        except OSError:  # gone, or full
            return False
    return True


def watchdog_interval() -> float | None:
    """Return the seconds between two "WATCHDOG=1", half of what the manager allows; None: it asks for none."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    allowed = os.environ.get("WATCHDOG_USEC", "")
    return int(allowed) / 2e6 if allowed.isdecimal() and int(allowed) else None
