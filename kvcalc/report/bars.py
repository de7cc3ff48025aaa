"""A whole drawn as letters in proportion to its parts."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["stacked"]

_WIDTH = 60  # letters of a whole


def stacked(parts: Sequence[tuple[str, int]], total: int) -> str:
    """Return letters in proportion to the parts, dots for what is left of the whole.

    >>> stacked([("w", 30), ("c", 15)], 60)
    'wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwccccccccccccccc...............'
    """
    drawn, used = "", 0
    for letter, part in parts:
        used += part
        drawn += letter * (min(_WIDTH, round(_WIDTH * used / total)) - len(drawn))
    return drawn + "." * (_WIDTH - len(drawn))
