"""From bytes to units, tokens and concurrency: engines' own figures and the edges."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kvcalc.core.attention import FullAttention, SharedKv
from kvcalc.core.capacity import (
    pool_units,
    requests_that_fit,
    start_up_limit,
    start_up_need,
)
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan, Check, Rank, Report, Start
from kvcalc.core.rules import Compressed, Grow, Slots, Window
from kvcalc.core.sizing import TokenBudget
from tests.core import builders
from tests.core.builders import GIB, model, plan_of
from tests.core.test_plan import cache_plan, group, one_rank, pool


def test_the_null_block() -> None:
    """Llama-2-70B, tp 4: 131,072 tokens need the whole 10 GiB, and a block is never handed out."""
    blocks = pool(group(Grow(block_tokens=16), 81_920), reserved_units=1)
    found = one_rank(blocks, max_model_len=131_072).capacity(10 * GIB)

    assert found.needed_bytes == 10 * GIB
    assert not found.fits
    assert found.max_model_len_that_fits == 131_056
    assert found.max_sequences == 0
    assert found.max_concurrency == 1.0
    assert found.overhead_bytes == 16 * 81_920


@pytest.mark.parametrize(
    ("dcp", "needed", "tokens"), [(1, 8192, 152_784), (2, 4096, 305_568), (8, 1024, 1_222_272)]
)
def test_decode_context_parallel(dcp: int, needed: int, tokens: int) -> None:
    """DeepSeek-V3 on eight ranks in 10 GiB each, as vLLM counts it."""
    plan = plan_of(
        builders.DEEPSEEK_V3,
        tensor_parallel_size=8,
        decode_context_parallel_size=dcp,
        max_model_len=131_072,
    )
    found = plan.capacity(10 * GIB)

    assert found.num_blocks == 9549
    assert found.pools[0].needed_units == needed
    assert found.kv_cache_tokens == tokens


def test_llama_8b_in_vllms_words() -> None:
    """81,920 tokens, 10.00x at 8,192."""
    found = plan_of(builders.LLAMA_8B, max_model_len=8192).capacity(10 * GIB)

    assert (found.num_blocks, found.block_size, found.block_bytes) == (5120, 16, 2 * 2**20)
    assert (found.kv_cache_tokens, found.max_concurrency) == (81_920, 10.0)
    assert (found.fits, found.max_sequences, found.max_model_len_that_fits) == (True, 10, 8192)
    assert found.overhead_bytes == 0
    assert found.kv_cache_bytes == 10 * GIB


def test_a_remainder_is_overhead() -> None:
    found = plan_of(builders.LLAMA_8B, max_model_len=16).capacity(3 * 2 * 2**20 + 5)

    assert found.num_blocks == 3
    assert found.overhead_bytes == 5


def test_at_another_length() -> None:
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)

    assert plan.capacity(10 * GIB, at=4096).max_concurrency == 20.0
    assert plan.capacity(10 * GIB, at=4096).max_model_len == 4096


def test_what_does_not_fit_is_a_result() -> None:
    found = plan_of(builders.LLAMA_8B, max_model_len=8192).capacity(GIB // 4)

    assert not found.fits
    assert found.max_model_len_that_fits == 2048
    assert found.max_sequences == 0
    assert found.max_concurrency == 0.25
    nothing = plan_of(builders.LLAMA_8B, max_model_len=8192).capacity(1)
    assert (nothing.num_blocks, nothing.max_model_len_that_fits) == (0, 0)


def test_fungible_bytes() -> None:
    """States and blocks share the bytes; there is no number of blocks to tell."""
    plan = plan_of(builders.QWEN35_27B, max_model_len=8192)
    found = plan.capacity(15 * GIB)

    assert plan.split == "fungible"
    assert found.num_blocks is None
    assert found.needed_bytes == 690_814_976
    assert found.max_sequences == 23
    assert found.overhead_bytes == 0
    assert [p.units for p in found.pools] == [0, 0]


def _sglang(page: int, ratio: tuple[int, int]) -> CachePlan:
    """16 full and 16 window layers of 1,024 B a token, as SGLang's own test has them."""
    layer = 16 * 1024
    full = group(Grow(block_tokens=1), layer)
    window = group(Window(block_tokens=1, window=8, ring=True), layer)
    extra = {"reserved_units": page, "reserved_is_extra": True, "rounding": page}
    return one_rank(
        pool(full, name="full", **extra),
        pool(window, name="swa", share=ratio, **extra),
        split="ratio",
    )


@pytest.mark.parametrize(
    ("page", "tokens", "expected"),
    [(1, 200, [200, 100]), (1, 201, [201, 100]), (128, 1000, [896, 384])],
)
def test_pools_in_a_ratio(page: int, tokens: int, expected: list[int]) -> None:
    """The first pool rounds down to a page, the other to its share of that."""
    plan = _sglang(page, (1, 2))
    budget = tokens * 3 * 8 * 1024
    found = plan.capacity(budget)

    assert [p.units for p in found.pools] == expected
    assert [p.total_bytes for p in found.pools] == [(n + page) * 16_384 for n in expected]
    # Reserved pages come on top of the budget: sequences may have all that it pays for.
    assert found.max_sequences == expected[0] // 100


def test_a_share_of_what_was_rounded() -> None:
    """The share is taken of the first pool's whole pages: 15/16 of 1,024, not of 1,100."""
    found = _sglang(128, (15, 16)).capacity(1100 * (16_384 + 15 * 1024))

    assert [p.units for p in found.pools] == [1024, 896]


def test_a_ratio_of_nothing() -> None:
    """A first pool that needs no share gets no units."""
    plan = one_rank(pool(group(Slots()), share=(0, 1)), split="ratio")

    assert pool_units(plan, plan.rank, 1000) == (0,)


def test_fixed_units() -> None:
    """The settings fix the units: no budget is asked for, and all sequences share them."""
    plan = one_rank(
        pool(group(Grow(block_tokens=1)), name="kv", units=250),
        pool(group(Slots()), name="state", units=4),
        split="fixed",
        block_size=None,
    )
    found = plan.capacity()

    assert found.kv_cache_bytes is None
    assert found.num_blocks is None
    assert found.max_concurrency == 2.5
    assert found.max_sequences == 2
    assert found.kv_cache_tokens == 250
    assert found.overhead_bytes == 0
    with pytest.raises(InvalidValueError, match="pool p has no fixed number"):
        one_rank(pool(group(Slots())), split="fixed").capacity()


def test_units_given_beside_a_budget() -> None:
    """A pool may have its units already: a block count typed by the user."""
    plan = one_rank(pool(group(Grow(block_tokens=16)), units=7))

    assert plan.capacity(10**6).num_blocks == 7


def test_tables_come_off_first() -> None:
    blocks = pool(group(Grow(block_tokens=16)))
    plan = cache_plan(Rank(name="r", pools=(blocks,), fixed_bytes=500))

    assert plan.capacity(500 + 3 * 160).num_blocks == 3
    assert plan.capacity(499).num_blocks == 0


def test_a_budget_is_needed() -> None:
    with pytest.raises(UsageError, match="size of a none cache depends on the memory") as caught:
        plan_of(builders.LLAMA_8B).capacity()

    assert "--kv-memory" in caught.value.hint


@pytest.mark.parametrize("arguments", [{"at": 0}, {"at": -1}, {"kv_cache_bytes": 0}])
def test_capacity_of_nothing(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match="at least 1"):
        plan_of(builders.LLAMA_8B).capacity(**{"kv_cache_bytes": GIB, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"kv_cache_bytes": 1e10}, r"kv_cache_bytes is 10000000000\.0 \(float\)", "int(10e9)"),
        ({"kv_cache_bytes": "10GiB"}, "kv_cache_bytes is '10GiB'", "10 * 2**30"),
        ({"kv_cache_bytes": True}, "kv_cache_bytes is True", "10 * 2**30"),
        ({"at": 1.5}, "at is 1.5", "tokens"),
    ],
)
def test_capacity_of_no_whole_number(arguments: dict[str, Any], message: str, hint: str) -> None:
    """Bytes and tokens are exact: a float is refused, not rounded."""
    with pytest.raises(InvalidValueError, match=message) as caught:
        plan_of(builders.LLAMA_8B).capacity(**{"kv_cache_bytes": GIB, **arguments})

    assert hint in caught.value.hint


def test_capacity_of_numpy_integers() -> None:
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)
    found = plan.capacity(np.int64(10 * GIB), at=np.int32(4096))  # type: ignore[arg-type]

    assert found == plan.capacity(10 * GIB, at=4096)
    assert type(found.kv_cache_bytes) is type(found.max_model_len) is int


def test_the_stage_that_holds_the_least_decides() -> None:
    """61 layers in two stages: the one of 31."""
    plan = plan_of(builders.DEEPSEEK_V3, pipeline_parallel_size=2, max_model_len=8192)

    assert plan.rank.name == "stage 0"
    assert plan.capacity(GIB).num_blocks == GIB // (16 * 31 * 1152)


def test_a_stage_that_keeps_nothing() -> None:
    """A stage whose layers all borrow fits any sequence; the other stage decides."""
    attention = FullAttention(num_kv_heads=1, head_dim=64)
    spec = model((2, (attention,)), (2, (SharedKv(source_layer=1),)))
    found = plan_of(spec, pipeline_parallel_size=2, max_model_len=100).capacity(GIB)

    assert found.fits
    assert found.max_sequences == GIB // (7 * 16 * 2 * 256)
    assert found.max_model_len_that_fits == 100


def test_a_model_that_keeps_nothing() -> None:
    """What needs no byte has no number of sequences; asking breaks nothing."""
    found = plan_of(model((2, ())), max_model_len=100).capacity(GIB)

    assert found.needed_bytes == 0
    assert found.pools == ()
    assert found.num_blocks is None


def test_requests_that_fit() -> None:
    """Blocks over the blocks of the mean request."""
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)
    lengths = Lengths.of([200, 1200, 700, 2600])

    assert requests_that_fit(plan, 15 * GIB, lengths) == Fraction(7680 * 4, 295)
    assert requests_that_fit(plan.contiguous(), 15 * GIB, lengths) == 15


def test_requests_that_fit_beside_a_null_block() -> None:
    plan = one_rank(pool(group(Grow(block_tokens=16)), reserved_units=1))

    assert requests_that_fit(plan, 11 * 160, Lengths({16: 3})) == 10
    assert requests_that_fit(plan, 1, Lengths({16: 3})) == 0


def test_requests_that_fit_on_shared_tokens() -> None:
    """Eight ranks share the tokens: eight times as many requests."""
    alone = plan_of(builders.DEEPSEEK_V3, tensor_parallel_size=8, max_model_len=8192)
    shared = plan_of(
        builders.DEEPSEEK_V3,
        tensor_parallel_size=8,
        decode_context_parallel_size=8,
        max_model_len=8192,
    )
    lengths = Lengths({1024: 2})

    assert requests_that_fit(shared, GIB, lengths) == 8 * requests_that_fit(alone, GIB, lengths)


def test_requests_that_hold_nothing() -> None:
    plan = plan_of(builders.LLAMA_8B)
    for lengths in (Lengths({}), Lengths({0: 3})):
        with pytest.raises(InvalidValueError, match="no request holds any cache"):
            requests_that_fit(plan, GIB, lengths)
        with pytest.raises(InvalidValueError, match="no request holds any cache"):
            requests_that_fit(plan_of(builders.GEMMA_3_27B), GIB, lengths)


# Two groups in units of 320 B: one of 16 tokens that fills 128 B of it, one of 32 that fills all.
NARROW = group(Grow(block_tokens=16), 8, name="narrow", block_size=16)
WIDE = group(Grow(block_tokens=32), name="wide", block_size=32)
# Four units of the one and two of the other for 64 tokens.
ASKED: dict[Check, int] = {
    "units": 6 * 320,
    "layers": 4 * 128 + 2 * 320,
    "first_group": 4 * 320,
}


@pytest.mark.parametrize(("check", "asked"), ASKED.items(), ids=list(ASKED))
@pytest.mark.parametrize("spares", [True, False], ids=["spares", "does not spare"])
def test_what_a_start_up_check_asks(check: Check, asked: int, *, spares: bool) -> None:
    """Whole units, what layers fill, or the first group's alone; the null block apart or not.

    It starts exactly from there on, whether or not one sequence really fits.
    """
    blocks = pool(NARROW, WIDE, reserved_units=1)
    plan = one_rank(blocks, check=check, check_spares_reserved=spares, max_model_len=64)
    least = asked + (320 if spares else 0)

    assert start_up_need(plan, plan.rank, 64) == asked
    assert start_up_limit(plan, plan.rank, least) == asked
    assert plan.capacity(least).fits
    assert not plan.capacity(least - 1).fits
    assert plan.capacity(least).needed_bytes == 6 * 320
    assert (plan.capacity(least).max_sequences == 1) == (least >= 7 * 320)
    assert plan.capacity(7 * 320).max_sequences == 1


def test_the_longest_is_the_checks() -> None:
    """An older engine's check lets a length start that no sequence can reach."""
    blocks = pool(NARROW, WIDE, reserved_units=1)
    plan = one_rank(blocks, check="first_group", check_spares_reserved=False, max_model_len=100)
    found = plan.capacity(4 * 320)

    assert (found.max_model_len_that_fits, found.fits) == (64, False)
    assert found.max_sequences == 0
    assert one_rank(blocks, max_model_len=100).capacity(4 * 320).max_model_len_that_fits == 32


def test_units_of_another_width_in_the_check() -> None:
    """Until 0.28 vLLM checked packed pages by a rule of before: wider than what it allocates."""
    blocks = pool(WIDE, reserved_units=1, check_unit_bytes=500)
    plan = one_rank(blocks, check_spares_reserved=False, max_model_len=64)
    fixed = one_rank(pool(WIDE, units=3, check_unit_bytes=500), max_model_len=64)

    assert start_up_need(plan, plan.rank, 64) == 2 * 500
    assert plan.capacity(999).num_blocks == 3
    assert not plan.capacity(999).fits
    assert plan.capacity(1000).fits
    assert plan.capacity(1000).needed_bytes == 2 * 320
    assert start_up_limit(fixed, fixed.rank, None) == 3 * 500


@pytest.mark.parametrize(
    ("fixed", "budget", "limit"),
    [(True, None, 6 * 320), (True, 10**6, 6 * 320), (False, None, 6 * 320), (False, 999, 679)],
)
def test_the_check_of_a_fixed_number_of_blocks(
    budget: int | None, limit: int, *, fixed: bool
) -> None:
    """It compares with those blocks, or with the memory all the same where there is one."""
    blocks = pool(NARROW, WIDE, units=7, reserved_units=1)
    plan = one_rank(blocks, check_fixed_units=fixed, max_model_len=64)

    assert start_up_limit(plan, plan.rank, budget) == limit
    assert plan.capacity(budget).num_blocks == 7
    assert plan.capacity(budget).fits == (limit >= 6 * 320)


def test_the_check_looks_at_what_the_memory_pays_for() -> None:
    """V0 keeps states outside its blocks: they decide nothing at start-up."""
    blocks = pool(group(Grow(block_tokens=16)), name="blocks")
    states = pool(group(Slots(), 10**6), name="states", units=4)
    plan = cache_plan(Rank(name="r", pools=(blocks, states), fixed_bytes=40), max_model_len=64)

    assert start_up_need(plan, plan.rank, 64) == 4 * 160
    assert start_up_limit(plan, plan.rank, 640) == 600
    assert not plan.capacity(679).fits
    assert plan.capacity(680).fits
    assert plan.capacity(10**6).max_sequences == 4
    assert start_up_limit(plan, plan.rank, 39) == 0


def test_extra_units_are_not_spared() -> None:
    """Pages that come on top of the budget are not taken off it."""
    plan = one_rank(
        pool(WIDE, reserved_units=3, reserved_is_extra=True), check_spares_reserved=True
    )

    assert start_up_limit(plan, plan.rank, 640) == 640


# 101 units of 320 B; 6 are a sequence of 64 tokens, 4 + 2 of them.
LOGGED: dict[Report, tuple[int, float]] = {
    "exact": (101 * 64 // 6, 101 / 6),
    "concurrency": (int(101 / 6 * 64), 101 / 6),
    "even_groups": (101 // 2 * 16, 101 / 6),
    "tokens": (101 // 2 * 16, 101 // 2 * 16 / 64),
}


@pytest.mark.parametrize(("report", "logged"), LOGGED.items(), ids=list(LOGGED))
def test_what_is_logged(report: Report, logged: tuple[int, float]) -> None:
    """The same blocks in the words of each release; how many sequences fit does not change."""
    plan = one_rank(pool(NARROW, WIDE, reserved_units=1), report=report, max_model_len=64)
    found = plan.capacity(101 * 320)

    assert (found.kv_cache_tokens, found.max_concurrency) == logged
    assert (found.num_blocks, found.max_sequences) == (101, 16)


def test_groups_that_are_weighed() -> None:
    """4 x 128 + 2 x 320 B are nine units of the first group's 128 B."""
    plan = one_rank(
        pool(NARROW, WIDE, reserved_units=1),
        report="concurrency",
        weighs_groups=True,
        max_model_len=64,
    )
    found = plan.capacity(101 * 320)

    assert (found.kv_cache_tokens, found.max_concurrency) == (int(101 / 9 * 64), 101 / 9)
    assert (found.num_blocks, found.max_sequences) == (101, 16)


def test_a_token_lost_in_floating_point() -> None:
    """49 blocks of 49 hold one sequence of 2,352 tokens; a 49th of that is 47.99..."""
    sequence = pool(group(Grow(block_tokens=48)), units=1)
    exact, floating = (
        one_rank(sequence, report=report, max_model_len=2352) for report in ("exact", "concurrency")
    )

    assert 1 / 49 * 2352 < 48
    assert exact.capacity().kv_cache_tokens == 48
    assert floating.capacity().kv_cache_tokens == 47


def test_logged_tokens_of_shared_ranks() -> None:
    """Even groups and V0's tokens count those of all ranks that share a sequence."""
    blocks = pool(NARROW, WIDE)
    for report in ("even_groups", "tokens"):
        plan = cache_plan(
            Rank(name="r", pools=(blocks,), multiplicity=4, token_factor=4), report=report
        )
        assert plan.capacity(10 * 320).kv_cache_tokens == 5 * 16 * 4


def test_logged_tokens_of_a_group_without_blocks() -> None:
    """The smallest block that stands for tokens counts; a group may have none."""
    plan = one_rank(
        pool(group(Slots(), 320), group(Compressed(block_entries=8, ratio=4), block_size=32)),
        report="even_groups",
    )

    assert plan.capacity(10 * 320).kv_cache_tokens == 5 * 32


def test_blocks_of_states_are_counted() -> None:
    """Where states alone are kept, in blocks that stand for tokens, those are the blocks."""
    spare = pool(group(Slots(), 50), name="spare", units=3)
    states = pool(group(Slots(), 160, block_size=64), name="states", reserved_units=1)

    assert one_rank(spare, states).capacity(5 * 160).num_blocks == 5
    assert one_rank(spare, states).capacity(5 * 160).block_bytes == 160
    assert one_rank(spare, states, block_size=None).capacity(5 * 160).num_blocks is None


@pytest.mark.parametrize(
    ("start", "spares", "units", "starts", "served"),
    [
        ("refuses", 0, 6, False, 96),
        ("refuses", 0, 7, True, 100),
        ("shortens", 0, 6, True, 96),
        ("shortens", 16, 6, True, 80),
        ("shortens", 16, 8, True, 100),
        ("shortens", 16, 1, False, 0),
        ("never_checks", 0, 0, True, 0),
        ("never_checks", 0, 6, True, 96),
    ],
)
def test_what_an_engine_does_without_room(
    start: Start, spares: int, units: int, starts: bool, served: int
) -> None:
    """Refuse, shorten the maximum (staying some tokens below what there is), or not look."""
    blocks = pool(group(Grow(block_tokens=16)))
    plan = one_rank(blocks, start=start, start_spares_tokens=spares)
    found = plan.capacity(max(1, units * 160))

    assert (found.starts, found.max_model_len_served) == (starts, served)
    assert found.fits == (units >= 7)
    assert found.max_model_len_that_fits == min(100, units * 16)


def test_a_pool_beside_the_budget() -> None:
    """It is not paid for by the budget, and its bytes say nothing of the room for tokens."""
    states = pool(group(Slots(), 1000), name="s", units=10, reserved_units=2, beside=True)
    blocks = pool(group(Grow(block_tokens=16)), reserved_units=1)
    plan = one_rank(blocks, states)
    found = plan.capacity(8 * 160 + 7)

    assert plan.rank.beside_bytes == 10_000
    assert found.overhead_bytes == 160 + 7
    assert (found.fits, found.max_sequences) == (True, 1)
    few = one_rank(pool(group(Grow(block_tokens=16)), units=3, reserved_units=1), states)
    assert few.sized
    assert (few.capacity().fits, few.capacity().max_model_len_that_fits) == (False, 32)
    with pytest.raises(InvalidValueError, match="nothing says how much"):
        pool(group(Slots()), beside=True)


def test_tokens_that_the_settings_bound() -> None:
    """Without bytes the bound is the size; with fewer bytes than it takes, the bytes are."""
    tokens = pool(group(Grow(block_tokens=16)), sized="tokens")
    sizing = TokenBudget(page_tokens=16, token_bytes=10, max_tokens=1000)
    rank = Rank(name="rank", pools=(tokens,), sizing=sizing)
    plan = cache_plan(rank, split="tokens")

    assert plan.sized
    assert plan.capacity().num_blocks == plan.capacity(10**6).num_blocks == 62
    assert plan.capacity(1600).num_blocks == 10
    free = Rank(name="rank", pools=(tokens,), sizing=TokenBudget(page_tokens=16, token_bytes=10))
    assert not cache_plan(free, split="tokens").sized
