"""Plain data out of a pickle by the standard library's Unpickler, which may fetch no class here.

Without a class or function there is nothing that a pickle could call: `find_class` refuses every
name and `persistent_load` every reference. What is left is a file that wants too much memory. Its
size is limited before it is read, and on systems that can, memory is limited while it is.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from kvcalc.core.errors import InputError, KvcalcError, printable
from kvcalc.core.units import format_bytes

__all__ = ["MAX_PICKLE_BYTES", "unpickle"]

MAX_PICKLE_BYTES = 32 * 2**20
"""Bytes of a pickle; most of a large one are the stack traces of its history."""

_MAX_MEMORY = 2 * 2**30  # more than the values of any honest pickle of 32 MiB take
_HINT = "a snapshot is what torch.cuda.memory._dump_snapshot writes; record it anew"
_one_at_a_time = threading.Lock()


def unpickle(data: bytes, where: str) -> Any:
    """Return the value of a pickle of plain data; any fault is one InputError, named by `where`."""
    if len(data) > MAX_PICKLE_BYTES:
        raise InputError(
            f"a pickle larger than {format_bytes(MAX_PICKLE_BYTES)}",
            hint="record less history: it is what makes such files large",
            where=where,
        )
    stream = io.BytesIO(data)
    try:
        with _limited_memory():
            value = _PlainData(stream, encoding="latin-1").load()
    except KvcalcError as error:
        error.where = where
        raise
    except (MemoryError, RecursionError):
        raise InputError("its values take too much memory", hint=_HINT, where=where) from None
    except Exception as error:  # a broken pickle raises errors of many kinds
        reason = printable(str(error) or type(error).__name__)[:100]
        raise InputError(f"a broken pickle: {reason}", hint=_HINT, where=where) from None
    if stream.read(1):
        raise InputError("bytes follow the end of its pickle", hint=_HINT, where=where)
    return value


class _PlainData(pickle.Unpickler):
    """An unpickler without classes and functions."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        text = printable(f"{module}.{name}")[:60]
        raise InputError(f"it names {text}, which is not plain data: nothing was run", hint=_HINT)

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise InputError(
            "it names an object outside, which is not plain data: nothing was run", hint=_HINT
        )


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limit what the process may take beyond what it has, where /proc says how much that is.

    Ten bytes of a pickle can ask for gigabytes: a memo index of 2**31 makes a table of that length.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with _one_at_a_time:
        limits = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + _MAX_MEMORY
        soft, hard = limits
        unlimited = resource.RLIM_INFINITY
        if all(limit == unlimited or most < limit for limit in limits):
            soft = most
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
