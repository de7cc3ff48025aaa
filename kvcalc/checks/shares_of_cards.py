"""Shares of one card that several servers take, and what each takes of it beside its share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import End, MemoryBudget, summed
from kvcalc.core.units import format_bytes
from kvcalc.engines.changes import share_change
from kvcalc.manifests.found import Finding, Level

__all__ = ["left_by", "shares_over_card", "shares_that_pass", "shares_told"]

_STEPS = 1000
"""Shares are told in thousandths."""

_NAME = "gpu_memory_utilization"


def shares_over_card(
    beside: str, sharing: Sequence[Target], shares: Sequence[float], level: Level, line: int
) -> Finding | None:
    """Return that servers have no room on a card for their shares; None where they surely have.

    By the rule of several servers alike (sizing.sharing, largest_share): of what the runtime sees
    each takes its share, and the driver's context and what else is not the share's beside it.

    Args:
        beside: where they run, and beside whom.
        sharing: the servers.
        shares: of each, as the engine takes it.
        level: where the shares alone are more than the card.
        line: of the file.
    """
    total = sum(map(_exact, shares), Fraction(0))
    sure = _left(sharing, shares, "low")
    if total <= 1 and (sure is None or sure >= 0):
        return None
    told = f"{beside}: {shares_told(shares)} of the card"
    if total <= 1:
        possible = _left(sharing, shares, "high") or 0
        if possible >= 0:
            level = "warning"
        bound, end = ("at least", "high") if possible < 0 else ("up to", "low")
        taken = sum(_beside(sharing, "high" if end == "high" else "low"))
        told += (
            f", and {bound} {format_bytes(taken)} are taken beside them (the driver's context of"
            " each)"
        )
    return Finding(
        "shares-over-card",
        level,
        told,
        f"{shares_that_pass(sharing, shares)}, or another device; start them one after another",
        line,
        amount=float(total),
    )


def shares_told(shares: Sequence[float]) -> str:
    """Return what shares come to.

    >>> shares_told([0.6, 0.5])
    'shares of 0.6 + 0.5 are 1.1'
    """
    total = sum(map(_exact, shares), Fraction(0))
    verb, noun = ("are", "shares") if len(shares) > 1 else ("is", "a share")
    parts = " + ".join(f"{share:g}" for share in shares)
    return f"{noun} of {parts} {verb} {float(total):g}"


def left_by(sharing: Sequence[Target], shares: Sequence[float]) -> bool:
    """Whether shares leave anything of a card at all, where everything takes its least."""
    left = _left(sharing, shares, "high") if len(sharing) == len(shares) else None
    return sum(map(_exact, shares), Fraction(0)) < 1 and (left is None or left > 0)


def _exact(share: float) -> Fraction:
    return Fraction(str(share))


def _cards(sharing: Sequence[Target]) -> list[MemoryBudget | None]:
    """Return the memory of the card as each server shares it out; None where that is not known."""
    found: dict[int, MemoryBudget | None] = {}
    for target in sharing:
        if id(target) in found:
            continue
        try:
            cards = () if target.question is None else Sized(target.question).worked.cards
        except KvcalcError:
            cards = ()
        found[id(target)] = next((c for c in cards if c.checks_share and c.seen_bytes), None)
    return [found[id(target)] for target in sharing]


def _beside(sharing: Sequence[Target], end: End) -> list[int]:
    """Return what each takes beside its share; of one that is not known what the others do."""
    taken = [
        None if card is None else summed((*card.before, *card.outside), end)
        for card in _cards(sharing)
    ]
    known = [size for size in taken if size is not None]
    return [(max(known) if known else 0) if size is None else size for size in taken]


def _room(sharing: Sequence[Target], end: End) -> tuple[int, int] | None:
    """Return what there is of the card, and what a share is a share of; None: nobody knows."""
    cards = [card for card in _cards(sharing) if card is not None]
    at = 0 if end == "low" else 1
    sizes = [(c.room_bytes[at], c.seen_bytes[at]) for c in cards if c.room_bytes and c.seen_bytes]
    return min(sizes, default=None)


def _left(sharing: Sequence[Target], shares: Sequence[float], end: End) -> int | None:
    """Return what is left of the card, less than nothing where it is too small; None: unknown."""
    room = _room(sharing, end)
    if room is None:
        return None
    there, seen = room
    taken = sum(-(-seen * _exact(s).numerator // _exact(s).denominator) for s in shares)
    return there - taken - sum(_beside(sharing, end))


def shares_that_pass(sharing: Sequence[Target], shares: Sequence[float]) -> str:
    """Return shares with which all of them start and hold what they must, where there are any.

    What is small enough stays as it is, and the others divide the rest.
    """
    none = "smaller shares"
    room = _room(sharing, "low")
    if room is None:
        return "shares that leave room for the driver's context of each"
    free = Fraction(room[0] - sum(_beside(sharing, "low")), room[1])
    large = list(range(len(shares)))
    while True:
        kept = sum((_exact(s) for n, s in enumerate(shares) if n not in large), Fraction(0))
        most = int((free - kept) * _STEPS / len(large)) / _STEPS
        fewer = [n for n in large if shares[n] > most]
        if len(fewer) == len(large):
            break
        large = fewer
        if not large:
            return none
    alike = {id(sharing[n]): sharing[n] for n in large}.values()
    if most <= 0 or not all(_holds(one, most) for one in alike):
        return none
    word = said(sharing[large[-1]], _NAME, f"{most:g}") or f"{_NAME} {most:g}"
    if len(large) == len(shares):
        return f"at most {word} each"
    each = " each" if len(large) > 1 else ""
    return f"at most {word}{each} for {', '.join(sharing[n].name for n in large)}"


def _holds(target: Target, share: float) -> bool:
    """Whether a server holds its goal with a share; True where nothing tells what it serves."""
    if target.question is None:
        return True
    tried = Sized(target.question).tried(share_change(_NAME, share))
    return tried is not None and tried.fits
