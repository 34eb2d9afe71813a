"""The entry point: signals end with 130 (`watch`: 0), and no failure of our own looks like a verdict of
`probe`."""

import gc
import signal
import sys
import traceback
from types import FrameType

from bisector.errors import StopError

VERDICTS = (0, 1, 125)  # good, bad, skip: what `probe` may say below 128
INTERRUPTED = 130
OWN_FAULT = 70  # EX_SOFTWARE
RARE_COLLECTION = (
    100_000  # objects: importing makes many and frees none, and a seventh of `show` was looking
)
COMMANDS = (
    *("hunt", "probe", "record", "compare", "audit", "show", "status", "doctor", "demo"),
    *("why", "noise", "watch", "accept", "pause", "resume", "notify-test"),
)


def main() -> None:
    """Run bisector and exit."""
    gc.set_threshold(RARE_COLLECTION)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    command = next((arg for arg in sys.argv[1:] if arg in COMMANDS), "")
    is_answer = False
    try:
        from bisector import cli

        code, is_answer = cli.main(sys.argv[1:])
    except StopError:
        code = 0 if command == "watch" else INTERRUPTED  # a service ends when it is told to
    except Exception:  # even a broken installation must not look like a verdict
        traceback.print_exc()
        code = OWN_FAULT
    if command == "probe" and not (is_answer and code in VERDICTS):
        code = code if code >= 128 else 128 + code
    sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    raise StopError


if __name__ == "__main__":
    main()
