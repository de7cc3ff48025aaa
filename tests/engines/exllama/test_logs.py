"""Reports of the field: each is reproduced, or listed with the reason why it cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcalc.api import shape_model
from kvcalc.core.attention import FullAttention
from tests.conftest import ABSENT, SHARED
from tests.engines.exllama.models import layers, planned

REPRODUCED = ("exl2-210",)
LEFT_OUT = {
    "exl3-212": "its 1.65 GiB of pages are a rounded account, not a log (12 layers of 2 heads x 256"
    " at 4 bits are 1.6875), and neither slots nor drafted tokens of its 2.26 GiB of states are"
    " told",
}


def _cases() -> dict[str, dict[str, Any]]:
    path = SHARED / "logs" / "cases.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {case["id"]: case for case in found if case["id"].startswith("exl")}


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_case_has_its_place() -> None:
    assert sorted(_cases()) == sorted([*REPRODUCED, *LEFT_OUT])


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_whole_length_is_allocated_at_once() -> None:
    """Yi-34B-200K, 60 layers of 8 heads x 128: 240 kB a token, about 46 GB for 200,000."""
    case = _cases()["exl2-210"]
    found = planned(
        "exllamav2", shape_model(60, 8, 128), longest=case["max_model_len"], generator="basic"
    )
    (rows,) = found.rank.pools

    assert rows.unit_bytes == case["implied_bytes_per_token"] == 245_760
    assert rows.total_bytes(rows.units or 0) == 200_000 * 245_760
    assert round(rows.total_bytes(rows.units or 0) / 2**30) == 46


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_what_is_told_of_the_other_case() -> None:
    """Qwen3.8-Flash-Next: Q4 pages of 12 layers; within 3 % of the account."""
    case = _cases()["exl3-212"]
    model = layers(12, FullAttention(num_kv_heads=2, head_dim=256))
    found = planned("exllamav3", model, longest=case["max_model_len"], cache_quant=4)

    assert found.block_bytes == 256 * case["formula_bytes_per_token"]
    total = found.rank.pools[0].total_bytes(1024)
    assert total == int(1.6875 * 2**30)
    assert abs(total / 2**30 / 1.65 - 1) < 0.03
