"""Attention backends and the page that they read.

SGLang 0.5.23 arg_groups/model_override_base.py (get_default_attn_backend) and
arg_groups/overrides.py (_mla_backend_page_constraints, _fa4_page_constraint, _page_size_default).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.sglang.card import Card
from kvcalc.engines.sglang.families import (
    BLACKWELL_BACKENDS,
    LATENT_DEFAULT,
    PAGE_64_WITH_EXTRA_BUFFER,
    is_compressed,
    is_latent,
    is_minimax_sparse,
)

__all__ = ["Backends", "default_backend", "page_of"]

_DSA_PAGE = 64
_FA4_PAGE = 128
_COMPRESSED_PAGE = 256
_SPARSE_PAGE = 128
_SPARSE_BACKENDS = ("fa3", "fa4", "trtllm_mha")
_PAGES = {
    # Backend -> the pages that it reads, and the one taken in place of any other.
    "trtllm_mha": ((16, 32, 64, 128), 64),
    "trtllm_mla": ((32, 64), 64),
    "cutedsl_mla": ((32, 64), 64),
    "flashmla": ((64,), 64),
    "hpc_ops": ((64,), 64),
}


class Backends(NamedTuple):
    """Kernels of prefill and decode; DSA models have two more."""

    prefill: str
    decode: str
    dsa_prefill: str = ""
    dsa_decode: str = ""


def _asymmetric(model: ModelSpec) -> bool:
    """Whether K and V rows differ in width."""
    return any(
        getattr(cache, "v_head_dim", None) not in (None, cache.head_dim)
        for _, cache in model.caches()
        if hasattr(cache, "head_dim") and cache.rows()
    )


def default_backend(model: ModelSpec, card: Card, word: str, *, topk: int, tracked: bool) -> str:
    """Return the backend that serves a model where none is asked for.

    Args:
        model: as published.
        card: what it runs on.
        word: the KV cache dtype in SGLang's words.
        topk: branches of a tree of proposed tokens; 1 without speculation.
        tracked: states are tracked in extra slots, or no prefix is kept.
    """
    name = model.architecture or ""
    if is_latent(model):
        if card.hopper:
            return "fa3"
        if card.sm100:
            return "trtllm_mla" if name in LATENT_DEFAULT else "flashinfer"
        return "triton"
    if card.sm100:
        if is_minimax_sparse(model):
            return "trtllm_mha" if word == "fp8_e4m3" else "fa4"
        if name in PAGE_64_WITH_EXTRA_BUFFER and not tracked:
            return "triton"
        chosen = BLACKWELL_BACKENDS.get(name)
        if chosen is not None or topk == 1:
            return chosen or ("fa4" if _asymmetric(model) else "trtllm_mha")
    if card.hopper and topk == 1:
        return "fa3"
    return "triton" if "attention_sinks" in model.traits else "flashinfer"


def page_of(
    model: ModelSpec, card: Card, backends: Backends, asked: int | None, notes: list[str]
) -> int:
    """Return the tokens of a page: what is asked for, as the kernels let it be.

    Args:
        model: as published.
        card: what it runs on.
        backends: the kernels in use.
        asked: page_size; None for the default.
        notes: a line is added where the kernels have their way.

    Raises:
        UnsupportedError: DSA under decode context parallelism with pages that are no page of 64.
    """
    if not any(cache.rows() for _, cache in model.caches()):
        return asked or 1  # states alone
    if is_compressed(model):
        if asked not in (None, _COMPRESSED_PAGE):
            notes.append(f"pages of {_COMPRESSED_PAGE} tokens instead of {asked}: dsv4's alone")
        return _COMPRESSED_PAGE
    page, why = _read_by(model, card, backends, asked)
    if page is None:
        return 1
    if why and page != asked:
        instead = "" if asked is None else f" instead of {asked}"
        notes.append(f"pages of {page} tokens{instead}: {why} reads no others")
    if page < 1:
        raise UnsupportedError(f"pages of {page} tokens", hint="give page_size")
    return page


def _read_by(
    model: ModelSpec, card: Card, backends: Backends, asked: int | None
) -> tuple[int | None, str]:
    """Return the page that the kernels read, and which of them has its way."""
    page, why = asked, ""
    if is_minimax_sparse(model):
        if asked is None and backends.prefill in _SPARSE_BACKENDS and (card.hopper or card.sm100):
            page, why = _SPARSE_PAGE, "MiniMax's sparse attention"
    elif any(cache.kind == "indexer" for _, cache in model.caches()):
        page, why = _DSA_PAGE, "the sparse-attention indexer"
    for backend in dict.fromkeys((backends.prefill, backends.decode)):
        if backend in _PAGES and page not in _PAGES[backend][0]:
            page, why = _PAGES[backend][1], backend
    if "fa4" in (backends.prefill, backends.decode) and card.sm100 and not is_latent(model):
        page, why = _FA4_PAGE, "fa4"
    return page, why
