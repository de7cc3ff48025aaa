"""What llama.cpp refuses when a context is made.

llama.cpp b11434 src/llama-context.cpp, llama_init_from_model.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.engines.llamacpp.types import CacheTypes, quantized

__all__ = ["check_types"]

_ONE_VECTOR = ("mla", "sliding_mla", "compressed_attention")


_ONE_TYPE_SINCE = 10104
"""The first build that may refuse two types for a latent: b10103 was read without, b10488 with."""


def check_types(layers: Iterable[LayerRun], types: CacheTypes, build: int, *, flash: bool) -> None:
    """Refuse cache types that the layers or the attention cannot have.

    Args:
        layers: of the context.
        types: of K and V.
        build: of llama.cpp.
        flash: flash attention is on.

    Raises:
        UnsupportedError: llama.cpp refuses the context.
    """
    caches = [cache for run in layers for cache in run.caches if cache.rows()]
    latents = build >= _ONE_TYPE_SINCE and any(cache.kind in _ONE_VECTOR for cache in caches)
    if types.k != types.v and latents:
        raise UnsupportedError(
            f"K in {types.k.name} and V in {types.v.name}: llama.cpp keeps an MLA row in one type",
            hint="give one cache type for this model",
            code="latent-cache-types",
            setting="cache_type_v",
        )
    if quantized(types.v) and not flash:
        raise UnsupportedError(
            f"a V cache in {types.v.name} needs flash attention",
            hint="leave flash_attn on, or keep V in f16",
            code="quantised-v-needs-flash",
            setting="flash_attn",
        )
    if not flash:
        return
    for cache in caches:
        keys = [row for row in cache.rows() if row.role not in ("v", "index")]
        values = [row for row in cache.rows() if row.role == "v"]
        for name, rows, type_ in (("K", keys, types.k), ("V", values, types.v)):
            width = sum(row.width for row in rows)
            packing = type_.packing
            if packing is not None and width % packing.elements:
                raise UnsupportedError(
                    f"a {name} head of {width} elements is no multiple of {packing.elements}, which"
                    f" {type_.name} packs at a time",
                    hint=_unpacked(name, types),
                    code="cache-type-over-head",
                    setting=f"cache_type_{name.lower()}",
                )


def _unpacked(name: str, types: CacheTypes) -> str:
    """Return what helps where a head does not fill the blocks of a cache type.

    Without flash attention K may be packed all the same, as whole rows of it are, but no V.
    """
    kept = f"keep {name} in f16"
    if name == "V":
        return f"{kept}: V is packed with flash attention alone, which packs whole heads"
    if quantized(types.v):
        return f"{kept}, and V too where its heads are as wide"
    return f"{kept}, or switch flash attention off (flash_attn=off)"
