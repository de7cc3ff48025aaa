"""Broken metrics pages: 300 here, 10,000 by `python -m tests.measure.mutants_metrics 10000`."""

from __future__ import annotations

from tests.guards import HANG
from tests.measure.mutants_metrics import mutants, tried


def test_no_page_breaks_the_reader() -> None:
    """Another exception than a KvcalcError fails the test by itself."""
    assert max(tried(page) for page in mutants(300, seed=1)) < HANG
