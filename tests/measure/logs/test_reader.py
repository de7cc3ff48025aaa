"""Files are read a block at a time, whatever is in them."""

from __future__ import annotations

import gzip
import io
import time
import tracemalloc
from pathlib import Path

import pytest

from kvcalc.core.errors import InputError
from kvcalc.measure.logs.lines import LONGEST_LINE, lines_of
from kvcalc.measure.logs.starts import starts_of
from tests.guards import HANG

LINE = "GPU KV cache size: 1,024 tokens"


def _read(data: bytes) -> list[tuple[int, str]]:
    return list(lines_of("-", io.BytesIO(data)))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    assert _read(f"a\n{LINE}\n".encode(encoding)) == [(1, "a"), (2, LINE)]


def test_bytes_that_are_no_text() -> None:
    (first, second) = _read(b"\xff\xfa\x00\n" + LINE.encode())
    assert second == (2, LINE)
    assert first[0] == 1


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(LINE.encode()))
    assert list(lines_of(str(path))) == [(1, LINE)]


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(LINE.encode() * 1000)[:-9])
    with pytest.raises(InputError, match="damaged"):
        list(lines_of(str(path)))


def test_progress_bars_keep_their_line() -> None:
    """A bar that is redrawn, with the next message behind it."""
    assert _read(f"1%\r2%\r{LINE}\nend\n".encode()) == [(1, "1%"), (1, "2%"), (1, LINE), (2, "end")]


def test_windows_line_ends() -> None:
    assert _read(f"a\r\n{LINE}\r\n".encode()) == [(1, "a"), (2, LINE)]


def test_a_line_without_end_is_cut() -> None:
    (line,) = _read(b"x" * (3 * LONGEST_LINE))
    assert len(line[1]) == LONGEST_LINE


def test_the_line_behind_a_long_one_is_read() -> None:
    found = _read(b"x" * 1_000_000 + b"\n" + LINE.encode())
    assert found[-1] == (2, LINE)


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.log", "no such file"), ("", "no such file"), ("a\0b", "not a path")],
)
def test_no_file(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        list(lines_of(name if "\0" in name else str(tmp_path / (name or "x"))))


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        list(lines_of(str(tmp_path)))


class _Endless(io.RawIOBase):
    """A serving log that is made as it is read."""

    def __init__(self, size: int) -> None:
        request = b'INFO: 10.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        status = b"INFO 10-03 08:00:00 [loggers.py:1] Running: 1 reqs, GPU KV cache usage: 0.1%\n"
        self._block = (request * 30 + status) * 100
        self._left = size

    def read(self, size: int = -1) -> bytes:
        taken = self._block[: min(self._left, len(self._block))]
        self._left -= len(taken)
        return taken


def test_a_long_log_is_streamed() -> None:
    """32 MiB: a few MiB of memory, and a time that a gigabyte can be waited for."""
    size = 2**25
    tracemalloc.start()
    began = time.process_time()
    starts = starts_of(lines_of("-", _Endless(2**22)))  # type: ignore[arg-type]  # it reads
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    began = time.process_time()
    starts_of(lines_of("-", _Endless(size)))  # type: ignore[arg-type]  # it reads
    took = time.process_time() - began

    assert starts == []
    assert most < 8 * 2**20
    assert took < HANG
