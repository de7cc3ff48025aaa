"""One request to a server: nothing is followed, nothing lasts, nothing grows."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import InputError, UnavailableError
from kvcalc.measure.source import MAX_BYTES, read_page
from tests.cli.harness import call
from tests.guards import HANG
from tests.measure.pages import PAGES

_Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: _Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer for every path; yield the address and the requests that came."""
    asked: list[str] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.over = over
            try:
                answer(self)
            except OSError:
                return

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _send(body: bytes, status: int = 200, **headers: str) -> _Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_page_is_asked_for_once() -> None:
    with serving(_send(b"a 1\n")) as (address, asked):
        assert read_page(address, timeout=5) == "a 1\n"
        assert read_page(f"{address}/prometheus/metrics?x=1", timeout=5) == "a 1\n"
    assert asked == ["GET /metrics", "GET /prometheus/metrics?x=1"]


def test_no_redirect_is_followed() -> None:
    with serving(_send(b"", 302, Location="/elsewhere")) as (address, asked):
        gone = call("metrics", address)
    assert gone.code == 3
    assert "sends elsewhere" in gone.errors[0]
    assert asked == ["GET /metrics"]


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment names: a server's own page says nothing to others."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(_send(b"a 1\n")) as (address, _):
        assert read_page(address, timeout=5) == "a 1\n"


@pytest.mark.parametrize("status", [401, 404, 500, 204])
def test_other_answers(status: int) -> None:
    with serving(_send(b"", status)) as (address, _), pytest.raises(UnavailableError) as error:
        read_page(address, timeout=5)
    assert str(status) in str(error.value)
    assert error.value.hint


def test_a_page_too_large() -> None:
    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    with serving(endless) as (address, _), pytest.raises(InputError, match="more than 1 MiB"):
        read_page(address, timeout=30, limit=2**20)


@pytest.mark.parametrize("where", ["before", "headers", "body"])
def test_a_server_that_drips(where: str) -> None:
    """The time is for the whole answer, so that one byte now and then does not draw it out."""

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        over = handler.over  # type: ignore[attr-defined]  # set above
        if where == "before":
            over.wait(20)
            return
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        else:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        while not over.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    start = time.monotonic()
    with serving(drip) as (address, _):
        with pytest.raises(UnavailableError, match=r"within 0\.5 s"):
            read_page(address, timeout=0.5)
        assert time.monotonic() - start < HANG


def test_an_answer_that_breaks_off() -> None:
    def short(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"a 1\n")

    with serving(short) as (address, _), pytest.raises(UnavailableError, match="does not answer"):
        read_page(address, timeout=5)


def test_compressed() -> None:
    answer = _send(b"\x1f\x8b", Content_Encoding="gzip")
    with serving(answer) as (address, _), pytest.raises(UnavailableError, match="compressed"):
        read_page(address, timeout=5)


def test_no_server() -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        read_page("http://127.0.0.1:1/metrics", timeout=2)


def test_a_plain_server_asked_securely() -> None:
    with serving(_send(b"a 1\n")) as (address, _), pytest.raises(UnavailableError):
        read_page(address.replace("http:", "https:"), timeout=5)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "page"
    file.write_bytes(b"\xef\xbb\xbfa 1\n\xff\xfe 2\n")
    assert read_page(str(file), timeout=1).startswith("a 1\n")


def test_a_file_too_large(tmp_path: Path) -> None:
    file = tmp_path / "page"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match="more than 16 MiB"):
        read_page(str(file), timeout=1)


def test_command() -> None:
    """A server that answers is read; one that does not is exit code 3 and one line."""
    with serving(_send(PAGES["sglang"].encode())) as (address, _):
        found = call("metrics", address, "--format", "json")
        assert found.code == 0, found.err
        assert found.results[0]["kv_cache_tokens"] == 100000
    gone = call("metrics", "http://127.0.0.1:1", "--timeout", "2")
    assert gone.code == 3
    assert len(gone.errors) == len(gone.hints) == 1
