"""How a sequence's units split: examples worked out by hand, a rule at a time."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.rules import (
    Chunk,
    Compressed,
    Fixed,
    Form,
    Grow,
    Ring,
    Rule,
    RuleBase,
    Slots,
    Stepped,
    Tally,
    Whole,
    Window,
)


def test_the_union_is_complete() -> None:
    assert set(get_args(Rule)) == set(RuleBase.__subclasses__())


GROW = Grow(block_tokens=16)
AHEAD = Grow(block_tokens=16, lookahead=3)
# Four-token blocks and a window of six, wherever it lies in the sequence and in a ring of its own.
SLIDING = Window(block_tokens=4, window=6)
VLLM = Window(block_tokens=4, window=6, in_flight=5, extra_blocks=1)
RING = Window(block_tokens=4, window=6, ring=True)
CHUNK = Chunk(block_tokens=4, chunk=6)
CHUNK_RING = Chunk(block_tokens=4, chunk=6, ring=True)
ENTRIES = Compressed(block_entries=4, ratio=3)
# All tokens kept though the last six, or those of a chunk of six, are read.
KEPT = Grow(block_tokens=4, limit=6)
KEPT_AHEAD = Grow(block_tokens=4, limit=6, lookahead=3)
KEPT_CHUNK = Grow(block_tokens=4, limit=6, restarts=True)
# One state live, and one more for each further four tokens begun.
STATES = Slots(every=4)
# 1,500 rows are written, blocks of 2,048 are asked for.
# A ring of six rows that grows by four; a chunk of six of which each token copies and adds four.
ROTATING = Ring(window=6, step=4, first=3, in_flight=3)
COPIED = Ring(window=8, step=4, in_flight=4, spare=4, restarts=True)
# Plain below eight tokens, packed from eight on.
PLAIN = Form(block_tokens=4, until=8, reach=12)
PACKED = Form(block_tokens=4, since=8)
DECLARED = Fixed(block_tokens=16, tokens=1500, declared=2048)


@pytest.mark.parametrize(
    ("rule", "n", "expected"),
    [
        (GROW, 0, (0, 0, 0, 0, 0)),
        (GROW, 1, (1, 1, 0, 15, 0)),
        (GROW, 16, (1, 16, 0, 0, 0)),
        (GROW, 17, (2, 17, 0, 15, 0)),
        (GROW, 200, (13, 200, 0, 8, 0)),
        # A chunk of six kept as a window: tokens 6 to 8 are read, six are held.
        (Window(block_tokens=1, window=6, ring=True, restarts=True), 9, (6, 3, 0, 0, 3)),
        (Window(block_tokens=1, window=6, ring=True, restarts=True), 6, (6, 6, 0, 0, 0)),
        (Compressed(block_entries=2, ratio=3, on_demand=True), 2, (0, 0, 0, 0, 0)),
        (Compressed(block_entries=2, ratio=3, on_demand=True), 3, (1, 1, 0, 1, 0)),
        # A prompt of 10 is settled at once, then four tokens at a time.
        (Stepped(first=10, step=4), 8, (8, 8, 0, 0, 0)),
        (Stepped(first=10, step=4), 13, (10, 10, 0, 0, 0)),
        (Stepped(first=10, step=4), 14, (14, 14, 0, 0, 0)),
        (Stepped(first=10, step=4, rest=True), 13, (3, 3, 0, 0, 0)),
        (Stepped(first=10, step=4, rest=True, slots=3), 11, (3, 1, 2, 0, 0)),
        # Three tokens at once, then four rows more, of which the window takes three.
        (ROTATING, 0, (0, 0, 0, 0, 0)),
        (ROTATING, 1, (4, 1, 0, 3, 0)),
        (ROTATING, 4, (6, 4, 0, 2, 0)),
        (ROTATING, 60, (6, 6, 0, 0, 0)),
        # A prompt of all tokens: four rows behind all but the last; a step of one token grows too.
        (Ring(window=60, step=4, in_flight=20), 10, (13, 10, 0, 3, 0)),
        (Ring(window=60, step=4, in_flight=8), 10, (12, 10, 0, 2, 0)),
        (Ring(window=60, step=4), 10, (12, 10, 0, 2, 0)),
        (COPIED, 8, (8, 8, 0, 0, 0)),
        (COPIED, 9, (12, 1, 0, 3, 8)),
        (PLAIN, 7, (2, 7, 0, 1, 0)),
        (PLAIN, 8, (0, 0, 0, 0, 0)),
        (PACKED, 7, (0, 0, 0, 0, 0)),
        (PACKED, 9, (3, 9, 0, 3, 0)),
        (Form(block_tokens=1, since=8, slots=12), 7, (12, 0, 12, 0, 0)),
        # 14 + 3 slots: a second block is held, all of it room for what is proposed.
        (AHEAD, 0, (0, 0, 0, 0, 0)),
        (AHEAD, 13, (1, 13, 0, 3, 0)),
        (AHEAD, 14, (2, 14, 0, 2, 16)),
        (AHEAD, 16, (2, 16, 0, 0, 16)),
        (AHEAD, 17, (2, 17, 0, 15, 0)),
        (SLIDING, 0, (0, 0, 0, 0, 0)),
        (SLIDING, 6, (2, 6, 0, 2, 0)),
        # Tokens 1 to 6 are read: block 0 still holds token 0, which is not.
        (SLIDING, 7, (2, 6, 0, 1, 1)),
        (SLIDING, 9, (3, 6, 0, 3, 3)),
        (SLIDING, 10, (2, 6, 0, 2, 0)),
        (SLIDING, 12, (2, 6, 0, 0, 2)),
        (RING, 3, (1, 3, 0, 1, 0)),
        (RING, 6, (2, 6, 0, 2, 0)),
        (RING, 100, (2, 6, 0, 2, 0)),
        (CHUNK, 0, (0, 0, 0, 0, 0)),
        (CHUNK, 6, (2, 6, 0, 2, 0)),
        # Token 6 starts a chunk in the middle of block 1.
        (CHUNK, 7, (1, 1, 0, 1, 2)),
        (CHUNK, 12, (2, 6, 0, 0, 2)),
        (CHUNK, 13, (1, 1, 0, 3, 0)),
        (CHUNK_RING, 6, (2, 6, 0, 2, 0)),
        (CHUNK_RING, 7, (1, 1, 0, 3, 0)),
        (ENTRIES, 0, (0, 0, 0, 0, 0)),
        # A block of 12 tokens is handed out with the first, which fills no entry yet.
        (ENTRIES, 1, (1, 0, 0, 4, 0)),
        (ENTRIES, 3, (1, 1, 0, 3, 0)),
        (ENTRIES, 12, (1, 4, 0, 0, 0)),
        (ENTRIES, 13, (2, 4, 0, 4, 0)),
        (Slots(), 0, (1, 1, 0, 0, 0)),
        (Slots(), 10**6, (1, 1, 0, 0, 0)),
        (Slots(count=3), 5, (3, 1, 0, 0, 2)),
        (KEPT, 0, (0, 0, 0, 0, 0)),
        (KEPT, 6, (2, 6, 0, 2, 0)),
        (KEPT, 7, (2, 6, 0, 1, 1)),
        # Eight blocks for 30 tokens: 24 of them are read by no token to come.
        (KEPT, 30, (8, 6, 0, 2, 24)),
        (KEPT_AHEAD, 6, (3, 6, 0, 2, 4)),
        (KEPT_CHUNK, 0, (0, 0, 0, 0, 0)),
        (KEPT_CHUNK, 6, (2, 6, 0, 2, 0)),
        (KEPT_CHUNK, 7, (2, 1, 0, 1, 6)),
        (KEPT_CHUNK, 12, (3, 6, 0, 0, 6)),
        (STATES, 0, (1, 1, 0, 0, 0)),
        (STATES, 4, (1, 1, 0, 0, 0)),
        (STATES, 5, (2, 1, 0, 0, 1)),
        (STATES, 9, (3, 1, 0, 0, 2)),
        (Slots(count=3, every=4), 9, (5, 1, 0, 0, 4)),
        (Slots(every=1), 7, (7, 1, 0, 0, 6)),
        (DECLARED, 7, (94, 1500, 0, 4, 0)),
        (Fixed(block_tokens=1500, tokens=1500), 0, (1, 1500, 0, 0, 0)),
        (Fixed(block_tokens=16, tokens=1500), 7, (94, 1500, 0, 4, 0)),
        (Whole(slots=8192), 0, (8192, 0, 8192, 0, 0)),
        (Whole(slots=8192), 200, (8192, 200, 7992, 0, 0)),
        (Whole(slots=8192), 8192, (8192, 8192, 0, 0, 0)),
        (Whole(slots=8191, spares_last=True), 8192, (8191, 8191, 0, 0, 0)),
        (Whole(slots=47, spares_last=True), 60, (59, 59, 0, 0, 0)),
        (Whole(slots=8192), 9000, (9000, 9000, 0, 0, 0)),
        # Ten slots for a window of six: four are room for tokens in flight.
        (Whole(slots=10, limit=6), 4, (10, 4, 2, 0, 4)),
        (Whole(slots=10, limit=6), 60, (10, 6, 0, 0, 4)),
        (Whole(slots=4, limit=6), 5, (5, 5, 0, 0, 0)),
        # A chunk of six started anew: five slots hold what no token reads.
        (Whole(slots=6, limit=6, restarts=True), 6, (6, 6, 0, 0, 0)),
        (Whole(slots=6, limit=6, restarts=True), 7, (6, 1, 0, 0, 5)),
        (Whole(slots=6, limit=6, restarts=True), 0, (6, 0, 6, 0, 0)),
        (Whole(slots=8, ratio=3), 13, (8, 4, 4, 0, 0)),
    ],
)
def test_split(rule: Rule, n: int, expected: tuple[int, ...]) -> None:
    """Units; slots in use, reserved for nothing, at a last block's end, of no use any more."""
    assert rule.split(n) == Tally(*expected)
    units, *slots = expected
    assert units * rule.slots_per_unit == sum(slots)
    assert rule.held(n) == units


@pytest.mark.parametrize(
    ("rule", "n", "expected"),
    [
        (GROW, 17, (2, 17, 0, 15, 0)),
        (VLLM, 0, (0, 0, 0, 0, 0)),
        (VLLM, 1, (2, 1, 0, 3, 4)),
        # Steps of three after five rows kept: eight, though six are held later.
        (Ring(window=6, step=4, in_flight=3), 10, (8, 6, 0, 0, 2)),
        (COPIED, 13, (12, 5, 0, 3, 4)),
        # Twelve tokens are written before they are looked at.
        (PLAIN, 30, (3, 0, 0, 0, 12)),
        # min(5 + 5, n) tokens and a block more.
        (VLLM, 9, (4, 6, 0, 3, 7)),
        (VLLM, 100, (4, 6, 0, 0, 10)),
        (RING, 100, (2, 6, 0, 2, 0)),
        (Chunk(block_tokens=4, chunk=6, in_flight=5), 7, (2, 1, 0, 1, 6)),
        (Chunk(block_tokens=4, chunk=6, in_flight=5), 100, (3, 4, 0, 0, 8)),
        (ENTRIES, 13, (2, 4, 0, 4, 0)),
        (Slots(count=3), 0, (3, 1, 0, 0, 2)),
        (STATES, 9, (3, 1, 0, 0, 2)),
        (KEPT, 7, (2, 6, 0, 1, 1)),
        # Admission does not ask for what is held for proposed tokens.
        (KEPT_AHEAD, 6, (2, 6, 0, 2, 0)),
        (KEPT_CHUNK, 7, (2, 1, 0, 1, 6)),
        # 128 blocks are asked for: those beyond the rows are reserved and never written.
        (DECLARED, 0, (128, 1500, 544, 4, 0)),
        (Fixed(block_tokens=16, tokens=1500, declared=1500), 9, (94, 1500, 0, 4, 0)),
        (Fixed(block_tokens=16, tokens=1500, declared=100), 9, (94, 1500, 0, 4, 0)),
    ],
)
def test_split_at_admission(rule: Rule, n: int, expected: tuple[int, ...]) -> None:
    assert rule.split_peak(n) == Tally(*expected)
    assert rule.peak(n) == expected[0]


def test_vllms_window_of_gemma() -> None:
    """Gemma-3 at 32,768 tokens and gpt-oss at 131,072, 16,384 of them in flight."""
    gemma = Window(block_tokens=16, window=1024, in_flight=16_384, extra_blocks=1)
    gpt_oss = Window(block_tokens=16, window=128, in_flight=16_384, extra_blocks=1)

    assert gemma.peak(32_768) == 1089
    assert gpt_oss.peak(131_072) == 1033
    assert gemma.peak(8192) == 513
    assert Window(block_tokens=1, window=6, in_flight=5).peak(100) == 10


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # n: 0, 1, 5, 6, 7, 11, 12, 13
        (GROW, [0, 1, 5, 6, 7, 11, 12, 13]),
        (SLIDING, [0, 1, 5, 5, 5, 5, 5, 5]),
        (CHUNK, [0, 1, 5, 0, 1, 5, 0, 1]),
        (ENTRIES, [0, 0, 1, 2, 2, 3, 4, 4]),
        (Slots(), [1] * 8),
        (Fixed(block_tokens=2, tokens=5), [5] * 8),
        (STATES, [1] * 8),
        (DECLARED, [1500] * 8),
        (KEPT, [0, 1, 5, 5, 5, 5, 5, 5]),
        (KEPT_CHUNK, [0, 1, 5, 0, 1, 5, 0, 1]),
        (Whole(slots=20), [0, 1, 5, 6, 7, 11, 12, 13]),
        (Whole(slots=20, limit=6), [0, 1, 5, 5, 5, 5, 5, 5]),
        (Whole(slots=20, limit=6, restarts=True), [0, 1, 5, 0, 1, 5, 0, 1]),
        (Whole(slots=20, ratio=3), [0, 0, 1, 2, 2, 3, 4, 4]),
    ],
)
def test_readable(rule: Rule, expected: list[int]) -> None:
    """The next token reads all, the last window - 1, or those of its own chunk."""
    assert [rule.readable(n) for n in (0, 1, 5, 6, 7, 11, 12, 13)] == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (GROW, [0, 6, 7, 12, 13]),
        (SLIDING, [0, 6, 6, 6, 6]),
        (CHUNK, [0, 6, 6, 6, 6]),
        (ENTRIES, [0, 2, 2, 4, 4]),
        (Slots(count=2), [1] * 5),
        (STATES, [1] * 5),
        (KEPT, [0, 6, 6, 6, 6]),
        (KEPT_CHUNK, [0, 6, 6, 6, 6]),
        (Whole(slots=20, limit=6, restarts=True), [0, 6, 6, 6, 6]),
        (Whole(slots=2, ratio=3), [0, 2, 2, 4, 4]),
    ],
)
def test_most_used(rule: Rule, expected: list[int]) -> None:
    """The most on the way there; it never falls."""
    assert [rule.most_used(n) for n in (0, 6, 7, 12, 13)] == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (GROW, Whole(slots=100)),
        (AHEAD, Whole(slots=100)),
        (VLLM, Whole(slots=6, limit=6)),
        (Window(block_tokens=4, window=500), Whole(slots=100, limit=500)),
        (CHUNK, Whole(slots=6, limit=6, restarts=True)),
        (Chunk(block_tokens=4, chunk=500), Whole(slots=100, limit=500, restarts=True)),
        (ENTRIES, Whole(slots=33, ratio=3)),
        (Slots(count=3), Slots()),
        (STATES, Slots()),
        (KEPT, Whole(slots=6, limit=6)),
        (KEPT_AHEAD, Whole(slots=6, limit=6)),
        (KEPT_CHUNK, Whole(slots=6, limit=6, restarts=True)),
        (Grow(block_tokens=4, limit=500), Whole(slots=100, limit=500)),
        (DECLARED, Fixed(block_tokens=1500, tokens=1500)),
        (Fixed(block_tokens=16, tokens=1500), Fixed(block_tokens=1500, tokens=1500)),
        (Whole(slots=10), Whole(slots=100)),
        (Whole(slots=10, limit=6), Whole(slots=6, limit=6)),
        (Whole(slots=10, ratio=3), Whole(slots=33, ratio=3)),
    ],
)
def test_contiguous(rule: Rule, expected: Rule) -> None:
    """In one piece a cache has room for 100 tokens, or for what it can ever keep."""
    assert rule.contiguous(100) == expected


@pytest.mark.parametrize(
    "rule",
    [
        GROW,
        AHEAD,
        SLIDING,
        RING,
        CHUNK,
        ENTRIES,
        KEPT,
        KEPT_AHEAD,
        KEPT_CHUNK,
        STATES,
        DECLARED,
        Slots(count=2),
        Whole(slots=9),
        Whole(slots=9, limit=6),
    ],
)
def test_tally(rule: Rule) -> None:
    """Many requests are the sum of each."""
    lengths = [0, 1, 6, 6, 7, 13, 13, 13, 100]
    sums = [sum(parts) for parts in zip(*(rule.split(n) for n in lengths), strict=True)]

    assert rule.tally(Lengths.of(lengths)) == Tally(*sums)
    assert rule.tally(Lengths({})) == Tally(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (Grow, {"block_tokens": 16, "limit": 4}),
        (Window, {"block_tokens": 16, "window": 4, "in_flight": 1}),
        (Chunk, {"block_tokens": 16, "chunk": 4}),
        (Compressed, {"block_entries": 16, "ratio": 4}),
        (Slots, {"count": 1, "every": 4}),
        (Fixed, {"block_tokens": 16, "tokens": 4, "declared": 4}),
        (Whole, {"limit": 4, "ratio": 1}),
    ],
)
def test_refusals(kind: Any, good: dict[str, int]) -> None:
    """Blocks, windows and ratios are at least one."""
    rest = {"slots": 0} if kind is Whole else {}
    kind(**good, **rest)
    for name in good:
        for bad in (0, -1, 1.5, True):
            with pytest.raises(InvalidValueError, match=name):
                kind(**{**good, **rest, name: bad})


def test_refusals_of_what_may_be_nothing() -> None:
    for make in (
        lambda: Grow(block_tokens=1, lookahead=-1),
        lambda: Window(block_tokens=1, window=1, extra_blocks=-1),
        lambda: Chunk(block_tokens=1, chunk=1, in_flight=-1),
        lambda: Whole(slots=-1),
    ):
        with pytest.raises(InvalidValueError, match="is -1"):
            make()


def test_units_at_admission() -> None:
    """What is kept for every token is asked for as such; states with the length; what is declared.

    A window in 0.19 without the hybrid manager, and Mamba states kept at every block.
    """
    window = Grow(block_tokens=16, limit=1024)
    states = Slots(every=784)

    assert [window.peak(n) for n in (0, 1, 1024, 8192)] == [0, 1, 64, 512]
    assert window.peak(8192) == Grow(block_tokens=16).peak(8192)
    assert [states.peak(n) for n in (0, 1, 784, 785, 8192)] == [1, 1, 1, 2, 11]
    assert [states.held(n) for n in (0, 785)] == [1, 2]
    assert (DECLARED.held(8192), DECLARED.peak(8192)) == (94, 128)


def test_a_region_of_entries_with_a_limit() -> None:
    """A window of compressed entries is refused: no engine keeps one."""
    with pytest.raises(InvalidValueError, match="not both"):
        Whole(slots=0, limit=2, ratio=4)


def test_a_state_beside_every_block_of_a_window() -> None:
    """As many as the window holds blocks, of which one is live; none before the first token."""
    beside = Slots(beside=VLLM)

    for n in (0, 1, 4, 5, 6, 7, 100):
        tally, most = beside.split(n), beside.split_peak(n)
        assert tally.units == VLLM.held(n)
        assert most.units == VLLM.peak(n)
        assert tally.used == min(n, 1)
        assert tally.retention == tally.units - tally.used
    assert beside.contiguous(100) == Slots()
