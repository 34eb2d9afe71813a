"""Prints what a run of the tiny suite takes cold and warm, beside its training steps; run by hand.

python benchmarks/warm.py
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from test_warm import Place, short  # noqa: E402

REPEATS = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with Place(Path(folder)) as place:
            print(f"template ready: {time.monotonic() - began:.2f} s (history included)")
            for steps in (3, 50):
                for is_warm in (False, True):
                    taken = [time_run(place, steps, is_warm) for _ in range(REPEATS)]
                    wall, training = (statistics.median(each) for each in zip(*taken, strict=True))
                    name = "warm" if is_warm else "cold"
                    print(
                        f"{name}, {steps:2} steps: {wall:6.2f} s, "
                        f"of which first step to last {training:.2f} s"
                    )


def time_run(place: Place, steps: int, is_warm: bool) -> tuple[float, float]:
    """Return a run's seconds, and those from its first logged step to its last."""
    began = time.monotonic()
    running = place.start(short("dpo_default", steps), is_warm=is_warm)
    first = last = 0.0
    seen = 0
    while (result := running.poll()) is None:
        if (count := running.steps()) != seen:
            first, last, seen = first or time.monotonic(), time.monotonic(), count
        time.sleep(0.005)
    assert len(result.trajectory) == steps, result.reason
    return time.monotonic() - began, last - first


if __name__ == "__main__":
    main()
