"""Health and Prometheus metrics on a loopback port, from what the store says at the moment of asking."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from bisector.errors import BisectorError
from bisector.watching import Pulse, Watcher

STALE = 120.0  # seconds without a tick after which the service is not healthy


def metrics(pulse: Pulse) -> bytes:
    """Return the service's state in Prometheus' text form."""
    registry = CollectorRegistry()

    def gauge(name: str, help_: str, value: float) -> None:
        Gauge(f"bisector_{name}", help_, registry=registry).set(value)

    gauge("last_fetch_timestamp_seconds", "When the remote last answered.", pulse.fetched)
    gauge("last_tick_timestamp_seconds", "When the service last ticked.", pulse.ticked)
    gauge("runs_in_flight", "Runs in progress.", pulse.running)
    gauge("runs_wanted", "Runs that are wanted and have not begun.", pulse.wanted)
    gauge("regressions_open", "Regressions that are open.", pulse.regressions)
    gauge("trained_seconds_last_7_days", "Device seconds trained.", pulse.seconds)
    gauge("work_held", "1 where a limit or a pause holds work back.", float(bool(pulse.held)))
    states = Gauge("bisector_deliveries", "Messages.", ["channel", "state"], registry=registry)
    for channel, counts in pulse.channels.items():
        for state, count in counts.items():
            states.labels(channel, state).set(count)
    return generate_latest(registry)


@contextmanager
def serve(watcher: Watcher, port: int) -> Iterator[None]:
    """Serve while the block runs; nothing with port 0."""
    if not port:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pulse = watcher.pulse
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", metrics(pulse))
            elif self.path == "/health":
                age = time.time() - pulse.ticked
                body = {"healthy": age < STALE, "seconds_since_tick": round(age, 1)}
                code = 200 if age < STALE else 503
                self._answer(code, "application/json", json.dumps(body).encode())
            else:
                self._answer(404, "text/plain", b"/metrics or /health\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scraper asks every few seconds."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise BisectorError(
            f"Port {port} cannot be served on: {error.strerror}.", "Name another with --port."
        ) from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="serve").start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
