"""Histograms from arrays: equal to counting one by one, whatever the dtype and the range."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.workload import traces
from kvcalc.workload.traces import lengths_from_arrays

DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8", ">u8"]


def column(dtype: str, size: int, seed: int, bits: int) -> np.ndarray[Any, Any]:
    top = min(int(np.iinfo(dtype).max), 2**bits - 1)
    drawn = np.random.default_rng(seed).integers(0, top, size, "u8", endpoint=True)
    return drawn.astype(dtype)


@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.integers(0, 200),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 8, 14, 19, 20, 21, 22, 24, 40, 61, 62, 63, 64]),
    st.integers(0, 64),
)
@settings(max_examples=250, deadline=None)
def test_equals_counting(first: str, second: str, size: int, seed: int, one: int, two: int) -> None:
    p, o = column(first, size, seed, one), column(second, size, seed + 1, two)
    wanted = Lengths(Counter(a + b for a, b in zip(p.tolist(), o.tolist(), strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_CHUNK", 64)  # several chunks, of different ranges
        found = lengths_from_arrays(p, o)
    assert found == wanted
    assert all(type(n) is int and type(c) is int for n, c in found)
    assert lengths_from_arrays(p.tolist(), o.tolist()) == wanted
    assert lengths_from_arrays(list(p), list(o)) == wanted


def test_the_edges_of_the_ways_to_count() -> None:
    edges = [0, 2**21 - 1, 2**21, 2**22 - 1, 2**22, 2**62 - 1, 2**62, 2**63 - 1]
    for a in edges:
        for b in edges:
            assert lengths_from_arrays(np.array([a, 5]), np.array([b, 5])).pairs == tuple(
                sorted(Counter([a + b, 10]).items())
            )
    most = np.array([2**64 - 1], np.uint64)
    assert lengths_from_arrays(most, most).pairs == ((2**65 - 2, 1),)
    byte = np.array([255], np.uint8)
    assert lengths_from_arrays(byte, byte).pairs == ((510, 1),)


def test_views_and_shapes() -> None:
    p = np.arange(1000).reshape(10, 100)
    o = np.full((10, 100), 3)
    assert lengths_from_arrays(p[::2, ::3], o[::2, ::3]).requests == 170
    assert lengths_from_arrays(p[0, ::-1], [3] * 100).pairs[0] == (3, 1)
    assert lengths_from_arrays(np.array([], np.int32), np.array([])) == Lengths({})
    assert lengths_from_arrays([], []) == Lengths({})
    assert lengths_from_arrays([], np.array([], np.int64)) == Lengths({})
    scalars: Any = (1, np.uint8(255))  # 255 + 1 in uint8 would be 0
    assert lengths_from_arrays(scalars, [2, 1]).pairs == ((3, 1), (256, 1))


def test_the_arrays_are_left_alone() -> None:
    p, o = np.array([1, 2**40]), np.array([2, 2])
    lengths_from_arrays(p, o)
    assert p.tolist() == [1, 2**40] and o.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("prompts", "outputs", "message"),
    [
        (np.array([1, 2]), np.array([1]), r"prompts have shape \(2,\), outputs shape \(1,\)"),
        (np.array([[1, 2]]), np.array([1, 2]), "shape"),
        ([1, 2], [1], "prompts have 2 requests, outputs 1 requests"),
        (np.array([1.0]), np.array([1]), "prompt tokens are float64, not integers"),
        (np.array([1]), np.array([True]), "output tokens are bool, not integers"),
        (np.array([1]), np.array(["1"]), "output tokens are <U1, not integers"),
        (np.array([2**70], object), np.array([1]), "prompt tokens are object"),
        ([1.0], [1], "prompt tokens of request 0 are a float"),
        ([1], [True], "output tokens of request 0 are a bool"),
        ([1, 1], [1, None], "output tokens of request 1 are a NoneType"),
        ([1, -7], [1, 9], "prompt tokens of request 1 are negative: -7"),
        (np.array([5, 9]), np.array([5, -2]), "output tokens of request 1 are negative: -2"),
        (np.array([-128], np.int8), np.array([127], np.uint8), "negative: -128"),
        (np.array([-1]), np.array([2**63], np.uint64), "prompt tokens of request 0 are negative"),
    ],
)  # fmt: skip
def test_refusals(prompts: Any, outputs: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        lengths_from_arrays(prompts, outputs)
    assert caught.value.hint


def test_the_place_of_a_negative_in_a_later_chunk() -> None:
    p = np.zeros(200_000, np.int32)
    p[150_000] = -1
    with pytest.raises(InvalidValueError, match="request 150000 are negative: -1"):
        lengths_from_arrays(p, np.full(200_000, 5))
