"""LMDeploy's TurboMind engine: blocks in which all layers lie one behind another.

Read, not run: lmdeploy src/turbomind/kernels/attention/block.h (Layout) and
models/llama/unified_attention_layer.cc at 0.16; BlockManager.cc before.
"""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Pool, Rank
from kvcalc.engines.every_token import kept_group
from kvcalc.engines.lmdeploy.layers import Shape, shape_of, split
from kvcalc.engines.lmdeploy.packing import tensors_of
from kvcalc.engines.lmdeploy.settings import Settings

__all__ = ["turbomind_rank"]

_SHARED_HEAD = 576
"""A head of so many elements is MLA's: K and V are one row."""
_POLICIES = ("none", "int4", "int8")


def turbomind_rank(model: ModelSpec, settings: Settings) -> tuple[Rank, Shape]:
    """Return one rank's pool and the shape of its layers.

    Raises:
        UnsupportedError: layers or packings that are not modelled.
    """
    if settings.policy not in _POLICIES:
        raise UnsupportedError(
            f"TurboMind has no quant_policy {settings.policy}",
            hint=f"it has {', '.join(_POLICIES)}; the PyTorch engine has more",
        )
    share = split(model, settings.tp)
    for _, cache in share.caches():
        if cache.states():
            raise NotModelledError(
                f"how TurboMind keeps {cache.kind} states is not modelled",
                hint="the PyTorch engine's are: backend=pytorch",
            )
    shape = shape_of(share)
    if shape.index_width or (shape.latent and shape.k != _SHARED_HEAD):
        raise NotModelledError(
            f"how TurboMind keeps the layers of {model.name} is not modelled",
            hint="the PyTorch engine's are: backend=pytorch",
        )
    tensors = tensors_of(shape.heads, shape.k, shape.v, settings.policy, model.dtype)
    if shape.latent:
        tensors = tuple(t for t in tensors if t.role in ("k", "k_scale"))
    page = settings.block * sum(t.token_bytes for t in tensors)
    payload = {t.role: t.token_bytes for t in tensors}
    group = kept_group(shape.spans, payload, settings.block, page)
    blocks = settings.num_gpu_blocks
    if blocks is None and settings.free_memory is not None:
        blocks = int(settings.free_memory * settings.entry_count) // group.unit_bytes
        if not blocks:
            raise UnsupportedError(
                "no block fits into the memory", hint="give more memory or a larger share of it"
            )
    pool = Pool(name="blocks", groups=(group,), unit_bytes=group.unit_bytes, units=blocks)
    return Rank(name="rank", pools=(pool,), multiplicity=settings.tp), shape
