"""Continuous batching: blocks, sectors, and how many of them a memory leaves room for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.api import load_model, shape_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.conftest import ABSENT, SHARED

HERE = Path(__file__).parent
ROWS = [json.loads(line) for line in (HERE / "memory_rows.jsonl").read_text("utf-8").splitlines()]


def _paged(name: str, tp: int = 1, **args: Any) -> CachePlan:
    return plan(
        load_model(name),
        Deployment(
            engine="transformers",
            tensor_parallel_size=tp,
            max_model_len=8192,
            engine_args={"cache_implementation": "paged", **args},
        ),
    )


def test_sectors_are_those_of_the_real_handler() -> None:
    """PagedAttentionMemoryHandler of the 5.24.0 wheel gave each of these numbers."""
    for row in ROWS:
        found = _paged(row["model"], row["tp"], **row["args"])
        pools = found.rank.pools
        if len(pools) == 1:
            sector, sectors = pools[0].unit_bytes, (pools[0].units or 0) - 2
        else:
            sector = found.rank.fixed_bytes // 2
            (told,) = [note for note in found.notes if " sectors, " in note]
            sectors = int(told.split()[0].replace(",", ""))
        assert (sector, sectors) == (row["sector"], row["sectors"]), row

    assert len(ROWS) >= 96


def test_a_block_holds_a_page_of_every_layer() -> None:
    """Llama-3.1-8B: 256 tokens x 32 layers x 2 x 8 x 128 x 2 B; two more sectors are trash."""
    found = _paged("llama-3.1-8b", num_blocks=100)

    assert found.block_size == 256
    assert found.block_bytes == 256 * 131072
    assert found.capacity().num_blocks == 102
    assert found.capacity().max_sequences == 100 // 32
    assert found.wastes(300).tail_bytes == (512 - 300) * 131072


def test_kinds_have_blocks_of_their_own() -> None:
    """Gemma-3-27B: 52 window layers and 10 full ones; a window's ring is of whole pages."""
    found = _paged("gemma-3-27b", page_size=256)
    page = 2 * 16 * 128 * 2 * 256

    assert {g.layers: g.unit_bytes for g in found.rank.groups()} == {52: 52 * page, 10: 10 * page}
    assert found.rank.fixed_bytes == 2 * 260 * page
    assert found.bytes_held(8192) == 4 * 52 * page + 32 * 10 * page
    assert found.reuse_tokens is None


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3.5-27b", "llama-4-scout"])
def test_other_layers_are_refused(name: str) -> None:
    """group_layers_by_attn_type knows full and sliding attention alone, of one shape."""
    with pytest.raises(UnsupportedError, match="continuous batching"):
        _paged(name)


def test_heads_must_divide() -> None:
    with pytest.raises(UnsupportedError, match="8 KV heads cannot be split over 3 ranks"):
        _paged("llama-3.1-8b", 3)


def test_two_names_of_one_size() -> None:
    with pytest.raises(InvalidValueError, match="less than 4"):
        _paged("llama-3.1-8b", page_size=2)
    with pytest.raises(InvalidValueError, match="both say how many"):
        _paged("llama-3.1-8b", num_blocks=2, available_memory=2**34)
    with pytest.raises(UnsupportedError, match="activations"):
        _paged("llama-3.1-8b", available_memory=2**34)
    with pytest.raises(UnsupportedError, match="leave no room"):
        _paged("llama-3.1-8b", available_memory=2**20, hidden_size=4096, vocab_size=128256)


def test_a_log_with_and_without_split_heads() -> None:
    """hf-214: Qwen3-32B on four GPUs got 814 blocks of 256 as if each had all heads, then 3,258.

    One memory for blocks gives both: a fourth of the heads is a fourth of the block.
    """
    model = shape_model(64, 8, 128)

    def block(tp: int) -> int:
        deployment = Deployment(
            engine="transformers",
            tensor_parallel_size=tp,
            max_model_len=8192,
            engine_args={"cache_implementation": "paged"},
        )
        return plan(model, deployment).rank.pools[0].unit_bytes

    memory = 3258 * block(4)
    assert memory // block(1) == 814
    assert 814 * 256 == 208384


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced() -> None:
    """The list has one case of transformers."""
    path = SHARED / "logs" / "cases.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [c for c in cases if c["engine"].startswith("transformers") and c.get("verifiable")]

    assert [(c["id"], c["blocks"], c["tokens"]) for c in found] == [("hf-214", 814, 208384)]
