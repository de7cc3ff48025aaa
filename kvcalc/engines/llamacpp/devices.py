"""What a server takes of each device under one placement: weights, caches, compute buffers.

llama.cpp b11434 common/fit.cpp (common_get_device_memory_data_impl) sums the same three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.loaded import Bounds, Part
from kvcalc.engines.llamacpp.pools import pools_of
from kvcalc.engines.llamacpp.ranks import padding
from kvcalc.engines.llamacpp.tensors import Kept

__all__ = ["Taken", "cache_by_layer", "compute_of", "taken"]


class Taken(NamedTuple):
    """Bytes of each device."""

    weights: tuple[int, ...]
    total: tuple[int, ...]

    def plus(self, other: Taken) -> Taken:
        """Return the sum of two."""
        return Taken(
            tuple(map(sum, zip(self.weights, other.weights, strict=True))),
            tuple(map(sum, zip(self.total, other.total, strict=True))),
        )


def cache_by_layer(context: Context, *, padded: bool) -> dict[int, int]:
    """Return the bytes of a context's caches by layer."""
    by_layer: dict[int, list[Kept]] = defaultdict(list)
    for kept in context.kept:
        by_layer[kept.layer].append(kept)
    return {
        layer: sum(pool.total_bytes(pool.units or 0) for pool in pools_of(kept, context.sizes))
        + (sum(map(padding, kept)) if padded else 0)
        for layer, kept in by_layer.items()
    }


def compute_of(given: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Return the bytes of compute buffers by device: as given, one value for all, or none."""
    if len(given) == 1:
        return given * devices
    return (*given, *(0,) * devices)[:devices]


def taken(
    caches: dict[int, int],
    where: tuple[int, ...],
    weights: Bounds | None,
    compute: tuple[int, ...],
    *,
    host: bool,
    most: bool,
    moves: Callable[[int, Part], int | None] | None = None,
) -> Taken:
    """Return what each device holds.

    Args:
        caches: bytes by layer.
        where: the device of each layer, and at the end that of the output.
        weights: None where they are another context's.
        compute: bytes of compute buffers by device.
        host: the caches stay in host memory.
        most: weights that are known by bounds take their most.
        moves: a part of a layer -> the device that it is moved to.
    """
    by_device = {} if weights is None else weights.on(where, moves)
    devices = range(len(compute))
    model = tuple(by_device.get(device, (0, 0))[most] for device in devices)
    context = [0] * len(compute)
    for layer, size in caches.items():
        if not host and where[layer] in devices:
            context[where[layer]] += size
    return Taken(model, tuple(map(sum, zip(model, context, compute, strict=True))))
