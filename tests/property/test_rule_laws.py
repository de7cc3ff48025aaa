"""Laws of the rules, one a test."""

from __future__ import annotations

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from kvcalc.core.lengths import Lengths
from kvcalc.core.rules import (
    Chunk,
    Compressed,
    Fixed,
    Grow,
    Rule,
    Slots,
    Stepped,
    Tally,
    Whole,
    Window,
)
from tests.property import strategies as some
from tests.property.simulator import simulate
from tests.property.strategies import SETTINGS


@SETTINGS
@given(some.rules, some.tokens)
def test_slots_are_conserved(rule: Rule, n: int) -> None:
    """Every slot of every unit is used or in exactly one waste, now and at admission."""
    for tally in (rule.split(n), rule.split_peak(n)):
        units, *parts = tally
        assert units * rule.slots_per_unit == sum(parts)
        assert min(tally) >= 0


@SETTINGS
@given(st.one_of(some.grow, some.kept, some.sliding, some.chunked), some.tokens)
def test_the_tail_is_less_than_a_block(rule: Rule, n: int) -> None:
    assert 0 <= rule.split(n).tail <= rule.slots_per_unit - 1


@SETTINGS
@given(some.compressed, some.tokens)
def test_the_tail_of_entries_is_at_most_a_block(rule: Rule, n: int) -> None:
    """A block comes with its first token, before its first entry."""
    assert 0 <= rule.split(n).tail <= rule.slots_per_unit


@SETTINGS
@given(some.tokens)
def test_blocks_of_one_token_waste_nothing(n: int) -> None:
    for rule in (
        Grow(block_tokens=1),
        Window(block_tokens=1, window=7),
        Chunk(block_tokens=1, chunk=7),
    ):
        tally = rule.split(n)
        assert tally.units == tally.used


@SETTINGS
@given(some.rules, some.tokens, some.tokens)
def test_admission_rises_with_the_length(rule: Rule, a: int, b: int) -> None:
    """What is reserved, and the most in use on the way, never falls: the search rests on it."""
    low, high = sorted((a, b))

    assert rule.peak(low) <= rule.peak(high)
    assert rule.most_used(low) <= rule.most_used(high)


@SETTINGS
@given(some.rules, some.tokens)
def test_what_is_read_is_held(rule: Rule, n: int) -> None:
    """No token reads more than was ever in use, and all that is used has a slot."""
    assert rule.readable(n) <= rule.most_used(n)
    assert rule.used(n) <= rule.most_used(n)
    assert rule.used(n) <= rule.held(n) * rule.slots_per_unit


@SETTINGS
@given(
    st.one_of(
        some.grow, some.kept, some.compressed, some.fixed, some.by_length, some.whole, some.stepped
    ),
    some.tokens,
)
def test_admission_covers_what_is_held(rule: Rule, n: int) -> None:
    assert rule.held(n) <= rule.peak(n)


@SETTINGS
@given(some.blocks, some.windows, some.tokens)
def test_admission_of_a_ring_covers_what_is_held(block: int, size: int, n: int) -> None:
    for rule in (
        Window(block_tokens=block, window=size, ring=True),
        Chunk(block_tokens=block, chunk=size, ring=True),
        Window(block_tokens=block, window=size, extra_blocks=1),
    ):
        assert rule.held(n) <= rule.peak(n)


@SETTINGS
@given(some.paged, st.integers(1, 6), some.tokens)
def test_whole_multiples_of_a_block_never_hold_less(rule: Rule, factor: int, n: int) -> None:
    """A block of 32 cannot take fewer slots than blocks of 16."""
    match rule:
        case Compressed(block_entries=entries, ratio=ratio):
            coarse: Rule = Compressed(block_entries=factor * entries, ratio=ratio)
        case Window(block_tokens=block, window=window, ring=ring):
            coarse = Window(block_tokens=factor * block, window=window, ring=ring)
        case Chunk(block_tokens=block, chunk=chunk, ring=ring):
            coarse = Chunk(block_tokens=factor * block, chunk=chunk, ring=ring)
        case _:
            coarse = msgspec.structs.replace(rule, block_tokens=factor * rule.slots_per_unit)

    assert rule.held(n) * rule.slots_per_unit <= coarse.held(n) * coarse.slots_per_unit


def test_larger_blocks_may_hold_less() -> None:
    """A tempting law that is false: 20 tokens take 32 slots in blocks of 16, 24 in one of 24."""
    small, large = Grow(block_tokens=16), Grow(block_tokens=24)

    assert small.held(20) * 16 == 32
    assert large.held(20) * 24 == 24


@SETTINGS
@given(some.blocks, some.tokens, st.integers(0, 300), st.booleans())
def test_a_window_of_everything_is_full_attention(
    block: int, n: int, beyond: int, ring: bool
) -> None:
    assume(n + beyond)
    window = Window(block_tokens=block, window=n + beyond, ring=ring)

    assert window.split(n) == Grow(block_tokens=block).split(n)
    assert window.held(n) == Grow(block_tokens=block).peak(n)


@SETTINGS
@given(some.blocks, some.tokens, st.integers(0, 300), st.booleans())
def test_a_chunk_of_everything_is_full_attention(
    block: int, n: int, beyond: int, ring: bool
) -> None:
    assume(n + beyond)
    chunk = Chunk(block_tokens=block, chunk=n + beyond, ring=ring)

    assert chunk.split(n) == Grow(block_tokens=block).split(n)


@SETTINGS
@given(some.blocks, some.windows, some.tokens)
def test_a_window_keeps_at_most_itself(block: int, window: int, n: int) -> None:
    rule = Window(block_tokens=block, window=window)

    assert rule.used(n) == min(n, window)
    assert rule.held(n) <= window // block + 2


@SETTINGS
@given(some.blocks, some.tokens)
def test_entries_of_one_token_are_full_attention(block: int, n: int) -> None:
    assert Compressed(block_entries=block, ratio=1).split(n) == Grow(block_tokens=block).split(n)


@SETTINGS
@given(some.rules, some.lengths)
def test_a_tally_is_the_sum_of_its_requests(rule: Rule, lengths: Lengths) -> None:
    """The fast ways of adding up say the same as the slow one."""
    sums = [0] * 5
    for n, count in lengths:
        sums = [total + count * part for total, part in zip(sums, rule.split(n), strict=True)]

    assert rule.tally(lengths) == Tally(*sums)


@SETTINGS
@given(some.paged, some.short)
def test_a_naive_allocator_agrees(rule: Rule, n: int) -> None:
    """Blocks handed out token by token end in the same units, use, tail and retention."""
    held = simulate(rule, n)
    units, used, reservation, tail, retention = rule.split(n)

    assert held == (units, used, tail, retention)
    assert reservation == 0


@SETTINGS
@given(some.rules, some.some_tokens, some.tokens)
def test_a_twin_uses_the_same(rule: Rule, longest: int, n: int) -> None:
    """Reserving in one piece changes what is wasted, not what is used."""
    assume(n <= longest)
    twin = rule.contiguous(longest)

    assert twin.used(n) == rule.used(n)
    assert twin.most_used(n) == rule.most_used(n)
    assert twin.readable(n) == rule.readable(n)


@SETTINGS
@given(some.rules, some.some_tokens, some.some_tokens)
def test_the_twin_of_a_twin(rule: Rule, first: int, second: int) -> None:
    """Making a twin twice is making it once with the last maximum."""
    assert rule.contiguous(first).contiguous(second) == rule.contiguous(second)


@SETTINGS
@given(some.whole, some.tokens)
def test_a_region_never_shrinks(rule: Whole, n: int) -> None:
    """A region is reserved whole; only a sequence that does not fit gets a larger one."""
    assert rule.held(n) == max(rule.slots, rule.most_used(n))


@SETTINGS
@given(some.blocks, some.windows, some.tokens, st.booleans())
def test_what_is_kept_unread_is_retention(block: int, limit: int, n: int, restarts: bool) -> None:
    """Keeping every token of a window takes full attention's blocks and uses the window's."""
    kept = Grow(block_tokens=block, limit=limit, restarts=restarts)
    full = Grow(block_tokens=block).split(n)
    window: Rule = (
        Chunk(block_tokens=block, chunk=limit)
        if restarts
        else Window(block_tokens=block, window=limit)
    )
    found = kept.split(n)

    assert (found.units, found.tail) == (full.units, full.tail)
    assert found.used == window.used(n)
    assert found.retention == n - window.used(n)
    assert kept.readable(n) == window.readable(n)
    assert kept.most_used(n) == window.most_used(n)
    assert kept.contiguous(8192) == window.contiguous(8192)


@SETTINGS
@given(some.by_length, some.tokens)
def test_states_kept_by_length_are_counted(rule: Slots, n: int) -> None:
    """One more for every further so many tokens begun, counted one by one; one of them is live."""
    begun = len(range(0, n, rule.every or 1))

    assert rule.held(n) == rule.count + max(0, begun - 1)
    assert rule.split(n).retention == rule.held(n) - 1
    assert rule.held(n) >= Slots(count=rule.count).held(n)


@SETTINGS
@given(some.blocks, some.windows, some.tokens, some.some_tokens)
def test_declaring_more_writes_no_more(block: int, rows: int, n: int, declared: int) -> None:
    """What is declared beyond the rows is a reservation of whole units, at admission alone."""
    plain = Fixed(block_tokens=block, tokens=rows)
    more = Fixed(block_tokens=block, tokens=rows, declared=declared)
    found = more.split_peak(n)

    assert more.split(n) == plain.split(n)
    assert (found.used, found.tail) == (rows, plain.tail(n))
    assert found.reservation == (found.units - plain.held(n)) * block
    assert found.units == max(plain.held(n), -(-declared // block))


@SETTINGS
@given(some.tokens, some.windows, some.tokens)
def test_the_two_forms_keep_every_token_once(first: int, step: int, n: int) -> None:
    """Each token is settled or not, and fewer than a step are not."""
    settled, rest = (Stepped(first=first, step=step, rest=rest) for rest in (False, True))

    assert settled.held(n) + rest.held(n) == n
    assert rest.held(n) < step
    assert settled.held(n) >= min(n, first)


@SETTINGS
@given(some.ratios, some.blocks, some.tokens)
def test_entries_on_demand_hold_no_empty_block(ratio: int, block: int, n: int) -> None:
    """A block comes with its first entry: never later, and up to ratio - 1 tokens later."""
    rule = Compressed(block_entries=block, ratio=ratio, on_demand=True)

    assert 0 <= rule.split(n).tail < block
    assert rule.used(n) <= rule.held(n) * block
    assert rule.held(n) <= Compressed(block_entries=block, ratio=ratio).held(n)
