"""How many tokens MLC-LLM gives its cache: cpp/serve/config.cc, EstimateMemoryUsageOnMode."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import format_count
from kvcalc.engines.mlc_llm.layers import Shape
from kvcalc.engines.mlc_llm.settings import Settings

__all__ = ["Parts", "parts_of", "token_price", "total_tokens"]

_LOCAL_TOKENS = 8192
_MIB = 2**20


class Parts(NamedTuple):
    """Bytes beside the weights as MLC-LLM estimates them, in floating point as there."""

    token: float
    aux: float
    model: float
    logits: float


def token_price(shape: Shape) -> float:
    """Return what a token is priced at: K and V of 2 bytes an element, and 1.25 B of page table.

    An MLA row is priced as if K and V were apart, and a float32 cache as if it were float16.
    """
    return shape.head_dim * shape.heads * shape.layers * 4 + 1.25


def parts_of(settings: Settings, shape: Shape) -> Parts | None:
    """Return the estimate; None where the size of the vocabulary was not told."""
    if settings.vocab_size is None:
        return None
    seqs, chunk, dim = settings.sequences, settings.chunk, shape.head_dim
    hidden = dim * shape.query_heads
    aux = (seqs + 1) * 88 + chunk * (shape.query_heads + 1) * 8
    aux += chunk * dim * (shape.query_heads + shape.heads) * 4 + 48 * _MIB
    return Parts(
        token=token_price(shape),
        aux=aux,
        model=chunk * 4 + seqs * 4 + (chunk * 2 + seqs) * hidden * 2,
        logits=seqs * 20 + seqs * settings.vocab_size * 16.125,
    )


def total_tokens(settings: Settings, shape: Shape, notes: list[str]) -> int | None:
    """Return max_total_sequence_length; None where it depends on bytes that were not told.

    Raises:
        UnsupportedError: the card does not hold the weights and workspaces.
    """
    if settings.total is not None:
        return settings.total
    found = _fitting(settings, shape)
    limits: tuple[int | None, ...]
    longest = settings.max_model_len if settings.context is not None else None
    match settings.mode:
        case "local":
            limits = (found, longest, _LOCAL_TOKENS)
        case "interactive":
            limits = (found, longest, None)
        case _ if found is None:
            return None
        case _:
            many = settings.sequences * longest if longest is not None else None
            limits = (found, many, None)
    total = min((limit for limit in limits if limit is not None), default=None)
    if total is None:
        return None
    notes.append(f"mode {settings.mode} gives the cache {format_count(total)} tokens in all")
    if found is None:
        notes.append("the card is taken to hold them: what it has for them was not told")
    elif total < found:
        notes.append(f"memory would do for {format_count(found)}")
    return total


def _fitting(settings: Settings, shape: Shape) -> int | None:
    """Return the tokens that the card holds; None where something of the estimate was not told."""
    parts = parts_of(settings, shape)
    if parts is None or settings.memory is None or settings.params_bytes is None:
        return None
    temporary = 2 * settings.temp_buffer_bytes
    usable = settings.memory * settings.utilization
    left = usable - settings.params_bytes - temporary - parts.aux - parts.model - parts.logits
    tokens = int(left / parts.token)
    if tokens <= 0:
        buffers = temporary + parts.aux + parts.model + parts.logits
        raise UnsupportedError(
            "Insufficient GPU memory error: The available single GPU memory is"
            f" {usable / _MIB:.3f} MB, which is less than the sum of model weight size"
            f" ({settings.params_bytes / _MIB:.3f} MB) and temporary buffer size"
            f" ({buffers / _MIB:.3f} MB)",
            hint="raise gpu_memory_utilization, use more ranks or a smaller prefill_chunk_size",
        )
    return tokens
