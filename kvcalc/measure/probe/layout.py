"""A plan's pool as tensors: how an engine cuts it up, and which layers a kernel can read in it.

vLLM keeps one buffer a layer (of groups that share blocks, one a layer of the widest group), K and
V in it: v1/worker/gpu_model_runner.py, initialize_kv_cache_tensors. SGLang keeps K and V of each
layer apart, by token: srt/mem_cache/memory_pool.py. llama.cpp puts all layers of a device into one
buffer. Rounding depends on this: 80 tensors of 20 MiB are not one of 1,600.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.plan import CachePlan, Group, Pool
from kvcalc.core.rules import Grow, Window

__all__ = ["Attention", "Laid", "attention_layers", "laid_out", "twin_tensors"]

Cut = Literal["layer", "side", "buffer"]
"""One tensor a layer, one for each side (K, V, ...) of a layer, or one buffer for all."""

_CUTS: dict[str, Cut] = {
    "none": "layer",
    "vllm": "layer",
    "sglang": "side",
    "lmdeploy": "side",
    "transformers": "side",
    "tgi": "side",
}
"""Engine -> how it cuts a pool; one that is not listed keeps one buffer."""

_TOLD: dict[Cut, str] = {
    "layer": "one tensor a layer, K and V in it",
    "side": "K and V of each layer in tensors of their own",
    "buffer": "one buffer for all layers",
}
_PLAIN = ("bfloat16", "float16", "float32")


class Laid(NamedTuple):
    """A pool as it is allocated.

    Attributes:
        cut: how it is cut.
        told: the same in words.
        sizes: bytes of each tensor, in order.
    """

    cut: Cut
    told: str
    sizes: tuple[int, ...]


class Attention(NamedTuple):
    """Layers that a decode kernel can run over, in the pool's own tensors.

    Attributes:
        layers: how many; layer i lies in tensor i (tensors i and layers + i where sides are apart).
        num_heads, num_kv_heads, head_dim: of each.
        dtype: of K and V, as torch names it.
        block_size: tokens a block.
        window: tokens that the last one reads; None for all.
    """

    layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    window: int | None

    @property
    def token_bytes(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * element_bytes(self.dtype)


def laid_out(plan: CachePlan, pool: Pool, units: int) -> Laid:
    """Return the tensors of a pool of so many units, extra ones included; sizes add up to it."""
    total = pool.total_bytes(units)
    whole = total // pool.unit_bytes
    cut = _CUTS.get(plan.engine, "buffer")
    if cut == "side":
        sides = tuple(_sides(pool, whole))
        if sum(sides) == total:
            return Laid("side", _TOLD["side"], sides)
        cut = "layer"
    if cut == "layer":
        page = _page(pool)
        if page is not None:
            return Laid("layer", _TOLD["layer"], (page * whole,) * (pool.unit_bytes // page))
    return Laid("buffer", _TOLD["buffer"], (total,))


def _page(pool: Pool) -> int | None:
    """Return bytes of a unit in one tensor; None where layers are not equally wide."""
    widest = max(pool.groups, key=lambda group: group.unit_bytes)
    page = widest.page_bytes
    if page is None and widest.layers and len(pool.groups) == 1:
        page, rest = divmod(widest.unit_bytes, widest.layers)
        page = page if not rest else None
    return page if page and pool.unit_bytes % page == 0 else None


def _sides(pool: Pool, units: int) -> Iterator[int]:
    for group in pool.groups:
        slots = units * group.rule.slots_per_unit
        for size in group.payload.values():
            yield from (slots * (size // max(1, group.layers)),) * group.layers


def attention_layers(plan: CachePlan, group: Group) -> Attention | None:
    """Return what a kernel needs to know of a group; None where no plain one reads it.

    Latents, indexers, states, quantised rows and widened pages are laid out in an engine's own way,
    which its own kernels read and no others.
    """
    share = plan.rank.share
    rule = group.rule
    dtype = plan.kv_cache_dtype
    if (
        share is None
        or not isinstance(rule, Grow | Window)
        or set(group.payload) != {"k", "v"}
        or group.payload["k"] != group.payload["v"]
        or dtype not in _PLAIN
        or group.unit_bytes != group.content_bytes
        or not group.layers
    ):
        return None
    for _, cache in share.caches():
        if not isinstance(cache, FullAttention | SlidingWindow):
            continue
        window = cache.sliding_window if isinstance(cache, SlidingWindow) else None
        heads = share.num_attention_heads or cache.num_kv_heads
        found = Attention(
            layers=group.layers,
            num_heads=heads if heads % cache.num_kv_heads == 0 else cache.num_kv_heads,
            num_kv_heads=cache.num_kv_heads,
            head_dim=cache.head_dim,
            dtype=dtype,
            block_size=rule.block_tokens,
            window=window,
        )
        wide = found.token_bytes * group.layers == group.slot_bytes
        if wide and (window is None) == isinstance(rule, Grow):
            return found
    return None


def twin_tensors(plan: CachePlan, max_model_len: int, requests: int) -> tuple[int, ...]:
    """Return the tensors of the contiguous twin: each side of each layer, for all requests."""
    rank = plan.contiguous(max_model_len).rank
    sizes: list[int] = []
    for pool in rank.pools:
        need = pool.need(rank.local(max_model_len)) * requests
        sides = tuple(_sides(pool, need))
        sizes += sides if sum(sides) == need * pool.unit_bytes else (need * pool.unit_bytes,)
    return tuple(size for size in sizes if size)
