"""What the system says of this machine's memory and of this process's."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["available", "resident"]


def available() -> int | None:
    """Return what the machine has free, or where only that is told, what it has; None for neither.

    Linux tells what is available without swapping, Windows what is free; macOS tells its size.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    if sys.platform == "win32":
        return _of_windows()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("total", "free", "page_total", "page_free"),
                *("virtual_total", "virtual_free", "extended_free"),
            )
        ),
    )


def _of_windows() -> int | None:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.free)


def resident() -> int | None:
    """Return what the system counts for this process; None where it does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError, AttributeError):
        return None
