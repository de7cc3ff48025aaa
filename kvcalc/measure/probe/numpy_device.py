"""A CPU without torch: numpy arrays as storages, and a decode step over gathered blocks.

Before a step, numbers that differ by token, request, layer and side are laid into the blocks of the
tables, all requests first; after it every row is gathered by its table and compared. Two requests
that shared a block, a table that missed one or tensors cut otherwise than the plan says would show.
"""

from __future__ import annotations

import gc
import platform
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from kvcalc.core.errors import InvalidValueError, UnavailableError
from kvcalc.core.units import format_bytes, format_count
from kvcalc.measure.probe.device import (
    Attention,
    Contiguous,
    Decoded,
    DeviceFacts,
    Paged,
    Reading,
    available,
    resident,
)

__all__ = ["NumpyDevice"]

_NAME = "numpy: attention over gathered blocks"
_WHOLE = "numpy: attention over one piece a request"
_WORDS = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32}
_LAZY = "the system counts pages for this process once they are written, after the pool was read"
_PERIOD = 251  # a prime, so that neighbours differ; whole numbers below it are exact in bfloat16

Array = NDArray[Any]
Rows = Callable[[], Array]
"""The rows of one request in one layer, [tokens, row], gathered anew at each call."""


class NumpyDevice:
    """The memory of this machine, in arrays.

    Args:
        kernel: auto or sdpa; the others are torch's.
    """

    def __init__(self, kernel: str = "auto") -> None:
        if kernel not in ("auto", "sdpa"):
            raise UnavailableError(
                f"kernel {kernel} does not run here: torch is not installed",
                hint="pip install 'kvcalc[probe]', or leave out --kernel",
            )
        # Weak, so that what is still counted after a release is what something else keeps.
        self._held: WeakValueDictionary[int, Array] = WeakValueDictionary()
        self.facts = DeviceFacts(
            kind="cpu",
            name=f"CPU ({platform.machine()}), by numpy",
            caching=False,
            unified=True,
            versions={"numpy": np.__version__},
        )

    def settle(self) -> None:
        """Collect what nothing holds any more."""
        gc.collect()

    def reset_peak(self) -> None:
        """Nothing to do: each step watches its own peak."""

    def read(self) -> Reading:
        """Return bytes of the arrays, and what the system counts."""
        storage = sum(array.nbytes for array in self._held.values())
        return Reading(storage=storage, process=resident(), free=available())

    def allocate(self, size: int) -> Array:
        """Allocate bytes of zeros, as engines allocate their pools."""
        try:
            array = np.zeros(size, dtype=np.uint8)
        except (MemoryError, ValueError) as error:  # the second: more than any address
            raise UnavailableError(
                f"numpy has no room for {format_bytes(size)}: {error}"[:400],
                hint="--limit takes less",
            ) from None
        self._held[id(array)] = array
        return array

    def release(self, handles: tuple[Array, ...]) -> None:
        """Leave arrays to their last holder, who is about to let them go."""

    def decode_paged(self, step: Paged) -> Decoded:
        """Lay numbers into the blocks, run a step over them, and read them back."""
        layers = list(_paged_layers(step))
        laid = _Laid(step.attention, step.lengths)
        _lay_paged(step, layers, laid)
        gathered = [
            [_gather(side, table, length, step.attention) for side in layer]
            for layer in layers
            for table, length in zip(step.tables, step.lengths, strict=True)
        ]
        return _decoded(_NAME, step, gathered, laid, "blocks")

    def decode_contiguous(self, step: Contiguous) -> Decoded:
        """The same over one piece a request."""
        a, shape = step.attention, (-1, step.slots, _width(step.attention))
        layers = [
            tuple(_words(side, a).reshape(shape) for side in pair)
            for pair in zip(step.keys, step.values, strict=True)
        ]
        laid = _Laid(a, step.lengths)
        for (number, layer), (request, length) in product(
            enumerate(layers), enumerate(step.lengths)
        ):
            for side, rows in enumerate(layer):
                rows[request, :length] = laid.rows(length, number, request, side)
        gathered = [
            [_slice(side, request, length) for side in layer]
            for layer in layers
            for request, length in enumerate(step.lengths)
        ]
        return _decoded(_WHOLE, step, gathered, laid, "pieces")


# --------------------------------------------------------------------- layouts


def _width(attention: Attention) -> int:
    return attention.num_kv_heads * attention.head_dim


def _words(array: Array, attention: Attention) -> Array:
    """Return an array of bytes as words of the cache's dtype; numpy has no bfloat16 itself."""
    return array.view(_WORDS[attention.dtype])


def _paged_layers(step: Paged) -> Iterator[tuple[Array, Array]]:
    """Yield K and V of each layer as [blocks, block, row]."""
    a = step.attention
    shape = (-1, a.block_size, _width(a))
    for layer in range(a.layers):
        if step.apart:
            pair = step.tensors[layer], step.tensors[a.layers + layer]
            keys, values = (_words(side, a).reshape(shape) for side in pair)
        else:
            keys, values = _words(step.tensors[layer], a).reshape(2, *shape)
        yield keys, values


def _gather(side: Array, table: tuple[int, ...], length: int, attention: Attention) -> Rows:
    """Return what copies the blocks of one request, and of them the tokens that are read."""

    def rows() -> Array:
        whole = side[list(table)].reshape(-1, _width(attention))
        return whole[-length:] if attention.window else whole[:length]

    return rows


def _slice(side: Array, request: int, length: int) -> Rows:
    return lambda: side[request, :length]


# --------------------------------------------------------------------- numbers


class _Laid:
    """Rows of whole numbers up to 250, as words: a tape that each request reads from its place."""

    def __init__(self, attention: Attention, lengths: tuple[int, ...]) -> None:
        width = _width(attention)
        cycle = np.arange(width + _PERIOD, dtype=np.float32) % _PERIOD
        words = _as_words(cycle, attention.dtype)
        rows = np.lib.stride_tricks.sliding_window_view(words, width)
        self._tape: Array = rows[7 * np.arange(max(lengths) + _PERIOD) % _PERIOD]

    def rows(self, length: int, layer: int, request: int, side: int) -> Array:
        """Return what a request has in one side of a layer, [tokens, row]."""
        start = (31 * layer + 83 * request + 127 * side) % _PERIOD
        return self._tape[start : start + length]


def _as_words(values: Array, dtype: str) -> Array:
    if dtype == "bfloat16":  # its 16 bits are the upper half of a float32
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype).view(_WORDS[dtype])


def _as_floats(words: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        wide = words.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return words.view(dtype).astype(np.float32)


def _lay_paged(step: Paged, layers: list[tuple[Array, Array]], laid: _Laid) -> None:
    a = step.attention
    for number, layer in enumerate(layers):
        for request, (table, length) in enumerate(zip(step.tables, step.lengths, strict=True)):
            # Of a window, the last tokens of the blocks that are held.
            skipped = len(table) * a.block_size - length if a.window else 0
            for side, blocks in enumerate(layer):
                _fill(blocks, table, laid.rows(length, number, request, side), skipped)


def _fill(blocks: Array, table: tuple[int, ...], rows: Array, skipped: int) -> None:
    """Put rows into the blocks of a table, behind `skipped` slots."""
    size = blocks.shape[1]
    for number, block in enumerate(table):
        start = max(number * size, skipped)
        end = min((number + 1) * size, skipped + len(rows))
        if start < end:
            at = number * size
            blocks[block, start - at : end - at] = rows[start - skipped : end - skipped]


# --------------------------------------------------------------------- the step


def _decoded(
    name: str, step: Paged | Contiguous, gathered: list[list[Rows]], laid: _Laid, what: str
) -> Decoded:
    """Run a step over what is gathered, then compare it with what was laid."""
    a, lengths = step.attention, step.lengths
    shape = (a.num_kv_heads, a.num_heads // a.num_kv_heads, a.head_dim)
    query = np.ones(shape, dtype=np.float32)
    workspace = _watched(lambda: [_attend(query, keys(), values(), a) for keys, values in gathered])
    wrong = total = 0
    for place, sides in enumerate(gathered):
        layer, request = divmod(place, len(lengths))
        for side, rows in enumerate(sides):
            found = rows()
            wanted = laid.rows(lengths[request], layer, request, side)
            total += wanted.nbytes
            if found.shape != wanted.shape:
                wrong += wanted.nbytes
            elif not np.array_equal(found, wanted):
                wrong += int((found != wanted).sum()) * found.itemsize
    if wrong:
        raise InvalidValueError(
            f"of {format_count(total)} B that were laid into {what}, {format_count(wrong)} B were"
            " read back otherwise",
            hint="this is a fault of kvcalc's layout: please report the model and settings",
        )
    note = f"what was laid into the {what} was read back, {format_count(total)} B of a step"
    return Decoded(name, workspace, (note, _LAZY))


def _attend(query: Array, keys: Array, values: Array, attention: Attention) -> Array:
    """Attend from one query to [tokens, row]; as a float32 computation, which CPUs have."""
    heads = (-1, attention.num_kv_heads, attention.head_dim)
    k = _as_floats(keys, attention.dtype).reshape(heads).transpose(1, 2, 0)
    scores = query @ k / np.sqrt(np.float32(attention.head_dim))
    del k
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    v = _as_floats(values, attention.dtype).reshape(heads).transpose(1, 0, 2)
    found: Array = scores @ v
    return found


def _watched(run: Callable[[], object]) -> int | None:
    """Run a step and return the most that it held at once, as Python's tracer of memory tells."""
    own = not tracemalloc.is_tracing()
    if own:
        tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        if own:
            tracemalloc.stop()
    return max(0, peak - before)
