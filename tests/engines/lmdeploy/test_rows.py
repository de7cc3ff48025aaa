"""Every question that the real LMDeploy was asked: blocks, their bytes, their number, states."""

from __future__ import annotations

import pytest

from tests.conftest import ABSENT, SHARED
from tests.engines.lmdeploy.record import shared_rows
from tests.engines.lmdeploy.rows import LEFT_OUT, rows
from tests.engines.lmdeploy.tally import tallies


def test_every_answer_is_equal() -> None:
    """Sized or refused, each answer is kvcalc's own; reserved = used + wastes on every row."""
    for tally in tallies().values():
        assert not tally.wrong


def test_as_many_are_compared_as_were_asked() -> None:
    found = tallies().values()

    assert sum(tally.answers for tally in found) == 352
    assert sum(tally.refusals for tally in found) == 19
    assert sum(sum(tally.left_out.values()) for tally in found) == 4
    assert {why for tally in found for why in tally.left_out} <= set(LEFT_OUT.values())


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_compact_form_has_every_question() -> None:
    """The shared answers, put into compact form anew, are what the tests compare with."""
    assert shared_rows({}) == rows()
