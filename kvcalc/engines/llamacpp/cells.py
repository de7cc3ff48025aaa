"""How many cells a context has, and whose they are.

llama.cpp b11434 src/llama-context.cpp (llama_context::llama_context), src/llama-kv-cache-iswa.cpp,
src/llama-kv-cache-dsv4.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import cdiv

__all__ = ["COMPRESSED_PAD", "Cells", "Wanted", "compressed", "context", "padded", "windowed"]

COMPRESSED_PAD = 256


class Wanted(NamedTuple):
    """The context as it was asked for."""

    n_ctx: int
    n_seq_max: int
    unified: bool
    n_batch: int
    n_ubatch: int
    pad: int
    streams: bool = True
    pads_first: bool = True


class Cells(NamedTuple):
    """The context as it comes out.

    Attributes:
        per_sequence: cells that one sequence can use (n_ctx_seq).
        streams: pools of so many cells; one that all sequences share, or one each.
        sequences: sequences at once (n_seq_max).
        unified: the sequences share one pool.
        ubatch: tokens of one step.
        longest: tokens that one sequence may have; fewer than its cells where slots are capped.
    """

    per_sequence: int
    streams: int
    sequences: int
    unified: bool
    ubatch: int
    longest: int

    @property
    def total(self) -> int:
        """Cells of all streams (n_ctx)."""
        return self.per_sequence * self.streams


def padded(tokens: int, multiple: int) -> int:
    """Round up to a multiple.

    >>> padded(5000, 256)
    5120
    """
    return cdiv(tokens, multiple) * multiple


def context(wanted: Wanted) -> Cells:
    """Return the cells that a context gets.

    Raises:
        UnsupportedError: fewer tokens than sequences, which llama.cpp aborts on.

    >>> context(Wanted(10000, 3, False, 2048, 512, 256)).total
    10752
    """
    n_batch = min(wanted.n_ctx, wanted.n_batch)
    ubatch = min(n_batch, wanted.n_ubatch or wanted.n_batch)
    if wanted.n_ctx < wanted.n_seq_max:
        raise UnsupportedError(
            f"a context of {wanted.n_ctx} tokens for {wanted.n_seq_max} sequences aborts llama.cpp",
            hint="ask for at least one token a sequence",
        )
    n_ctx = padded(wanted.n_ctx, wanted.pad)
    if wanted.unified or not wanted.streams:
        return Cells(n_ctx, 1, wanted.n_seq_max, True, ubatch, n_ctx)
    seqs = wanted.n_seq_max
    share = n_ctx // seqs if wanted.pads_first else cdiv(wanted.n_ctx, seqs)
    per_sequence = padded(share, wanted.pad)
    return Cells(per_sequence, seqs, seqs, False, ubatch, per_sequence)


def windowed(cells: Cells, window: int, pad: int, *, unified: bool, full: bool) -> int:
    """Return the cells of a stream of sliding layers: the windows and one step's tokens."""
    if full:
        return cells.per_sequence
    windows = window * (cells.sequences if unified else 1)
    return padded(min(cells.per_sequence, windows + cells.ubatch), pad)


def compressed(cells: Cells, ratio: int) -> int:
    """Return the cells of a stream of entries that each stand for `ratio` tokens."""
    return padded(max(1, cdiv(cells.per_sequence, ratio)), COMPRESSED_PAD)
