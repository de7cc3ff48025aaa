"""Causes of other engines than vLLM: what their lines leave out or count besides."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from kvcalc.core.logs import Fact
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.measure.logs.causes import Cause

__all__ = ["of_others"]

_K_V = ("k_size", "v_size")
_OLD_STEP, _STEP = 32, 256
"""Cells that llama.cpp padded to until 2025, and that it pads to."""

_DRAFTS = ("draft ", "mtp ")
"""How the pools of a draft's context are named."""


def of_others(
    model: ModelSpec, made: CachePlan, facts: Mapping[str, Fact], names: list[str]
) -> Cause | None:
    """Name what other engines' lines are of."""
    if made.engine == "llama.cpp" and (padding := _padding(made, facts, names)) is not None:
        return padding
    if names == ["kv_buffer"] and (parts := _parts_of(made, facts["kv_buffer"])):
        left = ", ".join(parts)
        return Cause("draft layers", f"the lines that are here leave out the cache of: {left}")
    drafts = sum(run.count for run in model.draft_layers)
    if names == ["state_layers"] and facts["state_layers"].low == model.num_hidden_layers + drafts:
        return Cause("draft layers", f"the line counts {drafts} of the file's draft layers as well")
    spread = next((n for n in names if facts[n].spread is not None), None)
    if spread is not None:
        least, most = facts[spread].spread or ("", "")
        return Cause("minimum over ranks", f"ranks logged {least} to {most}")
    return None


def _padding(made: CachePlan, facts: Mapping[str, Fact], names: list[str]) -> Cause | None:
    """Say where a cache has cells that the rules of kvcalc's releases would have padded."""
    size = facts.get("cache_size")
    if size is None or size.low is None or not set(names) <= {"cache_size", "kv_buffer", *_K_V}:
        return None
    if "cache_size" not in names or len(made.rank.pools) != 1:
        return None
    (pool,) = made.rank.pools
    held = pool.total_bytes(pool.units or 0)
    cells = made.capacity(None).kv_cache_tokens
    logged = round(Fraction(int(size.low) + int(size.high or 0), 2) * cells / max(1, held))
    if not 0 < logged < cells or logged % _OLD_STEP or not logged % _STEP:
        return None
    if not size.low <= held * logged // cells <= (size.high or 0):
        return None
    why = f"the cache is of {format_count(logged)} cells, a multiple of {_OLD_STEP}"
    return Cause("cells' padding", f"{why} and not of {_STEP}: an older release or a fork pads so")


def _parts_of(made: CachePlan, fact: Fact) -> tuple[str, ...]:
    """Return the drafts' pools without which the others are as large as logged; none if not."""
    sizes: dict[str, int] = {}
    for rank in made.ranks:
        for pool in rank.pools:
            if not pool.name.endswith("state"):
                size = pool.total_bytes(pool.units or 0)
                sizes[pool.name] = sizes.get(pool.name, 0) + size
    drafts = tuple(name for name in sizes if name.startswith(_DRAFTS))
    rest = sum(size for name, size in sizes.items() if name not in drafts)
    low, high = fact.low, fact.high
    return drafts if low is not None and high is not None and low <= rest <= high else ()
