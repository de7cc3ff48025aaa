"""Where a page or a log comes from: a file, stdin, or one read-only request to a server.

The request follows no redirect, uses no proxy, sends no credentials and has an end: a time for the
whole answer, and a size.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

from kvcalc.core.errors import InputError, UnavailableError, UsageError, printable
from kvcalc.core.units import format_bytes

__all__ = ["MAX_BYTES", "is_url", "named_source", "read_bytes", "read_page"]

MAX_BYTES = 16 * 2**20
"""The largest page that is read; those of real servers have some 100 kB."""

_CHUNK = 64 * 2**10
_OK = 200
_REDIRECTS = range(300, 400)
_NOT_FOUND = 404
_FORBIDDEN = (401, 403)
_PORTS = {"http": 80, "https": 443}


def is_url(source: str) -> bool:
    """Whether a source is an address and no file."""
    return "://" in source


def named_source(source: str) -> str:
    """Return how errors name a source."""
    return "stdin" if source == "-" else printable(source)[:200]


def read_page(source: str, *, timeout: float, limit: int = MAX_BYTES) -> str:
    """Return the text of a page; what is not UTF-8 in it becomes a replacement character.

    Args:
        source: `http://host:port[/path]` (the path is /metrics where there is none), a file, or -.
        timeout: seconds for the whole answer.
        limit: bytes at most.

    Raises:
        UsageError: an address of another kind, or with a user in it.
        UnavailableError: the server does not answer, or answers with something else.
        InputError: a file that cannot be read, or more bytes than the limit.
    """
    content = _fetched(source, timeout, limit) if is_url(source) else read_bytes(source, limit)
    return content.decode("utf-8", "replace").removeprefix("\ufeff")


_PAGE_HINT = "name a saved page, or an address with http:// before it"
_LARGE_HINT = "is it the right one? metrics of real servers have some 100 kB"


def _too_large(where: str, limit: int, hint: str = _LARGE_HINT) -> InputError:
    return InputError(
        f"more than {format_bytes(limit)}, which is too much for what it should be",
        where=where,
        hint=hint,
    )


def read_bytes(
    path: str, limit: int = MAX_BYTES, *, hint: str = _PAGE_HINT, large: str = _LARGE_HINT
) -> bytes:
    """Return the content of a file, or of stdin.

    Args:
        path: of the file, or -.
        limit: bytes at most.
        hint: what to name instead where it cannot be read.
        large: what to look at where it is larger.
    """
    where = named_source(path)
    try:
        if path == "-":
            if sys.stdin is None:
                raise InputError("stdin is closed", where=where, hint="name a file")
            content = sys.stdin.buffer.read(limit + 1)
        else:
            if os.path.isdir(path):
                raise InputError("a folder, not a file", where=where, hint=hint)
            with open(path, "rb") as file:
                content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise InputError(
            f"cannot be read: {reason}",
            where=where,
            hint=hint,
        ) from None
    if len(content) > limit:
        raise _too_large(where, limit, large)
    return content


def _fetched(url: str, timeout: float, limit: int) -> bytes:
    parts, port = _checked(url)
    where = named_source(url)
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    path += f"?{parts.query}" if parts.query else ""
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", port, timeout=timeout)
    late = threading.Event()
    held: list[socket.socket] = []
    timer = threading.Timer(timeout, _cut_off, (held, late))
    timer.daemon = True
    timer.start()
    try:
        connection.connect()
        held.append(connection.sock)  # which the connection forgets once an answer has it
        connection.request(
            "GET", path, headers={"Accept": "text/plain", "Accept-Encoding": "identity"}
        )
        with connection.getresponse() as answer:
            content = _body(answer, where, limit)
        if late.is_set():  # a cut-off answer may look like a whole one
            raise TimeoutError
    except ssl.SSLError as error:
        raise UnavailableError(
            f"no secure connection: {error.reason or error}", where=where, hint="check the scheme"
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            message = f"no whole answer within {timeout:g} s"
            raise UnavailableError(
                message, where=where, hint="is the server up? --timeout gives it longer"
            ) from None
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnavailableError(
            f"the server does not answer: {printable(reason)[:100]}",
            where=where,
            hint="check host and port; a page saved from it can be given as a file",
        ) from None
    finally:
        timer.cancel()
        connection.close()
    return content


def _cut_off(held: list[socket.socket], late: threading.Event) -> None:
    """End a request whose time is up, wherever it is: a drip of bytes never times out by itself."""
    late.set()
    for each in held:
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _checked(url: str) -> tuple[SplitResult, int]:
    where = printable(url)[:100]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{where!r} is no address", hint="http://HOST:PORT/metrics") from None
    if parts.scheme not in _PORTS:
        raise UsageError(
            f"{printable(parts.scheme)!r} is no kind of address that is read",
            hint="http://HOST:PORT/metrics or https://...; a file is named without file://",
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "an address with a user in it", hint="save the page with curl -u and give the file"
        )
    if not parts.hostname or any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError(f"{where!r} is no address", hint="http://HOST:PORT/metrics")
    return parts, port if port is not None else _PORTS[parts.scheme]


def _body(answer: HTTPResponse, where: str, limit: int) -> bytes:
    if answer.status in _REDIRECTS:
        raise UnavailableError(
            f"the server sends elsewhere ({answer.status}), which is not followed",
            where=where,
            hint="give the address that it leads to, if you trust it",
        )
    if answer.status != _OK:
        hint = "llama-server tells metrics with --metrics, SGLang with --enable-metrics"
        if answer.status in _FORBIDDEN:
            hint = "save the page with your key (curl -H ...) and give the file"
        elif answer.status != _NOT_FOUND:
            hint = "look at the server's log"
        raise UnavailableError(f"the server answers {answer.status}", where=where, hint=hint)
    if (answer.getheader("Content-Encoding") or "identity").lower() != "identity":
        raise UnavailableError(
            "the server answers compressed, which was not asked for",
            where=where,
            hint="save the page (curl --compressed) and give the file",
        )
    content = bytearray()
    while chunk := answer.read1(_CHUNK):
        content += chunk
        if len(content) > limit:
            raise _too_large(where, limit)
    missing = answer.length
    if missing:
        raise HTTPException(f"the answer ends {missing} bytes too early")
    return bytes(content)
