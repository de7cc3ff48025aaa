"""The devices of a server: which layers' caches lie on each, and what its buffers add.

llama.cpp b11434 ggml/src/ggml-cuda/ggml-cuda.cu (ggml_backend_cuda_buffer_type_get_alloc_size): a
quantised tensor whose rows are no multiple of 512 elements gets one piece more at its end.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.layers import LayerRun, merge_runs
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Pool, Rank
from kvcalc.engines.llamacpp.by_head import check_split, layers_on
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.placement import HOST, devices
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.tensors import Kept, tensors_of
from kvcalc.engines.llamacpp.types import elements_bytes, quantized

__all__ = ["padding", "ranks_of"]

_ROW_PADDING = 512  # MATRIX_ROW_PADDING


def ranks_of(
    contexts: list[Context], settings: Settings, weights: Spans | None
) -> tuple[Rank, ...]:
    """Return a rank for every device that keeps something, the host last.

    Args:
        contexts: the model's own first.
        settings: as resolved.
        weights: bytes of the weights by device; None where they are not known.
    """
    placing = settings.placing
    if placing.mode == "tensor":
        return _ranks_by_head(contexts, settings)
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
        held = (weights or {}).get(device, (0, 0))
        for context, where in zip(contexts, placed, strict=True):
            here = [kept for kept in context.kept if where[kept.layer] == device]
            pools.extend(pools_of(here, context.sizes))
            if placing.padded and device != HOST:
                fixed += sum(padding(kept) for kept in here)
        ranks.append(
            Rank(
                name=_name(device, settings, alone=used == [0]),
                share=_share(contexts[0], placed[0], device),
                pools=tuple(pools),
                fixed_bytes=fixed,
                weights_bytes=None if weights is None else held[0],
                weights_more=held[1] - held[0],
                memory_bytes=placing.memory(device),
                on_host=device == HOST,
            )
        )
    return tuple(rank for rank in ranks if rank.pools)


def _ranks_by_head(contexts: list[Context], settings: Settings) -> tuple[Rank, ...]:
    """Return a rank for every device of split_mode tensor: some heads of every layer on it."""
    placing = settings.placing
    as_one = placing._replace(shares=(1.0,))  # a Meta device stands for all of them
    ranks = []
    for device in (*range(len(placing.shares)), HOST):
        pools: list[Pool] = []
        fixed = 0
        share = None
        for context in contexts:
            check_split(context, settings)
            served, names = context.served, context.sizes.names
            where = devices(len(served.layers), as_one, context.n_gpu_layers)
            layers = served.drafts if names == "mtp " else served.numbered
            on_host = device == HOST
            here = [(i, run) for i, run in layers if (where[i] == HOST) == on_host]
            if not on_host:
                here = layers_on(context, here, settings, device)
            kept = tensors_of(
                served,
                here,
                settings.draft_types if names else settings.types,
                flash=True,
                latent_v=False,
            )
            pools.extend(pools_of(kept, context.sizes))
            if placing.padded and not on_host:
                fixed += sum(map(padding, kept))
            if not names:
                share = _model_of(context, [run for _, run in here])
        name = "host" if device == HOST else placing.name(device)
        ranks.append(
            Rank(
                name=name,
                share=share,
                pools=tuple(pools),
                fixed_bytes=fixed,
                memory_bytes=placing.memory(device),
                on_host=device == HOST,
            )
        )
    return tuple(rank for rank in ranks if rank.pools)


def _name(device: int, settings: Settings, *, alone: bool) -> str:
    if device == HOST:
        return "host"
    return (
        "rank"
        if alone and not (settings.placing.named or settings.placing.names)
        else settings.placing.name(device)
    )


def padding(kept: Kept) -> int:
    """Bytes that CUDA adds to the tensors of a layer."""
    return sum(
        elements_bytes(tensor.type, _ROW_PADDING - left)
        for tensor in kept.tensors
        if quantized(tensor.type) and (left := tensor.elements % _ROW_PADDING)
    )


def _share(context: Context, where: tuple[int, ...], device: int) -> ModelSpec | None:
    """Return the layers of the main context that lie on a device."""
    return _model_of(
        context, [run for layer, run in context.served.numbered if where[layer] == device]
    )


def _model_of(context: Context, runs: list[LayerRun]) -> ModelSpec | None:
    """Return some layers of the main context as a model; None for none."""
    if not runs:
        return None
    return msgspec.structs.replace(
        context.served.model,
        num_hidden_layers=len(runs),
        layers=merge_runs(runs),
        draft_layers=(),
    )
