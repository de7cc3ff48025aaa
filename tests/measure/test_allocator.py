"""The synthetic allocator: PyTorch's rules, one by one, and laws over any use of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InvalidValueError, UnavailableError
from kvcalc.measure.probe.synthetic import CachingAllocator
from kvcalc.measure.snapshot import snapshot_of
from tests.measure.allocator.model import SyntheticAllocator, SyntheticOutOfMemoryError
from tests.measure.allocator.stats import METRICS

KIB, MIB, GIB = 2**10, 2**20, 2**30


def blocks(allocator: SyntheticAllocator) -> list[tuple[int, str]]:
    """Return size and state of every block, in the order of addresses."""
    return [
        (block["size"], block["state"])
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
    ]


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        # Not more than 1 MiB would remain of a large block: it is not split.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (12 * MIB, 12 * MIB, 12 * MIB),
        (GIB + MIB + 1, GIB + 2 * MIB, GIB + 2 * MIB),
    ],
)
def test_sizes(asked: int, block: int, segment: int) -> None:
    """An allocation takes a block of steps of 512 B out of a segment of its class."""
    allocator = SyntheticAllocator()
    allocator.alloc(asked)
    stats = allocator.stats()

    assert stats["allocated_bytes.all.current"] == block
    assert stats["reserved_bytes.all.current"] == segment
    assert stats["requested_bytes.all.current"] == asked
    assert stats["inactive_split_bytes.all.current"] == segment - block


def test_split_and_merge() -> None:
    """Freed neighbours become one hole again, whatever the order; a hole between stays one."""
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0], [1, 0, 2]):
        allocator = SyntheticAllocator()
        addresses = [allocator.alloc(4 * MIB) for _ in range(3)]
        assert blocks(allocator)[:3] == [(4 * MIB, "active_allocated")] * 3
        for at in order:
            allocator.free(addresses[at])
        assert blocks(allocator) == [(20 * MIB, "inactive")]
        assert allocator.stats()["inactive_split.all.current"] == 0

    allocator = SyntheticAllocator()
    addresses = [allocator.alloc(4 * MIB) for _ in range(3)]
    allocator.free(addresses[1])
    free = (4 * MIB, "inactive")
    used = (4 * MIB, "active_allocated")
    assert blocks(allocator) == [used, free, used, (8 * MIB, "inactive")]


def test_touching_segments_never_merge() -> None:
    """Two segments side by side are two holes, though their addresses touch."""
    allocator = SyntheticAllocator()
    first, second = allocator.alloc(32 * MIB), allocator.alloc(32 * MIB)
    assert second == first + 32 * MIB
    allocator.free(first)
    allocator.free(second)
    assert blocks(allocator) == [(32 * MIB, "inactive")] * 2

    allocator.alloc(48 * MIB)
    assert allocator.reserved_bytes == 112 * MIB


def test_best_fit() -> None:
    """The smallest hole that is large enough is taken."""
    allocator = SyntheticAllocator()
    large, small = allocator.alloc(64 * MIB), allocator.alloc(32 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.alloc(30 * MIB) == small
    assert allocator.alloc(30 * MIB) == large


@pytest.mark.parametrize("other", [{"stream": 7}, {"pool": (0, 1)}])
def test_kept_apart(other: dict[str, Any]) -> None:
    """A hole serves its own stream and its own pool."""
    allocator = SyntheticAllocator()
    allocator.free(allocator.alloc(64 * MIB))
    allocator.alloc(64 * MIB, **other)
    assert allocator.reserved_bytes == 128 * MIB
    assert len(allocator.snapshot()["segments"]) == 2


def test_classes_kept_apart() -> None:
    """A hole of the large pool does not serve a small request."""
    allocator = SyntheticAllocator()
    allocator.free(allocator.alloc(64 * MIB))
    allocator.alloc(MIB)
    assert allocator.stats()["reserved_bytes.small_pool.current"] == 2 * MIB


def test_empty_cache() -> None:
    """Whole free segments go back; pieces of one in use do not, nor what a private pool holds."""
    allocator = SyntheticAllocator(GIB)
    whole, part = allocator.alloc(100 * MIB), allocator.alloc(4 * MIB)
    private = allocator.alloc(50 * MIB, pool=(0, 1))
    allocator.free(whole)
    allocator.free(private)
    assert allocator.mem_get_info() == (GIB - 170 * MIB, GIB)

    allocator.empty_cache()
    assert allocator.mem_get_info() == (GIB - 70 * MIB, GIB)
    allocator.free(part)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 50 * MIB


def test_retry_then_out_of_memory() -> None:
    """Cached segments are given back before it fails; what fails is what the device was asked."""
    allocator = SyntheticAllocator(100 * MIB, other_bytes=10 * MIB)
    allocator.free(allocator.alloc(60 * MIB))
    allocator.alloc(80 * MIB)
    assert allocator.stats()["num_alloc_retries"] == 1
    assert allocator.stats()["num_ooms"] == 0

    with pytest.raises(SyntheticOutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        allocator.alloc(3 * MIB)
    assert allocator.stats()["num_ooms"] == 1
    assert allocator.alloc(MIB) > 0  # the small pool still finds 2 MiB


def test_allowed() -> None:
    """A limit on the process binds before the device does."""
    allocator = SyntheticAllocator(GIB, allowed_bytes=64 * MIB)
    allocator.alloc(64 * MIB)
    with pytest.raises(SyntheticOutOfMemoryError, match=r"64\.00 MiB allowed"):
        allocator.alloc(1)


def test_max_split_size() -> None:
    """A block beyond the limit is neither split nor given to small requests."""
    allocator = SyntheticAllocator(GIB, max_split_size=100 * MIB)
    big = allocator.alloc(200 * MIB)
    allocator.free(big)
    allocator.alloc(50 * MIB)
    assert allocator.reserved_bytes == 250 * MIB
    assert allocator.alloc(190 * MIB) == big  # within 20 MiB, and whole
    assert allocator.allocated_bytes == 250 * MIB


def test_max_split_size_gives_back_what_is_needed() -> None:
    """For want of memory an oversize block goes back first, and others stay cached."""
    allocator = SyntheticAllocator(400 * MIB, max_split_size=100 * MIB)
    allocator.free(allocator.alloc(250 * MIB))
    allocator.free(allocator.alloc(50 * MIB))
    allocator.alloc(200 * MIB)
    assert allocator.reserved_bytes == 250 * MIB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_expandable() -> None:
    """A segment grows behind its last hole, and gives free pages back though it is in use."""
    allocator = SyntheticAllocator(GIB, expandable=True)
    first = allocator.alloc(30 * MIB)
    second = allocator.alloc(30 * MIB)
    assert second == first + 30 * MIB
    assert allocator.reserved_bytes == 60 * MIB
    (segment,) = allocator.snapshot()["segments"]
    assert segment["is_expandable"]
    assert segment["total_size"] == 60 * MIB

    allocator.free(first)
    allocator.empty_cache()  # of 30 MiB one page of 20 MiB is whole
    assert allocator.reserved_bytes == 40 * MIB
    assert allocator.stats()["inactive_split_bytes.all.current"] == 0
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator.snapshot()["segments"] == []


def test_expandable_serves_what_fixed_segments_cannot() -> None:
    """Holes that are too small one by one serve a large request once their pages can move."""
    for expandable in (False, True):
        allocator = SyntheticAllocator(400 * MIB, expandable=expandable)
        addresses = [allocator.alloc(40 * MIB) for _ in range(10)]
        for address in addresses[::2]:
            allocator.free(address)
        if not expandable:
            allocator.empty_cache()  # whole segments: they go back as well
        assert allocator.alloc(200 * MIB)

    for expandable, fits in ((False, False), (True, True)):
        allocator = SyntheticAllocator(200 * MIB, expandable=expandable)
        pairs = [(allocator.alloc(9 * MIB), allocator.alloc(9 * MIB)) for _ in range(10)]
        for first, second in pairs[1:]:
            allocator.free(second if expandable else first)
            if expandable:
                allocator.free(first)
        if fits:
            assert allocator.alloc(150 * MIB)
        else:
            with pytest.raises(SyntheticOutOfMemoryError):
                allocator.alloc(150 * MIB)


def test_expandable_and_limited() -> None:
    """With both settings oversize holes go back page by page."""
    allocator = SyntheticAllocator(300 * MIB, expandable=True, max_split_size=64 * MIB)
    addresses = [allocator.alloc(90 * MIB) for _ in range(3)]
    allocator.free(addresses[1])
    assert allocator.alloc(90 * MIB, stream=1)


def test_awaited() -> None:
    """A block that another stream uses stays active until that stream is done."""
    allocator = SyntheticAllocator()
    address = allocator.alloc(32 * MIB)
    allocator.record_stream(address, 5)
    allocator.free(address)
    stats = allocator.stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["active_bytes.all.current"] == 32 * MIB
    assert blocks(allocator) == [(32 * MIB, "active_awaiting_free")]

    allocator.synchronize()
    assert blocks(allocator) == [(32 * MIB, "inactive")]


def test_private_pools_in_the_message() -> None:
    """What is free in a private pool is told as allocated there."""
    allocator = SyntheticAllocator(100 * MIB)
    allocator.free(allocator.alloc(50 * MIB, pool=(1, 0)))
    allocator.alloc(40 * MIB)
    with pytest.raises(SyntheticOutOfMemoryError) as error:
        allocator.alloc(20 * MIB)
    assert "90.00 MiB is allocated by PyTorch, with 50.00 MiB allocated in private" in str(
        error.value
    )
    assert "0 bytes is reserved by PyTorch but unallocated" in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SyntheticAllocator(10, other_bytes=11),
        lambda: SyntheticAllocator(max_split_size=MIB),
        lambda: SyntheticAllocator().alloc(0),
        lambda: SyntheticAllocator().alloc(True),
        lambda: SyntheticAllocator().free(5),
        lambda: SyntheticAllocator().record_stream(5, 1),
    ],
)
def test_wrong_use(wrong: Any) -> None:
    """What PyTorch would crash on is an error."""
    with pytest.raises(InvalidValueError):
        wrong()


def test_freed_twice() -> None:
    """An address is given back once."""
    allocator = SyntheticAllocator()
    address = allocator.alloc(1)
    allocator.free(address)
    with pytest.raises(InvalidValueError, match="nothing is allocated"):
        allocator.free(address)


# --------------------------------------------------------------------- laws

SIZES = st.sampled_from(
    [1, 512, 513, 100 * KIB, MIB, MIB + 1, 3 * MIB, 10 * MIB, 11 * MIB, 33 * MIB, 120 * MIB]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("free"), st.integers(0, 99), st.booleans(), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def used(allocator: SyntheticAllocator, steps: list[Any]) -> None:
    """Run the steps; what does not fit is left out."""
    live: list[int] = []
    for what, first, second, third in steps:
        if what == "alloc":
            try:
                live.append(allocator.alloc(first, stream=second, pool=(0, int(third == 0))))
            except SyntheticOutOfMemoryError:
                continue
        elif what == "empty":
            allocator.empty_cache()
        elif live:
            address = live.pop(first % len(live))
            if second:
                allocator.record_stream(address, 9)
            allocator.free(address)


@settings(deadline=None)
@given(steps=STEPS, kind=st.sampled_from(["plain", "expandable", "limited", "both"]))
def test_laws(steps: list[Any], kind: str) -> None:
    """After any use: no gap, no two holes side by side, and every figure is the snapshot's."""
    allocator = SyntheticAllocator(
        512 * MIB,
        other_bytes=32 * MIB,
        expandable=kind in ("expandable", "both"),
        max_split_size=64 * MIB if kind in ("limited", "both") else None,
    )
    used(allocator, steps)
    raw = allocator.snapshot()["segments"]
    stats = allocator.stats()
    read = snapshot_of(allocator.snapshot())  # checks sums, gaps, steps and overlaps

    for name, size_class in (("all", None), ("large_pool", "large"), ("small_pool", "small")):
        own = [s for s in raw if size_class in (None, s["segment_type"])]
        in_blocks = [(s, b) for s in own for b in s["blocks"]]
        assert stats[f"reserved_bytes.{name}.current"] == sum(s["total_size"] for s in own)
        assert stats[f"allocated_bytes.{name}.current"] == sum(s["allocated_size"] for s in own)
        assert stats[f"active_bytes.{name}.current"] == sum(s["active_size"] for s in own)
        assert stats[f"requested_bytes.{name}.current"] == sum(s["requested_size"] for s in own)
        states = [b["state"] for _, b in in_blocks]
        assert stats[f"allocation.{name}.current"] == states.count("active_allocated")
        assert stats[f"active.{name}.current"] == len(states) - states.count("inactive")
        if kind in ("plain", "limited"):
            split = [
                b["size"] for s, b in in_blocks if b["state"] == "inactive" and len(s["blocks"]) > 1
            ]
            assert stats[f"inactive_split.{name}.current"] == len(split)
            assert stats[f"inactive_split_bytes.{name}.current"] == sum(split)
            assert stats[f"segment.{name}.current"] == len(own)
    for segment in raw:
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in list(pairwise(states))
    for metric in METRICS:
        figures = {
            part: stats[f"{metric}.all.{part}"]
            for part in ("current", "peak", "allocated", "freed")
        }
        assert figures["current"] == figures["allocated"] - figures["freed"]
        assert 0 <= figures["current"] <= figures["peak"] <= figures["allocated"]
    free, total = allocator.mem_get_info()
    assert free == total - 32 * MIB - sum(segment.total for segment in read.segments) >= 0


@settings(deadline=None)
@given(steps=STEPS)
def test_emptied(steps: list[Any]) -> None:
    """What a snapshot says will go back is what goes back."""
    allocator = SyntheticAllocator(512 * MIB)
    used(allocator, steps)
    allocator.synchronize()
    read = snapshot_of(allocator.snapshot())
    promised = sum(s.returnable for s in read.segments if s.pool == (0, 0))
    before = allocator.reserved_bytes
    allocator.empty_cache()
    assert before - allocator.reserved_bytes == promised


@settings(deadline=None)
@given(steps=STEPS)
def test_emptied_expandable(steps: list[Any]) -> None:
    """The same of segments that grow in place, page by page."""
    allocator = SyntheticAllocator(512 * MIB, expandable=True)
    used(allocator, steps)
    allocator.synchronize()
    read = snapshot_of(allocator.snapshot())
    promised = sum(s.returnable for s in read.segments if s.pool == (0, 0))
    before = allocator.reserved_bytes
    allocator.empty_cache()
    assert before - allocator.reserved_bytes == promised


@settings(deadline=None)
@given(
    steps=st.lists(
        st.integers(1, 40 * MIB) | st.sampled_from([512, MIB, MIB + 1, 10 * MIB]) | st.just(0),
        max_size=60,
    ),
    total=st.integers(20, 400),
    choose=st.randoms(use_true_random=False),
)
def test_the_allocator_of_a_dry_run(steps: list[int], total: int, choose: Any) -> None:
    """On one stream and the default pool it does what the model does, its refusal's words too."""
    model, plain = (
        SyntheticAllocator(total * MIB, other_bytes=MIB),
        CachingAllocator(total * MIB, MIB),
    )
    live: list[tuple[int, int]] = []
    for size in steps:
        if size:
            try:
                address = model.alloc(size)
            except SyntheticOutOfMemoryError as error:
                with pytest.raises(UnavailableError) as refused:
                    plain.alloc(size)
                assert refused.value.message == error.message
            else:
                live.append((address, plain.alloc(size)))
        elif live:
            first, second = live.pop(choose.randrange(len(live)))
            model.free(first)
            plain.free(second)
        else:
            model.empty_cache()
            plain.empty_cache()
        stats = model.stats()
        assert plain.requested_bytes == stats["requested_bytes.all.current"]
        assert (plain.allocated_bytes, plain.reserved_bytes) == (
            model.allocated_bytes,
            model.reserved_bytes,
        )
        assert plain.free_bytes == model.mem_get_info()[0]
