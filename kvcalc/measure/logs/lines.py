"""A log as numbered lines without what loggers, containers and ranks put before them."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, cast

from kvcalc.core.errors import InputError, printable

__all__ = ["LONGEST_LINE", "Stripped", "file_name", "lines_of", "strip", "unfolded"]

LONGEST_LINE = 65_536
"""Characters of a line that are read; what comes behind them is passed over."""

_BLOCK = 1 << 18
_GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HINT = "give the log's file, or - to read it from stdin"


def file_name(source: str) -> str:
    """Return the name to call a log by: the file without its folder, or `stdin`."""
    return "stdin" if source == "-" else printable(os.path.basename(source) or source)


def lines_of(source: str, stdin: BinaryIO | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log with their numbers, from 1.

    A carriage return ends a piece of a line (progress bars), which keeps the line's number. Bytes
    that are no UTF-8 are replaced; UTF-16 with a mark and gzip are read too.
    """
    with _opened(source, stdin) as stream:
        yield from _numbered(_texts(stream, file_name(source)))


def _numbered(texts: Iterator[str]) -> Iterator[tuple[int, str]]:
    number, rest = 1, ""
    for text in texts:
        pieces = text.split("\n")
        pieces[0] = rest + pieces[0][: max(0, LONGEST_LINE - len(rest))]
        for piece in pieces[:-1]:
            yield from _pieces(number, piece)
            number += 1
        rest = pieces[-1][:LONGEST_LINE]
    if rest:
        yield from _pieces(number, rest)


def _pieces(number: int, line: str) -> Iterator[tuple[int, str]]:
    if "\r" not in line:
        yield number, line[:LONGEST_LINE]
        return
    for piece in line[:LONGEST_LINE].split("\r"):
        if piece:
            yield number, piece


def _texts(stream: BinaryIO, file: str) -> Iterator[str]:
    try:
        block = stream.read(_BLOCK)
        encoding = next((name for mark, name in _BOMS if block.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while block:
            yield decoder.decode(block)
            block = stream.read(_BLOCK)
        yield decoder.decode(b"", final=True)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"the gzip file is damaged: {printable(str(error))[:120]}", hint=_HINT, where=file
        ) from None
    except OSError as error:
        raise _unreadable(error, file) from None


@contextmanager
def _opened(source: str, stdin: BinaryIO | None) -> Iterator[BinaryIO]:
    file = file_name(source)
    if source == "-":
        own = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
        stream = own if stdin is None else stdin
        if stream is None:
            raise InputError("there is no stdin to read", hint=_HINT, where=file)
        yield stream
        return
    try:
        with open(source, "rb") as raw:
            _refuse_device(raw, file)
            head = raw.peek(2)[:2] if hasattr(raw, "peek") else b""
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if head == _GZIP else raw
    except InputError:
        raise
    except OSError as error:
        raise _unreadable(error, file) from None
    except ValueError:  # a NUL in the path
        raise InputError("not a path", hint=_HINT, where=file) from None


def _refuse_device(raw: BinaryIO, file: str) -> None:
    """Refuse what may never end, but for a terminal."""
    if stat.S_ISCHR(os.fstat(raw.fileno()).st_mode) and not raw.isatty():
        raise InputError("a device, and no file", hint=_HINT, where=file)


def _unreadable(error: OSError, file: str) -> InputError:
    told = {FileNotFoundError: "no such file", IsADirectoryError: "is a directory"}
    return InputError(
        told.get(type(error), f"cannot be read: {printable(error.strerror or 'no reason given')}"),
        hint=_HINT,
        where=file,
    )


# --------------------------------------------------------------------- prefixes
#
# What loggers, containers and ranks put before a line: taken off, and told apart.
#
# A line is looked at from its beginning, one prefix at a time, so that the work grows with the
# length of the prefixes alone. Every expression is anchored and bounded.

_MOST = 12
"""Prefixes of one line: a container's stamp, a pod, a process, a date, a level, a file, a rank."""

_COLOUR = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|#033|\^\[)\[[0-9;?]{0,24}[A-Za-z]"
    r"|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?"
)
_COLOUR_MARKS = ("\x1b", "\\x1b", "\\u001b", "\\033", "#033", "^[")

_SOURCES = (
    re.compile(r"\[(?P<source>pod/[\w./-]{1,200})\][ \t]{1,8}"),  # kubectl logs --prefix
    re.compile(r"(?P<source>[A-Za-z0-9][\w.-]{0,80})[ \t]{0,60}\|[ \t]{0,4}"),  # docker compose
    re.compile(r"\[(?P<source>[a-z0-9][a-z0-9.-]{1,80}/[a-z0-9.-]{1,80})\][ \t]{1,8}"),
)
_RANKS = (
    re.compile(
        r"\((?P<rank>[A-Za-z][\w.+-]{1,60}(?: [A-Z]{2,3}\d{1,4}(?:_[A-Z]{2,3}\d{1,4}){0,3})?)"
        r" pid=(?P<pid>\d{1,10})"
        r"(?:, ip=(?P<ip>[\w.:-]{1,60}))?\)[ \t]{0,4}"
    ),
    re.compile(r"\((?P<rank>VllmWorker(?:Process)? rank=\d{1,5})(?: pid=\d{1,10})?\)[ \t]{0,4}"),
    re.compile(r"\((?P<rank>(?:Worker|EngineCore|APIServer)[\w.-]{0,40})\)[ \t]{0,4}"),
    re.compile(r"(?P<rank>VllmWorker rank=\d{1,5}):[ \t]{0,4}"),
    re.compile(
        r"\[(?P<rank>(?:(?:DP|TP|PP|EP|CP|ATTN_DP|ATTN_TP|MOE_EP)\d{1,4} ?){1,6})\][ \t]{0,4}"
    ),
    re.compile(
        r"\[20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
        r"(?: (?P<rank>(?:(?:DP|TP|PP|EP|CP)\d{1,4} ?){1,6}))?\][ \t]{0,4}"
    ),
    re.compile(r"\[rank ?(?P<rank>\d{1,5})\]:?[ \t]{0,4}", re.IGNORECASE),
    re.compile(r"\[(?P<rank>\d{1,4}),\d{1,6}\]<std(?:out|err)>:[ \t]{0,4}"),  # mpirun --tag-output
)
_STAMPS = (
    re.compile(
        r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?[ \t]{1,8}"
        r"(?:std(?:out|err) [FP] )?"
    ),
    re.compile(
        r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} \d\d:\d\d:\d\d"
        r"(?:\.\d{1,6})? [\w.-]{1,80} [\w./@-]{1,80}(?:\[\d{1,10}\])?: ?"  # journald
    ),  # journald
    re.compile(r"\{[A-Za-z_][\w.-]{0,60}=\"[^}\n]{0,1000}\}[ \t]{1,8}"),  # logcli's labels
    re.compile(r"[A-Za-z][\w.-]{0,40}\[\d{1,10}\]:[ \t]{1,8}"),  # llama[1]:
    re.compile(r"\d{1,4}\.\d\d\.\d{3}\.\d{3} [DIWE] "),  # llama.cpp's own time and level
    re.compile(r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL):?[ \t]{1,8}"),
    re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d[ \t]{1,8}"),
    re.compile(r"\[20\d\d-\d\d-\d\d[^\]\n]{0,40}\][ \t]{0,4}"),
    re.compile(r"\[\d\d/\d\d/20\d\d-\d\d:\d\d:\d\d\][ \t]{0,4}"),
)
_FILE = re.compile(
    r"\[?(?:[\w./-]{0,80}/)?(?P<file>[A-Za-z_]\w{0,60}\.(?:py|cpp|cc|cu|rs)):"
    r"(?P<number>\d{1,6})\]?:?[ \t]{0,4}"
)
_REPEATED = re.compile(r"\[repeated (?P<times>\d{1,6})x across cluster\]")
_MOST_LINES = 1_000
_LOG_KEYS = ("log", "message", "msg", "line", "MESSAGE", "text")


class Stripped(NamedTuple):
    """A line without its prefixes.

    Attributes:
        text: what was said.
        source: the container or pod that said it; "" where nothing tells it.
        rank: the process that said it, without its pid: `Worker_TP0`, `TP3`; "" for none.
        file, number: the source line that said it: `gpu_worker.py`, 298; "" and 0 for none.
        times: how many processes said the same (Ray's `[repeated 30x across cluster]`).
        pid: the process's number, which another start has not; "" where nothing tells it.
    """

    text: str
    source: str = ""
    rank: str = ""
    file: str = ""
    number: int = 0
    times: int = 1
    pid: str = ""


def strip(line: str) -> Stripped:
    """Return a line without what was put before it.

    >>> strip("(EngineCore_DP0 pid=71) INFO 10-03 08:00:00 [gpu_worker.py:298] ready")[:5]
    ('ready', '', 'EngineCore_DP0', 'gpu_worker.py', 298)
    """
    line = _plain(next(unfolded(line), ""))
    source = rank = file = pid = ""
    number, at = 0, len(line) - len(line.lstrip(" \t"))
    for _ in range(_MOST):
        if not source and (match := _first(_SOURCES, line, at)):
            source = match["source"]
        elif match := _first(_RANKS, line, at):
            rank = _joined(rank, match)
            pid = pid or match.groupdict().get("pid") or ""
        elif match := _first(_STAMPS, line, at):
            pass
        elif match := _FILE.match(line, at):
            file, number = file or match["file"], number or int(match["number"])
        else:
            break
        at = match.end()
    match = _REPEATED.search(line) if "[repeated " in line else None
    times = int(match["times"]) if match else 1
    return Stripped(line[at:], source, rank, file, number, times, pid)


def _plain(line: str) -> str:
    """Return a line without colours."""
    return _COLOUR.sub("", line) if any(mark in line for mark in _COLOUR_MARKS) else line


def _joined(rank: str, match: re.Match[str]) -> str:
    """Return the process that a line names so far, with one more of its names."""
    named = (match["rank"] or "").strip()
    groups = match.groupdict()
    if named.startswith("RayWorker") and groups.get("pid"):  # all have one name
        named = f"{named} {groups['pid']} {groups.get('ip') or ''}".rstrip()
    return rank if named in ("", rank) else f"{rank} {named}".strip()


def _first(patterns: tuple[re.Pattern[str], ...], line: str, at: int) -> re.Match[str] | None:
    for pattern in patterns:
        if match := pattern.match(line, at):
            return match
    return None


def unfolded(line: str) -> Iterator[str]:
    r"""Yield the lines of a message that a line keeps as a JSON object; the line where it is none.

    >>> list(unfolded('{"log": "ValueError: x\\n  y", "stream": "stderr"}'))
    ['ValueError: x', '  y']
    """
    plain = _plain(line)
    if not plain.startswith("{") or '"' not in plain:
        yield line
        return
    try:
        found = json.loads(plain)
    except (ValueError, RecursionError):
        yield line
        return
    texts = (found.get(key) for key in _LOG_KEYS) if isinstance(found, dict) else ()
    text = next((text for text in texts if isinstance(text, str)), line)
    yield from text.split("\n")[:_MOST_LINES]
