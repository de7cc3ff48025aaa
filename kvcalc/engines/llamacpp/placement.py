"""On which device a layer lies.

llama.cpp b11434 src/llama-model.cpp (load_tensors, get_layer_buft_list): the last n_gpu_layers of
the layers and the output, shared out by the parts of tensor_split in single precision.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate

from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.placing import Placing

__all__ = ["HOST", "devices", "places"]


def devices(layers: int, placing: Placing, n_gpu_layers: int | None) -> tuple[int, ...]:
    """Return the device of each layer's cache.

    Args:
        layers: of the model, draft layers included.
        placing: the devices and their parts.
        n_gpu_layers: layers that leave the host, the output counted as one; None for all.

    >>> devices(4, Placing((1.0, 1.0), None, False, False, True), None)
    (0, 0, 0, 1)
    """
    if placing.host:
        return (HOST,) * layers
    return places(layers, placing.shares, n_gpu_layers)[:layers]


def places(layers: int, shares: tuple[float, ...], n_gpu_layers: int | None) -> tuple[int, ...]:
    """Return the device of each layer and then that of the output.

    >>> places(4, (1.0, 1.0), 2)
    (-1, -1, -1, 0, 1)
    """
    wanted = layers + 1 if n_gpu_layers is None else n_gpu_layers
    first = max(layers + 1 - wanted, 0)
    active = min(wanted, layers + 1)
    if not active:
        return (HOST,) * (layers + 1)
    if not any(shares):  # nothing is free of any device: it will not fit, wherever it lies
        shares = (1.0,) * len(shares)
    shares = tuple(map(_single, shares))
    sums = list(accumulate(shares, lambda a, b: _single(a + b)))
    splits = [_single(total / sums[-1]) for total in sums]
    return tuple(
        HOST
        if layer < first
        else min(bisect_right(splits, _single((layer - first) / active)), len(splits) - 1)
        for layer in range(layers + 1)
    )


def _single(value: float) -> float:
    """Round to single precision, which llama.cpp computes in."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
