"""The devices of a server: which layers' caches lie on each, and what its buffers add.

llama.cpp b11434 ggml/src/ggml-cuda/ggml-cuda.cu (ggml_backend_cuda_buffer_type_get_alloc_size): a
quantised tensor whose rows are no multiple of 512 elements gets one piece more at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import lcm

import msgspec

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun, merge_runs
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Pool, Rank
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.placement import HOST, devices
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.served import STATES
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


# split_mode tensor: every layer on all devices, each with some of its heads.
#
# llama.cpp b11434 src/llama-model.cpp (llama_meta_device_get_split_state) and src/llama-arch.cpp
# (llm_arch_supports_sm_tensor): K, V and states are cut at whole heads; which devices get the heads
# left over rotates by layer. A DeepSeek-V4 cache and LFM2's states lie on every device whole.

_WITHOUT = frozenset(
    (
        *("grok", "mpt", "plamo2", "minicpm3", "gemma3n", "mamba", "mamba2", "jamba", "falcon-h1"),
        *("olmo2", "olmoe", "deepseek2", "deepseek32", "hy_v4", "dots3note", "glm-dsa", "bitnet"),
        *("t5", "nemotron_h", "nemotron_h_moe", "granitehybrid", "minimax-01", "minimax-m2"),
        *("minimax-m3", "mistral4", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next"),
        "qwen3tts",
    )
)
_WHOLE = frozenset(("deepseek4", "hrm_text"))
_WHOLE_STATES = frozenset(("lfm2", "lfm2moe"))
_KERNEL_BLOCK = 128  # what the granularity is raised to for the kernels' sake


def check_split(context: Context, settings: Settings) -> None:
    """Refuse a model that llama.cpp does not split by head, or that kvcalc does not.

    Raises:
        UnsupportedError: which, and why.
    """
    arch, model = context.served.arch, context.served.model
    hint = "use split_mode layer, which is the default"
    if arch in _WITHOUT:
        raise UnsupportedError(
            f"llama.cpp has no split_mode tensor for {arch}",
            hint=hint,
            code="split-not-served",
            setting="split_mode",
        )
    if not settings.flash:
        raise UnsupportedError(
            "split_mode tensor needs flash attention",
            hint="leave flash_attn on",
            code="split-needs-flash",
            setting="flash_attn",
        )
    for run in context.served.layers:
        for cache in run.caches:
            state = arch in _WHOLE_STATES and isinstance(cache, STATES)
            known = isinstance(cache, (FullAttention, SlidingWindow, GatedDeltaNet))
            if not (known or state or arch in _WHOLE):
                raise NotModelledError(
                    f"kvcalc does not model split_mode tensor for {cache.kind} layers", hint=hint
                )
    if model.num_attention_heads is None and arch not in _WHOLE:
        raise NotModelledError(
            f"split_mode tensor goes by the query heads, which {model.name} does not tell",
            hint=hint,
        )


def cut(
    total: int, grain: int, shares: tuple[float, ...] | None, devices: int, rotation: int
) -> tuple[int, ...]:
    """Return how many elements each device gets.

    Args:
        total: elements of a row.
        grain: devices but the last get multiples of this.
        shares: tensor_split; None for equal parts.
        devices: how many there are.
        rotation: the device that is cut off first.

    >>> cut(1024, 128, None, 3, 0), cut(1024, 128, None, 3, 1)
    ((256, 384, 384), (384, 256, 384))
    """
    sums, low = [0.0] * devices, 0
    if shares is not None:
        for place in range(devices):
            before = sums[place - 1] if place else 0.0
            sums[place] = _single(before + shares[(place + rotation) % devices])
    found = [0] * devices
    for place in range(devices - 1):
        if shares is None:
            high = total * (place + 1) // devices
        else:
            high = int(_single(_single(total * sums[place]) / sums[-1]))
        high -= high % grain
        found[(place + rotation) % devices] = high - low
        low = high
    found[(devices - 1 + rotation) % devices] = total - low
    return tuple(found)


def layers_on(
    context: Context, layers: list[tuple[int, LayerRun]], settings: Settings, device: int
) -> list[tuple[int, LayerRun]]:
    """Return what one device keeps of some layers: those heads of them that it gets."""
    served, placing = context.served, settings.placing
    rotations = list(_rotations(served.layers, len(placing.shares)))
    shares = placing.shares if placing.split_given else None

    def sliced(layer: int, cache: Cache) -> Cache | None:
        if served.arch in _WHOLE or (served.arch in _WHOLE_STATES and isinstance(cache, STATES)):
            return cache
        block = _block(served.model, layer, states=isinstance(cache, GatedDeltaNet))
        devices = len(placing.shares)

        def heads(count: int, head: int, grain: int) -> int:
            return cut(count * head, grain, shares, devices, rotations[layer])[device] // head

        match cache:
            case GatedDeltaNet(head_k_dim=head):
                grain = lcm(lcm(block, _KERNEL_BLOCK), head)
                keys = heads(cache.num_k_heads, head, grain)
                values = heads(cache.num_v_heads, head, grain)
                if served.arch != "qwen3next":  # value heads are cut as the key heads they follow
                    values = keys * (cache.num_v_heads // cache.num_k_heads)
                if not keys or not values:
                    return None
                return msgspec.structs.replace(cache, num_k_heads=keys, num_v_heads=values)
            case FullAttention() | SlidingWindow():
                queries = (served.model.num_attention_heads or 0) // cache.num_kv_heads
                width = queries * cache.head_dim
                while block < _KERNEL_BLOCK and block * devices < width:
                    block *= 2
                count = heads(cache.num_kv_heads, cache.head_dim, lcm(width, block) // queries)
                return msgspec.structs.replace(cache, num_kv_heads=count) if count else None
        return cache

    found = []
    for layer, run in layers:
        kept = tuple(c for cache in run.caches if (c := sliced(layer, cache)) is not None)
        found.append((layer, msgspec.structs.replace(run, caches=kept)))
    return found


def _rotations(layers: tuple[LayerRun, ...], devices: int) -> Iterator[int]:
    """Yield for each layer how many of its own sort come before it, by the number of devices."""
    seen: dict[tuple[bool, bool], int] = {}
    for run in layers:
        sort = (
            any(isinstance(cache, STATES) for cache in run.caches),
            any(isinstance(cache, SlidingWindow) for cache in run.caches),
        )
        yield seen.get(sort, 0) % devices
        seen[sort] = seen.get(sort, 0) + 1


def _block(model: ModelSpec, layer: int, *, states: bool) -> int:
    """Return the elements that the type of a layer's output projection packs; 1 where not known."""
    first, second = ("ssm_out", "attn_output") if states else ("attn_output", "ssm_out")
    names = {tensor.name: tensor.block for tensor in model.weights if "out" in tensor.name}
    for name in (first, second):
        if (found := names.get(f"blk.{layer}.{name}.weight")) is not None:
            return found
    return 1


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
