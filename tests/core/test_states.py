"""Three engines, one state, three sizes."""

from __future__ import annotations

import pytest

from kvcalc.core.kind import StateTensor
from kvcalc.core.states import (
    LLAMA_CPP_STATES,
    STATE_LAYOUTS,
    TRANSFORMERS_STATES,
    VLLM_STATES,
    StateLayout,
)
from tests.core import builders


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (VLLM_STATES, 153_944_064),
        (TRANSFORMERS_STATES, 154_927_104),
        (LLAMA_CPP_STATES, 156_893_184),
    ],
    ids=lambda value: getattr(value, "engine", None),
)
def test_qwen35_27b(layout: StateLayout, expected: int) -> None:
    """48 layers of 48 x 128 x 128 in 32 bits; three or four rows of 10,240, in 16 or 32 bits."""
    assert builders.QWEN35_27B.state_bytes(layout) == expected


CONV = StateTensor(role="conv", shape=(3, 10))
RECURRENT = StateTensor(role="recurrent", shape=(2, 5))
PINNED = StateTensor(role="recurrent", shape=(2, 5), dtype="float32")
SHIFT = StateTensor(role="shift", shape=(2, 5))


@pytest.mark.parametrize(
    ("layout", "conv", "recurrent", "pinned", "shift"),
    [
        (VLLM_STATES, 60, 20, 40, 20),
        (TRANSFORMERS_STATES, 80, 40, 40, 20),
        (LLAMA_CPP_STATES, 120, 40, 40, 40),
        (StateLayout(engine="x", recurrent_dtype="bfloat16", source="test"), 60, 20, 20, 20),
    ],
)
def test_which_dtype_wins(
    layout: StateLayout, conv: int, recurrent: int, pinned: int, shift: int
) -> None:
    """The layout's, else its recurrent one, else the state's own, else the model's."""
    assert layout.bytes_of(CONV, "bfloat16") == conv
    assert layout.bytes_of(RECURRENT, "bfloat16") == recurrent
    assert layout.bytes_of(PINNED, "bfloat16") == pinned
    assert layout.bytes_of(SHIFT, "bfloat16") == shift


def test_elements() -> None:
    assert StateTensor(role="recurrent", shape=(48, 128, 128)).elements == 786_432
    assert StateTensor(role="recurrent", shape=()).elements == 1


def test_layouts_differ_and_have_sources() -> None:
    assert len({layout.engine for layout in STATE_LAYOUTS}) == len(STATE_LAYOUTS)
    assert all(layout.source for layout in STATE_LAYOUTS)
