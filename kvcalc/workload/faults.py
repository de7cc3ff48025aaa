"""How a fault in a trace is said: on one line, with the place, whatever bytes the file holds."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import InputError, printable

__all__ = ["fault", "listed", "printable", "quoted"]

_WIDTH = 40  # characters of a value that a message repeats
_NAMES = 20  # column names that a message lists


def fault(file: str, line: int | None, message: str, hint: str = "") -> InputError:
    """Return (not raise) the error for a place in a file; `line` counts from 1."""
    return InputError(message, hint=hint, where=file if line is None else f"{file}:{line}")


def quoted(text: str) -> str:
    """Quote a value from the file, cut to some 40 characters."""
    return f"'{printable(text if len(text) <= _WIDTH else text[: _WIDTH - 1] + '…')}'"


def listed(names: Sequence[str]) -> str:
    """List column names, the first 20 of them."""
    shown = ", ".join(quoted(name) for name in names[:_NAMES]) or "none"
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"
