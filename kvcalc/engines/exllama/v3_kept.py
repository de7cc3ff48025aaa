"""What one layer keeps: the value, and what its makers share."""

from __future__ import annotations

from typing import NamedTuple, Self

from kvcalc.core.rules import Rule
from kvcalc.engines.exllama.pages import PAGE

__all__ = ["HALF", "Kept", "Part", "ring_rows"]

HALF = 2
"""Bytes of float16 and bfloat16."""
_BEYOND = 2 * PAGE
"""Rows of a ring beyond its window: what drafts can be taken back over."""

Part = tuple[tuple[str, int], ...]
"""(role, bytes of a slot)."""


class Kept(NamedTuple):
    """What one layer keeps.

    Attributes:
        pages: rows in pages of PAGE tokens, by the rule that fills them.
        rings: rows of a ring in every batch slot.
        states: bytes by role in every batch slot.
        history: bytes of a slot that are there to take proposed tokens back.
    """

    pages: tuple[tuple[Rule, Part], ...]
    rings: tuple[tuple[Rule, Part], ...]
    states: Part
    history: int

    @classmethod
    def paged(cls, rule: Rule, rows: Part) -> Self:
        """Return rows in pages."""
        return cls(((rule, rows),), (), (), 0)

    @classmethod
    def state(cls, sizes: Part, history: int) -> Self:
        """Return a state in every slot."""
        return cls((), (), sizes, history)

    def plus(self, other: Kept) -> Kept:
        """Return both."""
        return Kept(
            self.pages + other.pages,
            self.rings + other.rings,
            self.states + other.states,
            self.history + other.history,
        )


def ring_rows(window: int) -> int:
    """Return the rows of a ring: the window and two pages more, in whole pages.

    modules/sliding_attn.py, SlidingAttention.kv_state_size.

    >>> ring_rows(1024), ring_rows(127), ring_rows(128)
    (1536, 768, 768)
    """
    return -(-(window + _BEYOND) // PAGE) * PAGE
