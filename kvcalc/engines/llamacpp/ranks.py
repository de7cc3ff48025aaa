"""The devices of a server: which layers' caches lie on each, and what its buffers add.

llama.cpp b11434 ggml/src/ggml-cuda/ggml-cuda.cu (ggml_backend_cuda_buffer_type_get_alloc_size): a
quantised tensor whose rows are no multiple of 512 elements gets one piece more at its end.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.layers import merge_runs
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Pool, Rank
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.placement import HOST, devices
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.tensors import Kept
from kvcalc.engines.llamacpp.types import elements_bytes, quantized

__all__ = ["ranks_of"]

_ROW_PADDING = 512  # MATRIX_ROW_PADDING


def ranks_of(contexts: list[Context], settings: Settings) -> tuple[Rank, ...]:
    """Return a rank for every device that keeps something, the host last."""
    placing = settings.placing
    placed = [
        devices(len(context.served.layers), placing, context.n_gpu_layers) for context in contexts
    ]
    used = sorted(
        {where[kept.layer] for c, where in zip(contexts, placed, strict=True) for kept in c.kept},
        key=lambda device: (device == HOST, device),
    )
    ranks = []
    for device in used:
        pools: list[Pool] = []
        fixed = 0
        for context, where in zip(contexts, placed, strict=True):
            here = [kept for kept in context.kept if where[kept.layer] == device]
            pools.extend(pools_of(here, context.sizes))
            if placing.padded and device != HOST:
                fixed += sum(_padding(kept) for kept in here)
        ranks.append(
            Rank(
                name=_name(device, settings, alone=used == [0]),
                share=_share(contexts[0], placed[0], device),
                pools=tuple(pools),
                fixed_bytes=fixed,
            )
        )
    return tuple(rank for rank in ranks if rank.pools)


def _name(device: int, settings: Settings, *, alone: bool) -> str:
    if device == HOST:
        return "host"
    return "rank" if alone and not settings.placing.named else f"GPU {device}"


def _padding(kept: Kept) -> int:
    """Bytes that CUDA adds to the tensors of a layer."""
    return sum(
        elements_bytes(tensor.type, _ROW_PADDING - left)
        for tensor in kept.tensors
        if quantized(tensor.type) and (left := tensor.elements % _ROW_PADDING)
    )


def _share(context: Context, where: tuple[int, ...], device: int) -> ModelSpec | None:
    """Return the layers of the main context that lie on a device."""
    runs = [run for layer, run in context.served.numbered if where[layer] == device]
    if not runs:
        return None
    return msgspec.structs.replace(
        context.served.model,
        num_hidden_layers=len(runs),
        layers=merge_runs(runs),
        draft_layers=(),
    )
