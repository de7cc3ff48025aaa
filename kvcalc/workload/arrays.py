"""From arrays of prompt and output tokens to a histogram, at about the speed of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import add, index
from typing import TYPE_CHECKING, Any, SupportsIndex

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["lengths_from_arrays"]

_CHUNK = 2**17  # requests; two columns and their sum stay in the cache, 3 MiB in all
_BINS = 2**22  # totals below are counted in an array (32 MiB at most), others in a dict
_EXACT = 2**62  # from here a sum of two could leave int64


def lengths_from_arrays(
    prompts: Sequence[int] | npt.NDArray[np.integer[Any]],
    outputs: Sequence[int] | npt.NDArray[np.integer[Any]],
) -> Lengths:
    """Count requests by total length.

    Args:
        prompts: prompt tokens of each request: a numpy array of any integer dtype (or what numpy
            takes for one), or a sequence of ints.
        outputs: output tokens of the same requests, in the same shape.

    Raises:
        InvalidValueError: different shapes, values that are not integers, or a negative one.

    >>> lengths_from_arrays([100, 100, 7], [5, 5, 0]).pairs
    ((7, 1), (105, 2))
    """
    if hasattr(prompts, "dtype") or hasattr(outputs, "dtype"):
        return _of_arrays(prompts, outputs)
    if len(prompts) != len(outputs):
        raise _shapes(f"{len(prompts)} requests", f"{len(outputs)} requests")
    return Lengths(Counter(map(add, _ints("prompt", prompts), _ints("output", outputs))))


_HINT = "give whole numbers of tokens, 0 or more"


def _ints(name: str, values: Sequence[int]) -> Iterator[int]:
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise InvalidValueError(
                f"the {name} tokens of request {i} are a {type(value).__name__}, not an int",
                hint=_HINT,
            )
        number = index(value)  # a plain int of a numpy scalar
        if number < 0:
            raise _negative(name, i, number)
        yield number


def _shapes(prompts: str, outputs: str) -> InvalidValueError:
    return InvalidValueError(
        f"prompts have {prompts}, outputs {outputs}", hint="give both for the same requests"
    )


def _negative(name: str, place: int, value: int) -> InvalidValueError:
    return InvalidValueError(
        f"the {name} tokens of request {place} are negative: {value}", hint=_HINT
    )


def _of_arrays(prompts: Any, outputs: Any) -> Lengths:
    import numpy as np  # here, because it takes longer to import than most calls to run

    pair = (np.asarray(prompts), np.asarray(outputs))
    if pair[0].shape != pair[1].shape:
        raise _shapes(f"shape {pair[0].shape}", f"shape {pair[1].shape}")
    size = pair[0].size
    if not size:  # before the dtype: an empty list becomes an array of floats
        return Lengths({})
    for name, array in zip(("prompt", "output"), pair, strict=True):
        if array.dtype.kind not in "iu":
            raise InvalidValueError(
                f"the {name} tokens are {array.dtype}, not integers", hint=_HINT
            )
    p, o = (array.reshape(-1) for array in pair)
    bins = np.zeros(0, np.int64)
    others: Counter[int] = Counter()
    buffer = np.empty(min(_CHUNK, size), np.int64)
    one = np.int64(1)
    for start in range(0, size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        # Wraps a uint64 from 2^63 to a negative, which then takes the exact way below.
        a, b = (x[chunk].astype(np.int64, copy=False) for x in (p, o))
        # One pass over each: no value has more binary digits than this, and none is negative if
        # this is not, so no minimum and no maximum need be sought.
        bits = int(np.bitwise_or.reduce(a) | np.bitwise_or.reduce(b))
        if bits < 0 or bits >= _EXACT:
            others.update(_exact_sums(p[chunk].tolist(), o[chunk].tolist(), start))
            continue
        total = np.add(a, b, out=buffer[: len(a)])
        need = min(2 << bits.bit_length(), _BINS)
        if need == _BINS:
            lengths, counts = np.unique(total[total >= _BINS], return_counts=True)
            others.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
            total = total[total < _BINS]
        if need > len(bins):
            bins = np.concatenate((bins, np.zeros(need - len(bins), np.int64)))
        # Not bincount: it makes a histogram a chunk, which costs more than the chunk if lengths
        # are long. Both take some 1.1 ns a request here (add.at since numpy 1.25).
        np.add.at(bins, total, one)
    used = np.flatnonzero(bins)
    found: dict[int, int] = dict(zip(used.tolist(), bins[used].tolist(), strict=True))
    for tokens, count in others.items():  # small totals too, from chunks that had a huge one
        found[tokens] = found.get(tokens, 0) + count
    return Lengths(found)


def _exact_sums(prompts: list[int], outputs: list[int], start: int) -> list[int]:
    for name, values in (("prompt", prompts), ("output", outputs)):
        for place, value in enumerate(values, start):
            if value < 0:
                raise _negative(name, place, value)
    return list(map(add, prompts, outputs))
