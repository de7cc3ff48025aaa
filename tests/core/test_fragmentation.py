"""Free memory, its largest hole, and what fits: the seed's scene and its edges."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.fragmentation import Memory, fragmentation, other_reading
from kvcalc.answers.results import Fragmentation
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.units import parse_bytes
from tests.core import builders
from tests.core.builders import GIB, model, plan_of

MIB = 2**20
PLAN = plan_of(builders.ARTICLE, max_model_len=8192)  # 512 MiB a sequence


def _frag(**memory: Any) -> Fragmentation:
    return fragmentation(PLAN, Memory(**memory))


def test_the_seed() -> None:
    """2 GiB fail with 15 GiB free: four sessions against thirty, 7.5 times the request."""
    found = _frag(
        free_bytes=15 * GIB, largest_free_bytes=parse_bytes("1.9GiB"), request_bytes=2 * GIB
    )

    assert not found.fits_contiguous
    assert found.fits_paged
    assert found.free_over_request == 7.5
    assert found.sequences_of_max.bytes == 536_870_912
    assert found.sequences_of_max.in_request == 4
    assert found.sequences_of_max.in_free == 30
    # Only the largest hole is known: three fit it for sure, 26 more if the others are as good.
    assert found.sequences_of_max.in_holes is None
    assert found.sequences_of_max.bounds == (3, 29)
    assert found.holes is None
    assert found.external_fragmentation_ratio == pytest.approx(1 - 1.9 / 15)
    assert found.unusable_ratio is None
    assert found.unusable_bounds == (1.0, 1.0)
    assert "7.5 times" in found.verdict
    assert "30 sequences of 8,192 tokens" in found.verdict
    assert "hold 4," in found.verdict
    assert "Fragmented" in found.verdict
    assert "2 GiB" in found.verdict
    assert found.explain == ()


def test_the_seed_in_decimal() -> None:
    """In GB it is three against twenty-seven."""
    found = _frag(free_bytes=15 * 10**9, largest_free_bytes=19 * 10**8, request_bytes=2 * 10**9)

    assert found.sequences_of_max.in_request == 3
    assert found.sequences_of_max.in_free == 27
    assert found.free_over_request == 7.5


def test_every_hole_given() -> None:
    """Eight holes of 1.875 GiB: three sequences in each, and no bounds apart."""
    found = _frag(holes=(GIB * 15 // 8,) * 8, request_bytes=2 * GIB)

    assert (found.free_bytes, found.largest_free_bytes, found.holes) == (15 * GIB, GIB * 15 // 8, 8)
    assert found.sequences_of_max.in_holes == 24
    assert found.sequences_of_max.bounds == (24, 24)
    assert found.unusable_ratio == 1.0


def test_holes_as_good_as_they_can_be() -> None:
    assert _frag(holes=(GIB // 2,) * 30).sequences_of_max.in_holes == 30
    assert _frag(holes=(GIB // 2 - 1,) * 30).sequences_of_max.in_holes == 0


def test_holes_smaller_than_the_request() -> None:
    """Gorman's unusable free space: the share of the free bytes in holes that are too small."""
    found = _frag(holes=(600, 400, 300, 100), request_bytes=400)

    assert found.unusable_ratio == 400 / 1400
    assert found.unusable_bounds == (400 / 1400, 400 / 1400)
    assert found.fits_contiguous
    assert found.external_fragmentation_ratio == 1 - 600 / 1400


@pytest.mark.parametrize(
    ("holes", "request_bytes", "unusable"),
    [
        ((8,), 8, 0.0),
        ((8,), 9, 1.0),
        ((1,) * 8, 1, 0.0),
        ((1,) * 8, 2, 1.0),
        ((4, 4), 8, 1.0),
        ((4, 2, 2), 4, 0.5),
        ((0, 4), 4, 0.0),
    ],
)
def test_linux_orders(holes: tuple[int, ...], request_bytes: int, unusable: float) -> None:
    """As the kernel's index: 0 where every free page could serve, 1 where none could."""
    found = _frag(holes=holes, request_bytes=request_bytes)

    assert found.unusable_ratio == unusable
    assert found.fits_contiguous == (unusable < 1)
    assert found.fits_paged == (request_bytes <= sum(holes))


@pytest.mark.parametrize(
    ("free", "largest", "request_bytes", "bounds"),
    [
        # One hole takes it all.
        (10, 10, 4, (0.0, 0.0)),
        # The other 4 are one more hole of 4, or smaller ones.
        (10, 6, 4, (0.0, 0.4)),
        # The other 3 reach the request in no way.
        (9, 6, 4, (3 / 9, 3 / 9)),
        # 9 beside: two holes of 4, no larger than the largest, and 1 left over.
        (13, 4, 4, (1 / 13, 9 / 13)),
        (20, 6, 4, (0.0, 14 / 20)),
        (10, 3, 4, (1.0, 1.0)),
        (10, 4, 11, (1.0, 1.0)),
    ],
)
def test_bounds_of_what_is_unusable(
    free: int, largest: int, request_bytes: int, bounds: tuple[float, float]
) -> None:
    """Without the holes the index lies between the best and the worst they could be."""
    found = _frag(free_bytes=free, largest_free_bytes=largest, request_bytes=request_bytes)

    assert found.unusable_bounds == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("free", "largest", "ratio"),
    [
        (4_174_528_000, 130_023_424, "0.9689"),
        (140_066_816, 5_242_880, "0.9626"),
        (226_436_096, 10_731_520, "0.9526"),
        (157_652_992, 23_068_672, "0.8537"),
        (6_268_730_880, 104_857_600, "0.9833"),
        (8_032_493_056, 104_857_600, "0.9869"),
    ],
)
def test_real_snapshots(free: int, largest: int, ratio: str) -> None:
    """1 - largest / free of public PyTorch snapshots; a request of 256 MiB finds nothing usable."""
    found = _frag(free_bytes=free, largest_free_bytes=largest, request_bytes=256 * MIB)

    assert found.external_fragmentation_ratio is not None
    assert f"{found.external_fragmentation_ratio:.4f}" == ratio
    assert found.unusable_bounds == (1.0, 1.0)
    assert not found.fits_contiguous


def test_shortage() -> None:
    """More is asked for than is free: that is no fragmentation."""
    found = _frag(free_bytes=GIB, largest_free_bytes=GIB, request_bytes=3 * GIB)

    assert not found.fits_contiguous
    assert not found.fits_paged
    assert found.verdict.startswith("Shortage, not fragmentation")
    assert "2 GiB is missing" in found.verdict
    assert found.sequences_of_max.bounds == (2, 2)


def test_fits() -> None:
    found = _frag(free_bytes=3 * GIB, largest_free_bytes=2 * GIB, request_bytes=2 * GIB)

    assert found.fits_contiguous
    assert found.verdict.startswith("Fits: a request of 2 GiB goes into the largest hole of 2 GiB")


def test_the_verdict_names_the_level() -> None:
    """Driver-free memory has no largest hole, and every verdict says so."""
    for free, largest in ((GIB, GIB), (4 * GIB, GIB), (4 * GIB, 4 * GIB)):
        verdict = _frag(free_bytes=free, largest_free_bytes=largest, request_bytes=2 * GIB).verdict
        assert "driver-free memory" in verdict


def test_nothing_is_free() -> None:
    for memory in ({"free_bytes": 0, "largest_free_bytes": 0}, {"holes": ()}, {"holes": (0, 0)}):
        found = _frag(**memory, request_bytes=1)

        assert found.external_fragmentation_ratio is None
        assert found.unusable_ratio is None
        assert found.unusable_bounds == (0.0, 0.0)
        assert found.free_over_request == 0.0
        assert found.sequences_of_max.bounds == (0, 0)
        assert found.verdict.startswith("Shortage")


def test_one_sequence_by_default() -> None:
    """Without a request it is one sequence of the maximum length, state included."""
    plan = plan_of(builders.QWEN35_27B, max_model_len=8192)
    found = fragmentation(plan, Memory(holes=(GIB,)), explain=True)

    assert found.request_bytes == 690_814_976
    assert found.sequences_of_max.in_request == 1
    assert found.model == "test"
    assert any("sequence of 8,192 tokens" in line for line in found.explain)


def test_empty_holes_are_not_counted() -> None:
    assert _frag(holes=(0, 5, 0, 7)).holes == 2


def test_times_are_rounded_down() -> None:
    found = _frag(free_bytes=3999, largest_free_bytes=999, request_bytes=1000)
    assert "3.99 times" in found.verdict
    found = _frag(free_bytes=4000, largest_free_bytes=999, request_bytes=1000)
    assert "is 4 times" in found.verdict


def test_units_of_the_verdict() -> None:
    memory = Memory(free_bytes=4 * 10**9, largest_free_bytes=10**9, request_bytes=2 * 10**9)

    assert "4 GB free" in fragmentation(PLAN, memory, units="decimal").verdict
    assert "GiB" in fragmentation(PLAN, memory).verdict


@pytest.mark.parametrize(
    "memory", [{}, {"free_bytes": 1}, {"largest_free_bytes": 1}, {"request_bytes": 1}]
)
def test_too_little_is_said(memory: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="both needed") as caught:
        _frag(**memory)

    assert "--holes" in caught.value.hint


@pytest.mark.parametrize("beside", [{"free_bytes": 9}, {"largest_free_bytes": 6}])
def test_holes_that_contradict(beside: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="add up to 12 B, the largest being 7 B"):
        _frag(holes=(5, 7), **beside)
    assert _frag(holes=(5, 7), free_bytes=12, largest_free_bytes=7).free_bytes == 12


@pytest.mark.parametrize(
    ("memory", "match"),
    [
        ({"holes": (5, -1)}, "a hole is smaller than nothing"),
        ({"free_bytes": 5, "largest_free_bytes": 6}, "cannot exceed the free memory"),
        ({"free_bytes": -5, "largest_free_bytes": -6}, "largest hole"),
        ({"free_bytes": 5, "largest_free_bytes": -1}, "largest hole"),
        ({"free_bytes": 5, "largest_free_bytes": 0}, "not reported"),
        ({"free_bytes": 5, "largest_free_bytes": 5, "request_bytes": 0}, "at least one byte"),
        ({"free_bytes": 5, "largest_free_bytes": 5, "request_bytes": -1}, "at least one byte"),
    ],
)
def test_sizes_that_cannot_be(memory: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        _frag(**memory)


def test_a_model_that_keeps_nothing() -> None:
    with pytest.raises(InvalidValueError, match="at least one byte"):
        fragmentation(plan_of(model((1, ()))), Memory(holes=(5,), request_bytes=5))


def test_the_other_reading() -> None:
    """GiB read as GB: four and thirty become three and twenty-seven."""
    binary = _frag(holes=(15 * GIB,), request_bytes=2 * GIB)
    decimal = _frag(holes=(15 * 10**9,), request_bytes=2 * 10**9)

    (line,) = other_reading(binary, decimal)
    assert line.endswith("the request holds 3 sequences and the free memory 27")
    assert other_reading(binary, binary) == []


def test_the_other_reading_of_the_fit() -> None:
    """Where the fit itself changes, it is said."""
    small = _frag(free_bytes=1000, largest_free_bytes=900, request_bytes=950)
    large = _frag(free_bytes=1000, largest_free_bytes=1000, request_bytes=950)

    assert other_reading(small, large)[0].endswith(", and it fits in one piece")
    assert other_reading(large, small)[0].endswith(", and it does not fit in one piece")


def test_only_the_paged_fit_changes() -> None:
    """In one piece it fits neither way; the line must not say that this changes."""
    short = _frag(free_bytes=900, largest_free_bytes=500, request_bytes=950)
    enough = _frag(free_bytes=1000, largest_free_bytes=500, request_bytes=950)

    lines = other_reading(short, enough)
    assert len(lines) == 1
    assert "in one piece" not in lines[0]


def test_less_than_a_sequence_in_blocks() -> None:
    """Where the request holds no whole sequence, none are counted: 0 against 0 says nothing."""
    found = _frag(holes=(3 * 2**20, 2 * 2**20), request_bytes=4 * 2**20)

    assert found.fits_paged
    assert "0 sequences" not in found.verdict
    assert (
        "One whole sequence of 8,192 tokens takes 512 MiB, more than the request and more than"
        in (found.verdict)
    )
    found = _frag(holes=(GIB, GIB), request_bytes=GIB + 1)
    assert "would hold 4 sequences" in found.verdict
    found = _frag(holes=(GIB // 4,) * 8, request_bytes=GIB // 4 + 1)
    assert "would take 512 MiB, more than the request." in found.verdict
