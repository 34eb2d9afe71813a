"""Calls in threads that hold up nothing, not even the end of the process; `concurrent.futures` joins its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def begin(call: Callable[[], Result], name: str) -> "Future[Result]":
    """Return a future of what `call` returns or raises, made in a daemon thread."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
