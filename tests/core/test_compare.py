"""The article's and the explainer's numbers, out of one comparison."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.answers.compare import compare
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import EXAMPLE_LENGTHS, Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes, format_ratio
from tests.core import builders
from tests.core.builders import GIB, plan_of

FOUR = Lengths.of(EXAMPLE_LENGTHS)


def test_the_article() -> None:
    """65,536 B a token, half a GiB a slot, 1 MiB a block, at most 960 KiB of it empty."""
    found = compare(plan_of(builders.ARTICLE, max_model_len=8192), FOUR)

    assert found.bytes_per_token == 65_536
    assert found.state_bytes == 0
    assert found.contiguous.reserved_bytes_per_request == 536_870_912
    assert found.paged.block_bytes == 1_048_576
    assert found.paged.max_tail_tokens == 15
    assert found.paged.max_tail_bytes == 983_040
    assert format_bytes(found.paged.max_tail_bytes) == "960 KiB"
    # 8 + 0 + 4 + 8 slots in four requests.
    assert found.paged.mean_tail_bytes == 5 * 65_536
    assert found.contiguous_total.reserved_bytes == 4 * 536_870_912
    assert found.contiguous_total.used_bytes == 4700 * 65_536 == found.paged_total.used_bytes
    assert found.contiguous_total.waste.reservation_bytes == (4 * 8192 - 4700) * 65_536
    assert format_ratio(found.contiguous_total.waste_ratio) == "85.66 %"
    assert found.paged_total.reserved_bytes == 4720 * 65_536
    assert found.paged_total.waste.tail_bytes == 20 * 65_536 == found.paged_total.waste_bytes
    assert found.reserved_gain == 32_768 / 4720
    assert f"{found.reserved_gain:.2f}" == "6.94"
    assert found.concurrency is None
    assert found.explain == ()


def test_a_block_of_32() -> None:
    found = compare(plan_of(builders.ARTICLE, max_model_len=8192, block_size=32), FOUR)

    assert found.paged.block_bytes == 2 * 2**20
    assert found.paged.max_tail_bytes == 2_031_616
    assert format_bytes(found.paged.max_tail_bytes) == "1,984 KiB"


def test_the_explainer() -> None:
    """Llama-3.1-8B, 4,096 declared: 2 GiB reserved, 587.5 MiB used, 71.3 % against 0.42 %."""
    found = compare(plan_of(builders.LLAMA_8B, max_model_len=4096), FOUR)

    assert found.contiguous_total.reserved_bytes == 2 * GIB
    assert format_bytes(found.contiguous_total.used_bytes) == "587.5 MiB"
    assert f"{100 * found.contiguous_total.waste_ratio:.1f}" == "71.3"
    assert format_bytes(found.paged_total.reserved_bytes) == "590 MiB"
    assert format_ratio(found.paged_total.waste_ratio) == "0.42 %"


@pytest.mark.parametrize("spec", [builders.LLAMA_8B, builders.LLAMA_70B, builders.ARTICLE])
def test_200_of_4096(spec: ModelSpec) -> None:
    """3,896 of 4,096 tokens are never written, whatever the model."""
    found = compare(plan_of(spec, max_model_len=4096), Lengths({200: 1}))

    assert f"{100 * found.contiguous_total.waste_ratio:.1f}" == "95.1"


def test_70b_holds_1_25_gib() -> None:
    found = compare(plan_of(builders.LLAMA_70B, max_model_len=4096), Lengths({200: 1}))

    assert found.contiguous_total.reserved_bytes == 5 * GIB // 4
    assert format_bytes(found.contiguous_total.used_bytes) == "62.5 MiB"


def test_state_is_used_not_wasted() -> None:
    """Qwen3.5-27B: both ways hold the state, and both count it as used."""
    found = compare(plan_of(builders.QWEN35_27B, max_model_len=8192), FOUR)
    used = 4700 * 65_536 + 4 * 153_944_064

    assert found.state_bytes == 153_944_064
    assert found.contiguous.reserved_bytes_per_request == 690_814_976
    assert found.paged_total.used_bytes == found.contiguous_total.used_bytes == used
    assert found.paged_total.waste_bytes == 20 * 65_536


def test_the_workload() -> None:
    lengths = Lengths.of([100] * 10 + [200] * 9 + [9000])
    found = compare(
        plan_of(builders.ARTICLE, max_model_len=8192), lengths, workload="chat"
    ).workload

    assert (found.name, found.requests, found.tokens) == ("chat", 20, 1000 + 1800 + 8192)
    assert (found.p50_tokens, found.p95_tokens, found.longest_tokens) == (100, 200, 8192)
    assert found.mean_tokens == 549.6
    assert (found.over, found.over_requests) == ("clip", 1)
    assert found.used_bytes == (1000 + 1800 + 8192) * 65_536


def test_requests_over_the_maximum() -> None:
    """They are cut, dropped, or kept with a region of their own length; the count is told."""
    plan = plan_of(builders.ARTICLE, max_model_len=1000)
    clipped = compare(plan, FOUR, over="clip")
    excluded = compare(plan, FOUR, over="exclude")
    kept = compare(plan, FOUR, over="keep")

    assert [c.workload.over_requests for c in (clipped, excluded, kept)] == [2, 2, 2]
    assert [c.workload.tokens for c in (clipped, excluded, kept)] == [2900, 900, 4700]
    assert clipped.contiguous_total.reserved_bytes == 4 * 1000 * 65_536
    assert excluded.contiguous_total.reserved_bytes == 2 * 1000 * 65_536
    assert excluded.paged.mean_tail_bytes == (8 + 4) * 65_536 // 2
    assert kept.contiguous_total.reserved_bytes == (1000 + 1200 + 1000 + 2600) * 65_536


def test_no_request_is_left() -> None:
    plan = plan_of(builders.ARTICLE, max_model_len=100)
    with pytest.raises(InvalidValueError, match="none of 4 is within 100 tokens") as caught:
        compare(plan, FOUR, over="exclude")
    assert "--over clip" in caught.value.hint
    assert "max_model_len in Python" in caught.value.hint
    with pytest.raises(InvalidValueError, match="there is no request to compare") as caught:
        compare(plan, Lengths({}))
    assert "--max" not in caught.value.hint
    assert "--lengths" in caught.value.hint
    assert "in Python a list" in caught.value.hint


@pytest.mark.parametrize("budget", [1e10, "10GiB", True])
def test_cache_of_no_whole_bytes(budget: Any) -> None:
    plan = plan_of(builders.ARTICLE, max_model_len=8192)
    with pytest.raises(InvalidValueError, match="kv_cache_bytes is") as caught:
        compare(plan, FOUR, kv_cache_bytes=budget)
    assert "2**30" in caught.value.hint


def test_requests_of_nothing() -> None:
    """Paging reserves nothing for a request without a token: there is no gain to name."""
    found = compare(plan_of(builders.ARTICLE, max_model_len=100), Lengths({0: 2}))

    assert found.paged_total.reserved_bytes == 0
    assert found.reserved_gain is None
    assert found.paged_total.waste_ratio == 0.0
    assert found.contiguous_total.waste_ratio == 1.0


def test_concurrency() -> None:
    """15 GiB: thirty slots of the article's, and 104 mean requests of blocks."""
    plan = plan_of(builders.ARTICLE, max_model_len=8192)
    found = compare(plan, FOUR, kv_cache_bytes=15 * GIB).concurrency

    assert found is not None
    assert (found.kv_cache_bytes, found.contiguous) == (15 * GIB, 30)
    assert found.paged_mean == 15 * 1024 * 4 / 295
    assert found.paged == int(15 * 1024 * 4 / 295) == 208
    assert found.gain == found.paged_mean / 30


def test_no_slot_fits() -> None:
    plan = plan_of(builders.ARTICLE, max_model_len=8192)
    found = compare(plan, FOUR, kv_cache_bytes=GIB // 4).concurrency

    assert found is not None
    assert (found.contiguous, found.gain) == (0, None)
    assert found.paged == 3


def test_all_ranks() -> None:
    """Two ranks with half the heads each: together as much as one alone."""
    alone = compare(plan_of(builders.LLAMA_8B, max_model_len=4096), FOUR)
    two = compare(plan_of(builders.LLAMA_8B, max_model_len=4096, tensor_parallel_size=2), FOUR)

    assert two.all_ranks.num_gpus == 2
    assert 2 * two.paged_total.reserved_bytes == alone.paged_total.reserved_bytes
    assert two.all_ranks.used_bytes == alone.all_ranks.used_bytes == 4700 * 131_072
    assert two.all_ranks.paged_reserved_bytes == 4720 * 131_072
    assert two.all_ranks.contiguous_reserved_bytes == 2 * GIB


def test_a_compressed_cache() -> None:
    plan = plan_of(builders.DEEPSEEK_V4, kv_cache_dtype="fp8_ds_mla", max_model_len=8192)
    found = compare(plan, FOUR, explain=True)

    assert found.bytes_per_token is None
    assert found.explain
    assert found.paged.mean_tail_bytes <= found.paged.max_tail_bytes


def test_no_tail_is_larger_than_the_largest() -> None:
    """One token in a compressed cache: its block is empty, and the bound says so."""
    plan = plan_of(builders.DEEPSEEK_V4, kv_cache_dtype="fp8_ds_mla", max_model_len=8192)
    found = compare(plan, Lengths({1: 1}))

    assert found.paged.mean_tail_bytes <= found.paged.max_tail_bytes


def test_places_for_sequences() -> None:
    """An engine with two places serves two requests at once, in blocks as in one piece."""
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)
    two = msgspec.structs.replace(plan, max_sequences=2)
    found = compare(two, FOUR, kv_cache_bytes=20 * GIB).concurrency
    free = compare(plan, FOUR, kv_cache_bytes=20 * GIB).concurrency

    assert found is not None
    assert free is not None
    assert (found.contiguous, found.paged, found.gain, found.max_sequences) == (2, 2, 1.0, 2)
    assert (free.contiguous, free.paged, free.max_sequences) == (20, 138, None)
