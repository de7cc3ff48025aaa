"""DeepSeek-V4 under exllamav3: entries in pages, a ring and compressor buffers in every slot.

exllamav3 1.4.1 cache/dsa.py (CacheLayer_dsa, DSV4LayerState), modules/dsv4.py (DSV4Compressor).
"""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, Indexer, SlidingMla
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.rules import Compressed, Whole
from kvcalc.engines.exllama.pages import PAGE
from kvcalc.engines.exllama.v3_kept import HALF, Kept, ring_rows

__all__ = ["compressed"]

_FLOAT = 4


def compressed(caches: tuple[Cache, ...]) -> Kept:
    """Return what one layer keeps: always in float16, whatever cache_quant says.

    Raises:
        UnsupportedError: a ratio that does not divide a page, or another kind of cache beside.
    """
    found = Kept((), (), (), 0)
    for cache in caches:
        match cache:
            case SlidingMla(head_dim=width, sliding_window=window):
                rule = Whole(slots=ring_rows(window), limit=window)
                found = found.plus(Kept((), ((rule, (("nope", width * HALF),)),), (), 0))
            case CompressedAttention(head_dim=width):
                found = found.plus(_entries(cache, "nope", width))
            case Indexer(index_head_dim=width):
                found = found.plus(_entries(cache, "index", width))
            case _:
                raise NotModelledError(
                    f"how exllamav3 keeps {cache.kind} beside compressed entries is not modelled",
                    hint="use --engine none to see what the layers are",
                )
    return found


def _entries(cache: CompressedAttention | Indexer, role: str, width: int) -> Kept:
    """Return one entry for every ratio tokens, and the buffers of its compressor.

    A slot keeps the projected entry and gate of PAGE + ratio tokens, and of overlapping windows
    snapshots of all in a page and two more, in float32; what is live of these are the ratio newest
    tokens and one snapshot.
    """
    ratio = cache.compress_ratio
    if PAGE % ratio:
        raise UnsupportedError(
            f"exllamav3 compresses by ratios that divide {PAGE}, not by {ratio}",
            hint="use --engine none to see what the layers are",
        )
    token = 2 * width * (2 if cache.overlap else 1) * HALF
    live, spare = ratio * token, PAGE * token
    if cache.overlap:
        snapshot = 2 * ratio * width * _FLOAT
        live += snapshot
        spare += (PAGE // ratio + 1) * snapshot
    rule = Compressed(block_entries=PAGE // ratio, ratio=ratio)
    return Kept(((rule, ((role, width * HALF),)),), (), (("compressor", live),), spare)
