"""One figure of a start, of which several processes say something each."""

from __future__ import annotations

from kvcalc.core.logs import Fact
from kvcalc.measure.logs.shapes import Reading

__all__ = ["Said", "fact_of"]

Said = tuple[str, int, int, Reading]
"""Process, line, how many processes said the same, and the figure."""


def fact_of(taken: list[Said], keep: str, binding: str = "") -> Fact:
    """Return a figure: of the rank that counts where ranks differ, else by order.

    Args:
        taken: what was said of it, in order.
        keep: which counts (shapes.Keep).
        binding: the rank whose figures belong together, where several have their own; "" for none.
    """
    said = sum(times for _, _, times, _ in taken)
    by_rank = {rank: entry for entry in taken if (rank := entry[0])}
    latest = list(by_rank.values()) if len(by_rank) > 1 else taken
    numbers = [entry for entry in latest if entry[3].low is not None]
    spread = None
    if numbers and keep in ("least", "most"):
        ordered = sorted(numbers, key=lambda entry: (entry[3].low or 0, entry[1]))
        end = ordered[0 if keep == "least" else -1]
        bound = [entry for entry in numbers if entry[0] == binding] if binding else []
        _, line, _, reading = _finest(bound or ordered, bound[-1] if bound else end)
        if (ordered[0][3].high or 0) < (ordered[-1][3].low or 0):
            spread = (ordered[0][3].printed, ordered[-1][3].printed)
    elif numbers and keep in ("sum", "latest"):
        parts = taken if keep == "sum" else list(by_rank.values()) or taken[-1:]
        _, line, _, reading = parts[0]
        lows = [entry[3].low or 0 for entry in parts]
        highs = [entry[3].high or 0 for entry in parts]
        text = reading.printed if len(parts) == 1 else " + ".join(e[3].printed for e in parts[:8])
        reading = Reading(text, sum(lows), sum(highs), reading.unit)
    else:
        mine = [entry for entry in taken if entry[0] == binding] if binding else []
        _, line, _, reading = (mine or taken)[0 if keep == "first" else -1]
    return Fact(
        printed=reading.printed,
        low=reading.low,
        high=reading.high,
        unit=reading.unit,
        line=line,
        said=said,
        spread=spread,
    )


def _finest(taken: list[Said], chosen: Said) -> Said:
    """Return the entry with the most digits of those that can be the same number as one."""
    low, high = chosen[3].low or 0, chosen[3].high or 0
    same = [e for e in taken if (e[3].low or 0) <= high and low <= (e[3].high or 0)]
    return min(
        same or [chosen], key=lambda entry: ((entry[3].high or 0) - (entry[3].low or 0), entry[1])
    )
