"""How a fault of a GGUF file is said: one line, one hint, the file's name."""

from __future__ import annotations

from kvcalc.core.errors import InputError

__all__ = ["broken"]

_DAMAGED = "the file is damaged or was not downloaded whole: get it again"


def broken(file: str, message: str, hint: str = _DAMAGED) -> InputError:
    """Return the error of a file whose bytes are not a GGUF header, or hold a senseless value."""
    return InputError(message, hint=hint, where=file)
