"""Every pool that SGLang's own classes built: its tensors, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.engines import start_up_log
from tests.conftest import ABSENT, SHARED
from tests.engines.sglang.record import shared_rows
from tests.engines.sglang.rows import PLENTY, planned, rows
from tests.engines.sglang.tally import LEFT_OUT, tallies

_GIB = 2**30


def _named(*pools: str) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in rows() if row["pool"] in pools]


def test_every_pool_is_equal() -> None:
    """In all and by tensor, to the byte; none is left out."""
    found = tallies().values()

    assert not [line for tally in found for line in tally.wrong]
    assert sum(tally.equal for tally in found) == len(rows()) == 22
    assert not LEFT_OUT


@pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in rows()])
def test_wastes_conserve(row: dict[str, Any]) -> None:
    """What a request holds is used or wasted, at any length, with each cause named."""
    plan = planned(row)

    for n in (1, 63, 64, 65, 127, 128, 129, 500):
        for wastes in (plan.wastes(n), plan.wastes_at_admission(n)):
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert plan.wastes(n).reserved_bytes == plan.bytes_held(n)
        assert plan.wastes_at_admission(n).reserved_bytes == plan.bytes_needed(n)


@pytest.mark.parametrize(
    "row", _named("MHATokenToKVPool", "MLATokenToKVPool", "MLATokenToKVPoolFP4", "DSATokenToKVPool")
)
def test_the_log_says_what_the_pool_says(row: dict[str, Any]) -> None:
    """The sizes in the start-up line are the pool's own, in GiB with two decimals."""
    (line, *_) = start_up_log(planned(row), PLENTY)

    assert f"#tokens: {row['built_with']['size']}," in line
    if ", V size" in line:
        k, v = row["held"]["k_buffer"], row["held"]["v_buffer"]
        assert line.endswith(f"K size: {k / _GIB:.2f} GB, V size: {v / _GIB:.2f} GB")
    else:
        assert line.endswith(f"KV size: {row['reported'] / _GIB:.2f} GB")


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_compact_form_has_every_pool() -> None:
    assert shared_rows() == rows()
