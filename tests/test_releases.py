import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from packages import write_wheel

from bisector.errors import BisectorError, InfraError
from bisector.releases import list_releases

FILES = [
    ("gears-2.0-py3-none-any.whl", "2026-02-01T00:00:00Z", False, ">=3.10"),
    ("gears-10.0.tar.gz", "2026-03-01T00:00:00Z", False, ""),
    ("gears-1.0-py3-none-any.whl", "2026-01-02T00:00:00Z", "broken", ""),
    ("gears-1.0.tar.gz", "2026-01-01T00:00:00Z", True, ""),
    ("gears-2.0.tar.gz", "2026-02-02T00:00:00Z", True, ""),
]


@pytest.fixture(params=["json", "html"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve one package as PEP 691 asks, or as a page of links alone."""
    if request.param == "json":
        files = [
            {
                "filename": name,
                "url": name,
                "hashes": {},
                "upload-time": date,
                "yanked": yanked,
                "requires-python": python or None,
            }
            for name, date, yanked, python in FILES
        ]
        page = {"meta": {"api-version": "1.1"}, "name": "gears", "files": files}
        kind, body = "application/vnd.pypi.simple.v1+json", json.dumps({**page, "versions": []})
    else:
        kind = "text/html"
        body = "".join(
            f'<a href="{name}"{" data-yanked" if yanked else ""}'
            f' data-requires-python="{python.replace(">", "&gt;")}">{name}</a>'
            for name, _, yanked, python in FILES
        )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/simple/gears/" else 404)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=served.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{served.server_port}/simple")
    yield request.param
    served.shutdown()
    served.server_close()


def test_releases_come_oldest_version_first_with_what_the_index_says(server: str) -> None:
    one, two, ten = list_releases("Gears")
    assert [each.version for each in (one, two, ten)] == ["1.0", "2.0", "10.0"]
    assert (one.is_yanked, two.is_yanked, ten.is_yanked) == (True, False, False)
    assert one.uploaded == (datetime(2026, 1, 1, tzinfo=UTC) if server == "json" else None)


@pytest.mark.usefixtures("server")
def test_an_unknown_package_is_a_mistake_to_mend() -> None:
    with pytest.raises(BisectorError, match="knows no 'wheelss'") as caught:
        list_releases("wheelss")
    assert not isinstance(caught.value, InfraError)


@pytest.mark.parametrize("index", ["http://127.0.0.1:9/simple", "file:///no/such/folder"])
def test_an_index_out_of_reach_is_no_answer(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    with pytest.raises(InfraError, match="cannot be reached"):
        list_releases("gears")


def test_without_a_network_only_folders_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(InfraError, match="UV_OFFLINE"):
        list_releases("gears")
    links = write_wheel(tmp_path, "gears", "1.0").parent
    write_wheel(tmp_path, "gears", "2.0")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    assert [each.version for each in list_releases("gears")] == ["1.0", "2.0"]


def test_a_folder_of_pages_is_an_index_and_the_first_that_knows_a_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "near", "gears", "1.0")
    write_wheel(tmp_path / "far", "gears", "2.0")
    write_wheel(tmp_path / "far", "oil", "3.0")
    monkeypatch.setenv("UV_INDEX", f"near={(tmp_path / 'near').as_uri()}")
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "far").as_uri())
    assert [each.version for each in list_releases("gears")] == ["1.0"]
    assert [each.version for each in list_releases("oil")] == ["3.0"]
