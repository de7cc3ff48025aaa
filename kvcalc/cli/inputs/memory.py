"""From what was typed to free memory and its holes."""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.cli.inputs.numbers import MAX_LISTED, size, whole
from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.fragmentation import Memory
from kvcalc.core.units import parse_bytes

__all__ = ["memory"]

_SWAPPED = {"kB": "KiB", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
_SWAPPED |= {"KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}


def memory(values: Values, *, swapped: bool = False) -> Memory:
    """Return the free memory and the request as given.

    Args:
        values: what was given.
        swapped: read GiB where GB was typed, and the other way round.
    """

    def swap(text: str) -> str:
        unit = text.lstrip("0123456789., ").strip()
        return text.replace(unit, _SWAPPED[unit]) if unit in _SWAPPED else text

    given = values
    if swapped:
        names = ("free", "largest", "request")
        other = {name: values[name] and swap(values[name]) for name in names}
        given = Values({**values, **other}, values.origins, values.places)
    holes = None
    if values["holes"] is not None:
        holes = values.at(
            "holes",
            lambda: _holes(values["holes"], lambda t: parse_bytes(swap(t) if swapped else t)),
        )
    return Memory(
        free_bytes=size(given, "free"),
        largest_free_bytes=size(given, "largest"),
        holes=holes,
        request_bytes=size(given, "request", up=True),
    )


def _holes(text: str, read: Callable[[str], int]) -> tuple[int, ...]:
    """Read `1.9GiB,29x512MiB`."""
    holes: list[int] = []
    for part in text.split(","):
        factor, times, hole = part.strip().partition("x")
        count = whole(factor) if times and hole else 1
        if len(holes) + count > MAX_LISTED:
            raise InvalidValueError(
                f"more than {MAX_LISTED} holes", hint="give --free and --largest instead"
            )
        holes.extend([read(hole if times and hole else part.strip())] * count)
    bare = [part for part in text.split(",") if part.strip().isdigit()]
    if bare and len(bare) < len(text.split(",")):
        raise InvalidValueError(
            f"{text!r} mixes sizes with and without a unit",
            hint="a comma separates holes, not thousands; give every hole a unit",
        )
    return tuple(holes)
