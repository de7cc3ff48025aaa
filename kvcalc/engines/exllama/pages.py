"""Pages of 256 tokens that the rows of all layers share: one id stands for a page of every layer.

exllamav2 generator/dynamic.py (PAGED_PAGE_SIZE), exllamav3 constants.py (PAGE_SIZE).
"""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.plan import Group, Pool, Rows
from kvcalc.core.rules import Rule

__all__ = ["PAGE", "pages_in", "shared_pool"]

PAGE = 256


def pages_in(tokens: int, name: str) -> int:
    """Return the pages of a cache of so many tokens.

    Raises:
        UnsupportedError: no whole number of pages, which ExLlama refuses.
    """
    if tokens % PAGE:
        nearest = max(PAGE, tokens // PAGE * PAGE)
        raise UnsupportedError(
            f"{name} is {tokens}: a paged cache is a multiple of {PAGE} tokens",
            hint=f"use {nearest} or {nearest + PAGE}",
        )
    return tokens // PAGE


def shared_pool(
    name: str, rows: dict[Rule, dict[str, int]], layers: int, units: int, block: int | None = PAGE
) -> Pool:
    """Return a pool whose units hold rows of all layers.

    Args:
        name: of the pool.
        rows: by the rule that fills a unit, the bytes of a slot of all layers.
        layers: that keep rows.
        units: how many there are.
        block: tokens that a unit stands for; None where that is one row.
    """
    parts = sorted(
        (Rows(rule=rule, payload=payload) for rule, payload in rows.items()),
        key=lambda part: getattr(part.rule, "limit", 0) is not None,
    )
    first, *others = parts
    unit = sum(part.rule.slots_per_unit * part.slot_bytes for part in parts)
    group = Group(
        name=name,
        layers=layers,
        rule=first.rule,
        payload=first.payload,
        unit_bytes=unit,
        also=tuple(others),
        block_size=block,
    )
    return Pool(name=name, groups=(group,), unit_bytes=unit, units=units)
