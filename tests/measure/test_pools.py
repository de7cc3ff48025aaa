"""JAX's statistics and BFC dumps: free and largest hole, with known answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcalc.allocator.state import PoolState
from kvcalc.answers.allocator_fit import pool_fragmentation
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InputError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.measure.pools import bfc_log, jax_stats, read_bfc_log, read_jax_stats
from kvcalc.models import load_model

MIB, GIB = 2**20, 2**30
STATS: dict[str, Any] = {
    "bytes_in_use": 6 * GIB,
    "peak_bytes_in_use": 7 * GIB,
    "bytes_limit": 10 * GIB,
    "largest_free_block_bytes": GIB,
    "largest_alloc_size": 2 * GIB,
    "num_allocs": 50,
    "pool_bytes": 8 * GIB,
    "bytes_reserved": 0,
    "host_bytes": None,
}
LOG = """\
W bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.00MiB \
(rounded to 3145728)requested by op Add
I bfc_allocator.cc:1040] BFCAllocator dump for GPU_0_bfc
I bfc_allocator.cc:1047] Bin (256): \tTotal Chunks: 2, Chunks in use: 1.
I bfc_allocator.cc:1083] Next region of size 8388608
I bfc_allocator.cc:1103] InUse at 7f0000000000 of size 1048576 by op x action_count 1 step 0 next 1
I bfc_allocator.cc:1103] Free  at 7f0000100000 of size 2097152 by op x action_count 2 step 0 next 2
I bfc_allocator.cc:1103] InUse at 7f0000300000 of size 3145728 next 3
I bfc_allocator.cc:1103] Free  at 7f0000600000 of size 2097152 next 18446744073709551615
I bfc_allocator.cc:1109]      Summary of in-use Chunks by size:
I bfc_allocator.cc:1112] 1 Chunks of size 1048576 totalling 1.00MiB
I bfc_allocator.cc:1118] total_region_allocated_bytes_: 8388608 memory_limit_: 9000000
Stats:
Limit:                         9000000
InUse:                         4194304
MaxInUse:                      4194304
LargestFreeBlock:              2097152
"""


@pytest.fixture(scope="module")
def example() -> CachePlan:
    return plan(load_model("llama-3.1-8b"), Deployment(max_model_len=8192))


@pytest.mark.parametrize("text", [str(STATS), json.dumps(STATS), f"  {STATS}\n", repr([STATS])])
def test_jax(text: str) -> None:
    """Python's and JSON's spelling; the pool counts where it holds the largest hole."""
    assert jax_stats(text) == [
        PoolState(
            source="jax",
            device=0,
            reserved_bytes=8 * GIB,
            allocated_bytes=6 * GIB,
            largest_free_bytes=GIB,
        )
    ]


def test_jax_limit() -> None:
    """Without a pool, or with a hole that is larger than what it has left, the limit counts."""
    for changed in ({"pool_bytes": None}, {"largest_free_block_bytes": 3 * GIB}, {"pool_bytes": 0}):
        (state,) = jax_stats(str({**STATS, **changed}))
        assert state.reserved_bytes == 10 * GIB


def test_jax_devices() -> None:
    """A list is one entry a device."""
    states = jax_stats(str([STATS, {**STATS, "bytes_in_use": 5 * GIB}]))
    assert [(s.device, s.allocated_bytes) for s in states] == [(0, 6 * GIB), (1, 5 * GIB)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither a dict nor JSON"),
        ("None", "returned None"),
        ("5", "is no dict"),
        ("{}", "does not tell bytes_in_use"),
        (str({**STATS, "largest_free_block_bytes": 0}), "does not report it"),
        (str({**STATS, "largest_free_block_bytes": -1}), "does not tell largest"),
        (str({**STATS, "bytes_in_use": True}), "does not tell bytes_in_use"),
        (str({**STATS, "bytes_in_use": 9.5}), "does not tell bytes_in_use"),
        (str({**STATS, "bytes_in_use": 11 * GIB}), "in use and a hole of"),
        (str({**STATS, "bytes_limit": None, "pool_bytes": None}), "neither pool_bytes nor"),
        ("[" * 100 + "]" * 100, "nested too deep"),
        ("__import__('os')", "neither a dict nor JSON"),
        ("{'a': open}", "neither a dict nor JSON"),
        ("{'a': " + "9" * 5000 + "}", "neither a dict nor JSON"),
        ("{[]: 1}", "neither a dict nor JSON"),
        ("\0", "neither a dict nor JSON"),
        (" " * 2**19, "more than 262,144 characters"),
    ],
)
def test_jax_refused(text: str, said: str) -> None:
    """What is none, or tells too little, is refused; nothing in it is run."""
    with pytest.raises(InputError, match=said) as error:
        jax_stats(text)
    assert error.value.hint


def test_bfc() -> None:
    """Every free chunk is a hole, and the request that failed is the one that is judged."""
    state = bfc_log(LOG)
    assert state == PoolState(
        source="bfc",
        device=0,
        reserved_bytes=8 * MIB,
        allocated_bytes=4 * MIB,
        largest_free_bytes=2 * MIB,
        holes=(2 * MIB, 2 * MIB),
        asked_bytes=3 * MIB,
    )


def test_bfc_chunk_of_nothing() -> None:
    """A chunk of no bytes, as a cut line leaves it, is no hole."""
    state = bfc_log(LOG.replace("of size 2097152 by op", "of size 0 by op"))
    assert state.holes == (2 * MIB,)


def test_bfc_without_chunks() -> None:
    """The statistics alone give free and largest."""
    log = "\n".join(line for line in LOG.splitlines() if " at 7f" not in line)
    state = bfc_log(log)
    assert (state.reserved_bytes, state.allocated_bytes) == (8 * MIB, 4 * MIB)
    assert (state.largest_free_bytes, state.holes) == (2 * MIB, None)


def test_bfc_last_dump() -> None:
    """Of several dumps the last counts."""
    later = LOG.replace("of size 2097152 next 18446744073709551615", "of size 1048576 next 4")
    assert bfc_log(LOG + later).holes == (2 * MIB, MIB)
    assert bfc_log(later + LOG).holes == (2 * MIB, 2 * MIB)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no dump"),
        ("Stats:\nLimit: 5\nInUse: 3\n", "no dump"),
        ("Stats:\nLimit: 5\nInUse: 3\nLargestFreeBlock: 0\n", "no dump"),
        ("Stats:\nLimit: 5\nInUse: 3\nLargestFreeBlock: 4\n", "are more than 5"),
    ],
)
def test_bfc_refused(text: str, said: str) -> None:
    """A log without a dump, or one that contradicts itself, is refused."""
    with pytest.raises(InputError, match=said):
        bfc_log(text)


def test_judged(example: CachePlan) -> None:
    """They are judged as holes are: what the request finds, and the metrics."""
    found = pool_fragmentation(example, bfc_log(LOG))
    assert (found.free_bytes, found.largest_free_bytes, found.holes) == (4 * MIB, 2 * MIB, 2)
    assert (found.request_bytes, found.fits_contiguous, found.fits_paged) == (3 * MIB, False, True)
    assert found.external_fragmentation_ratio == 0.5
    assert found.unusable_ratio == 1
    assert found.allocator is not None
    assert found.allocator.fragmentation_index == 0  # two holes: 1 - (1 + 4/3) / 2 is below it
    found = pool_fragmentation(example, jax_stats(str(STATS))[0], request_bytes=3 * GIB // 2)
    assert (found.free_bytes, found.largest_free_bytes, found.holes) == (2 * GIB, GIB, None)
    assert not found.fits_contiguous
    assert found.allocator is not None
    assert found.allocator.histogram == ()


def test_files(tmp_path: Any) -> None:
    """From files, and from none."""
    path = tmp_path / "x"
    path.write_text(str(STATS), encoding="utf-8")
    assert read_jax_stats(str(path)) == jax_stats(str(STATS))
    path.write_text(LOG, encoding="utf-8")
    assert read_bfc_log(str(path)) == bfc_log(LOG)
    with pytest.raises(InputError, match="no such file"):
        read_bfc_log(str(tmp_path / "none"))
    path.write_bytes(b"x" * (2**18 + 1))
    with pytest.raises(InputError, match="larger than 256 KiB"):
        read_jax_stats(str(path))
