import hashlib
import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bisector.config import load_settings
from bisector.errors import BisectorError
from bisector.notify import Answer, Channel, deliver, open_channel

DOCUMENT = {"schema": 1, "text": "ä"}


class Web:
    """A server that answers as told and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.headers, self.wait = 200, {}, 0.0  # type: ignore[var-annotated]
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                web.asked.append((self.path, dict(self.headers), body))
                time.sleep(web.wait)
                self.send_response(web.status)
                for key, value in web.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "2")
                self.end_headers()
                with suppress(OSError):  # the client may have given up
                    self.wfile.write(b"ok")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret-path"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web()
    yield found
    found.server.shutdown()
    found.server.server_close()


def json_channel(url: str, secret: str = "") -> Channel:
    return Channel("hook", "json", url, secret)


@pytest.mark.parametrize("status", [200, 201, 204])
def test_2xx_is_delivered(web: Web, status: int) -> None:
    web.status = status
    assert deliver(json_channel(web.url), "m1", DOCUMENT, {}).answer is Answer.DELIVERED


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(web: Web, status: int) -> None:
    web.status = status
    receipt = deliver(json_channel(web.url), "m1", DOCUMENT, {})
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, f"answered {status}")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 301, 302, 303, 307, 308])
def test_any_other_answer_is_dead_and_a_redirect_is_not_followed(web: Web, status: int) -> None:
    web.status, web.headers = status, {"Location": web.url.replace("secret-path", "elsewhere")}
    receipt = deliver(json_channel(web.url), "m1", DOCUMENT, {})
    assert receipt.answer is Answer.DEAD
    assert str(status) in receipt.reason
    assert [path for path, _, _ in web.asked] == ["/secret-path"]


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("120", 120, 120),
        ("0", 0, 0),
        (format_datetime(datetime.now(UTC) + timedelta(hours=12), usegmt=True), 39_000, 43_200),
        ("999999999", 86_400, 86_400),
        (format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True), 0, 0),
    ],
    ids=["seconds", "none", "date", "too long", "past"],
)
def test_retry_after_is_read_in_both_forms(web: Web, header: str, least: int, most: int) -> None:
    web.status, web.headers = 429, {"Retry-After": header}
    wait = deliver(json_channel(web.url), "m1", DOCUMENT, {}).retry_after
    assert wait is not None
    assert least <= wait <= most


@pytest.mark.parametrize("header", ["soon", "-5", "", "1e3"])
def test_a_retry_after_that_says_nothing_is_passed_over(web: Web, header: str) -> None:
    web.status, web.headers = 429, {"Retry-After": header}
    assert deliver(json_channel(web.url), "m1", DOCUMENT, {}).retry_after is None


def test_a_json_channel_signs_the_very_bytes_that_it_sends(web: Web) -> None:
    deliver(json_channel(web.url, "key"), "m1", DOCUMENT, {"text": "no"})
    ((_, headers, body),) = web.asked
    assert json.loads(body) == DOCUMENT
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Bisector-Delivery"] == "m1"
    expected = hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert headers["X-Bisector-Signature"] == f"sha256={expected}"


def test_a_slack_channel_gets_its_own_form(web: Web) -> None:
    deliver(Channel("team", "slack", web.url), "m1", DOCUMENT, {"text": "x", "blocks": []})
    ((_, headers, body),) = web.asked
    assert json.loads(body) == {"text": "x", "blocks": []}
    assert "X-Bisector-Signature" not in headers


def test_a_server_that_hangs_is_given_up(web: Web) -> None:
    web.wait = 5
    receipt = deliver(json_channel(web.url), "m1", DOCUMENT, {}, timeout=0.3)
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, "no answer within 0.3 s")


def test_a_server_that_is_not_there_is_tried_again_and_its_url_stays_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    receipt = deliver(json_channel(f"http://127.0.0.1:{port}/secret-path"), "m1", DOCUMENT, {})
    assert receipt.answer is Answer.AGAIN
    assert "secret" not in receipt.reason
    assert str(port) not in receipt.reason


def test_a_server_that_trickles_holds_nothing_up() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(65_536)
            for byte in b"HTTP/1.1 500 x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100:
                connection.send(bytes([byte]))
                time.sleep(0.02)

    threading.Thread(target=trickle, daemon=True).start()
    began = time.monotonic()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    assert deliver(json_channel(url), "m1", DOCUMENT, {}, timeout=0.5).answer is Answer.AGAIN
    assert time.monotonic() - began < 5
    server.close()


def raw(answer: bytes) -> str:
    """Return the URL of a server that sends these bytes and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/secret-path"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n", b"\0" * 200_000])
def test_a_server_that_hangs_up_or_talks_nonsense_is_tried_again(answer: bytes) -> None:
    receipt = deliver(json_channel(raw(answer)), "m1", DOCUMENT, {})
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, "the connection broke")


def test_a_plain_server_at_an_https_address_is_tried_again(web: Web) -> None:
    url = web.url.replace("http:", "https:")
    receipt = deliver(json_channel(url), "m1", DOCUMENT, {}, timeout=5)
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, "no connection")


def test_what_was_accepted_is_delivered_though_its_answer_never_ends() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def flood() -> None:
        with server, server.accept()[0] as connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65_536)

    threading.Thread(target=flood, daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    receipt = deliver(json_channel(url), "m1", DOCUMENT, {}, timeout=5)
    assert receipt.answer is Answer.DELIVERED


def test_an_answer_that_repeats_the_url_does_not_reach_the_reason(web: Web) -> None:
    web.status, web.headers = 404, {"X-Path": "/secret-path", "Location": web.url}
    receipt = deliver(json_channel(web.url), "m1", DOCUMENT, {})
    assert (receipt.answer, receipt.reason) == (Answer.DEAD, "answered 404")


def test_the_url_reaches_no_log_at_any_level(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    deliver(json_channel(web.url, "key"), "m1", DOCUMENT, {})
    deliver(json_channel(raw(b"")), "m1", DOCUMENT, {})
    assert "secret-path" not in caplog.text
    assert "127.0.0.1" not in caplog.text


@pytest.mark.parametrize("proxy", ["nonsense://u:hidden@x", "http://x:hidden", "socks9://x"])
def test_a_proxy_that_cannot_be_is_said_so(
    web: Web, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    receipt = deliver(json_channel(web.url), "m1", DOCUMENT, {})
    assert receipt.answer is Answer.AGAIN
    assert "proxy" in receipt.reason
    assert "hidden" not in receipt.reason
    assert not web.asked


def test_the_proxy_of_the_environment_is_used(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", web.url)
    receipt = deliver(json_channel("http://hooks.invalid/x"), "m1", DOCUMENT, {})
    assert receipt.answer is Answer.DELIVERED
    assert [path for path, _, _ in web.asked] == ["http://hooks.invalid/x"]


def test_a_netrc_lends_no_password(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    deliver(json_channel(web.url), "m1", DOCUMENT, {})
    assert "Authorization" not in web.asked[0][1]


def test_a_number_that_json_does_not_have_is_our_mistake(web: Web) -> None:
    with pytest.raises(ValueError, match="JSON"):
        deliver(json_channel(web.url), "m1", {"loss": float("nan")}, {})


def command(tmp_path: Path, script: str) -> Channel:
    path = tmp_path / "page"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return open_channel(name="pager", kind="exec", command=[str(path), "--from-bisector"])


def test_a_command_gets_the_document_and_none_of_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    channel = command(
        tmp_path, f'cat > {tmp_path}/got; echo "$1" > {tmp_path}/arg; env > {tmp_path}/env'
    )
    assert deliver(channel, "m1", DOCUMENT, {}).answer is Answer.DELIVERED
    assert json.loads((tmp_path / "got").read_text()) == DOCUMENT
    assert (tmp_path / "arg").read_text() == "--from-bisector\n"
    assert "CREDENTIALS" not in (tmp_path / "env").read_text()


def test_a_command_that_fails_is_tried_again_with_its_last_words(tmp_path: Path) -> None:
    receipt = deliver(command(tmp_path, "echo no line >&2; exit 3"), "m1", DOCUMENT, {})
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, "the command exited 3: no line")


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    channel = command(tmp_path, f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    receipt = deliver(channel, "m1", DOCUMENT, {}, timeout=1)
    assert "within 1 s" in receipt.reason
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or " Z " in state.read_text():
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    raise AssertionError("a child is left")


def test_a_command_that_reads_nothing_gets_a_large_document_all_the_same(tmp_path: Path) -> None:
    receipt = deliver(command(tmp_path, "exit 0"), "m1", {"text": "x" * 10**6}, {})
    assert receipt.answer is Answer.DELIVERED


def test_a_command_may_leave_something_in_the_background(tmp_path: Path) -> None:
    channel = command(tmp_path, f"sleep 60 & echo $! > {tmp_path}/pid")
    began = time.monotonic()
    assert deliver(channel, "m1", DOCUMENT, {}, timeout=30).answer is Answer.DELIVERED
    assert time.monotonic() - began < 20
    os.kill(int((tmp_path / "pid").read_text()), 9)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo out; exit 1", "the command exited 1"),
        (r"printf 'first\nlast\n\n  \n' >&2; exit 1", "the command exited 1: last"),
        (r"printf '\033[31mred\377\000\n' >&2; exit 1", "the command exited 1: [31mred�"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", f"the command exited 1: {'x' * 200}"),
        ("kill -9 $$", "the command exited -9"),
    ],
)
def test_the_last_words_of_a_command_are_short_and_printable(
    tmp_path: Path, script: str, reason: str
) -> None:
    receipt = deliver(command(tmp_path, script), "m1", DOCUMENT, {})
    assert (receipt.answer, receipt.reason) == (Answer.AGAIN, reason)


def test_a_command_that_vanished_is_tried_again(tmp_path: Path) -> None:
    channel = command(tmp_path, "exit 0")
    Path(channel.command[0]).unlink()
    receipt = deliver(channel, "m1", DOCUMENT, {})
    assert receipt.answer is Answer.AGAIN
    assert receipt.reason == "the command cannot be run: No such file or directory"


def test_secrets_are_read_from_files_and_variables_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text("https://hooks.example/T0/secret\n")
    (tmp_path / "key").write_text("hmac-key\n")
    monkeypatch.setenv("HOOK", "https://hooks.example/T0/secret")
    one = open_channel(
        name="a", kind="json", url_file=str(tmp_path / "url"), secret_file=str(tmp_path / "key")
    )
    other = open_channel(name="b", kind="slack", url_env="HOOK")
    assert one.url == other.url == "https://hooks.example/T0/secret"
    assert one.secret == "hmac-key"
    assert "secret" not in repr(one).replace("secret_file", "")
    assert "hmac-key" not in repr(one)


BAD: list[dict[str, Any]] = [
    {"kind": "slack"},
    {"kind": "slack", "url": "http://x", "url_env": "HOME"},
    {"kind": "slack", "url_env": "NOT_SET_ANYWHERE"},
    {"kind": "slack", "url_file": "/does/not/exist"},
    {"kind": "json", "url": "ftp://secret/x"},
    {"kind": "json", "url": "http://"},
    {"kind": "json", "url": "http://x", "secret_file": "/does/not/exist"},
    {"kind": "json", "url": "http://x", "secret_file": "/dev/null"},
    {"kind": "slack", "url": "http://x", "secret_file": "/dev/null"},
    {"kind": "exec"},
    {"kind": "exec", "command": ["/does/not/exist"]},
    {"kind": "exec", "command": ["true"], "url": "http://x"},
    {"kind": "json", "url": "http://x", "command": ["true"]},
    {"kind": "slack", "url_file": "/"},
    {"kind": "slack", "url_file": "/dev/null"},
    {"kind": "slack", "url_file": "https://secret/x"},
    {"kind": "slack", "url_env": "https://secret/x"},
    {"kind": "slack", "url_file": "a\0b"},
    {"kind": "json", "url": "hooks.example//secret"},
    {"kind": "json", "url": "http://[::1//secret"},
    {"kind": "json", "url": "http://x:99999//secret"},
    {"kind": "json", "url": "http://x//secret\nhttp://y"},
    {"kind": "exec", "command": [""]},
    {"kind": "exec", "command": ["/dev/null"]},
    {"kind": "exec", "command": ["true"], "secret_file": "/dev/null"},
]


@pytest.mark.parametrize("given", BAD)
def test_a_channel_that_cannot_work_is_refused_in_two_sentences(given: dict[str, Any]) -> None:
    with pytest.raises(BisectorError) as caught:
        open_channel(name="team", **given)
    assert "'team'" in caught.value.problem
    assert caught.value.problem.endswith(".")
    assert caught.value.remedy.endswith(".")
    assert "//secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (['name = "a"\nkind = "slack"\nevents = ["culprit", "fixd"]'], "'fixd' is no event. Did you mean 'fixed'?"),
        (['name = "a"\nkind = "slack"', 'name = "a"\nkind = "json"'], "two channels are named 'a'"),
        (['name = ""\nkind = "slack"'], "notify.0.name"),
        (['name = "a"\nkind = "slack"\nurl_fiel = "x"'], "Did you mean 'url_file'?"),
    ],
)  # fmt: skip
def test_settings_say_what_is_wrong_with_a_channel(
    tmp_path: Path, tables: list[str], words: str
) -> None:
    path = tmp_path / "bisector.toml"
    path.write_text("".join(f"[[notify]]\n{table}\n" for table in tables))
    with pytest.raises(BisectorError) as caught:
        load_settings(path)
    assert words in str(caught.value)


def test_settings_do_not_show_a_channel_s_url(tmp_path: Path) -> None:
    path = tmp_path / "bisector.toml"
    path.write_text('[[notify]]\nname = "a"\nkind = "slack"\nurl = "https://x/hidden"\n')
    settings = load_settings(path)
    assert settings.notify[0].url == "https://x/hidden"
    assert "hidden" not in repr(settings)
