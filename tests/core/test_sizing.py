"""A budget in states and tokens: what is taken first, and fractions of a byte a token."""

from __future__ import annotations

import pytest

from kvcalc.core.sizing import TokenBudget


@pytest.mark.parametrize(
    ("budget", "tokens", "window", "requests"),
    [
        (1000 + 7086.75 * 2560, 2560, 256, 8),
        (1000 + 7086.75 * 2560 - 1, 2304, 0, 8),
        (1000 + 7086.75 * 12, 0, 0, 0),
        (999, 0, 0, 0),
    ],
)
def test_a_token_at_a_fraction_of_a_byte(
    budget: float, tokens: int, window: int, requests: int
) -> None:
    """DeepSeek-V4 in SGLang: 7,086.75 B a token once the states of requests are paid for."""
    sizing = TokenBudget(
        page_tokens=256,
        token_bytes=0,
        price=7086.75,
        window_ratio=0.1,
        paid_bytes=1000,
        requests=8,
    )
    counts = sizing.counts(int(budget))

    assert counts == (tokens, window, 0, requests)
    assert counts.of("requests") == requests


def test_requests_are_bounded_by_the_tokens() -> None:
    """Two tokens a request at least (resolve_max_num_reqs)."""
    sizing = TokenBudget(page_tokens=1, token_bytes=10, requests=8)

    assert [sizing.counts(budget).requests for budget in (40, 100, 1000)] == [2, 5, 8]
