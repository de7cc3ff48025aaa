"""A naive allocator: hands out blocks token by token and gives them back, with no formula."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.rules import Chunk, Compressed, Grow, Rule, Window


class Held(NamedTuple):
    """Blocks held after the last token, and slots by what is in them."""

    units: int
    used: int
    tail: int
    retention: int


def simulate(rule: Rule, n: int) -> Held:
    """Write n tokens one by one and look at every slot of every block that is held."""
    written: dict[int, dict[int, int]] = {}  # block -> slot -> the newest token written there
    for token in range(n):
        block, slot, writes = _place(rule, token)
        written.setdefault(block, {})
        if writes:
            written[block][slot] = token
        first = _first_in_reach(rule, token)
        for old in [b for b in written if _gone(rule, b, first)]:
            del written[old]
    size = rule.slots_per_unit
    first = _first_in_reach(rule, n - 1) if n else 0
    used = sum(token >= first for slots in written.values() for token in slots.values())
    empty = sum(size - len(slots) for slots in written.values())
    return Held(len(written), used, empty, size * len(written) - used - empty)


def _first_in_reach(rule: Rule, token: int) -> int:
    """The oldest token that `token` reads."""
    match rule:
        case Window(window=window):
            return max(0, token - window + 1)
        case Chunk(chunk=chunk):
            return token - token % chunk
        case Grow(limit=int(limit), restarts=restarts):
            return token - token % limit if restarts else max(0, token - limit + 1)
    return 0


def _place(rule: Rule, token: int) -> tuple[int, int, bool]:
    """Block and slot of a token, and whether it fills the slot."""
    size = rule.slots_per_unit
    match rule:
        case Window(ring=True, window=window):
            at = token % window
        case Chunk(ring=True, chunk=chunk):
            # A new chunk starts anew; its blocks get numbers of their own.
            start = token // chunk
            at = token % chunk
            return start * (chunk + 1) + at // size, at % size, True
        case Compressed(ratio=ratio):
            entry = token // ratio
            return entry // size, entry % size, token % ratio == ratio - 1
        case Grow() | Window() | Chunk():
            at = token
        case _:
            raise TypeError(rule)
    return at // size, at % size, True


def _gone(rule: Rule, block: int, first: int) -> bool:
    """Whether every token that a block can hold is out of reach."""
    size = rule.slots_per_unit
    match rule:
        case Window(ring=False) | Chunk(ring=False):
            return (block + 1) * size <= first
        case Chunk(chunk=chunk):
            return block // (chunk + 1) < first // chunk
    return False
