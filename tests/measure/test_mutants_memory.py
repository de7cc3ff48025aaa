"""Snapshots, out-of-memory texts and statistics with faults in them."""

from __future__ import annotations

from tests.guards import HANG
from tests.measure.mutants_memory import mutants, slowest


def test_mutants() -> None:
    """Each is answered or refused in one line, and none takes a second."""
    seconds, what = slowest(300)
    assert seconds < HANG, what


def test_they_are_the_same_each_time() -> None:
    """A failing one can be made again by its name, and each kind is among them."""
    made = list(mutants(60))
    assert made == list(mutants(60))
    assert {kind for kind, _, _ in made} == {"snapshot", "oom", "jax", "bfc"}
