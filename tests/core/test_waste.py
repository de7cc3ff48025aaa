from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.results import Totals
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.waste import WASTE_NAMES, Wastes

SOME = Wastes(
    reserved_bytes=100,
    used_bytes=30,
    reservation_bytes=20,
    future_bytes=10,
    tail_bytes=5,
    retention_bytes=7,
    page_padding_bytes=9,
    group_padding_bytes=8,
    pool_overhead_bytes=6,
    external_bytes=5,
)


def test_eight_causes() -> None:
    """Every cause has a field, a meaning and a place in the order."""
    assert list(SOME.by_name().values()) == [20, 10, 5, 7, 9, 8, 6, 5]
    assert list(WASTE_NAMES) == [
        name.removesuffix("_bytes") for name in Wastes.__struct_fields__[2:]
    ]
    assert SOME.waste_bytes == 70
    assert SOME.waste_ratio == 0.7


def test_nothing_reserved() -> None:
    assert Wastes(reserved_bytes=0, used_bytes=0).waste_ratio == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"reserved_bytes": 10, "used_bytes": 9},
        {"reserved_bytes": 10, "used_bytes": 10, "tail_bytes": 1},
        {"reserved_bytes": 9, "used_bytes": 10, "tail_bytes": -1},
        {"reserved_bytes": -1, "used_bytes": -1},
    ],
)
def test_wastes_add_up(fields: Any) -> None:
    """What does not add up, or is below zero, cannot be made."""
    with pytest.raises(InvalidValueError, match="waste"):
        Wastes(**fields)


def test_total_and_times() -> None:
    assert Wastes.total([SOME, SOME, SOME]) == SOME.times(3)
    assert Wastes.total([]) == Wastes(reserved_bytes=0, used_bytes=0) == SOME.times(0)


def test_totals_say_the_same() -> None:
    totals = Totals.of(SOME)

    assert (totals.reserved_bytes, totals.used_bytes, totals.waste_bytes) == (100, 30, 70)
    assert totals.waste_ratio == 0.7
    assert {f"{name}_bytes": size for name, size in SOME.by_name().items()} == {
        name: getattr(totals.waste, name) for name in totals.waste.__struct_fields__
    }
