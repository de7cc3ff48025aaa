"""Parameters of what mixes tokens in a layer: attention, latents and recurrent layers.

The projections follow transformers 5.24 (models/*/modeling_*.py). Bounds are given where classes
of one kind differ.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.core.size import ModelSize
from kvcalc.core.units import cdiv
from kvcalc.weights.shapes import Shape

__all__ = ["Count", "Frame", "PartName", "mixer"]

PartName = Literal[
    "embedding",
    "head",
    "attention",
    "kv",
    "latent",
    "recurrent",
    "mlp",
    "shared",
    "experts",
    "router",
    "norm",
    "encoder",
    "draft",
]
"""`attention`: projections divided by heads; `kv`: those of K and V; `latent`: what every rank
keeps whole of latent attention."""


class Count(NamedTuple):
    """Parameters of a part, at least and at most."""

    part: PartName
    low: int
    high: int


class Frame(NamedTuple):
    """What a mixer's projections lead from and to.

    Attributes:
        hidden: width of the residual stream.
        heads: query heads; None where the model has none.
        head_dim: the widest head of the model, for layers that borrow K and V.
        size: the model's sizes.
        shape: the make of its layers.
        bias: whether the config asks for biases of Q, K, V and of the output.
    """

    hidden: int
    heads: int | None
    head_dim: int
    size: ModelSize
    shape: Shape
    bias: tuple[bool, bool]

    def queries(self) -> int:
        """Return the query heads.

        Raises:
            UnsupportedError: the model does not say.
        """
        if self.heads is None:
            raise _unknown("the number of query heads")
        return self.heads


def _unknown(what: str) -> UnsupportedError:
    return NotModelledError(
        f"the model's parameters cannot be counted: {what} is not known",
        hint="give the checkpoint's folder, or --weights SIZE",
    )


def mixer(cache: Cache, frame: Frame) -> list[Count]:
    """Return the parameters that stand behind one cache of a layer.

    Raises:
        UnsupportedError: a width that is needed is not known.
    """
    match cache:
        case Mla():
            return _latent(cache, frame)
        case SlidingMla():
            return _single_vector(cache, frame)
        case CompressedAttention():
            width = frame.hidden * cache.head_dim
            return [Count("latent", 2 * width, 5 * width)]
        case Indexer():
            return _indexer(cache, frame)
        case SharedKv():
            # The matrices of K and V may lie in the checkpoint all the same (Gemma-3n).
            width = frame.hidden * frame.queries() * frame.head_dim
            return [Count("attention", 2 * width, 2 * width), Count("kv", 0, width)]
        case FullAttention() | SlidingWindow() | ChunkedAttention() | CrossAttention():
            return _per_head(cache.num_kv_heads, cache.head_dim, cache.v_head_dim, frame)
        case _:
            return _recurrent(cache, frame)


_Recurrent = (
    GatedDeltaNet
    | KimiDeltaAttention
    | LightningAttention
    | Mamba1
    | Mamba2
    | RgLru
    | Rwkv
    | ShortConv
)


def _recurrent(cache: _Recurrent, frame: Frame) -> list[Count]:
    h = frame.hidden
    match cache:
        case Mamba1() | Mamba2():
            return _state_space(cache, frame)
        case RgLru():
            w = cache.lru_width
            return [_between(3 * h * w + w * cache.conv_kernel, 2 * w * w + 8 * w + h)]
        case ShortConv():
            return [_between(4 * h * h + h * cache.conv_kernel, 5 * h)]
        case Rwkv():
            return [_between(4 * h * h, 5 * h * h)]
        case _:
            return _linear(cache, frame)


def _between(low: int, open_: int) -> Count:
    return Count("recurrent", low, low + open_)


def _per_head(kv_heads: int, dim: int, v_head_dim: int | None, frame: Frame) -> list[Count]:
    """Return Q, K, V and the output, with biases and norms."""
    shape, h, heads = frame.shape, frame.hidden, frame.queries()
    v_dim = dim if v_head_dim is None else v_head_dim
    out_dim = v_dim or dim
    q, k, v = heads * dim, kv_heads * dim, kv_heads * v_dim
    attention = h * q * (2 if shape.output_gate else 1) + heads * out_dim * h
    if shape.loose:
        # A gate may be one number a head, or as wide as the queries; one matrix may be K and V.
        gate = h * (q if shape.gate_open else heads)
        return [
            Count("attention", attention, attention + gate + q + h),
            Count("kv", h * k, h * (k + v) + k + v),
            Count("norm", 0, q + k),
        ]
    attention += (q if frame.bias[0] else 0) + (h if frame.bias[1] else 0)
    attention += heads if shape.sinks else 0
    kv = h * (k + v) + (k + v if frame.bias[0] else 0)
    norm = {"": 0, "head": 2 * dim, "full": q + k}[shape.qk_norm]
    return [
        Count("attention", attention, attention),
        Count("kv", kv, kv),
        Count("norm", norm, norm),
    ]


def _latent(cache: Mla, frame: Frame) -> list[Count]:
    """Return DeepSeek's projections; vLLM keeps those down to the latents whole on every rank."""
    size, h, heads = frame.size, frame.hidden, frame.queries()
    nope, value = size.qk_nope_head_dim, size.v_head_dim
    if nope is None or value is None:
        raise _unknown("qk_nope_head_dim or v_head_dim")
    latent, rope = cache.kv_lora_rank, cache.qk_rope_head_dim
    whole = h * (latent + rope)
    norm = latent
    queries = heads * (nope + rope)
    if size.q_lora_rank is None:
        up = h * queries
    else:
        whole += h * size.q_lora_rank
        norm += size.q_lora_rank
        up = size.q_lora_rank * queries
    up += latent * heads * (nope + value) + heads * value * h
    gate = h * heads * value if frame.shape.gate_open else 0
    return [
        Count("attention", up, up + gate),
        Count("latent", whole, whole),
        Count("norm", norm, norm),
    ]


def _single_vector(cache: SlidingMla, frame: Frame) -> list[Count]:
    """Return DeepSeek-V4's queries and vector; its output goes through groups of low rank."""
    h, queries = frame.hidden, frame.queries() * cache.head_dim
    rank = frame.size.q_lora_rank
    whole = h * cache.head_dim + h * (rank or 0)
    up = (rank or h) * queries
    return [
        Count("attention", up, up + queries * h),
        Count("latent", whole, whole + cache.head_dim),
    ]


def _indexer(cache: Indexer, frame: Frame) -> list[Count]:
    """Return DeepSeek-V3.2's indexer, every rank keeps it whole: queries, key, its norm, weights.

    vLLM 0.33 models/deepseek_v2.py, class Indexer.
    """
    h, dim, heads = frame.hidden, cache.index_head_dim, frame.size.index_n_heads
    if heads is None:
        return [Count("latent", h * dim, h * dim + 64 * dim * (frame.size.q_lora_rank or h))]
    from_ = frame.size.q_lora_rank or h
    own = from_ * heads * dim + h * dim + 2 * dim + h * heads
    # A compressed indexer folds several tokens with a compressor of its own.
    more = 4 * h * dim if cache.compress_ratio > 1 else 0
    return [Count("latent", own - (0 if more == 0 else h * dim), own + more)]


def _linear(
    cache: GatedDeltaNet | KimiDeltaAttention | LightningAttention, frame: Frame
) -> list[Count]:
    """Return linear attention: projections, short convolutions, gates and decays."""
    h = frame.hidden
    match cache:
        case GatedDeltaNet():
            k = cache.num_k_heads * cache.head_k_dim
            v = cache.num_v_heads * cache.head_v_dim
            found = h * (2 * k + 2 * v) + 2 * h * cache.num_v_heads
            found += (2 * k + v) * cache.conv_kernel + 2 * cache.num_v_heads + cache.head_v_dim
            return [_between(found + v * h, 0)]
        case KimiDeltaAttention():
            inner, dim = cache.num_heads * cache.head_dim, cache.head_dim
            found = 4 * h * inner + 3 * inner * cache.conv_kernel + h * cache.num_heads
            found += h * dim + dim * inner + cache.num_heads + inner + dim
            # The gate of the output is of low rank or, in Kimi-K3, whole.
            return [Count("recurrent", found + h * dim, found + h * inner + dim * inner + inner)]
        case LightningAttention():
            inner = cache.num_heads * cache.head_dim
            return [_between(4 * h * inner, h * inner + 3 * inner)]


def _state_space(cache: Mamba1 | Mamba2, frame: Frame) -> list[Count]:
    h = frame.hidden
    if isinstance(cache, Mamba1):
        inner, state, rank = cache.intermediate_size, cache.state_size, cdiv(h, 16)
        found = h * 2 * inner + inner * (cache.conv_kernel + 1) + inner * (rank + 2 * state)
        found += rank * inner + inner + inner * state + inner + inner * h
        return [_between(found, rank + 2 * state)]  # norms of dt, B and C: Jamba
    inner = cache.num_heads * cache.head_dim
    mixed = inner + 2 * cache.n_groups * cache.state_size
    found = h * (inner + mixed + cache.num_heads) + mixed * cache.conv_kernel
    found += 3 * cache.num_heads + inner * h
    return [_between(found, mixed + inner + inner + mixed + cache.num_heads + h)]
