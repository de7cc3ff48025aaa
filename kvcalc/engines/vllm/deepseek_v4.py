"""DeepSeek-V4: five kinds of cache that share one pool of wide blocks.

vLLM 0.33 models/deepseek_v4/attention.py (compressed and indexer caches), compressor.py (windows
that wait to be folded) and v1/attention/backends/mla/sparse_swa.py (the raw entries of a window).
Rows are kept as `fp8_ds_mla` (584 B: 448 fp8, 64 rotary in 16 bits, 8 B of scales) and pages are
rounded up to a multiple of 576 B.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.attention import CompressedAttention, Indexer, SlidingMla
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Spec

__all__ = ["block_size", "cache_word", "specs"]

_BLOCK = 256
_WINDOW_BLOCK = 64
_ALIGNMENT = 576
_LARGEST_RATIO = 128
_COMPRESSOR_BLOCK = {4: 4, 128: 8}
_FLOAT = 4  # bytes


def block_size(settings: Settings) -> int:
    """Return tokens a block of the compressed caches: 256 unless the user has another.

    Raises:
        UnsupportedError: a block that cannot hold one entry of every cache.
    """
    asked = settings.block_size
    if asked is not None and asked < _LARGEST_RATIO:
        raise UnsupportedError(
            f"blocks of {asked} tokens hold no entry of a cache with one in {_LARGEST_RATIO}",
            hint=f"leave the block size out ({_BLOCK})",
        )
    return asked or _BLOCK


def cache_word(settings: Settings) -> str:
    """Return the KV cache dtype, which is fp8_ds_mla whatever fp8 is asked for.

    Raises:
        UnsupportedError: a dtype or a card that the kernels do not know.
    """
    if settings.kv_dtype != "auto" and not settings.kv_dtype.startswith("fp8"):
        raise UnsupportedError(
            f"DeepSeek-V4 keeps its cache in fp8_ds_mla, not in {settings.kv_dtype}",
            hint="choose --kv-cache-dtype auto or fp8",
        )
    return "fp8_ds_mla"


def specs(cache: Cache, block: int) -> Iterator[Spec]:
    """Yield the specs of one cache: the rows, and the window that waits to be folded."""
    packed = cache_dtype("fp8_ds_mla")
    payload = tuple((row.role, packed.bytes_of(row)) for row in cache.rows())
    entry = sum(size for _, size in payload)
    shape = (cache.kind, payload)
    match cache:
        case SlidingMla(sliding_window=window):
            spec = Spec("window_mla", _WINDOW_BLOCK, entry, payload, shape, 0, limit=window)
            yield spec.aligned(_ALIGNMENT)
        case CompressedAttention(compress_ratio=ratio) | Indexer(compress_ratio=ratio):
            spec = Spec("mla", block, entry, payload, shape, 0, ratio=ratio)
            yield spec.aligned(_ALIGNMENT)
            yield _waiting(cache, ratio)
        case _:
            raise NotModelledError(
                f"a {cache.kind} cache beside compressed ones is not known to vLLM",
                hint="use --engine none for the model's own arithmetic",
            )


def _waiting(cache: CompressedAttention | Indexer, ratio: int) -> Spec:
    """Return the window of entries and scores, in float32, that the next entry is folded from."""
    (state,) = cache.states()
    both, window, width = state.shape
    entry = both * width * _FLOAT
    payload = (("compressor", entry),)
    block = _COMPRESSOR_BLOCK[ratio]
    spec = Spec("window_mla", block, entry, payload, ("compressor", entry), 0, limit=window)
    return spec.aligned(_ALIGNMENT)
