"""Which attention kernels vLLM picks for a layer.

The order is that of vLLM 0.33 platforms/cuda.py, _get_backend_priorities; the first backend that
takes a query serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import lcm

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.flash_attention import flash_reads_fp8, flash_version
from kvcalc.engines.vllm.head_backends import HEAD_BACKENDS
from kvcalc.engines.vllm.kernels import (
    BLACKWELL,
    BLACKWELL_CONSUMER,
    FP8,
    HOPPER,
    Backend,
    Kernel,
    Query,
)
from kvcalc.engines.vllm.latent_backends import LATENT_BACKENDS

__all__ = ["BACKENDS", "choose", "indexer_backend", "kernels_of", "preferred_block"]

BACKENDS = {**HEAD_BACKENDS, **LATENT_BACKENDS}
"""Every backend by vLLM's name for it."""

_FEW_QUERY_HEADS = 16
_NO_ROPE = 512  # a latent without a rotary part


def _in_order(query: Query, card: Card) -> Iterator[str]:
    """Yield backends in the order in which vLLM tries them (_get_backend_priorities)."""
    if query.mla:
        yield from _mla_in_order(query, card)
        return
    if card.family == BLACKWELL:
        if query.image_prefix:
            yield "TRITON_FLASHINFER"
        yield from ("FLASHINFER", "FLASH_ATTN")
    else:
        if card.family == HOPPER and query.image_prefix:
            yield "TRITON_FLASH_ATTN"
        yield from ("FLASH_ATTN", "FLASHINFER")
    yield from ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")


def _mla_in_order(query: Query, card: Card) -> Iterator[str]:
    if card.family == BLACKWELL:
        yield from ("FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA")
        if query.quantized:
            yield from ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        elif query.query_heads is not None and query.query_heads <= _FEW_QUERY_HEADS:
            yield from ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        else:
            yield from ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
        return
    if card.family == BLACKWELL_CONSUMER:
        yield from ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
        return
    yield from ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
    sparse = ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
    sparse.insert(0 if query.head_size == _NO_ROPE else 2, "FLASHINFER_MLA_SPARSE_SM90")
    yield from sparse


def choose(query: Query, card: Card, asked: str | None = None) -> Backend:
    """Return the backend that serves a query.

    Args:
        query: the layer and its settings.
        card: the card.
        asked: the backend that the user names; None for vLLM's choice.

    Raises:
        UnsupportedError: none does, or the one that is asked for does not.
    """
    if not query.mla and query.head_size_v != query.head_size:
        return _diff_kv(query, card, asked)
    if asked is not None:
        return _asked(query, card, asked)
    reasons = []
    for name in _in_order(query, card):
        backend, reason = _tried(name, query, card)
        if backend is not None:
            _fails_when_built(name, query, card)
            return backend
        reasons.append(f"{name}: {reason}")
    raise UnsupportedError(
        f"vLLM has no attention backend for {_described(query)} on {card.name}"
        f" ({'; '.join(reasons)})",
        hint=_cure(query),
        code="no-attention-backend",
    )


def kernels_of(name: str, query: Query, card: Card) -> tuple[Kernel, ...]:
    """Return the blocks that a backend's kernels read."""
    return BACKENDS[name].kernels(query, card)


def _cure(query: Query) -> str:
    if query.block_size is not None:
        return "leave out the block size, or choose another KV cache dtype"
    return "choose another KV cache dtype, or another card"


def _described(query: Query) -> str:
    what = "sparse MLA" if query.sparse else "MLA" if query.mla else f"head size {query.head_size}"
    block = f", blocks of {query.block_size}" if query.block_size else ""
    return f"{what} in {query.kv_dtype} ({query.dtype}{block})"


def _tried(name: str, query: Query, card: Card) -> tuple[Backend | None, str]:
    known = BACKENDS[name]
    reason = known.refuses(query, card)
    if reason is not None:
        return None, reason
    backend = Backend(name, known.kernels(query, card))
    if query.block_size is not None and not backend.takes(query.block_size):
        return None, "block_size not supported"
    return backend, ""


def _asked(query: Query, card: Card, asked: str) -> Backend:
    name = asked.upper()
    if name not in BACKENDS:
        raise UnsupportedError(
            f"attention backend {asked!r:.40} is not known",
            hint=f"known: {', '.join(BACKENDS)}",
        )
    mla = "MLA" in name
    if mla != query.mla:
        raise UnsupportedError(
            f"attention backend {name} is {'' if mla else 'not '}for MLA",
            hint="leave the backend to vLLM",
        )
    backend, reason = _tried(name, query, card)
    if backend is None:
        raise UnsupportedError(
            f"attention backend {name} cannot serve {_described(query)} on {card.name}: {reason}",
            hint="leave the backend to vLLM",
            code="no-attention-backend",
            setting="attention_backend",
        )
    _fails_when_built(name, query, card)
    return backend


def _diff_kv(query: Query, card: Card, asked: str | None) -> Backend:
    """K and V of different sizes: model_executor/models/mimo_v2.py chooses by itself."""
    name = "TRITON_ATTN_DIFFKV"
    if flash_version(query, card, diff_kv=True) in (3, 4):
        name = "FLASH_ATTN_DIFFKV"
    if asked is not None and asked.upper().endswith("_DIFFKV"):
        name = asked.upper()
    if query.kv_dtype.startswith("turboquant_"):
        raise UnsupportedError(
            "TurboQuant does not read K and V of different sizes",
            hint="choose another KV cache dtype",
        )
    known = ("auto", "bfloat16", *FP8)
    strict = name == "TRITON_ATTN_DIFFKV" or card.family == BLACKWELL
    if strict and query.kv_dtype not in known:
        raise UnsupportedError(
            f"{name} keeps no {query.kv_dtype} cache", hint="choose another KV cache dtype"
        )
    _fails_when_built(name, query, card)
    return Backend(name, (Kernel(16, multiple=True),))


def _fails_when_built(name: str, query: Query, card: Card) -> None:
    """Refuse what a chosen backend refuses only when its layer is built."""
    fp8 = query.kv_dtype.startswith("fp8")
    if fp8 and name.startswith("TRITON") and not card.has_fp8:
        raise UnsupportedError(
            f"{name}, which vLLM picks here, reads fp8 caches from compute capability 8.9 on;"
            f" {card.name} has {card.capability[0]}.{card.capability[1]}",
            hint="choose --kv-cache-dtype auto, or another card",
        )
    scaled = query.kv_dtype == "fp8_per_token_head"
    biased = query if query.rules.checks_alibi else query._replace(alibi=False)
    reads = flash_reads_fp8(biased, card) and query.kv_dtype != "fp8_e5m2"
    if fp8 and not scaled and name in ("FLASH_ATTN", "FLASH_ATTN_DIFFKV") and not reads:
        raise UnsupportedError(
            f"{name}, which vLLM picks here, does not read an fp8 cache of this model on"
            f" {card.name}",
            hint="choose --kv-cache-dtype auto",
        )
    splits_fp8_only = name == "FLASHMLA_SPARSE" and query.rules.sparse_splits_fp8_only
    if splits_fp8_only and query.context_parallel and not query.quantized:
        raise UnsupportedError(
            "FLASHMLA_SPARSE splits a sequence over ranks in fp8_ds_mla only",
            hint="choose --kv-cache-dtype fp8, or a decode context parallel size of 1",
        )


def indexer_backend(ratio: int, index_dtype: str) -> Backend:
    """Return the backend of an indexer's keys: they are read in blocks of one size."""
    if index_dtype == "bfloat16":  # MiniMax-M3: one sparse block a page
        return Backend("MINIMAX_M3_SPARSE_INDEXER", (Kernel(128),))
    if ratio > 1:
        return Backend("DEEPSEEK_V4_INDEXER", (Kernel(256),))
    return Backend("DEEPSEEK_V32_INDEXER", (Kernel(64),))


def preferred_block(backends: list[Backend], default: int) -> int:
    """Return the block size that vLLM takes unasked: the default where all backends take it.

    platforms/interface.py, Platform._preferred_block_size_for_backends.

    Raises:
        UnsupportedError: the backends share none.
    """
    if all(backend.takes(default) for backend in backends):
        return default
    if len(backends) == 1:
        return backends[0].smallest
    each = [[kernel.size for kernel in backend.kernels] for backend in backends]
    for candidate in sorted({lcm(*sizes) for sizes in product(*each)}):
        if all(backend.takes(candidate) for backend in backends):
            return candidate
    raise UnsupportedError(
        "the attention backends share no block size:"
        f" {', '.join(backend.name for backend in backends)}",
        hint="choose another KV cache dtype",
    )
