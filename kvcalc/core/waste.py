"""The named wastes: one name a cause, never mixed, and always adding up to what is reserved."""

from __future__ import annotations

from collections.abc import Iterable

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.values import Value

__all__ = ["WASTE_NAMES", "Wastes"]

WASTE_NAMES = {
    "reservation": "declared, never written",
    "future": "reserved now, written later",
    "tail": "the unwritten end of a last block",
    "retention": "held though no token to come can read it, or room for tokens in flight",
    "page_padding": "pages widened to a common size",
    "group_padding": "room of layers that a group lacks",
    "pool_overhead": "null block, dump page, remainder below one block",
    "external": "free, but no hole is large enough",
}
"""The eight causes, in the order they are printed, and what each means."""


class Wastes(Value, frozen=True, kw_only=True):
    """Reserved bytes, taken apart. `reserved_bytes == used_bytes + sum of the eight wastes`.

    Attributes:
        reserved_bytes: everything the engine sets aside.
        used_bytes: rows that the newest token reads, and one live state.

    The other fields are explained in WASTE_NAMES. In the words of the PagedAttention paper its
    "reservation" is `future` here and its "internal fragmentation" is `reservation`.
    """

    reserved_bytes: int
    used_bytes: int
    reservation_bytes: int = 0
    future_bytes: int = 0
    tail_bytes: int = 0
    retention_bytes: int = 0
    page_padding_bytes: int = 0
    group_padding_bytes: int = 0
    pool_overhead_bytes: int = 0
    external_bytes: int = 0

    def __post_init__(self) -> None:
        parts = self.by_name().values()
        if min(self.used_bytes, *parts) < 0:
            raise InvalidValueError(f"a waste below zero: {self}")
        if self.reserved_bytes != self.used_bytes + sum(parts):
            raise InvalidValueError(f"wastes do not add up to what is reserved: {self}")

    def by_name(self) -> dict[str, int]:
        """Return bytes by name of the cause, in printing order."""
        return {name: getattr(self, f"{name}_bytes") for name in WASTE_NAMES}

    @property
    def waste_bytes(self) -> int:
        """Reserved but not used."""
        return self.reserved_bytes - self.used_bytes

    @property
    def waste_ratio(self) -> float:
        """Share of the reserved bytes that is wasted, 0 when nothing is reserved."""
        return self.waste_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    @classmethod
    def total(cls, parts: Iterable[Wastes]) -> Wastes:
        """Add up, cause by cause."""
        sums = dict.fromkeys(cls.__struct_fields__, 0)
        for part in parts:
            for name in sums:
                sums[name] += getattr(part, name)
        return cls(**sums)

    def times(self, count: int) -> Wastes:
        """Return the wastes of `count` equal things."""
        return Wastes(**{name: count * getattr(self, name) for name in self.__struct_fields__})
