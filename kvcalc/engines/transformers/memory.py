"""How much of the free memory becomes sectors: transformers 5.24 PagedAttentionMemoryHandler."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv
from kvcalc.engines.transformers.settings import Settings

__all__ = ["Memory", "Shape", "memory_of", "sectors_in"]

_DEFAULT_BATCH_TOKENS = 8192
_DEFAULT_REQUESTS = 1024
_DEFAULT_BLOCKS_PER_REQUEST = 32
_INT32, _INT64, _FLOAT32 = 4, 8, 4
_INPUT_ROWS = 7
"""Rows of int32 of the tensor that carries a batch's inputs (input_outputs.py, bulk_input)."""


class Shape(NamedTuple):
    """What the cache's geometry is on one rank.

    Attributes:
        heads, head_dim, itemsize: KV heads, their size, bytes an element.
        kinds: kinds of layers (full, sliding).
        windows: one of them is sliding.
        sector_bytes, sector_tokens: a sector, and the most tokens that one can hold.
    """

    heads: int
    head_dim: int
    itemsize: int
    kinds: int
    windows: bool
    sector_bytes: int
    sector_tokens: int


class Memory(NamedTuple):
    """What competes with sectors, in bytes.

    Attributes:
        fixed: trash sectors, and rows of logits.
        batch: input and activation tensors of all batch tokens.
        sector: a sector with what reading it back takes.
        mask_fixed: attention masks of the batch's own tokens.
        mask_sector: what a sector adds to the masks.
    """

    fixed: int
    batch: int
    sector: int
    mask_fixed: int
    mask_sector: int


def memory_of(model: ModelSpec, shape: Shape, settings: Settings) -> Memory:
    """Return what sectors compete with.

    Raises:
        UnsupportedError: the hidden or vocabulary size was not given.
    """
    given = settings.arguments
    hidden, vocab = given.number("hidden_size"), given.number("vocab_size")
    query_heads = model.num_attention_heads
    if hidden is None or vocab is None or query_heads is None:
        raise NotModelledError(
            "available_memory pays for activations too, and the layers do not tell their width",
            hint="give hidden_size and vocab_size of config.json in engine_args",
        )
    query_heads //= settings.tp
    flash = (given.text("attn_implementation") or "flash_attention_2").startswith("flash")
    tokens = given.number("max_batch_tokens") or _DEFAULT_BATCH_TOKENS
    doubled = given.switch("use_async_batching")
    ios = 2 if (flash if doubled is None else doubled) else 1
    rows_out = 2 if given.switch("return_logprobs") else 1
    table = given.number("max_blocks_per_request", 0)
    if shape.windows or not flash:
        table = 0  # the fast decode path is not available
    elif table is None:
        table = _DEFAULT_BLOCKS_PER_REQUEST
    size = shape.itemsize
    at_peak = 2 * shape.heads if flash else 2 * query_heads + shape.heads
    sliced = given.switch("logits_to_keep") is not False
    logits_row = hidden * size + vocab * _FLOAT32
    attention = size * (hidden + (query_heads + 2 * shape.heads + at_peak) * shape.head_dim)
    peak = attention if sliced else max(logits_row, attention)
    inputs = ios * (
        (_INPUT_ROWS + rows_out) * _INT32 + shape.kinds * table * _INT32 + 2 * shape.kinds * _INT64
    )
    requests = given.number("max_requests_per_batch") or _DEFAULT_REQUESTS
    read_back = at_peak * shape.head_dim * size + ios * shape.kinds * _INT64
    masks = 0 if flash else ios * (2 if shape.windows else 1) * size * tokens
    return Memory(
        fixed=2 * shape.sector_bytes + (requests * logits_row if sliced else 0),
        batch=tokens * (peak + inputs),
        sector=shape.sector_bytes + shape.sector_tokens * read_back,
        mask_fixed=masks * tokens,
        mask_sector=masks * shape.sector_tokens,
    )


def sectors_in(available: int, memory: Memory) -> int:
    """Return the sectors that so many bytes leave room for.

    Raises:
        UnsupportedError: not one; transformers refuses to start.
    """
    count = (available - memory.fixed - memory.batch) // memory.sector
    masks = memory.mask_fixed + memory.mask_sector * count
    count -= cdiv(masks, memory.sector + memory.mask_sector)
    if count < 1:
        raise UnsupportedError(
            f"{available} B leave no room for a sector beside {memory.fixed + memory.batch} B of"
            " activations",
            hint="give more memory or fewer max_batch_tokens",
        )
    return count
