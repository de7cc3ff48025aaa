"""LMDeploy's PyTorch engine: blocks of all layers, slots of states, and what the memory gives.

LMDeploy 0.18 pytorch/engine/cache_engine/ and pytorch/engine/executor/base.py, ExecutorBase.
"""

from __future__ import annotations

from typing import Any

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InvalidValueError, NotModelledError, UnsupportedError
from kvcalc.core.kind import StateTensor
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Group, Pool, Rank
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.core.rules import Slots, Window
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.every_token import Span, kept_group
from kvcalc.engines.lmdeploy.layers import Shape, shape_of, split
from kvcalc.engines.lmdeploy.packing import Tensor, tensors_of
from kvcalc.engines.lmdeploy.settings import Settings

__all__ = ["block_size", "indexer_bytes", "rank_of"]


_ALIGNMENT = 256
_FLASH_MLA_BLOCK = 64
_LARGE_HEAD, _LARGE_HEAD_BLOCK = 512, 32
_SPARSE_ROW = 656
"""Sparse MLA in fp8: 512 + 4 scales of 4 B + 64 elements of 2 B (schema.py, _MLA_FP8_HEAD_DIM)."""
_SCORES = 512 * 2**20
"""Workspace of a sparse indexer's scores (envs.py, dsa_indexer_max_logits_mb)."""
_FEWEST_BLOCKS, _ENOUGH_BLOCKS = 3, 16
_SPARE_SLOTS = 2
"""One slot for the system, one for a rolling prefill."""


def block_size(shape: Shape, settings: Settings, notes: list[str]) -> int:
    """Return tokens a block after the engine's own changes (ExecutorBase._adjust_block_size).

    Raises:
        UnsupportedError: a size that FlashMLA has not.
    """
    block = settings.block
    if shape.latent and settings.flash_mla:
        if block != _FLASH_MLA_BLOCK:
            raise UnsupportedError(
                f"FlashMLA has blocks of {_FLASH_MLA_BLOCK} tokens, not of {block}",
                hint=f"set block_size to {_FLASH_MLA_BLOCK}",
            )
    elif shape.k >= _LARGE_HEAD and block > _LARGE_HEAD_BLOCK:
        notes.append(
            f"blocks of {block} tokens become {_LARGE_HEAD_BLOCK}: a head has {shape.k} elements"
        )
        return _LARGE_HEAD_BLOCK
    return block


def rank_of(model: ModelSpec, settings: Settings, notes: list[str]) -> tuple[Rank, int, Shape]:
    """Return one rank's pools, tokens a block, and the shape of its layers.

    Raises:
        UnsupportedError: what the engine refuses, or kvcalc does not model.
    """
    share = split(model, settings.tp)
    shape = shape_of(share)
    block = block_size(shape, settings, notes)
    tensors = _tensors(shape, settings, model.dtype)
    kernel = _kernel_block(block, settings)
    page = block // kernel * sum(_aligned(t.token_bytes * kernel) for t in tensors)
    payload = {t.role: t.token_bytes for t in tensors}
    window = window_of(model, notes)
    if window is None:
        group = kept_group(shape.spans, payload, block, page)
    else:
        step = settings.max_prefill_token_num
        group = windowed_group(shape.spans, payload, block, page, window, step)
        notes.append(
            f"blocks before the last {format_count(window)} tokens of history are given back, in"
            f" all layers alike; a step of a prompt takes up to {format_count(step)} tokens more"
        )
    state = _state_pool(share, settings)
    if state is not None:
        notes.append(_of_states(state, settings))
    blocks = settings.num_gpu_blocks
    if blocks is None and settings.free_memory is not None:
        blocks = _num_blocks(settings, shape, group.unit_bytes, state, notes)
    if page > block * sum(t.token_bytes for t in tensors):
        notes.append(f"each tensor of a block is rounded up to {_ALIGNMENT} B")
    pool = Pool(
        name="blocks",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        units=blocks,
        reserved_units=1,  # dummy inputs and padding (ConfigBuilder.build_cache_config)
    )
    pools = (pool,) if state is None else (pool, state)
    return Rank(name="rank", pools=pools, multiplicity=settings.tp), block, shape


def indexer_bytes(shape: Shape) -> int:
    """Return what a token of the sparse indexers' keys takes: fp8 and one fp32 scale a layer."""
    return shape.index_layers * (shape.index_width + 4) if shape.index_width else 0


def _tensors(shape: Shape, settings: Settings, dtype: str) -> tuple[Tensor, ...]:
    if shape.index_width and settings.policy != "none":
        # executor/__init__.py, _finalize_sparse_mla_cache_policy
        if settings.policy != "fp8":
            raise UnsupportedError(
                f"sparse MLA does not support quant_policy {settings.policy}",
                hint="use none or fp8",
            )
        return (Tensor("latent", _SPARSE_ROW),)
    found = tensors_of(shape.heads, shape.k, shape.v, settings.policy, dtype)
    return tuple(t for t in found if t.token_bytes)


def _kernel_block(block: int, settings: Settings) -> int:
    kernel = settings.kernel_block or block
    kernel = min(kernel, block) if block != settings.block else kernel
    if block % kernel:
        raise InvalidValueError(
            f"block_size {block} is no multiple of kernel_block_size {kernel}",
            hint="leave kernel_block_size out",
        )
    return kernel


def _aligned(size: int) -> int:
    return cdiv(size, _ALIGNMENT) * _ALIGNMENT


def _state_pool(model: ModelSpec, settings: Settings) -> Pool | None:
    """Return the slots of recurrent states: K convolution columns, everything in the model dtype.

    pytorch/configurations/qwen3_5.py; slots: ExecutorBase._get_state_cache_mem.
    """
    sizes: dict[str, int] = {}
    layers = 0
    for count, cache in model.caches():
        if not cache.states():
            continue
        if not isinstance(cache, GatedDeltaNet):
            raise NotModelledError(
                f"how LMDeploy keeps {cache.kind} states is not modelled",
                hint="use --engine none to see what the layers are",
            )
        layers += count
        for state in cache.states():
            size = _elements(state) * element_bytes(model.dtype)
            sizes[state.role] = sizes.get(state.role, 0) + count * size
    if not sizes:
        return None
    unit = sum(_aligned(size) for size in sizes.values())
    group = Group(name="state", layers=layers, rule=Slots(), payload=sizes, unit_bytes=unit)
    return Pool(
        name="states",
        groups=(group,),
        unit_bytes=unit,
        units=settings.max_batch_size + _SPARE_SLOTS + settings.state_budget,
        reserved_units=_SPARE_SLOTS + settings.state_budget,
        beside=True,  # taken from the free memory before cache_max_entry_count of it
    )


def _of_states(state: Pool, settings: Settings) -> str:
    """Say what the slots take (ExecutorBase._reserve_state_cache_mem)."""
    slots, taken = state.units or 0, state.total_bytes(state.units or 0)
    card = ""
    if settings.card_bytes is not None:
        card = f" of the card's {format_count(settings.card_bytes)} B"
    return (
        f"{format_count(slots)} slots of states, for {format_count(settings.max_batch_size)}"
        f" sequences at once (max_batch_size) and {slots - settings.max_batch_size} more, take"
        f" {format_count(taken)} B{card} first, beside the bytes given: LMDeploy does not start"
        " where they leave nothing for blocks"
    )


def _elements(state: StateTensor) -> int:
    if state.role == "conv":
        rows, channels = state.shape
        return (rows + 1) * channels
    return state.elements


def _num_blocks(
    settings: Settings, shape: Shape, block_bytes: int, state: Pool | None, notes: list[str]
) -> int:
    """Return the blocks that the free memory gives (ExecutorBase.update_configs).

    States come first, then room for logits of a prefill and of two steps, which is halved until 16
    blocks fit; `cache_max_entry_count` of the rest becomes blocks.

    Raises:
        UnsupportedError: the vocabulary was not given, or fewer than three blocks fit.
    """
    free, vocab = settings.free_memory or 0, settings.vocab_size
    if state is not None:
        free -= state.total_bytes(state.units or 0)
    if free <= 0:
        raise UnsupportedError(
            "the free memory does not hold the states", hint="reduce max_batch_size"
        )
    if vocab is None:
        raise NotModelledError(
            "free_memory pays for logits too, and the layers do not tell their width",
            hint="give vocab_size of config.json in engine_args",
        )
    scores = _SCORES if shape.index_width else 0
    tokens = settings.max_prefill_token_num
    while tokens:
        reserve = (tokens + 2 * settings.max_batch_size) * vocab * 2 + scores
        blocks = int((free - reserve) * settings.entry_count) // block_bytes
        if blocks < _FEWEST_BLOCKS:
            break
        if blocks >= _ENOUGH_BLOCKS:
            if tokens != settings.max_prefill_token_num:
                notes.append(f"max_prefill_token_num becomes {tokens}, so that 16 blocks fit")
            notes.append(f"{format_count(reserve)} B are kept for logits and the like")
            return blocks
        tokens //= 2
    raise UnsupportedError(
        "fewer than three blocks fit into the memory", hint="give more memory or fewer sequences"
    )


# Models whose blocks LMDeploy's PyTorch engine gives back once a window has passed them.
#
# LMDeploy (1263d5c, August 2026) pytorch/configurations/default.py takes `sliding_window` of a
# config for the whole model, whichever layers have it; gemma.py (with images) and gpt_oss.py take
# it back, and llava_hf.py never asks. pytorch/paging/block_manager/window_block_manager.py then
# drops the blocks before the last W tokens of history; with the token of the step that is W + 1,
# which are what the kernels read (pytorch/kernels/cuda/pagedattention.py, kv_min_loc).

_KEPT = {
    "DeepseekV4ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
}
"""Classes for which LMDeploy sets no window."""


def window_of(model: ModelSpec, notes: list[str]) -> int | None:
    """Return the window before which blocks are given back; None where every block is kept.

    Args:
        model: as published.
        notes: a line is added for layers that lose what they read.

    Raises:
        UnsupportedError: layers of several windows, of which a config tells LMDeploy one.
    """
    if model.architecture in _KEPT:
        return None
    caches = [cache for _, cache in model.caches() if cache.rows()]
    windows = {cache.sliding_window for cache in caches if isinstance(cache, SlidingWindow)}
    if len(windows) > 1:
        raise UnsupportedError(
            f"{model.name} has several windows, and LMDeploy takes one for all layers",
            hint="use --engine none to see what its layers are",
        )
    if windows and not all(isinstance(cache, SlidingWindow) for cache in caches):
        notes.append(
            "LMDeploy takes the window for all layers: those that read every token lose what lies"
            " before it"
        )
    return next(iter(windows), None)


def windowed_group(
    spans: tuple[Span, ...],
    payload: dict[str, int],
    block: int,
    page: int,
    window: int,
    step: int,
) -> Group:
    """Return the group of all layers, of which a sequence keeps the blocks of a window.

    Args:
        spans: the layers.
        payload: bytes of one token of one layer, by role.
        block: tokens a block.
        page: bytes of a block of one layer, padding included.
        window: tokens of history that are kept.
        step: tokens of a prompt that are computed at once (max_prefill_token_num), which a longer
            prompt is cut into (scheduler.py, kv_token_limit).
    """
    layers = sum(span.layers for span in spans)
    rule: dict[str, Any] = {"block_tokens": block, "window": window + 1, "in_flight": step}
    return Group(
        name="blocks",
        layers=layers,
        # A step that ends inside a block leaves the window's first block and its own last one.
        rule=Window(**rule, extra_blocks=1 if step % block else 0),
        payload={role: layers * size for role, size in payload.items()},
        unit_bytes=layers * page,
        block_size=block,
    )
