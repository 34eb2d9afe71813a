"""The service's loop: what wakes it, how it ends, and what it tells the service manager. It decides nothing."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from apscheduler.schedulers.background import BackgroundScheduler

from bisector import service_manager
from bisector.bench import Bench
from bisector.errors import BisectorError, InfraError
from bisector.watching import LONGEST_BACKOFF, Watcher

SILENT_FAILURE = 3_600.0  # seconds of failing ticks after which people are told
IDLE = 0.5  # seconds between ticks while nothing runs
BUSY = 0.02

log = logging.getLogger(__name__)


class Schedule:
    """Wakes the loop: names of what is due arrive in `due`. It decides nothing."""

    def __init__(self, interval: int) -> None:
        self.due: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._awake = threading.Event()
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"misfire_grace_time": None, "coalesce": True}
        )
        for name, seconds in (("poll", interval), ("wake", 600), ("house", 3_600), ("beat", 600)):
            self._scheduler.add_job(
                self.ring, "interval", seconds=seconds, jitter=max(seconds // 10, 1), args=[name]
            )

    def start(self) -> None:
        """Begin, with everything due once."""
        for name in ("poll", "house", "beat"):
            self.due.put(name)
        self._scheduler.start()

    def ring(self, name: str) -> None:
        """Put a name among what is due."""
        self.due.put(name)
        self._awake.set()

    def sleep(self, seconds: float) -> None:
        """Wait, but not while something is due."""
        self._awake.wait(seconds)
        self._awake.clear()

    def stop(self) -> None:
        """End."""
        self._scheduler.shutdown(wait=False)


class Loop:
    """Ticks until it is told to stop. `told` are signals that came: `is_set` ends, `reload` reads settings."""

    def __init__(self, watcher: Watcher, is_stopped: Callable[[], bool]) -> None:
        self._watcher, self._is_stopped = watcher, is_stopped
        self._schedule = Schedule(watcher.session.settings.watch.interval)
        self._failures, self._failing_since = 0, 0.0
        self._fed = 0.0

    def request_reload(self) -> None:
        """Have the settings read again at the next tick."""
        self._schedule.ring("reload")

    def run(self, *, once: bool = False) -> None:
        """Tick; with `once`, until one pass is over."""
        watcher = self._watcher
        self._schedule.start()
        service_manager.tell("READY=1")
        try:
            with Bench(watcher.session, lambda text: log.info("%s", text)) as bench:
                while not self._is_stopped():
                    if self._tick(bench):
                        continue
                    if once and watcher.is_quiet(bench) and self._schedule.due.empty():
                        if self._failures or not watcher.environments:
                            raise InfraError(
                                f"Nothing could be watched: {watcher.ledger.get('fetch error')}",
                                "Mend that; run it again.",
                            )
                        return
                    self._schedule.sleep(
                        BUSY if bench.in_flight or watcher.outbox.is_busy else IDLE
                    )
        finally:
            service_manager.tell("STOPPING=1")
            self._schedule.stop()
            watcher.close()

    def _tick(self, bench: Bench) -> bool:
        """Tick once; a failure is logged, and the next tick comes later."""
        try:
            while not self._schedule.due.empty():
                self._ring(self._schedule.due.get_nowait())
            happened = self._watcher.tick(bench)
        except InfraError as error:
            return self._failed(bench, f"{error.problem} {error.remedy}")
        except Exception:
            log.exception("a tick failed")
            return self._failed(bench, "a tick failed; the log says how")
        self._failures = 0
        self._feed(bench)
        return happened

    def _ring(self, name: str) -> None:
        watcher = self._watcher
        {
            "poll": watcher.poll,
            "wake": watcher.wake,
            "house": watcher.keep_house,
            "beat": watcher.beat,
            "reload": watcher.reload,
        }[name]()

    def _failed(self, bench: Bench, words: str) -> bool:
        if not self._failures:
            self._failing_since = time.time()
        self._failures += 1
        if time.time() - self._failing_since > SILENT_FAILURE:
            with suppress(BisectorError):  # perhaps the database is what fails
                self._watcher.tell_of_failure(self._failing_since, words)
                self._watcher.outbox.tick()
        wait = min(2.0**self._failures, LONGEST_BACKOFF)
        log.warning("%s Again in %.0f s.", words, wait)
        self._watcher.wake()
        until = time.monotonic() + wait
        while time.monotonic() < until and not self._is_stopped():
            self._feed(bench)
            self._schedule.sleep(IDLE)
        return False

    def _feed(self, bench: Bench) -> None:
        """Tell the service manager that ticks advance, and what is done."""
        now = time.monotonic()
        if now - self._fed >= 1.0:
            self._fed = now
            status = self._watcher.feel_pulse(len(bench.in_flight))
            service_manager.tell("WATCHDOG=1", f"STATUS={status}")
