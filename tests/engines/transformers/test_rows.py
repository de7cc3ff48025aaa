"""Every question that the real transformers was asked: bytes of tensors, storages and counters."""

from __future__ import annotations

import pytest

from tests.conftest import ABSENT, SHARED
from tests.engines.transformers.record import shared_rows
from tests.engines.transformers.rows import rows
from tests.engines.transformers.tally import LEFT_OUT, tallies


@pytest.mark.parametrize("cache", ["dynamic", "static", "quantized", "none"])
def test_every_answer_is_equal(cache: str) -> None:
    """To the byte, after a prefill and after a step; reserved = used + wastes on every row."""
    assert not tallies()[cache].wrong


def test_as_many_are_compared_as_were_asked() -> None:
    """Every row is compared, refused by both, or left out for a reason that is the oracle's."""
    found = tallies()

    assert {name: (t.answers, t.refusals) for name, t in found.items()} == {
        "dynamic": (454, 0),
        "static": (183, 3),
        "quantized": (12, 0),
        "none": (0, 0),
    }
    reasons = sum((t.left_out for t in found.values()), start=found["none"].left_out.copy())
    assert set(reasons) <= set(LEFT_OUT.values())


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_compact_form_has_every_question() -> None:
    """The shared answers, put into compact form anew, are what the tests compare with."""
    assert shared_rows({}) == rows()
