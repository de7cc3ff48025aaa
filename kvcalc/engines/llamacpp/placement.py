"""On which device a layer's cache lies.

llama.cpp b11434 src/llama-model.cpp (load_tensors, get_layer_buft_list): the last n_gpu_layers of
the layers and the output, shared out by the parts of tensor_split in single precision.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate

from kvcalc.engines.llamacpp.settings import Placing

__all__ = ["HOST", "devices"]

HOST = -1
"""The device that stands for the host's memory."""


def devices(layers: int, placing: Placing, n_gpu_layers: int | None) -> tuple[int, ...]:
    """Return the device of each layer.

    Args:
        layers: of the model, draft layers included.
        placing: the devices and their parts.
        n_gpu_layers: layers that leave the host, the output counted as one; None for all.

    >>> devices(4, Placing((1.0, 1.0), None, False, False, True), None)
    (0, 0, 0, 1)
    """
    wanted = layers + 1 if n_gpu_layers is None else n_gpu_layers
    first = max(layers + 1 - wanted, 0)
    active = min(wanted, layers + 1)
    if placing.host or not active:
        return (HOST,) * layers
    sums = [_single(total) for total in accumulate(placing.shares, lambda a, b: _single(a + b))]
    splits = [_single(total / sums[-1]) for total in sums]
    return tuple(
        HOST
        if layer < first
        else min(bisect_right(splits, _single((layer - first) / active)), len(splits) - 1)
        for layer in range(layers)
    )


def _single(value: float) -> float:
    """Round to single precision, which llama.cpp computes in."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
