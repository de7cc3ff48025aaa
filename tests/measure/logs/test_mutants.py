"""Damaged logs are answered or refused, each within a second."""

from __future__ import annotations

import pytest

from tests.measure.mutants import LONGEST_SECONDS, mutants, tried

_MUTANTS = list(mutants(300, seed=1))


@pytest.mark.parametrize("number", range(10))
def test_no_traceback_and_none_is_slow(number: int) -> None:
    """300 of them; `python -m tests.measure.mutants 10000` tries as many as one likes."""
    for place, text in enumerate(_MUTANTS[number::10]):
        assert tried(text, known=place % 2 == 0) < LONGEST_SECONDS
