"""Delivers one document to one channel and says what became of it; when to try again is not its business.

What is secret is a channel's address, which often is its password, and the key that signs. Both are in
no message, no `repr` and no log line.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Literal

import httpx

from bisector.errors import BisectorError

POST_TIMEOUT = 10.0  # seconds from the first packet to the answer's headers
RUN_TIMEOUT = 60.0  # seconds that a program may take
LONGEST_RETRY_AFTER = 86_400.0

Kind = Literal["slack", "json", "exec"]
_URL_KEYS = ("url", "url_file", "url_env")
_NEEDED = {"slack": _URL_KEYS, "json": _URL_KEYS, "exec": ("command",)}  # exactly one of them
_ALLOWED = {**_NEEDED, "json": (*_URL_KEYS, "secret_file")}
_ENVIRONMENT = ("PATH", "HOME", "LANG")

for _name in ("httpx", "httpcore"):  # they log the URL of every request
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Channel:
    """One place to which documents go, its secrets read."""

    name: str
    kind: Kind
    url: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    command: tuple[str, ...] = ()


class Answer(StrEnum):
    """What became of a document: accepted, to be tried again, or refused for good."""

    DELIVERED = "delivered"
    AGAIN = "again"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Receipt:
    """A channel's answer in words; `retry_after` is in seconds, None where the channel named no time."""

    answer: Answer
    reason: str
    retry_after: float | None = None


# Opening


def open_channel(
    *,
    name: str,
    kind: Kind,
    url: str = "",
    url_file: str = "",
    url_env: str = "",
    secret_file: str = "",
    command: Sequence[str] = (),
) -> Channel:
    """Return the channel that the settings describe; BisectorError where it could never deliver."""
    where = f"Channel {name!r}"
    names = {"url_file": url_file, "url_env": url_env, "secret_file": secret_file}
    values = {"url": url, **names, "command": command}
    _check_keys(where, kind, [key for key, value in values.items() if value])
    for key in (key for key, value in names.items() if "://" in value):
        raise BisectorError(f"{where}: {key} is a URL, not a name.", "Use the key `url` for a URL.")
    if kind == "exec":
        _check_program(where, command[0])
        return Channel(name, kind, command=tuple(command))
    if url_file:
        url = _read(where, "url_file", url_file)
    elif url_env:
        url = _look_up(where, url_env)
    _check_url(where, url)
    secret = _read(where, "secret_file", secret_file) if secret_file else ""
    return Channel(name, kind, url, secret)


def _check_keys(where: str, kind: Kind, given: list[str]) -> None:
    for key in given:
        if key not in _ALLOWED[kind]:
            raise BisectorError(
                f"{where} is of kind {kind}, which has no {key}.",
                f"Remove {key}; the kind takes {', '.join(_ALLOWED[kind])}.",
            )
    found = [key for key in given if key in _NEEDED[kind]]
    if not found:
        raise BisectorError(f"{where} needs {' or '.join(_NEEDED[kind])}.", "Add it.")
    if len(found) > 1:
        raise BisectorError(f"{where} has {' and '.join(found)}.", "Keep one of them.")


def _check_program(where: str, program: str) -> None:
    if shutil.which(program) is None:
        raise BisectorError(
            f"{where}: {program!r} is no program that can be run.",
            "Give its whole path, and check that it may be executed.",
        )


def _check_url(where: str, url: str) -> None:
    try:
        parsed = httpx.URL(url)
        is_good = parsed.scheme in ("http", "https") and bool(parsed.host)
        is_good = is_good and (parsed.port or 0) < 65_536
    except httpx.InvalidURL:
        is_good = False
    if not is_good:
        raise BisectorError(
            f"{where}: its address is no http or https URL.", "Copy the webhook's URL again."
        )


def _look_up(where: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise BisectorError(f"{where}: {variable} is not set.", "Set it, or use url_file.")
    return value


def _read(where: str, key: str, file: str) -> str:
    try:
        text = Path(file).read_text("utf-8").strip()
    except OSError as error:
        raise BisectorError(
            f"{where}: {key} {file} cannot be read: {error.strerror}.",
            "Check the path, and who may read it.",
        ) from None
    except ValueError:
        raise BisectorError(f"{where}: {key} {file} is no text.", "Write it again.") from None
    if not text:
        raise BisectorError(f"{where}: {key} {file} is empty.", "Write one line into it.")
    return text


# Delivering


def deliver(
    channel: Channel,
    message: str,
    document: Mapping[str, Any],
    body_of_slack: Mapping[str, Any],
    *,
    timeout: float | None = None,
) -> Receipt:
    """Return what the channel answered to the message of that id.

    A `slack` channel gets `body_of_slack`, the others `document`. `timeout` is in seconds; None means
    POST_TIMEOUT or RUN_TIMEOUT. Nothing that a channel does raises.
    """
    if channel.kind == "exec":
        return _run(channel.command, _encode(document), timeout or RUN_TIMEOUT)
    headers = {"Content-Type": "application/json"}
    if channel.kind == "slack":
        return _post(channel.url, _encode(body_of_slack), headers, timeout or POST_TIMEOUT)
    body = _encode(document)
    headers["X-Bisector-Delivery"] = message
    if channel.secret:
        digest = hmac.new(channel.secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Bisector-Signature"] = f"sha256={digest}"
    return _post(channel.url, body, headers, timeout or POST_TIMEOUT)


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode()


# By HTTP


def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Receipt:
    try:
        return asyncio.run(_ask(url, body, headers, seconds))
    except TimeoutError:
        return Receipt(Answer.AGAIN, f"no answer within {seconds:g} s")
    except httpx.ProxyError:
        return Receipt(Answer.AGAIN, "no connection through the proxy")
    except httpx.ConnectError:
        return Receipt(Answer.AGAIN, "no connection")
    except httpx.HTTPError:
        return Receipt(Answer.AGAIN, "the connection broke")
    except (httpx.InvalidURL, ImportError, OSError, ValueError):
        reason = "the environment names a proxy or a certificate file that cannot be used"
        return Receipt(Answer.AGAIN, reason)


async def _ask(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Receipt:
    """Return what the answer's status means. Its body is not read: it may repeat the URL or never end,
    and it cannot undo the status."""
    # httpx times each read alone, so a server that sends a byte a second would never time out: one
    # deadline around all of it instead. Proxies and certificates named by the environment hold, as
    # company networks need; a netrc is not read, as httpx does that only when asked.
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(timeout=None, follow_redirects=False) as client,
        client.stream("POST", url, content=body, headers=headers) as response,
    ):
        status, header = response.status_code, response.headers.get("Retry-After", "")
    return _judge(status, header)


def _judge(status: int, retry_after: str) -> Receipt:
    reason = f"answered {status}"
    if 200 <= status < 300:
        return Receipt(Answer.DELIVERED, reason)
    if status in (408, 429) or status >= 500:
        return Receipt(Answer.AGAIN, reason, _retry_after(retry_after))
    if 300 <= status < 400:
        reason += ", a redirect, which is never followed"
    return Receipt(Answer.DEAD, reason)


def _retry_after(header: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, as a number or as a date; None if neither."""
    try:
        if header.isdecimal():
            seconds = float(header)
        else:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


# By a program


def _run(command: tuple[str, ...], body: bytes, seconds: float) -> Receipt:
    # Files, not pipes: a program that reads nothing, or leaves something in the background that holds
    # its output open, keeps nobody waiting.
    try:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complaints:
            given.write(body)
            given.seek(0)
            code = _wait(command, given, complaints, seconds)
            last = _last_line(complaints)
    except subprocess.TimeoutExpired:
        return Receipt(Answer.AGAIN, f"the command did not end within {seconds:g} s")
    except OSError as error:
        return Receipt(Answer.AGAIN, f"the command cannot be run: {error.strerror}")
    answer = Answer.AGAIN if code else Answer.DELIVERED
    return Receipt(answer, f"the command exited {code}" + (f": {last}" if code and last else ""))


def _wait(command: tuple[str, ...], given: IO[bytes], complaints: IO[bytes], seconds: float) -> int:
    """Return the program's exit code. One that takes too long is killed with its process group; what
    left that group is not."""
    child = subprocess.Popen(
        command,
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        # Nothing else of the service's: its variables may hold secrets, or say where they lie.
        env={key: os.environ[key] for key in _ENVIRONMENT if key in os.environ},
        start_new_session=True,
    )
    try:
        return child.wait(seconds)
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - 2000, 0))
    lines = file.read().decode(errors="replace").split("\n")
    shown = ["".join(char for char in line if char.isprintable()).strip() for line in lines]
    return next((line[:200] for line in reversed(shown) if line), "")
