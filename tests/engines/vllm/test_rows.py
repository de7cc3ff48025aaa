"""Every question that the real vLLM was asked: groups, blocks, tokens and refusals are equal."""

from __future__ import annotations

import pytest

from tests.conftest import ABSENT, SHARED
from tests.engines.vllm.record import shared_rows
from tests.engines.vllm.rows import rows
from tests.engines.vllm.tally import FILES, tallies


@pytest.mark.parametrize("name", FILES)
def test_every_answer_is_equal(name: str) -> None:
    """Sized or refused, each answer is kvcalc's own; what is left out is the oracle's fault."""
    for tally in tallies(name).values():
        assert not tally.wrong


@pytest.mark.parametrize(
    ("name", "release", "answers", "refusals", "left_out"),
    [
        ("rows.jsonl", "0.33.0", 4283, 600, 22),
        ("rows.jsonl", "0.26.0", 248, 15, 0),
        ("rows.jsonl", "0.19.1", 335, 15, 3),
        ("more_rows.jsonl", "0.33.0", 5000, 600, 20),
    ],
)
def test_as_many_are_compared_as_were_asked(
    name: str, release: str, answers: int, refusals: int, left_out: int
) -> None:
    """At least so many answers and refusals, at most so many left out."""
    found = [tally for (version, _), tally in tallies(name).items() if version == release]

    assert sum(tally.answers for tally in found) >= answers
    assert sum(tally.refusals for tally in found) >= refusals
    assert sum(sum(tally.left_out.values()) for tally in found) <= left_out


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_compact_form_has_every_question() -> None:
    """The shared answers, put into compact form anew, are what the tests compare with."""
    assert shared_rows({}) == rows("rows.jsonl")
