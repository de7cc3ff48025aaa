"""Tokens a block: what backends read, raised until a page covers a state or two dtypes fit.

vLLM 0.33 platforms/interface.py (Platform.update_block_size_for_backend and what it calls); before
0.20 models/config.py (HybridAttentionMambaModelConfig), before 0.18 platforms/cuda.py for MLA.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, Mla
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.vllm.attention import Attention, Used, distinct_backends, entry_bytes
from kvcalc.engines.vllm.backends import preferred_block
from kvcalc.engines.vllm.kernels import BLACKWELL, HOPPER, Backend, Query
from kvcalc.engines.vllm.settings import DEFAULT_BLOCK_SIZE, Settings

__all__ = ["StateNeeds", "covering_plain_layers", "covering_state", "unasked_block"]

_FLASHINFER_WIDE = 256
_FLASH_ATTENTION_BLOCK = 16


class StateNeeds(NamedTuple):
    """What states want of the block of the attention layers beside them.

    Attributes:
        page: bytes of the widest state.
        alignment: tokens between checkpoints inside a prefill; 1 where none are kept.
        chunk: tokens that a Mamba layer computes at once.
    """

    page: int
    alignment: int
    chunk: int


def unasked_block(used: Used, settings: Settings, word: str) -> int:
    """Return tokens a block where the user does not say.

    Raises:
        UnsupportedError: the backends share no block.
    """
    if not used:
        return DEFAULT_BLOCK_SIZE
    mla = [a for a in used.values() if a.query is not None and a.query.mla]
    if mla and settings.rules.mla_block != "kernels":
        return _older_mla_block(mla[0].query, settings, word)
    return preferred_block(distinct_backends(used, settings), DEFAULT_BLOCK_SIZE)


def _older_mla_block(query: Query | None, settings: Settings, word: str) -> int:
    """Return tokens a block of MLA before 0.18: platforms/cuda.py, check_and_update_config.

    On Blackwell FlashInfer's kernel (0.15 on) reads 64, CUTLASS's before it 128.
    """
    family, at = settings.card.family, settings.release.line
    sparse = query is not None and query.sparse
    if family == HOPPER or sparse or (family == BLACKWELL and word.startswith("fp8_ds_mla")):
        return 64
    if family == BLACKWELL and settings.rules.mla_block == "2025":
        return 64 if at >= (0, 15) else 128
    return DEFAULT_BLOCK_SIZE


def covering_state(block: int, needs: StateNeeds, used: Used, settings: Settings) -> int:
    """Return the block whose page of one attention layer covers one state.

    platforms/interface.py, Platform._align_hybrid_block_size; before 0.20 models/config.py,
    HybridAttentionMambaModelConfig.

    Args:
        block: tokens a block so far.
        needs: what the states want.
        used: the attention caches; there is at least one.
        settings: as resolved.

    Raises:
        UnsupportedError: the release does not look for one, or a backend cannot read it.
    """
    rules = settings.rules
    if rules.aligns == "no":
        raise UnsupportedError(
            "this release of vLLM does not find a block for models with states",
            hint="give a later version (0.10.0 or newer), or 0.9.2+v0",
        )
    first = next(iter(used.values()))
    backends = distinct_backends(used, settings)
    token = entry_bytes(first, settings)
    step = _step(first, backends, block, settings)
    if settings.state_mode == "all":
        step = lcm(step, needs.chunk)
        wanted = step * cdiv(cdiv(needs.page, token), step)
    else:
        step = lcm(step, needs.alignment)
        wanted = step * cdiv(needs.page, step * token)
    if rules.all_kernels_align:
        kernels = lcm(*(backend.smallest for backend in backends))
        wanted = kernels * cdiv(wanted, kernels)
    found = max(block, wanted)
    if found != block:
        _check_readable(found, backends)
    return found


def _check_readable(block: int, backends: list[Backend]) -> None:
    for backend in backends:
        if not backend.takes(block):
            raise UnsupportedError(
                f"vLLM raises the block to {format_count(block)} tokens, which {backend.name}"
                " cannot read",
                hint="choose another KV cache dtype",
            )


def _step(first: Attention, backends: list[Backend], block: int, settings: Settings) -> int:
    """Return the least tokens that a hybrid's block is a multiple of, chunks apart."""
    step = _kernel_step(first, backends, block, settings)
    return max(step, settings.rules.mla_alignment) if isinstance(first.cache, Mla) else step


def _kernel_step(first: Attention, backends: list[Backend], block: int, settings: Settings) -> int:
    """Return the tokens of which the kernels want a multiple, or are taken to want one."""
    if settings.rules.aligns == "kernels":
        return max(backends[0].smallest, block)
    blackwell = settings.card.family == BLACKWELL and settings.release.line < (0, 18)
    if settings.release.line < (0, 13):
        blackwell = settings.card.capability == (10, 0)
    if blackwell and settings.release.number >= (0, 11, 2):
        backend = (settings.attention_backend or "FLASHINFER").upper()
        if getattr(first.cache, "head_dim", 0) == _FLASHINFER_WIDE and backend == "FLASHINFER":
            return 2 * DEFAULT_BLOCK_SIZE
    return DEFAULT_BLOCK_SIZE


def covering_plain_layers(block: int, used: Used) -> int:
    """Raise the block as vLLM does where TurboQuant leaves the layers at either end plain.

    platforms/interface.py, _align_heterogeneous_kv_block_size: asks the first layer's backend,
    which packs nothing, so that quantised rows count one byte an element there.

    Raises:
        UnsupportedError: chunked layers, which TurboQuant does not read.
    """
    if any(isinstance(cache, ChunkedAttention) for cache in used):
        raise UnsupportedError(
            "TurboQuant does not read chunked layers", hint="choose another KV cache dtype"
        )
    sizes = [sum(row.count * row.width for row in a.cache.rows()) for a in used.values()]
    smallest = _FLASH_ATTENTION_BLOCK  # it reads the layers at the ends
    step = max(smallest, block)
    plain, packed = 2 * sizes[0], sizes[0]
    return max(block, step * cdiv(plain * smallest, step * packed))
