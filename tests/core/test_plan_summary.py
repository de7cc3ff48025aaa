"""A plan in the figures that people ask of it: every one of them is the plan's own."""

from __future__ import annotations

import pytest

from kvcalc.answers.plan_summary import summarise
from kvcalc.answers.results import PlanGroup, PlanRank, Totals
from kvcalc.core.plan import CachePlan, Rank, Rows
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Whole, Window
from tests.core import builders
from tests.core.builders import GIB, plan_of
from tests.core.test_plan import cache_plan, group, one_rank, pool, qwen35_in_vllm


@pytest.mark.parametrize(
    ("rule", "keeps", "block"),
    [
        (Grow(block_tokens=16), "every token", 16),
        (Grow(block_tokens=16, lookahead=3), "every token", 16),
        (
            Grow(block_tokens=16, limit=1024),
            "every token, of which the last 1,024 are read",
            16,
        ),
        (
            Grow(block_tokens=16, limit=8192, restarts=True),
            "every token, of which those of a chunk of 8,192 are read",
            16,
        ),
        (Compressed(block_entries=64, ratio=4), "1 entry in 4 tokens", 256),
        (Window(block_tokens=16, window=1024), "last 1,024 tokens", 16),
        (
            Window(block_tokens=16, window=1024, in_flight=16_384, extra_blocks=1),
            "last 1,024 tokens + 16,384 in flight",
            16,
        ),
        (Chunk(block_tokens=32, chunk=8192), "chunk of 8,192 tokens", 32),
        (
            Chunk(block_tokens=32, chunk=8192, in_flight=2048),
            "chunk of 8,192 tokens + 2,048 in flight",
            32,
        ),
        (Fixed(block_tokens=16, tokens=1500, declared=2048), "1,500 encoder tokens", None),
        (Slots(), "1 state", None),
        (Slots(count=3), "3 states", None),
        (Slots(beside=Window(block_tokens=16, window=64)), "1 state beside every block", None),
        (Slots(count=3, every=784), "3 states, one more every 784 tokens", None),
        (Whole(slots=4096), "4,096 slots, whole", None),
    ],
)
def test_what_a_group_keeps(rule: Rule, keeps: str, block: int | None) -> None:
    """Each rule in words, and the tokens that a unit of it stands for."""
    (found,) = summarise(one_rank(pool(group(rule)))).groups

    assert (found.keeps, found.block_size) == (keeps, block)


def test_a_block_as_the_engine_says() -> None:
    """What an engine says of a unit comes before what its rule says."""
    states = group(Slots(count=3), block_size=832)
    (found,) = summarise(one_rank(pool(states))).groups

    assert found.block_size == 832


def test_a_group_of_two_rates() -> None:
    """What further rows keep is said beside, each once."""
    entries = Compressed(block_entries=2, ratio=128)
    rows = (Rows(rule=entries, payload={"a": 5}), Rows(rule=entries, payload={"b": 5}))
    both = group(Compressed(block_entries=64, ratio=4), also=rows, unit_bytes=700)
    (found,) = summarise(one_rank(pool(both))).groups

    assert found.keeps == "1 entry in 4 tokens or 1 entry in 128 tokens"
    assert (found.group_bytes, found.content_bytes) == (700, 660)


def test_windows_among_layers_that_read_all() -> None:
    """A block of all layers keeps every token, whatever some of them read of it."""
    read = Rows(rule=Grow(block_tokens=16, limit=1024), payload={"k": 5})
    (found,) = summarise(
        one_rank(pool(group(Grow(block_tokens=16), also=(read,), unit_bytes=240)))
    ).groups

    assert found.keeps == "every token, of which some layers read the last 1,024"


def test_qwen35_27b_in_vllm() -> None:
    """Four groups share the blocks: 9 of states and 10 of tokens are 19, 988 MiB of them."""
    plan = qwen35_in_vllm(832, 3)
    found = summarise(plan, kv_cache_bytes=15 * GIB, log=("a line",))

    assert found.groups[0] == PlanGroup(
        pool="p",
        name="state 0",
        layers=16,
        block_size=None,
        keeps="3 states",
        page_bytes=None,
        group_bytes=16 * 832 * 4096,
        content_bytes=16 * 3_207_168,
        units_held=3,
        units_needed=3,
    )
    assert [g.units_needed for g in found.groups] == [3, 3, 3, 10]
    assert (found.units_needed, found.needed_bytes) == (19, 1_035_993_088)
    assert found.request == Totals.of(plan.wastes_at_admission(8192))
    assert found.bytes_per_token == 65_536
    assert found.ranks == (
        PlanRank(
            name="rank", num_gpus=1, block_bytes=832 * 65_536, needed_bytes=found.needed_bytes
        ),
    )
    start = found.start_up
    assert start is not None
    assert (start.num_blocks, start.kv_cache_tokens, start.max_sequences) == (295, 127_191, 15)
    assert (start.kv_cache_bytes, start.fits, start.log) == (15 * GIB, True, ("a line",))
    assert start.max_model_len_that_fits == 8192


def test_growth_that_is_no_whole_number() -> None:
    entries = one_rank(pool(group(Compressed(block_entries=16, ratio=4))))

    assert summarise(entries).bytes_per_token is None


def test_what_admission_reserves() -> None:
    """A window holds less than it asks for; both are told."""
    window = Window(block_tokens=16, window=32, in_flight=64, extra_blocks=1)
    (found,) = summarise(one_rank(pool(group(window)), max_model_len=1000)).groups

    assert (found.units_held, found.units_needed) == (3, 7)


def test_shared_tokens() -> None:
    """A context-parallel rank has units for its part of the tokens."""
    rank = Rank(name="r", pools=(pool(group(Grow(block_tokens=16))),), token_factor=4)
    found = summarise(cache_plan(rank, max_model_len=1024))

    assert found.units_needed == 16
    assert found.needed_bytes == 16 * 160


def stages() -> CachePlan:
    """Two stages, the second with a pool of states beside its blocks."""
    blocks = pool(group(Grow(block_tokens=16)), name="blocks")
    states = pool(group(Slots(), 10_000), name="states")
    return cache_plan(
        Rank(name="stage 0", pools=(blocks,), multiplicity=2),
        Rank(name="stage 1", pools=(blocks, states), multiplicity=2),
        split="fungible",
    )


def test_ranks() -> None:
    """Groups are those of the stage that needs the most; every stage has a line of its own."""
    found = summarise(stages())

    assert found.num_gpus == 4
    assert [(g.pool, g.units_needed) for g in found.groups] == [("blocks", 7), ("states", 1)]
    assert [(r.name, r.num_gpus, r.block_bytes, r.needed_bytes) for r in found.ranks] == [
        ("stage 0", 2, 160, 7 * 160),
        ("stage 1", 2, None, 7 * 160 + 10_000),
    ]
    assert found.needed_bytes == found.request.reserved_bytes == 7 * 160 + 10_000


def test_without_a_cache_nothing_is_said_of_a_start() -> None:
    assert summarise(qwen35_in_vllm(832, 3)).start_up is None


def test_a_cache_that_the_settings_fix() -> None:
    """Blocks that are set need no bytes; a plan without any does."""
    blocks = pool(group(Grow(block_tokens=16)), units=8, reserved_units=1)
    start = summarise(one_rank(blocks, max_model_len=112)).start_up

    assert start is not None
    assert (start.kv_cache_bytes, start.num_blocks, start.fits) == (None, 8, True)
    assert start.overhead_bytes == 160
    assert start.log == ()
    assert summarise(plan_of(builders.LLAMA_8B, max_model_len=112)).start_up is None


def test_what_a_plan_says_of_itself() -> None:
    found = summarise(
        one_rank(
            pool(group(Grow(block_tokens=16))),
            notes=("a note",),
            unsupported=("not that",),
            convention=("as usual.",),
            source="here",
            engine_version="1.2",
            reuse_tokens=16,
        )
    )

    assert (found.notes, found.unsupported, found.convention) == (
        ("a note",),
        ("not that",),
        ("as usual.",),
    )
    assert (found.source, found.engine_version, found.reuse_tokens) == ("here", "1.2", 16)
