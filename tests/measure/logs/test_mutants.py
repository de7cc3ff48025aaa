"""Damaged logs are answered or refused, none of them for ever."""

from __future__ import annotations

import pytest

from tests.guards import HANG
from tests.measure.mutants import mutants, tried

_MUTANTS = list(mutants(300, seed=1))


@pytest.mark.parametrize("number", range(10))
def test_no_traceback_and_none_hangs(number: int) -> None:
    """300 of them; `python -m tests.measure.mutants 10000` tries as many as one likes."""
    for place, text in enumerate(_MUTANTS[number::10]):
        assert tried(text, known=place % 2 == 0) < HANG
