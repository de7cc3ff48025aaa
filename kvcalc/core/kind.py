"""What every kind of cache answers, and the values that it answers with.

A kind says which rows it keeps for one token (`rows`), for which tokens of a sequence (`span`),
which state of fixed size a sequence keeps (`states`), and what one rank of a tensor-parallel group
keeps of it (`on_rank`). It knows nothing of dtypes, blocks or engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

from kvcalc.core.dtypes import Row
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.values import Positive, Value

__all__ = [
    "All",
    "CacheBase",
    "Chunks",
    "EveryNth",
    "HeadSplit",
    "Once",
    "Span",
    "StateTensor",
    "Windowed",
    "divide",
    "split_heads",
]

HeadSplit = Callable[[int, int], int]
"""(heads, tensor parallel size) -> heads that one rank keeps."""


class All(Value, frozen=True, kw_only=True):
    """Every token of the sequence."""


class Windowed(Value, frozen=True, kw_only=True):
    """The last `tokens` tokens."""

    tokens: Positive


class Chunks(Value, frozen=True, kw_only=True):
    """The tokens of the current chunk; a new chunk starts every `tokens` tokens."""

    tokens: Positive


class EveryNth(Value, frozen=True, kw_only=True):
    """One entry for every `ratio` tokens, once those are complete."""

    ratio: Positive


class Once(Value, frozen=True, kw_only=True):
    """`tokens` rows written once a sequence, whatever its length (an encoder's output)."""

    tokens: Positive


Span = All | Windowed | Chunks | EveryNth | Once


class StateTensor(Value, frozen=True, kw_only=True):
    """A tensor of fixed size that one sequence keeps in one layer.

    Attributes:
        role: `conv` (shape is kernel - 1 by channels), `recurrent`, `shift` (RWKV's last tokens)
            or `compressor` (the window that a compressed cache has not yet folded).
        shape: elements by dimension.
        dtype: set where the model itself fixes it, whatever the model dtype.
    """

    role: Literal["conv", "recurrent", "shift", "compressor"]
    shape: tuple[int, ...]
    dtype: str | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        product = 1
        for size in self.shape:
            product *= size
        return product


def split_heads(heads: int, tensor_parallel_size: int) -> int:
    """Return the heads one rank keeps when they divide, or are replicated, evenly.

    The rule of vLLM 0.33 (config/model.py, get_num_kv_heads) without its silent floor; engines
    that round otherwise (SGLang down, TensorRT-LLM up) pass a rule of their own.

    Raises:
        UnsupportedError: neither number divides the other.

    >>> split_heads(8, 2), split_heads(8, 16)
    (4, 1)
    """
    if heads % tensor_parallel_size == 0:
        return heads // tensor_parallel_size
    if tensor_parallel_size % heads == 0:
        return 1
    raise UnsupportedError(
        f"{heads} heads cannot be split over {tensor_parallel_size} ranks evenly",
        hint="choose a tensor parallel size that divides the heads, or a multiple of them",
        code="heads-over-ranks",
        setting="tensor_parallel_size",
    )


def divide(total: int, ranks: int, what: str) -> int:
    """Return total / ranks.

    Raises:
        UnsupportedError: it does not divide; `what` names the things.
    """
    if total % ranks:
        raise UnsupportedError(
            f"{total} {what} cannot be split over {ranks} ranks",
            hint=f"choose a tensor parallel size that divides {total}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    return total // ranks


class CacheBase(Value, frozen=True, kw_only=True, tag_field="kind"):
    """What every kind answers; the defaults are those of a kind that keeps nothing."""

    def rows(self) -> tuple[Row, ...]:
        """Return the rows kept for one token (or one entry of a compressed cache)."""
        return ()

    @property
    def span(self) -> Span:
        """Which tokens the rows are kept for."""
        return All()

    def states(self) -> tuple[StateTensor, ...]:
        """Return the tensors of fixed size that a sequence keeps."""
        return ()

    def describe(self) -> str:
        """Return the shape in few words: `8 KV heads x 128`."""
        raise NotImplementedError

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        """Return what one of `tp` ranks keeps; by default all of it.

        Raises:
            UnsupportedError: the heads cannot be split so.
        """
        raise NotImplementedError

    def replicas(self, tp: int) -> int:
        """How many of `tp` ranks keep the same rows (1: every rank keeps its own heads)."""
        return tp

    @property
    def kind(self) -> str:
        """The kind's name, as presets spell it."""
        return str(self.__struct_config__.tag)
