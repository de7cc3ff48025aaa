"""The few calls that a probe needs of a device; torch, the dry run and tests' fakes have them."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol

import msgspec

from kvcalc.core.values import Value
from kvcalc.measure.probe.layout import Attention

__all__ = ["Bytes", "Contiguous", "Decoded", "Device", "DeviceFacts", "Paged", "Reading"]

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
