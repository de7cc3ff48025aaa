"""Every question that the real mlx-lm was asked: what caches hold, and their most on the way."""

from __future__ import annotations

from tests.engines.mlx_lm.rows import LEFT_OUT, rows
from tests.engines.mlx_lm.tally import tally


def test_every_answer_is_equal() -> None:
    """Held or refused, each answer is kvcalc's own; reserved = used + wastes on every row."""
    assert not tally().wrong


def test_as_many_are_compared_as_were_asked() -> None:
    found = tally()

    assert (found.answers, found.refusals) == (1392, 60)
    assert sum(found.left_out.values()) == 4
    assert set(found.left_out) <= set(LEFT_OUT.values())
    assert len({row["model"] for row in rows()}) == 125
