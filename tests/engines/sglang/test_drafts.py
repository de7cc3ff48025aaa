"""What a draft's weights take of a card, by release: its own embedding and head, and when."""

from __future__ import annotations

from typing import Any

import pytest

import kvcalc
from kvcalc.answers.capacity import CapacityAnswer, TermBounds

_GIB = 2**30
_TABLES = {
    # model -> (rows of the vocabulary, hidden size, tables)
    "qwen3.5-27b": (248320, 5120, 2),
    "qwen3.5-0.8b": (248320, 1024, 1),  # its config ties them
}


def _answer(name: str, version: str | None, tp: int = 1, **given: Any) -> CapacityAnswer:
    args: dict[str, Any] = {"mamba_radix_cache_strategy": "extra_buffer"}
    deployment = kvcalc.Deployment(
        engine="sglang",
        gpu="h200",
        engine_version=version,
        max_model_len=32768,
        tensor_parallel_size=tp,
        engine_args={"mem_fraction_static": 0.85, **args, **given},
    )
    return kvcalc.capacity(kvcalc.load_model(name), deployment)


def _weights(found: CapacityAnswer) -> dict[str, TermBounds]:
    return {t.label or t.name: t for t in found.budget[0].terms if t.name == "weights"}


@pytest.mark.parametrize("name", _TABLES)
@pytest.mark.parametrize("tp", [1, 2])
def test_tables_are_there_when_the_cache_is_sized(name: str, tp: int) -> None:
    """Since 0.5.14 the cache does without them: 4.74 GiB of Qwen3.5-27B on one GPU (log)."""
    rows, hidden, count = _TABLES[name]
    plain = _answer(name, "0.5.19", tp=tp)
    drafted = _answer(name, "0.5.19", tp=tp, speculative_algorithm="NEXTN")
    draft = _weights(drafted)["draft"]

    assert draft.low_bytes == draft.high_bytes == count * rows * hidden * 2 // tp
    taken = plain.budget[0].cache_bytes[1] - drafted.budget[0].cache_bytes[1]
    assert taken >= draft.low_bytes


def test_a_draft_that_comes_after_the_cache_takes_none_of_it() -> None:
    """Up to 0.5.13 the cache was sized before the draft was loaded, which lies beside it."""
    plain = _answer("qwen3.5-27b", "0.5.13")
    drafted = _answer("qwen3.5-27b", "0.5.13", speculative_algorithm="NEXTN")
    later = _answer("qwen3.5-27b", "0.5.14", speculative_algorithm="NEXTN")

    assert drafted.budget[0].cache_bytes[1] >= plain.budget[0].cache_bytes[1]
    draft = _weights(drafted)["draft"]
    assert 0.5 * _GIB < draft.low_bytes < _GIB  # its layers stay
    assert draft.high_bytes > 5 * _GIB  # with both tables, until the target's are shared
    gone = drafted.budget[0].cache_bytes[1] - later.budget[0].cache_bytes[1]
    assert gone > 5 * _GIB


def test_a_checkpoint_that_has_both_tables_counts_them_once() -> None:
    """DeepSeek-V3's own layer brings embedding and head: they are part of the checkpoint."""
    drafted = _answer("deepseek-v3", None, tp=8, speculative_algorithm="EAGLE")
    plain = _answer("deepseek-v3", None, tp=8)

    assert "draft" not in _weights(drafted)
    grown = _weights(drafted)["weights"].low_bytes - _weights(plain)["weights"].low_bytes
    assert 1.2 * _GIB < grown < 3 * _GIB


def test_groups_of_dp_attention_keep_an_attention_each() -> None:
    """11.4 billion parameters of MLA in fp8 are whole on each rank, not an eighth of them."""
    shared = _weights(_answer("deepseek-v3", None, tp=8))["weights"]
    apart = _weights(_answer("deepseek-v3", None, tp=8, enable_dp_attention=True, dp_size=8))
    grown = (
        apart["weights"].low_bytes - shared.low_bytes,
        (apart["weights"].high_bytes - shared.high_bytes),
    )
    attention = 61 * (7168 * (1536 + 576) + 1536 * 24576 + 512 * 32768 + 16384 * 7168)

    assert grown[0] <= attention * 7 / 8 <= grown[1] + 0.5 * _GIB
    assert grown[0] > 7 * _GIB
