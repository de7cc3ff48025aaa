"""Values of kvcalc.yaml, by the form that their key has."""

from __future__ import annotations

from kvcalc.checks.keys import Form
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.metrics import Figure, read_figure
from kvcalc.core.units import parse_tokens
from kvcalc.core.values import MAX_DIMENSION

__all__ = ["read_value"]


def read_value(form: Form, given: object, key: str) -> Figure | str:
    """Read a value.

    Args:
        form: how it is written.
        given: as it stands in the file.
        key: what it belongs to.

    Raises:
        InvalidValueError: it is not of that form.

    >>> read_value("bytes", "15GiB", "kv_memory"), read_value("tokens", 8192, "max")
    (16106127360, 8192)
    """
    match form:
        case "tokens" | "count":
            return _whole(given)
        case "bytes":
            size = read_figure("bytes", given)
            if not size:
                raise InvalidValueError(f"{key} of 0 B holds nothing", hint="give a size")
            return size
        case "number":
            return read_figure("number", given)
        case "share":
            return _share(given)
        case "switch":
            return read_figure("bool", given)
        case "version":
            return _version(given, key)
        case "text":
            return _text(given, key)


def _whole(given: object) -> int:
    if isinstance(given, str):
        return parse_tokens(given, maximum=MAX_DIMENSION)
    if type(given) is int and 1 <= given <= MAX_DIMENSION:
        return given
    raise InvalidValueError(
        f"{given!r:.40} is not a whole number from 1 to {MAX_DIMENSION}",
        hint="write a number such as 16",
    )


def _share(given: object) -> float:
    number = read_figure("number", given)
    if not 0 < number <= 1:
        raise InvalidValueError(
            f"{given!r:.40} is no share above 0 and up to 1", hint="write a share such as 0.9"
        )
    return float(number)


def _version(given: object, key: str) -> str:
    if isinstance(given, float):
        raise InvalidValueError(
            f"{key} {given} is a number, in which 0.10 and 0.1 are the same",
            hint=f'quote it: {key}: "{given}0" or "{given}"',
        )
    return _text(given, key)


def _text(given: object, key: str) -> str:
    if isinstance(given, bool) or given is None or isinstance(given, (dict, list)):
        raise InvalidValueError(f"{key} takes a text", hint=f"write {key}: NAME")
    return str(given)
