"""Groups in pools on ranks: what a plan holds, splits and reserves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan, Group, Pool, Rank, Rows
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Whole, Window
from kvcalc.core.waste import Wastes
from tests.core import builders
from tests.core.builders import GIB, plan_of


def group(rule: Rule, slot: int = 10, **fields: Any) -> Group:
    """Return a group whose slots take `slot` bytes."""
    unit = rule.slots_per_unit * slot + fields.get("lookahead_bytes", 0)
    return Group(
        **{
            "name": "g",
            "layers": 1,
            "payload": {"k": slot},
            "unit_bytes": unit,
            **fields,
            "rule": rule,
        }
    )


def pool(*groups: Group, **fields: Any) -> Pool:
    widest = max(g.unit_bytes for g in groups)
    return Pool(**{"name": "p", "unit_bytes": widest, **fields, "groups": groups})


def cache_plan(*ranks: Rank, **fields: Any) -> CachePlan:
    basics: dict[str, Any] = {
        "engine": "test",
        "model": "test",
        "kv_cache_dtype": "bfloat16",
        "block_size": 16,
        "split": "one_pool",
        "max_model_len": 100,
    }
    return CachePlan(**{**basics, **fields, "ranks": ranks})


def one_rank(*pools: Pool, **fields: Any) -> CachePlan:
    return cache_plan(Rank(name="rank", pools=pools), **fields)


def test_a_group_fits_its_unit() -> None:
    assert group(Grow(block_tokens=16)).content_bytes == 160
    assert group(Slots(), lookahead_bytes=7).content_bytes == 17
    with pytest.raises(InvalidValueError, match="160 B of rows in units of 159 B"):
        group(Grow(block_tokens=16), unit_bytes=159)


def test_a_pool_is_as_wide_as_its_widest_group() -> None:
    narrow, wide = group(Grow(block_tokens=16)), group(Grow(block_tokens=32))
    assert pool(narrow, wide).unit_bytes == 320
    with pytest.raises(InvalidValueError, match="wider than the pool's unit"):
        pool(narrow, wide, unit_bytes=319)
    with pytest.raises(InvalidValueError, match="pool empty"):
        Pool(name="empty", groups=(), unit_bytes=1)


def test_where_the_bytes_go() -> None:
    """States of 100 B in units of 130 B, widened to 150 B; 20 B are for proposed tokens."""
    spare = group(Slots(count=2), 100, unit_bytes=130, lookahead_bytes=20)
    wide = group(Grow(block_tokens=15))
    plan = one_rank(pool(spare, wide))

    assert plan.wastes(20) == Wastes(
        reserved_bytes=4 * 150,
        used_bytes=100 + 200,
        tail_bytes=10 * 10,
        retention_bytes=100 + 2 * 20,
        page_padding_bytes=2 * 10,
        group_padding_bytes=2 * 20,
    )
    assert plan.bytes_held(20) == 600
    assert plan.held(20) == plan.need(20) == {"p": 4}


# vLLM 0.33 on qwen3.5-27b: 15 GiB, 8,192 tokens; three groups of 16 states, one of 16 layers.
STATE = 3_207_168
CASES = [
    ("H100", 832, 3, 295, "15.53", 127_191, 15, 1_035_993_088),
    ("H100, prefix caching off", 784, 1, 313, "22.36", 183_149, 22, 719_323_136),
    ("A100", 784, 2, 313, "18.41", 150_829, 18, 873_463_808),
]


def qwen35_in_vllm(block: int, slots: int) -> CachePlan:
    page = block * 4096
    states = [
        group(Slots(count=slots), 16 * STATE, name=f"state {i}", layers=16, unit_bytes=16 * page)
        for i in range(3)
    ]
    full = group(Grow(block_tokens=block), 65_536, layers=16)
    return one_rank(pool(*states, full, reserved_units=1), block_size=block, max_model_len=8192)


@pytest.mark.parametrize(
    ("block", "slots", "blocks", "concurrency", "tokens", "whole", "needed"),
    [case[1:] for case in CASES],
    ids=[str(case[0]) for case in CASES],
)
def test_qwen35_27b_in_vllm(
    block: int, slots: int, blocks: int, concurrency: str, tokens: int, whole: int, needed: int
) -> None:
    """Blocks, logged concurrency and tokens, and the whole sessions behind them."""
    plan = qwen35_in_vllm(block, slots)
    found = plan.capacity(15 * GIB)

    assert found.num_blocks == blocks
    assert f"{found.max_concurrency:.2f}" == concurrency
    assert found.kv_cache_tokens == tokens
    assert found.max_sequences == whole
    assert found.needed_bytes == needed
    assert plan.block_bytes == block * 65_536
    assert plan.fixed_bytes(Slots) == 153_944_064


def test_wastes_of_qwen35_27b_in_vllm() -> None:
    """A session of 8,192 tokens on an H100: 690,814,976 B of 1,035,993,088 are of use."""
    assert qwen35_in_vllm(832, 3).wastes_at_admission(8192) == Wastes(
        reserved_bytes=1_035_993_088,
        used_bytes=690_814_976,
        tail_bytes=128 * 65_536,
        retention_bytes=2 * 48 * STATE,
        page_padding_bytes=9 * 16 * 200_704,
    )


def test_context_parallel_ranks_share_tokens() -> None:
    """Every fourth token is on one rank; the first rank has the most."""
    rank = Rank(
        name="r", pools=(pool(group(Grow(block_tokens=4))),), multiplicity=8, token_factor=4
    )

    assert [rank.local(n) for n in (0, 1, 4, 5, 9)] == [0, 1, 1, 2, 3]
    assert [rank.local(9, position) for position in range(4)] == [3, 2, 2, 2]
    assert rank.bytes_held(17) == 2 * 40
    # 17 tokens: 5 on one rank and 4 on the others, in two sets of four.
    everywhere = cache_plan(rank).wastes_all_ranks(17)
    assert everywhere.used_bytes == 2 * 17 * 10
    assert everywhere.reserved_bytes == 2 * (80 + 3 * 40)
    assert cache_plan(rank).wastes(17).tail_bytes == 3 * 10


@pytest.mark.parametrize(
    ("rule", "growth", "past"),
    [
        (Grow(block_tokens=16), (10, 1), (10, 1)),
        (Window(block_tokens=16, window=4), (10, 1), (0, 1)),
        (Chunk(block_tokens=16, chunk=4), (10, 1), (0, 1)),
        (Compressed(block_entries=16, ratio=4), (5, 2), (5, 2)),
        (Slots(), (0, 1), (0, 1)),
        (Fixed(block_tokens=16, tokens=4), (0, 1), (0, 1)),
        (Whole(slots=4), (10, 1), (10, 1)),
        (Whole(slots=4, ratio=4), (5, 2), (5, 2)),
        (Whole(slots=4, limit=4), (10, 1), (0, 1)),
    ],
)
def test_growth(rule: Rule, growth: tuple[int, int], past: tuple[int, int]) -> None:
    """What a token adds on average, while windows are open and after."""
    plan = one_rank(pool(group(rule)))

    assert plan.growth() == growth
    assert plan.growth(windows_open=False) == past


def test_growth_on_all_ranks() -> None:
    """Two stages, four ranks each, two of which share the tokens."""
    ranks = [
        Rank(
            name=f"stage {i}",
            pools=(pool(group(Grow(block_tokens=16), slot)),),
            multiplicity=4,
            token_factor=2,
        )
        for i, slot in enumerate((30, 50))
    ]
    plan = cache_plan(*ranks)

    assert plan.num_gpus == 8
    assert plan.rank.name == "stage 1"
    assert plan.growth() == (25, 1)
    assert plan.growth_all_ranks() == (2 * (30 + 50), 1)


GROW, WINDOW = Grow(block_tokens=16), Window(block_tokens=16, window=20, ring=True)


def test_the_pool_that_grows() -> None:
    """Blocks of every token before windows; none where only states are kept."""
    window = pool(group(WINDOW), name="window")
    grow = pool(group(GROW, 3), name="grow")
    state = pool(group(Slots()), name="state")

    assert one_rank(state, window, grow).growing_pool == grow
    assert one_rank(state, window).growing_pool == window
    assert one_rank(state, window).block_bytes == 160
    assert one_rank(state).growing_pool is None
    assert one_rank(state).block_bytes is None
    assert one_rank(grow, block_size=None).block_bytes is None
    assert (one_rank(state).tail_slots(), one_rank(state).max_tail_bytes()) == (0, 0)


def test_the_tail_at_most() -> None:
    """Every group that grows can leave all but one slot of its last block empty."""
    plan = one_rank(pool(group(GROW, 3)), pool(group(WINDOW)), pool(group(Slots(count=2))))

    assert plan.tail_slots() == 15
    assert plan.max_tail_bytes() == 15 * 3 + 15 * 10
    assert plan.wastes(1).tail_bytes == plan.max_tail_bytes()


def test_the_tail_of_a_compressed_cache() -> None:
    """A block is handed out before its first entry is complete: all its slots can be empty."""
    plan = one_rank(pool(group(Compressed(block_entries=16, ratio=4))))

    assert plan.wastes(1).tail_bytes == 160
    assert plan.max_tail_bytes() == 160
    assert plan.tail_slots() == 16


def test_a_pool_of_blocks_that_does_not_grow() -> None:
    """States in blocks that stand for tokens are what a block is where nothing grows."""
    spare = pool(group(Slots(), 50), name="spare")
    state = pool(group(Slots(count=2), 77, block_size=64), name="state")
    grow = pool(group(GROW, 3), name="grow")

    assert one_rank(spare, state).growing_pool is None
    assert one_rank(spare, state).block_pool == state
    assert one_rank(spare, state).block_bytes == 77
    assert one_rank(spare, state, block_size=None).block_bytes is None
    assert one_rank(spare).block_pool is None
    assert one_rank(spare, state, grow).block_pool == grow


# A block of 256 tokens: 64 entries of 10 B, one for 4 tokens, beside 2 of 100 B, one for 128.
BY_4 = Compressed(block_entries=64, ratio=4)
BY_128 = Compressed(block_entries=2, ratio=128)
TWO_RATES = (Rows(rule=BY_128, payload={"latent": 80, "rope": 20}),)


def test_rows_that_fill_a_block_at_another_rate() -> None:
    """DeepSeek-V4 in vLLM: caches of two ratios share the blocks, each with slots of its own."""
    both = group(BY_4, also=TWO_RATES, unit_bytes=64 * 10 + 2 * 100 + 24)
    plan = one_rank(pool(both, unit_bytes=1000))

    assert both.slot_bytes == 10
    assert both.content_bytes == 840
    assert [rows.slot_bytes for rows in both.rows] == [10, 100]
    assert plan.growth() == (105, 32)  # 10 in 4 and 100 in 128
    assert plan.bytes_used(300) == 75 * 10 + 2 * 100
    assert plan.bytes_readable(300) == plan.bytes_used(300)
    assert plan.max_tail_bytes() == 64 * 10 + 2 * 100
    assert plan.held(300) == plan.need(300) == {"p": 2}
    assert plan.wastes(300) == Wastes(
        reserved_bytes=2 * 1000,
        used_bytes=75 * 10 + 2 * 100,
        tail_bytes=53 * 10 + 2 * 100,
        page_padding_bytes=2 * 24,
        group_padding_bytes=2 * 136,
    )
    assert plan.wastes_at_admission(300) == plan.wastes(300)


def test_the_twin_of_rows_at_another_rate() -> None:
    """In one piece each rate has a region of its own."""
    twin = one_rank(pool(group(BY_4, also=TWO_RATES, unit_bytes=840))).contiguous(512)

    assert [p.unit_bytes for p in twin.rank.pools] == [10, 100]
    assert twin.bytes_needed(1) == 128 * 10 + 4 * 100
    assert twin.wastes(300).used_bytes == 75 * 10 + 2 * 100


def test_rows_at_another_rate_fit_the_unit_too() -> None:
    with pytest.raises(InvalidValueError, match="840 B of rows in units of 839 B"):
        group(BY_4, also=TWO_RATES, unit_bytes=839)


def test_what_is_kept_and_not_read() -> None:
    """A window of 20 kept whole (0.19 without the hybrid manager): the rest is retention."""
    full = (Rows(rule=GROW, payload={"k": 3}),)
    kept = group(Grow(block_tokens=16, limit=20), also=full, unit_bytes=16 * 13)
    plan = one_rank(pool(kept))

    assert plan.wastes(40) == Wastes(
        reserved_bytes=3 * 208,
        used_bytes=20 * 10 + 40 * 3,
        tail_bytes=8 * 13,
        retention_bytes=20 * 10,
    )
    assert plan.growth() == (13, 1)
    assert plan.bytes_used(40) == 20 * 10 + 40 * 3
    assert plan.contiguous().bytes_needed(1) == 20 * 10 + 100 * 3


def test_what_is_declared_and_never_written() -> None:
    """Rows of an encoder: admission asks for more blocks than they fill."""
    cross = group(Fixed(block_tokens=16, tokens=20, declared=64))
    plan = one_rank(pool(cross))

    assert (plan.held(9), plan.need(9)) == ({"p": 2}, {"p": 4})
    assert plan.wastes(9) == Wastes(reserved_bytes=320, used_bytes=200, tail_bytes=120)
    assert plan.wastes_at_admission(9) == Wastes(
        reserved_bytes=640, used_bytes=200, reservation_bytes=320, tail_bytes=120
    )
    assert plan.fixed_bytes(Fixed) == 200


def test_states_at_every_block() -> None:
    """One state is live; those at the blocks behind it are retained."""
    plan = one_rank(pool(group(Slots(every=16), 1000)))

    assert plan.need(40) == {"p": 3}
    assert plan.wastes_at_admission(40) == Wastes(
        reserved_bytes=3000, used_bytes=1000, retention_bytes=2000
    )
    assert plan.fixed_bytes(Slots) == 1000
    assert plan.growth() == (0, 1)
    assert plan.contiguous().bytes_needed(40) == 1000


def test_bytes_in_use() -> None:
    """A chunk is at its fullest on the way; a window's oldest token is out of reach."""
    plan = one_rank(
        pool(group(GROW, 3)),
        pool(group(Chunk(block_tokens=16, chunk=20))),
        pool(group(WINDOW)),
        pool(group(Slots(count=2), 1000)),
    )

    assert plan.bytes_used(41) == 41 * 3 + 200 + 200 + 1000
    assert plan.bytes_readable(41) == 41 * 3 + 10 + 190 + 1000
    assert plan.wastes(41).used_bytes == 41 * 3 + 10 + 200 + 1000


def test_the_twin() -> None:
    """In one piece: exact rows for the maximum, one state, no padding, nothing shared."""
    padded = group(GROW, name="full", unit_bytes=200)
    window = group(WINDOW, name="window")
    states = group(Slots(count=3), 77, name="state", lookahead_bytes=5)
    nothing = Group(name="none", layers=2, rule=GROW, payload={}, unit_bytes=200)
    plan = cache_plan(
        Rank(
            name="rank",
            pools=(pool(padded, window, states, nothing, reserved_units=1),),
            fixed_bytes=99,
        ),
        notes=("a note",),
        source="here",
    )
    twin = plan.contiguous()

    assert [(p.name, p.unit_bytes) for p in twin.rank.pools] == [
        ("full", 10),
        ("window", 10),
        ("state", 77),
    ]
    assert twin.bytes_needed(7) == 100 * 10 + 20 * 10 + 77
    assert twin.rank.fixed_bytes == 0
    assert (twin.split, twin.block_size, twin.notes) == ("fungible", None, ())
    assert twin.source == "contiguous twin of here"
    assert plan.contiguous(50).max_model_len == 50
    assert plan.contiguous(50).bytes_needed(7) == 50 * 10 + 20 * 10 + 77
    assert cache_plan(Rank(name="r", pools=())).contiguous().source == "contiguous twin of test"
    assert twin.wastes(7).reservation_bytes == 93 * 10 + 13 * 10


def test_the_twin_of_shared_tokens() -> None:
    """A context-parallel rank reserves its part of the maximum."""
    plan = plan_of(
        builders.DEEPSEEK_V3,
        tensor_parallel_size=8,
        decode_context_parallel_size=8,
        max_model_len=8192,
    )

    assert plan.contiguous().bytes_needed(1) == 1024 * 70_272


def test_requests_in_any_form() -> None:
    plan = plan_of(builders.ARTICLE, max_model_len=8192)

    assert plan.wastes([200, 200]) == plan.wastes(Lengths({200: 2})) == plan.wastes(200).times(2)
    assert plan.wastes_all_ranks([200, 200]) == plan.wastes([200, 200])
    assert plan.wastes_at_admission([]) == Wastes(reserved_bytes=0, used_bytes=0)


def test_wastes_of_one_numpy_integer() -> None:
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)

    assert plan.wastes(np.int64(200)) == plan.wastes(200)  # type: ignore[arg-type]


@pytest.mark.parametrize("requests", [1.5, True, None, "200", [200.0], {200: 2}])
def test_wastes_of_no_lengths(requests: Any) -> None:
    """What is no whole number of tokens is refused by each way to ask."""
    plan = plan_of(builders.LLAMA_8B, max_model_len=8192)
    for ask in (plan.wastes, plan.wastes_all_ranks, plan.wastes_at_admission):
        with pytest.raises(InvalidValueError) as caught:
            ask(requests)
        assert "kvcalc.Lengths" in caught.value.hint
