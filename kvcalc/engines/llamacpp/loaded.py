"""What a model's weights take on its devices, by layer and by the parts that fit moves.

llama.cpp b11434 src/llama-arch.cpp (LLM_TENSOR_INFOS: which tensors belong to the input, the
output or a layer), src/llama-model-loader.cpp (create_tensor: a copy of the token embedding where
there is no output, one copy of the rope factors a buffer) and ggml/src/ggml-alloc.c and ggml-cuda
(alignment, padding of quantised rows).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvcalc.core.size import WeightTensor
from kvcalc.core.units import cdiv
from kvcalc.engines.llamacpp.overrides import HOST, Override

__all__ = ["Bounds", "Loaded", "Part", "Spans", "largest_in_layers", "loaded", "tensor_bytes"]

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.(.*)", re.ASCII | re.DOTALL)
_FFN = re.compile(r"ffn_(up|down|gate)(?:_up)?(.*)", re.DOTALL)
_EXPERTS = re.compile(r"_(?:ch)?exps")
_INPUT = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.", "masked_embd_")
_FIRST_LAYER = ("token_embd_norm.", "per_layer_model_proj.", "per_layer_proj_norm.")
_EVERY_BUFFER = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_ALIGNMENT = 128  # ggml_backend_cuda_buffer_type_get_alignment
_HOST_ALIGNMENT = 32  # TENSOR_ALIGNMENT of ggml-backend's CPU buffers
_ROW_PADDING = 512  # MATRIX_ROW_PADDING

Part = tuple[str, bool]
"""What of a layer: `up`, `gate` or `down` of its feed-forward (names that begin so), or `rest`; and
whether these are the weights of routed experts."""


class Sizes(NamedTuple):
    """Bytes of tensors in a device's buffer, and in the host's."""

    device: int = 0
    host: int = 0

    def plus(self, other: Sizes) -> Sizes:
        """Return the sum of two."""
        return Sizes(self.device + other.device, self.host + other.host)

    def at(self, device: int) -> int:
        """Return the bytes where the tensors lie there."""
        return self.host if device == HOST else self.device


class Loaded(NamedTuple):
    """The weights of a model.

    Attributes:
        layers: by layer, by part.
        output: of the output.
        copied: the token embedding, which a device of the output has a copy of where the model has
            no other output.
        input: what stays in host memory.
        shared: kept once in every buffer that has a layer (rope factors).
        moved: bytes by device of tensors that the user moved.
        experts: some layer has routed experts.
        left_out: of tensors that are in the file and not loaded (draft layers).
    """

    layers: dict[int, dict[Part, Sizes]]
    output: Sizes
    copied: Sizes
    input: Sizes
    shared: Sizes
    moved: dict[int, int]
    experts: bool
    left_out: Sizes = Sizes()

    def on(
        self, where: tuple[int, ...], moves: Callable[[int, Part], int | None] | None = None
    ) -> dict[int, int]:
        """Return the bytes by device.

        Args:
            where: the device of each layer, and at the end that of the output.
            moves: a part of a layer -> the device that it is moved to; None where it stays.
        """
        found: dict[int, int] = defaultdict(int, self.moved)
        found[HOST] += self.input.host
        found[where[-1]] += self.output.at(where[-1])
        if where[-1] != HOST:  # the host has the embedding itself
            found[where[-1]] += self.copied.device
        for device in set(where[:-1]):
            found[device] += self.shared.at(device)
        for layer, parts in self.layers.items():
            for part, size in parts.items():
                other = moves(layer, part) if moves is not None else None
                device = where[layer] if other is None else other
                found[device] += size.at(device)
        return dict(found)


Spans = dict[int, tuple[int, int]]
"""Device -> bytes at least and at most."""


class Bounds(NamedTuple):
    """The weights of a model whose tensors may be known by bounds alone.

    Attributes:
        least, most: with every tensor at its least, and at its most; one and the same where a file
            tells them.
        total: what all of them take together, where that is known.
    """

    least: Loaded
    most: Loaded
    total: tuple[int, int] | None = None

    def on(
        self, where: tuple[int, ...], moves: Callable[[int, Part], int | None] | None = None
    ) -> Spans:
        """Return the bytes by device: what the tensors and the whole both allow."""
        low, high = self.least.on(where, moves), self.most.on(where, moves)
        found = {device: (low.get(device, 0), high[device]) for device in high}
        if self.total is None or self.least is self.most:
            return found
        # A device's copy of the embedding is in no file, and what is not loaded is on no device.
        beside = [
            one.copied.device * (where[-1] != HOST) - other.left_out.host
            for one, other in ((self.least, self.most), (self.most, self.least))
        ]
        whole = self.total[0] + beside[0], self.total[1] + beside[1]
        sums = sum(low.values()), sum(high.values())
        return {
            device: _narrowed(span, whole[0] - (sums[1] - span[1]), whole[1] - (sums[0] - span[0]))
            for device, span in found.items()
        }


def _narrowed(span: tuple[int, int], low: int, high: int) -> tuple[int, int]:
    """Return what of a span lies between two others' ends; it alone where they do not meet."""
    found = max(span[0], low), min(span[1], high)
    return found if found[0] <= found[1] else span


def loaded(
    tensors: Iterable[WeightTensor],
    layers: int,
    *,
    kept: int,
    padded: bool,
    overrides: tuple[Override, ...] = (),
    most: bool = False,
) -> Loaded:
    """Return the weights that are loaded.

    Args:
        tensors: of the model's file.
        layers: of the model, draft layers included.
        kept: layers that are loaded: draft layers are not unless they propose tokens.
        padded: as CUDA aligns and pads.
        overrides: tensors that the user moved.
        most: what is known by bounds takes its most, and not its least.
    """
    by_layer: dict[int, dict[Part, Sizes]] = {}
    sums = dict.fromkeys(("input", "output", "shared"), Sizes())
    moved: dict[int, int] = defaultdict(int)
    embedding, has_output, experts = Sizes(), False, False
    left_out = Sizes()
    for tensor in tensors:
        stored = tensor.bytes + (tensor.more_bytes if most else 0)
        host = _aligned(stored, _HOST_ALIGNMENT)
        size = Sizes(tensor_bytes(tensor, padded=padded, most=most), host)
        layer, part = _place(tensor.name)
        if isinstance(layer, int) and not layer < min(kept, layers):
            left_out = left_out.plus(size)
            continue
        experts = experts or part[1]
        if tensor.name == "token_embd.weight":
            embedding = size
        has_output = has_output or tensor.name == "output.weight"
        other = next((o.device for o in overrides if o.found_in(tensor.name)), None)
        if other is not None:
            moved[other] += size.at(other)
        elif isinstance(layer, int):
            parts = by_layer.setdefault(layer, {})
            parts[part] = parts.get(part, Sizes()).plus(size)
        else:
            sums[layer] = sums[layer].plus(size)
    copied = Sizes() if has_output else embedding
    return Loaded(
        layers=by_layer,
        moved=dict(moved),
        experts=experts,
        copied=copied,
        left_out=left_out,
        **sums,
    )


def largest_in_layers(tensors: Iterable[WeightTensor], layers: int) -> int:
    """Return the bytes of the largest tensor of the first so many layers, at most."""
    sizes = (
        t.bytes + t.more_bytes
        for t in tensors
        if (match := _LAYER.match(t.name)) and int(match[1]) < layers
    )
    return max(sizes, default=0)


def _place(name: str) -> tuple[int | str, Part]:
    """Return the layer of a tensor, or `input`, `output` or `shared`; and its part."""
    if match := _LAYER.match(name):
        part = _FFN.match(match[2])
        if part is None:
            return int(match[1]), ("rest", False)
        return int(match[1]), (part[1], _EXPERTS.match(part[2]) is not None)
    for place, names in ((0, _FIRST_LAYER), ("input", _INPUT), ("shared", _EVERY_BUFFER)):
        if name.startswith(names):
            return place, ("rest", False)
    return "output", ("rest", False)


def tensor_bytes(tensor: WeightTensor, *, padded: bool, most: bool = False) -> int:
    """Return the bytes that a tensor takes in a device's buffer, at least or at most."""
    size = tensor.bytes + (tensor.more_bytes if most else 0)
    if not padded:
        return size
    if tensor.block > 1 and (left := tensor.row % _ROW_PADDING):
        size += (_ROW_PADDING - left) // tensor.block * tensor.block_bytes
    return _aligned(size, _ALIGNMENT)


def _aligned(size: int, multiple: int) -> int:
    return cdiv(size, multiple) * multiple
