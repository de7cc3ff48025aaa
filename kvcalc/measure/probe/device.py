"""What a probe asks of a device, how pools and tensors lie on it, and what the host has.

vLLM keeps one buffer a layer (of groups that share blocks, one a layer of the widest group), K and
V in it: v1/worker/gpu_model_runner.py, initialize_kv_cache_tensors. SGLang keeps K and V of each
layer apart, by token: srt/mem_cache/memory_pool.py. llama.cpp puts all layers of a device into one
buffer. Rounding depends on this: 80 tensors of 20 MiB are not one of 1,600.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.plan import CachePlan, Group, Pool
from kvcalc.core.rules import Grow, Window
from kvcalc.core.values import Value

__all__ = [
    "Attention",
    "Bytes",
    "Contiguous",
    "Decoded",
    "Device",
    "DeviceFacts",
    "Laid",
    "Paged",
    "Reading",
    "attention_layers",
    "available",
    "laid_out",
    "resident",
    "twin_tensors",
]

Cut = Literal["layer", "side", "buffer"]
"""One tensor a layer, one for each side (K, V, ...) of a layer, or one buffer for all."""

_CUTS: dict[str, Cut] = {
    "none": "layer",
    "vllm": "layer",
    "sglang": "side",
    "lmdeploy": "side",
    "transformers": "side",
    "tgi": "side",
}
"""Engine -> how it cuts a pool; one that is not listed keeps one buffer."""

_TOLD: dict[Cut, str] = {
    "layer": "one tensor a layer, K and V in it",
    "side": "K and V of each layer in tensors of their own",
    "buffer": "one buffer for all layers",
}
_PLAIN = ("bfloat16", "float16", "float32")


class Laid(NamedTuple):
    """A pool as it is allocated.

    Attributes:
        cut: how it is cut.
        told: the same in words.
        sizes: bytes of each tensor, in order.
    """

    cut: Cut
    told: str
    sizes: tuple[int, ...]


class Attention(NamedTuple):
    """Layers that a decode kernel can run over, in the pool's own tensors.

    Attributes:
        layers: how many; layer i lies in tensor i (tensors i and layers + i where sides are apart).
        num_heads, num_kv_heads, head_dim: of each.
        dtype: of K and V, as torch names it.
        block_size: tokens a block.
        window: tokens that the last one reads; None for all.
    """

    layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    window: int | None

    @property
    def token_bytes(self) -> int:
        """K and V of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * element_bytes(self.dtype)


def laid_out(plan: CachePlan, pool: Pool, units: int) -> Laid:
    """Return the tensors of a pool of so many units, extra ones included; sizes add up to it."""
    total = pool.total_bytes(units)
    whole = total // pool.unit_bytes
    cut = _CUTS.get(plan.engine, "buffer")
    if cut == "side":
        sides = tuple(_sides(pool, whole))
        if sum(sides) == total:
            return Laid("side", _TOLD["side"], sides)
        cut = "layer"
    if cut == "layer":
        page = _page(pool)
        if page is not None:
            return Laid("layer", _TOLD["layer"], (page * whole,) * (pool.unit_bytes // page))
    return Laid("buffer", _TOLD["buffer"], (total,))


def _page(pool: Pool) -> int | None:
    """Return bytes of a unit in one tensor; None where layers are not equally wide."""
    widest = max(pool.groups, key=lambda group: group.unit_bytes)
    page = widest.page_bytes
    if page is None and widest.layers and len(pool.groups) == 1:
        page, rest = divmod(widest.unit_bytes, widest.layers)
        page = page if not rest else None
    return page if page and pool.unit_bytes % page == 0 else None


def _sides(pool: Pool, units: int) -> Iterator[int]:
    for group in pool.groups:
        slots = units * group.rule.slots_per_unit
        for size in group.payload.values():
            yield from (slots * (size // max(1, group.layers)),) * group.layers


def attention_layers(plan: CachePlan, group: Group) -> Attention | None:
    """Return what a kernel needs to know of a group; None where no plain one reads it.

    Latents, indexers, states, quantised rows and widened pages are laid out in an engine's own way,
    which its own kernels read and no others.
    """
    share = plan.rank.share
    rule = group.rule
    dtype = plan.kv_cache_dtype
    if (
        share is None
        or not isinstance(rule, Grow | Window)
        or set(group.payload) != {"k", "v"}
        or group.payload["k"] != group.payload["v"]
        or dtype not in _PLAIN
        or group.unit_bytes != group.content_bytes
        or not group.layers
    ):
        return None
    for _, cache in share.caches():
        if not isinstance(cache, FullAttention | SlidingWindow):
            continue
        window = cache.sliding_window if isinstance(cache, SlidingWindow) else None
        heads = share.num_attention_heads or cache.num_kv_heads
        found = Attention(
            layers=group.layers,
            num_heads=heads if heads % cache.num_kv_heads == 0 else cache.num_kv_heads,
            num_kv_heads=cache.num_kv_heads,
            head_dim=cache.head_dim,
            dtype=dtype,
            block_size=rule.block_tokens,
            window=window,
        )
        wide = found.token_bytes * group.layers == group.slot_bytes
        if wide and (window is None) == isinstance(rule, Grow):
            return found
    return None


def twin_tensors(plan: CachePlan, max_model_len: int, requests: int) -> tuple[int, ...]:
    """Return the tensors of the contiguous twin: each side of each layer, for all requests."""
    rank = plan.contiguous(max_model_len).rank
    sizes: list[int] = []
    for pool in rank.pools:
        need = pool.need(rank.local(max_model_len)) * requests
        sides = tuple(_sides(pool, need))
        sizes += sides if sum(sides) == need * pool.unit_bytes else (need * pool.unit_bytes,)
    return tuple(size for size in sizes if size)


# --------------------------------------------------------------------- device
#
# The few calls that a probe needs of a device; torch, the dry run and tests' fakes have them.

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
"""Of a log that is read back: no device has more, and none less than nothing."""


class DeviceFacts(Value, frozen=True, kw_only=True):
    """A device as it is told in a log.

    Attributes:
        kind: cuda, rocm, xpu, mps, cpu or synthetic.
        name: as its driver names it.
        caching: whether a caching allocator by PyTorch's rules stands before it.
        unified: whether the host shares its memory.
        versions: of the driver and the libraries.
    """

    kind: str
    name: str
    caching: bool
    unified: bool = False
    versions: dict[str, str] = {}


class Reading(Value, frozen=True, kw_only=True):
    """What the device tells at one moment; None where it has no such figure.

    Attributes:
        storage: bytes of the storages that the probe holds.
        requested, allocated, reserved: of the caching allocator.
        peak: the most that was allocated since the last `reset_peak`.
        process: of this process, as driver or system counts it.
        used: of the whole device.
        free: of the whole device.
    """

    storage: Bytes | None = None
    requested: Bytes | None = None
    allocated: Bytes | None = None
    reserved: Bytes | None = None
    peak: Bytes | None = None
    process: Bytes | None = None
    used: Bytes | None = None
    free: Bytes | None = None


class Paged(NamedTuple):
    """A decode step over a pool of blocks: each request's last token reads all before it.

    Attributes:
        attention: the layers.
        tensors: handles of the pool's tensors.
        apart: K and V lie in tensors of their own.
        tables: block ids of each request.
        lengths: tokens that each request's last token reads.
    """

    attention: Attention
    tensors: tuple[Any, ...]
    apart: bool
    tables: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]


class Contiguous(NamedTuple):
    """The same step over one piece a request.

    Attributes:
        attention: the layers.
        keys, values: handles, one a layer each, of [requests, slots, heads, head_dim].
        slots: tokens that a piece has room for.
        lengths: tokens that each request's last token reads.
    """

    attention: Attention
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    slots: int
    lengths: tuple[int, ...]


class Decoded(NamedTuple):
    """What a step came to.

    Attributes:
        kernel: what ran.
        workspace: the most that it took beside what it read; None where peaks tell it.
        notes: why no other kernel ran.
    """

    kernel: str
    workspace: int | None = None
    notes: tuple[str, ...] = ()


class Device(Protocol):
    """A device that can be measured."""

    @property
    def facts(self) -> DeviceFacts:
        """What it is."""
        ...

    def settle(self) -> None:
        """Wait for what runs, collect garbage, hand cached memory back."""
        ...

    def reset_peak(self) -> None:
        """Begin to watch for a new peak."""
        ...

    def read(self) -> Reading:
        """Read every layer of accounting that there is."""
        ...

    def allocate(self, size: int) -> Any:
        """Allocate a tensor of so many bytes and return its handle.

        Raises:
            UnavailableError: the device has no room; the message is its own.
        """
        ...

    def release(self, handles: tuple[Any, ...]) -> None:
        """Forget tensors, so that their memory is free once nothing else holds it."""
        ...

    def decode_paged(self, step: Paged) -> Decoded:
        """Run a decode step over the pool."""
        ...

    def decode_contiguous(self, step: Contiguous) -> Decoded:
        """Run the same over one piece a request."""
        ...


# --------------------------------------------------------------------- host
#
# What the system says of this machine's memory and of this process's.


def available() -> int | None:
    """Return what the machine has free, or where only that is told, what it has; None for neither.

    Linux tells what is available without swapping, Windows what is free; macOS tells its size.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    if sys.platform == "win32":
        return _of_windows()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("total", "free", "page_total", "page_free"),
                *("virtual_total", "virtual_free", "extended_free"),
            )
        ),
    )


def _of_windows() -> int | None:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.free)


def resident() -> int | None:
    """Return what the system counts for this process; None where it does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError, AttributeError):
        return None
