"""Laws of holes, one a test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.answers.fragmentation import Memory, fragmentation
from tests.core.builders import ARTICLE, plan_of
from tests.property.strategies import SETTINGS

SIZE = 65_536
PLAN = plan_of(ARTICLE, max_model_len=1, block_size=1)
HOLES = st.lists(
    st.one_of(st.sampled_from((0, 1, SIZE - 1, SIZE, SIZE + 1)), st.integers(0, 5 * SIZE)),
    min_size=1,
    max_size=12,
)
REQUESTS = st.one_of(st.just(SIZE), st.integers(2, 6 * SIZE))


@SETTINGS
@given(HOLES, REQUESTS)
def test_bounds_hold_whatever_the_holes(holes: list[int], request: int) -> None:
    """What is said from free and largest alone contains what the holes say."""
    exact = fragmentation(PLAN, Memory(holes=tuple(holes), request_bytes=request))
    guess = fragmentation(
        PLAN,
        Memory(free_bytes=sum(holes), largest_free_bytes=max(holes), request_bytes=request),
    )
    in_holes, bounds = exact.sequences_of_max.in_holes, guess.sequences_of_max.bounds

    assert in_holes is not None
    assert bounds[0] <= in_holes <= bounds[1]
    low, high = guess.unusable_bounds
    found = exact.unusable_bounds[0]
    assert low - 1e-12 <= found <= high + 1e-12
    assert (exact.fits_contiguous, exact.fits_paged) == (guess.fits_contiguous, guess.fits_paged)


@SETTINGS
@given(HOLES, REQUESTS)
def test_ratios_lie_between_nothing_and_all(holes: list[int], request: int) -> None:
    found = fragmentation(PLAN, Memory(holes=tuple(holes), request_bytes=request))

    for ratio in (found.external_fragmentation_ratio, found.unusable_ratio):
        assert ratio is None or 0.0 <= ratio <= 1.0
    assert (found.unusable_ratio == 1.0) == (sum(holes) > 0 and max(holes) < request)


@SETTINGS
@given(HOLES, REQUESTS)
def test_holes_hold_no_more_than_their_sum(holes: list[int], request: int) -> None:
    found = fragmentation(PLAN, Memory(holes=tuple(holes), request_bytes=request))
    sequences = found.sequences_of_max

    assert sequences.in_holes is not None
    assert sequences.in_holes == sum(hole // SIZE for hole in holes)
    assert sequences.in_holes <= sequences.in_free
    assert not found.fits_contiguous or found.fits_paged


@SETTINGS
@given(HOLES, REQUESTS)
def test_the_order_of_holes_changes_nothing(holes: list[int], request: int) -> None:
    turned = tuple(sorted(holes, reverse=True))

    assert fragmentation(PLAN, Memory(holes=turned, request_bytes=request)) == fragmentation(
        PLAN, Memory(holes=tuple(holes), request_bytes=request)
    )
