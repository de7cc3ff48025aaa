"""A rank's layers as tpu-inference describes them to vLLM: runner/kv_cache_manager.py at b8692ff.

get_kv_cache_spec has two ways: for its own JAX models every layer keeps every token; for models
that vLLM's PyTorch code runs, windows are told where all heads are of one size.
"""

from __future__ import annotations

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Mla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import round_up
from kvcalc.engines.vllm.layers import Layers, layers_of
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm_tpu.blocks import MLA_BLOCK, unasked_block
from kvcalc.engines.vllm_tpu.pages import LANES, MLA_ROWS, head_token_bytes, latent_width

__all__ = ["IMPLEMENTATIONS", "describe_for", "implementation", "word_bytes"]

IMPLEMENTATIONS = ("auto", "flax_nnx", "vllm")
"""MODEL_IMPL_TYPE."""
_JAX = (
    "Llama4ForCausalLM",
    "DeepseekV3ForCausalLM",
    "LlamaForCausalLM",
    "Llama4ForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "GptOssForCausalLM",
    "Qwen2ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4ForCausalLM",
)
"""Architectures of tpu-inference's own (models/common/model_loader.py)."""
_PYTORCH_FIRST = (
    "GptOssForCausalLM",
    "Qwen3MoeForCausalLM",
    "KimiK25ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Those that run vLLM's PyTorch code all the same, unless MODEL_IMPL_TYPE says otherwise."""

_WORDS = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""KV cache dtype -> bytes of an element."""


def implementation(model: ModelSpec, asked: str) -> str:
    """Return whose code runs a model: resolve_model_impl_type and the fall back of get_model."""
    name = model.architecture or ""
    if asked == "vllm" or (asked == "auto" and name in _PYTORCH_FIRST):
        return "vllm"
    return "flax_nnx" if name in _JAX else "vllm"


def word_bytes(settings: Settings) -> int:
    """Return the bytes of an element of the cache.

    Raises:
        UnsupportedError: a dtype whose packing on TPUs was not read.
    """
    if settings.kv_dtype not in _WORDS or settings.dtype == "float32":
        name = settings.dtype if settings.kv_dtype == "auto" else settings.kv_dtype
        raise NotModelledError(
            f"how a TPU packs a {name} cache is not modelled",
            hint="kv_cache_dtype: auto or fp8",
        )
    return _WORDS[settings.kv_dtype]


def describe_for(
    model: ModelSpec, settings: Settings, share: ModelSpec, notes: list[str], impl: str
) -> Layers:
    """Return the specs of what one rank keeps.

    Args:
        model: the whole model.
        settings: as resolved.
        share: the same layers as one tensor-parallel rank keeps them: heads that are fewer than
            the ranks are repeated (utils.py, get_padded_num_heads).
        notes: a line is added for every rule that moved a number.
        impl: whose code runs the model.

    Raises:
        UnsupportedError: layers or a dtype that are not modelled.
    """
    caches = layers_of(share)
    size = word_bytes(settings)
    for cache in caches:
        _check(cache, model)
    block = settings.block_size or _block(caches, settings, notes)
    windows = impl == "vllm" and _windows_told(caches)
    limited = any(isinstance(c, (SlidingWindow, ChunkedAttention)) for c in caches)
    if limited and not (windows and all(not isinstance(c, ChunkedAttention) for c in caches)):
        notes.append(f"every layer keeps every token ({impl}): windows or chunks save nothing")
    placed = [
        Placed(_spec(cache, block, size, windows=windows), layers)
        for cache, layers in caches.items()
    ]
    notes.extend(_padding(placed))
    return Layers(
        placed=sorted(placed, key=lambda p: p.layers[0]),
        block_size=block,
        kv_dtype=settings.kv_dtype,
        backends=(),
    )


def _block(caches: dict[Cache, list[int]], settings: Settings, notes: list[str]) -> int:
    if any(isinstance(cache, Mla) for cache in caches):
        notes.append(f"blocks of {MLA_BLOCK:,} tokens: MLA's on TPUs")
        return MLA_BLOCK
    return unasked_block(settings.max_model_len, settings.max_num_seqs, notes)


def _check(cache: Cache, model: ModelSpec) -> None:
    """Refuse what was not read, or not found out, of tpu-inference."""
    if isinstance(cache, Mla):
        return
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention)):
        raise NotModelledError(
            f"how tpu-inference keeps the {cache.kind} caches of {model.name} is not modelled",
            hint="use --engine vllm for NVIDIA cards, or --engine none",
        )
    if cache.v_head_dim not in (None, cache.head_dim):
        raise UnsupportedError(
            "a TPU's pages have K and V of one size", hint="use --engine none for this model"
        )


def _windows_told(caches: dict[Cache, list[int]]) -> bool:
    """Whether all heads are of one size after filling up; otherwise windows are not told."""
    sizes = {_padded(getattr(cache, "head_dim", 0)) for cache in caches}
    return len(sizes) == 1


def _padded(head_dim: int) -> int:
    return head_dim if head_dim == LANES // 2 else round_up(head_dim, LANES)


def _spec(cache: Cache, block: int, size: int, *, windows: bool) -> Spec:
    payload = tuple((row.role, row.count * row.width * size) for row in cache.rows())
    if isinstance(cache, Mla):
        width = latent_width(cache.kv_lora_rank, cache.qk_rope_head_dim)
        entry = width * size
        return Spec(
            kind="mla",
            block=block,
            entry=entry,
            payload=payload,
            shape=("mla", payload),
            page=round_up(block, MLA_ROWS) * entry,
        )
    heads, head_dim = getattr(cache, "num_kv_heads", 1), getattr(cache, "head_dim", 1)
    entry = head_token_bytes(heads, head_dim, size)
    spec = Spec(
        kind="full",
        block=block,
        entry=entry,
        payload=payload,
        shape=("heads", payload),
        page=block * entry,
    )
    match cache:
        case SlidingWindow(sliding_window=window):
            return spec._replace(kind="window", limit=window, keeps_all=not windows)
        case ChunkedAttention(attention_chunk_size=chunk):
            return spec._replace(kind="chunk", limit=chunk, keeps_all=True)
    return spec


def _padding(placed: list[Placed]) -> list[str]:
    lines = []
    for spec in dict.fromkeys(p.spec for p in placed):
        rows = spec.block * sum(size for _, size in spec.payload)
        if spec.page > rows:
            lines.append(
                f"{rows:,} B of rows take a page of {spec.page:,} B: elements are filled up to"
                f" {LANES} lanes, and heads to words of 4 B"
            )
    return lines
