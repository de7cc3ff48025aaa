"""Offloaded caches: layers wait in the host's memory, two at a time are on the GPU.

transformers 5.24 cache_utils.py, Cache.update, Cache.prefetch and Cache.offload: while a layer
computes, the next one that waits is fetched; afterwards the layer goes back.
"""

from __future__ import annotations

from kvcalc.core.kind import Chunks, Windowed
from kvcalc.core.layers import LayerRun
from kvcalc.core.memory import HostPart
from kvcalc.core.model import ModelSpec
from kvcalc.core.rules import Slots
from kvcalc.core.units import format_count
from kvcalc.engines.transformers.layers import Part
from kvcalc.engines.transformers.settings import Settings

__all__ = ["resident"]

_AT_ONCE = 2
"""Offloaded layers on the GPU at once: the one that computes and the one being fetched."""

_Layer = tuple[LayerRun, list[Part]]


def resident(
    layers: list[_Layer], model: ModelSpec, settings: Settings, notes: list[str]
) -> tuple[list[_Layer], tuple[HostPart, ...]]:
    """Return the layers that the GPU holds at its fullest, one entry a layer, and the host's part.

    Layers with states never leave it; with a static cache, layers with windows stay too. Of the
    others, two neighbours are there at once: the two that need the most at the maximum.

    Args:
        layers: every layer in order, with what it keeps.
        model: whose layers they are.
        settings: which cache, and the maximum.
        notes: a line is added on what the host holds.
    """
    stay = [entry for entry in layers if not _leaves(entry, settings)]
    leave = [entry for entry in layers if _leaves(entry, settings)]
    if len(leave) <= _AT_ONCE:
        notes.append(f"at most two layers of {model.name} are offloaded: none leaves the GPU")
        return layers, ()
    sizes = [_bytes(entry, settings) for entry in leave]
    pairs = [(sizes[i] + sizes[(i + 1) % len(sizes)], i) for i in range(len(sizes))]
    _, first = max(pairs, key=lambda pair: (pair[0], -pair[1]))
    notes.append(
        f"{len(leave)} layers are offloaded: the host holds {format_count(sum(sizes))} B for a"
        f" sequence of {format_count(settings.max_model_len)} tokens, the GPU two of them at a time"
    )
    host = HostPart(
        name="offloaded cache",
        low_bytes=0,
        high_bytes=sum(sizes),
        source=f"cache_implementation: {len(leave)} layers of one sequence of"
        f" {format_count(settings.max_model_len)} tokens",
    )
    return [*stay, leave[first], leave[(first + 1) % len(leave)]], (host,)


def _leaves(entry: _Layer, settings: Settings) -> bool:
    run, parts = entry
    if not parts or all(isinstance(part.rule, Slots) for part in parts):
        return False
    if settings.cache != "static":
        return True
    return not any(isinstance(c.span, (Windowed, Chunks)) for c in run.caches)


def _bytes(entry: _Layer, settings: Settings) -> int:
    n = settings.max_model_len
    return sum(
        part.rule.peak(n) * part.rule.slots_per_unit * sum(size for _, size in part.payload)
        for part in entry[1]
    )
