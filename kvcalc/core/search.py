"""Where a condition turns, of numbers in order: the one search of lengths, budgets and settings."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["first_near", "first_that", "last_that"]


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


def first_near(holds: Callable[[int], bool], guess: int, high: int) -> int:
    """Return an n of 1..high that holds while n - 1 does not, with few questions near a guess.

    Args:
        holds: what is asked of a number; all above the one that is looked for hold.
        guess: where the search begins, from 1 to high.
        high: taken to hold.
    """
    step = 1
    if holds(guess):
        high, low = guess, guess - 1
        while low > 0 and holds(low):
            high, step = low, step * _WIDER
            low = max(0, low - step)
        return first_that(holds, low, high)
    low = guess
    while low + step < high and not holds(low + step):
        low, step = low + step, step * _WIDER
    return first_that(holds, low, min(high, low + step))


_WIDER = 16
"""Times as far as the step before; a guess is off by nothing, or by a unit of memory."""
