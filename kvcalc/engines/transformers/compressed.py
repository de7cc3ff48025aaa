"""DeepSeek-V4's layers: a window of raw entries, compressed ones, and tokens not yet folded.

transformers 5.24 models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HCACache and
DeepseekV4CSACache.
"""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, Indexer, SlidingMla
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.layers import Cache
from kvcalc.core.rules import Chunk, Compressed, Rule, Slots, Window
from kvcalc.engines.transformers.settings import Settings

__all__ = ["compressed_parts"]

_GATE_BYTES = 4
"""The gate of the last folded window is kept in float32, whatever the model dtype."""

_Part = tuple[str, Rule, tuple[tuple[str, int], ...]]


def compressed_parts(caches: tuple[Cache, ...], dtype: str, settings: Settings) -> list[_Part]:
    """Return what one such layer keeps: name, rule, and bytes of a slot by role.

    The window's keys are its values (one tensor). What waits to be folded is the entry and the gate
    of every token since the last whole window, both in the model dtype: a view, whose storage is
    that of the whole prompt until the next step. Layers whose windows overlap keep half of the last
    folded window, entry and gate.
    """
    size = element_bytes(dtype)
    prompt, chunk = settings.prompt_tokens, settings.chunk_tokens
    found: list[_Part] = []
    for cache in caches:
        match cache:
            case SlidingMla(sliding_window=window):
                later = max(1, min(chunk, prompt - window + 1))
                rule: Rule = Window(block_tokens=1, window=window, in_flight=later, ring=True)
                found.append((f"window {window}", rule, (("nope", cache.head_dim * size),)))
            case CompressedAttention() | Indexer():
                ratio, overlap = cache.compress_ratio, cache.overlap
                indexer = isinstance(cache, Indexer)
                width = cache.index_head_dim if isinstance(cache, Indexer) else cache.head_dim
                role = "index" if indexer else "nope"
                rule = Compressed(block_entries=1, ratio=ratio, on_demand=True)
                found.append((f"1 in {ratio}", rule, ((role, width * size),)))
                spread = 2 if overlap else 1
                flight = max(0, min(prompt - ratio, chunk - 1))
                rule = Chunk(block_tokens=1, chunk=ratio, in_flight=flight, ring=True)
                waiting = 2 * spread * width * size
                found.append((f"unfolded, {ratio} at most", rule, (("compressor", waiting),)))
                if overlap:
                    kept = ratio * width * (size + _GATE_BYTES)
                    found.append(("last folded window", Slots(), (("compressor", kept),)))
    return found
