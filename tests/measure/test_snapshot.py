"""Allocator snapshots: both shapes, old and new keys, and what contradicts itself."""

from __future__ import annotations

import copy
import gzip
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcalc
from kvcalc.allocator.segments import SMALL_SEGMENT, Snapshot, device_bytes
from kvcalc.allocator.state import fragmentation_index, histogram, state_of
from kvcalc.core.errors import InputError, InvalidValueError, UsageError
from kvcalc.measure.snapshot import MAX_BLOCKS, MAX_JSON_BYTES, read_snapshot, snapshot_of
from tests.measure.allocator.model import SyntheticAllocator

MIB, GIB = 2**20, 2**30


def made() -> SyntheticAllocator:
    """Return an allocator with a known state.

    Large, stream 0: 64 MiB whole and free; 20 MiB with 4 used, 4 free, 4 used, 8 free; stream 3:
    40 MiB whole and free; a private pool: 30 MiB whole and free; small: 512 B used of 2 MiB.
    """
    allocator = SyntheticAllocator(GIB, other_bytes=100 * MIB)
    whole = allocator.alloc(64 * MIB)
    first, second, third = (allocator.alloc(4 * MIB - 100) for _ in range(3))
    other, private = allocator.alloc(40 * MIB, stream=3), allocator.alloc(30 * MIB, pool=(0, 1))
    allocator.alloc(300)
    for address in (whole, second, other, private):
        allocator.free(address)
    del first, third  # they stay in use
    return allocator


def old(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bare list with the keys of torch 1.x: no address of a block, a history."""
    segments: list[dict[str, Any]] = copy.deepcopy(snapshot["segments"])
    for segment in segments:
        for key in ("requested_size", "segment_pool_id", "is_expandable", "frames"):
            del segment[key]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                block["history"] = [{"addr": 1, "real_size": block["requested_size"], "frames": []}]
            for key in ("address", "requested_size", "frames"):
                del block[key]
    return segments


class TestForms:
    """One state, however it was written."""

    def read(self, path: Path, data: bytes) -> Snapshot:
        path.write_bytes(data)
        return read_snapshot(str(path))

    def test_all(self, tmp_path: Path) -> None:
        """A pickle of each protocol, JSON, the dict and the bare list say the same."""
        snapshot = made().snapshot()
        expected = snapshot_of(snapshot)
        for value in (snapshot, snapshot["segments"]):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                assert self.read(tmp_path / "p", pickle.dumps(value, protocol)) == expected
            for text in (
                json.dumps(value),
                json.dumps(value, indent=1),
                "\ufeff" + json.dumps(value),
            ):
                assert self.read(tmp_path / "j", text.encode()) == expected

    def test_stdin(self) -> None:
        """A dash is stdin."""
        snapshot = made().snapshot()
        data = io.BytesIO(pickle.dumps(snapshot))
        assert read_snapshot("-", data) == snapshot_of(snapshot)

    def test_old_keys(self, tmp_path: Path) -> None:
        """The keys of old say the same of sizes; pools and requests they do not tell."""
        segments = old(made().snapshot())
        read = self.read(tmp_path / "p", pickle.dumps(segments, 2))
        new = snapshot_of(made().snapshot())
        assert [s.total for s in read.segments] == [s.total for s in new.segments]
        assert state_of(read, 0, MIB).requested_bytes is None

    def test_awaited_of_old(self) -> None:
        """What waits for a stream had another name before."""
        allocator = SyntheticAllocator()
        address = allocator.alloc(32 * MIB)
        allocator.record_stream(address, 2)
        allocator.free(address)
        snapshot = allocator.snapshot()
        expected = snapshot_of(snapshot)
        assert expected.segments[0].blocks[0].state == "awaiting"
        snapshot["segments"][0]["blocks"][0]["state"] = "active_pending_free"
        assert snapshot_of(snapshot) == expected

    def test_stale_requests(self) -> None:
        """What a free block was last asked for says nothing."""
        snapshot = made().snapshot()
        free = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "inactive"]
        assert any(block["requested_size"] for block in free)
        before = snapshot_of(snapshot)
        for block in free:
            block["requested_size"] = 12345
        assert snapshot_of(snapshot) == before

    def test_failed_allocations(self, tmp_path: Path) -> None:
        """Of the traces, only failed allocations are kept."""
        snapshot = made().snapshot()
        entries = [
            {"action": "alloc", "addr": 1, "size": 5, "stream": 0, "frames": [{"name": "f"}]},
            {"action": "oom", "device_free": 7 * MIB, "size": 9 * MIB, "stream": 0, "frames": []},
            {"action": "snapshot", "addr": 0, "size": 1, "stream": 0},
        ]
        snapshot["device_traces"] = [[dict(entry) for _ in range(3) for entry in entries]]
        for data in (pickle.dumps(snapshot), json.dumps(snapshot).encode()):
            events = self.read(tmp_path / "x", data).oom_events
            assert [(e.asked_bytes, e.device_free_bytes) for e in events] == [
                (9 * MIB, 7 * MIB)
            ] * 3

    def test_most_blocks(self, tmp_path: Path) -> None:
        """As many blocks as are allowed are read from a pickle, one more is refused."""
        block = {"size": 512, "requested_size": 500, "state": "active_allocated", "frames": []}
        count = SMALL_SEGMENT // 512
        blocks = [{"address": SMALL_SEGMENT + 512 * n, **block} for n in range(count)]
        segment: dict[str, Any] = {"device": 0, "total_size": SMALL_SEGMENT}
        segment |= {"stream": 0, "segment_type": "small"}
        whole, rest = divmod(MAX_BLOCKS, count)
        last = [{"size": SMALL_SEGMENT - 512 * (rest - 1), "state": "inactive"}]
        last += [{"size": 512, "state": "inactive"}] * (rest - 1)
        snapshot: list[dict[str, Any]] = [
            {**segment, "address": n << 30, "blocks": [{**b, "address": (n << 30) + 512 * at}
                                                       for at, b in enumerate(blocks)]}
            for n in range(1, whole + 1)
        ]  # fmt: skip
        snapshot.append({**segment, "address": 1 << 50, "blocks": last})
        read = self.read(tmp_path / "p", pickle.dumps({"segments": snapshot}))
        assert sum(len(s.blocks) for s in read.segments) == MAX_BLOCKS
        snapshot.append({**segment, "address": 1 << 51, "blocks": [last[0] | {"size": 2 * MIB}]})
        with pytest.raises(InputError, match="80,000 blocks"):
            self.read(tmp_path / "p", pickle.dumps(snapshot))

    def test_empty(self) -> None:
        """An allocator that took nothing has no segments."""
        assert snapshot_of(SyntheticAllocator().snapshot()).segments == ()
        assert snapshot_of([]).devices == ()


class TestState:
    """Known answers for a known state."""

    STATE = state_of(snapshot_of(made().snapshot()), 0, 48 * MIB)

    def test_sums(self) -> None:
        """Each byte is counted once, where it belongs."""
        state = self.STATE
        used = 2 * (4 * MIB) + 512
        free = 64 + 4 + 8 + 40 + 30 + 2
        assert state.reserved_bytes == 156 * MIB
        assert state.allocated_bytes == used
        assert state.requested_bytes == 2 * (4 * MIB - 100) + 300
        assert state.releasable_bytes == 104 * MIB
        assert state.private_free_bytes == 30 * MIB
        assert state.split_free_bytes == (free - 104 - 30) * MIB - 512
        assert sum(group.free_bytes for group in state.groups) == free * MIB - 512
        assert state.segments == sum(group.segments for group in state.groups) == 5

    def test_groups(self) -> None:
        """Holes are told by stream, pool and class."""
        groups = {(g.stream, g.pool, g.size_class): g for g in self.STATE.groups}
        assert groups.keys() == {
            (0, "0.0", "large"), (0, "0.0", "small"), (3, "0.0", "large"), (0, "0.1", "large"),
        }  # fmt: skip
        large = groups[0, "0.0", "large"]
        assert (large.holes, large.largest_free_bytes) == (3, 64 * MIB)
        assert large.releasable_bytes == 64 * MIB
        assert groups[0, "0.0", "small"].free_bytes == 2 * MIB - 512

    @pytest.mark.parametrize(
        ("request_bytes", "streams", "largest"),
        [
            (48 * MIB, (0,), 64 * MIB),
            (40 * MIB, (0, 3), 64 * MIB),
            (64 * MIB, (0,), 64 * MIB),
            (64 * MIB + 1, (), 64 * MIB),
            (MIB, (0,), 2 * MIB - 512),  # of the small pool, whatever the large one has
            (2 * MIB, (0, 3), 64 * MIB),
        ],
    )
    def test_fits_now(self, request_bytes: int, streams: tuple[int, ...], largest: int) -> None:
        """A hole serves its own class, and no private pool serves others."""
        fit = state_of(snapshot_of(made().snapshot()), 0, request_bytes).request
        assert fit is not None
        assert fit.streams == streams
        assert fit.fits_now == bool(streams)
        assert fit.largest_usable_bytes == largest

    @pytest.mark.parametrize(
        ("request_bytes", "device_free", "fits", "needed"),
        [
            (104 * MIB, None, True, 0),  # both whole segments, of whichever stream
            (104 * MIB + 1, None, None, 2 * MIB),
            (104 * MIB + 1, 2 * MIB, True, 2 * MIB),
            (104 * MIB + 1, 2 * MIB - 1, False, 2 * MIB),
            (8 * MIB, None, True, 0),  # a hole that stays
        ],
    )
    def test_fits_after(
        self, request_bytes: int, device_free: int | None, fits: bool | None, needed: int
    ) -> None:
        """Whole segments go back to the device, and what is missing then must be free there."""
        fit = state_of(snapshot_of(made().snapshot()), 0, request_bytes, device_free).request
        assert fit is not None
        assert fit.fits_after_empty_cache is fits
        assert fit.device_free_needed_bytes == needed

    @settings(deadline=None)
    @given(request_bytes=st.integers(1, 200 * MIB))
    def test_foretold(self, request_bytes: int) -> None:
        """The allocator itself does what its snapshot promises."""
        allocator = made()
        free, _ = allocator.mem_get_info()
        fit = state_of(snapshot_of(allocator.snapshot()), 0, request_bytes, free).request
        assert fit is not None
        reserved = allocator.reserved_bytes
        allocator.alloc(request_bytes)
        assert (allocator.reserved_bytes == reserved) == (0 in fit.streams)

    @settings(deadline=None)
    @given(
        request_bytes=st.integers(1, 400 * MIB),
        sizes=st.lists(st.sampled_from([4, 9, 15, 33, 70]), min_size=2, max_size=12),
        total=st.integers(150, 500),
    )
    def test_foretold_at_the_end(self, request_bytes: int, sizes: list[int], total: int) -> None:
        """It fails where the snapshot, with the device's free memory, says that it fails."""
        allocator = SyntheticAllocator(total * MIB)
        live = [
            allocator.alloc(size * MIB)
            for size in sizes
            if allocator.mem_get_info()[0] > 80 * MIB  # as it is by then
        ]
        for address in live[::2]:
            allocator.free(address)
        free, _ = allocator.mem_get_info()
        fit = state_of(snapshot_of(allocator.snapshot()), 0, request_bytes, free).request
        assert fit is not None
        try:
            allocator.alloc(request_bytes)
            served = True
        except kvcalc.KvcalcError:
            served = False
        assert served == (fit.fits_now or fit.fits_after_empty_cache)

    def test_histogram(self) -> None:
        """Holes by powers of two, the empty ones between them too."""
        bins = histogram([3 * MIB, 2 * MIB, 9 * MIB], 3 * MIB)
        assert [(b.from_bytes, b.holes, b.bytes, b.fitting_bytes) for b in bins] == [
            (2 * MIB, 2, 5 * MIB, 3 * MIB),
            (4 * MIB, 0, 0, 0),
            (8 * MIB, 1, 9 * MIB, 9 * MIB),
        ]
        assert histogram([], 1) == ()

    def test_fragmentation_index(self) -> None:
        """Linux's formula: None where a hole fits, 1 - (1 + free / request) / holes otherwise."""
        assert fragmentation_index([5, 8], 8) is None
        assert fragmentation_index([4] * 10, 8) == 1 - (1 + 5) / 10
        assert fragmentation_index([4], 8) == 0
        assert fragmentation_index([], 8) == 0

    def test_max_split_size(self) -> None:
        """Under a limit a large hole does not serve a small request."""
        allocator = SyntheticAllocator(max_split_size=100 * MIB)
        allocator.free(allocator.alloc(200 * MIB))
        read = snapshot_of(allocator.snapshot())
        assert read.max_split_size == 100 * MIB
        for request_bytes, fits in ((50 * MIB, False), (190 * MIB, True), (170 * MIB, False)):
            fit = state_of(read, 0, request_bytes).request
            assert fit is not None
            assert fit.fits_now is fits

    def test_expandable(self) -> None:
        """A segment that grows in place needs no more than what is missing behind its last hole."""
        allocator = SyntheticAllocator(GIB, expandable=True)
        allocator.alloc(30 * MIB)
        allocator.free(allocator.alloc(10 * MIB))
        state = state_of(snapshot_of(allocator.snapshot()), 0, 50 * MIB)
        assert state.expandable_segments == 1
        fit = state.request
        assert fit is not None
        assert (fit.device_bytes, fit.device_free_needed_bytes) == (40 * MIB, 40 * MIB)
        allocator.alloc(50 * MIB)
        assert allocator.reserved_bytes == 80 * MIB

    def test_several_devices(self) -> None:
        """Each device is judged by itself."""
        first, second = made().snapshot(), SyntheticAllocator(device=1)
        second.free(second.alloc(500 * MIB))
        read = snapshot_of([*first["segments"], *second.snapshot()["segments"]])
        assert read.devices == (0, 1)
        for device, fits in ((0, False), (1, True)):
            fit = state_of(read, device, 400 * MIB).request
            assert fit is not None
            assert fit.fits_now is fits

    def test_asked_of_the_device(self) -> None:
        """The three sizes of PyTorch's segments, at their edges."""
        asked = {512: 2, MIB: 2, MIB + 512: 20, 10 * MIB - 512: 20, 10 * MIB: 10, 11 * MIB: 12}
        for block, segment in asked.items():
            assert device_bytes(block) == segment * MIB


# --------------------------------------------------------------------- refusing

Break = Callable[[dict[str, Any]], None]


def _segment(**changes: Any) -> Break:
    return lambda snapshot: snapshot["segments"][0].update(changes)


def _block(**changes: Any) -> Break:
    return lambda snapshot: snapshot["segments"][1]["blocks"][0].update(changes)


def _drop(key: str) -> Break:
    return lambda snapshot: snapshot["segments"][0].pop(key)


def _swap(snapshot: dict[str, Any]) -> None:
    blocks = snapshot["segments"][1]["blocks"]
    blocks[0], blocks[1] = blocks[1], blocks[0]


def _overlap(snapshot: dict[str, Any]) -> None:
    first, second = snapshot["segments"][:2]
    second["address"] = first["address"] + 512
    at = second["address"]
    for block in second["blocks"]:
        block["address"] = at
        at += block["size"]


BROKEN: dict[str, tuple[Break, str]] = {
    "a sum of blocks": (_segment(total_size=66 * MIB), "total_size is"),
    "a total of odd size": (_segment(total_size=64 * MIB + 512), "multiple of 2 MiB"),
    "a total of nothing": (_segment(total_size=0), "multiple of 2 MiB"),
    "allocated": (_segment(allocated_size=512), "allocated_size is"),
    "active": (_segment(active_size=512), "active_size is"),
    "requested": (_segment(requested_size=512), "requested_size is"),
    "a segment's type": (_segment(segment_type="huge"), "not large or small"),
    "a flag that is none": (_segment(is_expandable=1), "not true or false"),
    "a pool of three": (_segment(segment_pool_id=(0, 0, 0)), "not a pair"),
    "a pool of words": (_segment(segment_pool_id=("a", "b")), "not a pair"),
    "a device below zero": (_segment(device=-1), "not a whole number"),
    "a device that is true": (_segment(device=True), "not a whole number"),
    "a stream of words": (_segment(stream="default"), "not a whole number"),
    "no blocks": (_segment(blocks=[]), "none"),
    "blocks that are none": (_segment(blocks={"a": 1}), "a mapping"),
    "a block that is none": (_segment(blocks=[1]), "block 0 is 1"),
    "a segment that is none": (lambda s: s["segments"].__setitem__(0, 5), "segment 0 is 5"),
    "segments that are none": (lambda s: s.update(segments=7), "not a list"),
    "no segments": (lambda s: s.pop("segments"), "no segments among its keys"),
    "a size of 100": (_block(size=100), "no multiple of 512"),
    "a size of nothing": (_block(size=0), "no multiple of 512"),
    "a size below zero": (_block(size=-512), "no multiple of 512"),
    "a size with a fraction": (_block(size=512.0), "no multiple of 512"),
    "a size that is true": (_block(size=True), "no multiple of 512"),
    "an unknown state": (_block(state="asleep"), "state is 'asleep'"),
    "a state that is a list": (_block(state=[]), "state is a list"),
    "a gap": (_block(address=1), "does not begin where"),
    "blocks out of order": (_swap, "does not begin where"),
    "more asked than there is": (_block(requested_size=5 * MIB), "not a part of"),
    "segments on one another": (_overlap, "lie on one another"),
    "a total that is missing": (_drop("total_size"), "total_size is nothing"),
    "blocks that are missing": (_drop("blocks"), "its blocks are"),
    "a type that is missing": (_drop("segment_type"), "segment_type is nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str, tmp_path: Path) -> None:
    """What contradicts itself is refused, with the segment or block that does."""
    snapshot = made().snapshot()
    change, said = BROKEN[name]
    change(snapshot)
    with pytest.raises(InputError, match=said):
        snapshot_of(snapshot)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(InputError, match=said):
        read_snapshot(str(path))


OTHER_FILES = {
    "nothing": (b"", "empty"),
    "gzip": (gzip.compress(b"{}"), "gzip"),
    "zip": (b"PK\x03\x04rest", "zip file"),
    "zstd": (b"\x28\xb5\x2f\xfdrest", "zstd"),
    "a web page": (b"<!DOCTYPE html>", "web page"),
    "words": (b"hello", "neither a pickle nor JSON"),
    "a number as JSON": (b"5", "neither a pickle nor JSON"),
    "half a JSON": (b'{"segments": [', "not valid JSON"),
    "JSON without segments": (b'{"a": 1}', "no segments among its keys"),
    "a key that stands twice": (b'{"segments": [], "segments": []}', "stands twice"),
    "JSON inside JSON": (b"[" * 100_000, "levels deep"),
    "a pickled number": (pickle.dumps(5), "not a list"),
    "a list that holds itself": (b"\x80\x04]\x94h\x00a.", "segment 0 is a list"),
    "a number of many digits as a key": (
        b"\x80\x04}\x8b\x00\x10\x00\x00" + b"\x01" * 4096 + b"Ns.",
        "many digits",
    ),
    "a pickled set": (pickle.dumps({1}), "a set, not a list"),
    "segments skipped": (pickle.dumps({"segments": 1, "frames": [1]}), "not a list"),
    "frames as segments": (pickle.dumps([{"frames": []}]), "segment_type"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files(name: str, tmp_path: Path) -> None:
    """Every other file is refused by what it is."""
    data, said = OTHER_FILES[name]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as error:
        read_snapshot(str(path))
    assert error.value.hint
    assert str(path) in error.value.where


def test_no_such_file(tmp_path: Path) -> None:
    """A path that is none, or a folder, is told as such."""
    for path, said in ((tmp_path / "x", "no such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=said):
            read_snapshot(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        read_snapshot("a\0b")


def test_json_beyond_its_limit(tmp_path: Path) -> None:
    """JSON is read whole, so it has a limit of its own."""
    path = tmp_path / "s.json"
    path.write_bytes(b"[" + b" " * MAX_JSON_BYTES + b"]")
    with pytest.raises(InputError, match="JSON larger than 64 MiB"):
        read_snapshot(str(path))


# --------------------------------------------------------------------- the library


def test_from_python(tmp_path: Path) -> None:
    """A program gives the file or what it has at hand."""
    snapshot = made().snapshot()
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    for given_as in (snapshot, snapshot["segments"], str(path), path):
        found = kvcalc.fragmentation(snapshot=given_as, request_bytes=48 * MIB)
        assert found.fits_contiguous
        assert found.allocator is not None
        assert found.allocator.releasable_bytes == 104 * MIB


def test_from_python_refused() -> None:
    """What does not go together is told."""
    snapshot = made().snapshot()
    with pytest.raises(UsageError, match="tells its holes itself"):
        kvcalc.fragmentation(snapshot=snapshot, holes=[1])
    with pytest.raises(UsageError, match="a device is one of a snapshot's"):
        kvcalc.fragmentation(holes=[1], device=0)
    with pytest.raises(InvalidValueError, match="no segment of device 3"):
        kvcalc.fragmentation(snapshot=snapshot, device=3)
    two = copy.deepcopy(snapshot["segments"])
    two[0]["device"] = 1
    with pytest.raises(UsageError, match="devices are 0, 1"):
        kvcalc.fragmentation(snapshot=two)


@pytest.mark.parametrize(
    ("request_bytes", "usable", "index"),
    [
        (48 * MIB, 64, None),  # 64 of stream 0; the private 30 serves nobody else
        (40 * MIB, 64 + 40, None),
        (65 * MIB, 0, 1 - (1 + 116 / 65) / 4),  # 64, 4, 8 and 40 are all that it may use
        (30 * MIB, 64 + 40, None),
        (512, 2 - 512 / MIB, None),  # of the small pool, whatever the large one has
    ],
)
def test_what_the_request_may_use(request_bytes: int, usable: float, index: float | None) -> None:
    """Unusable share, index and full bars leave out holes of other pools and classes."""
    found = kvcalc.fragmentation(snapshot=made().snapshot(), request_bytes=request_bytes)
    free = (64 + 4 + 8 + 40 + 30 + 2) * MIB - 512
    state = found.allocator
    assert state is not None
    assert state.request is not None
    assert found.free_bytes == free
    assert state.request.usable_bytes == usable * MIB
    assert found.unusable_ratio == (free - usable * MIB) / free
    assert found.unusable_bounds == (found.unusable_ratio,) * 2
    assert (state.fragmentation_index is None) == (index is None) == found.fits_contiguous
    if index is not None:
        assert state.fragmentation_index == pytest.approx(index)
    assert sum(entry.fitting_bytes for entry in state.histogram) == usable * MIB


def test_an_allocator_that_took_nothing() -> None:
    """It is answered for, and not passed over: what the device has free decides."""
    found = kvcalc.fragmentation(snapshot=[], request_bytes=65 * MIB)
    assert (found.free_bytes, found.unusable_ratio, found.fits_contiguous) == (0, None, False)
    assert "has taken nothing" in found.verdict
    assert "must have 66 MiB free (" in found.verdict
    found = kvcalc.fragmentation(snapshot=[], request_bytes=MIB, device_free_bytes=2 * MIB)
    assert found.verdict.startswith("Fits with memory of the device")
    found = kvcalc.fragmentation(snapshot=[], request_bytes=MIB, device_free_bytes=MIB)
    assert found.verdict.startswith("Shortage")
