"""Where a condition turns, of numbers in order: the one search of lengths, budgets and settings."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["first_that", "last_that"]


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return an n of low..high - 1 that holds while n + 1 does not.

    Args:
        holds: what is asked of a number between the two.
        low: taken to hold.
        high: taken not to hold.
    """
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def first_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return an n of low + 1..high that holds while n - 1 does not.

    Args:
        holds: what is asked of a number between the two.
        low: taken not to hold.
        high: taken to hold.
    """
    return last_that(lambda n: not holds(n), low, high) + 1
