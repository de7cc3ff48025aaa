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

from kvcalc.core.units import cdiv
from kvcalc.core.weight_tensors import WeightTensor
from kvcalc.engines.llamacpp.overrides import HOST, Override

__all__ = ["Loaded", "Part", "loaded", "tensor_bytes"]

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
    """

    layers: dict[int, dict[Part, Sizes]]
    output: Sizes
    copied: Sizes
    input: Sizes
    shared: Sizes
    moved: dict[int, int]
    experts: bool

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


def loaded(
    tensors: Iterable[WeightTensor],
    layers: int,
    *,
    kept: int,
    padded: bool,
    overrides: tuple[Override, ...] = (),
) -> Loaded:
    """Return the weights that are loaded.

    Args:
        tensors: of the model's file.
        layers: of the model, draft layers included.
        kept: layers that are loaded: draft layers are not unless they propose tokens.
        padded: as CUDA aligns and pads.
        overrides: tensors that the user moved.
    """
    by_layer: dict[int, dict[Part, Sizes]] = {}
    sums = dict.fromkeys(("input", "output", "shared"), Sizes())
    moved: dict[int, int] = defaultdict(int)
    embedding, has_output, experts = Sizes(), False, False
    for tensor in tensors:
        size = Sizes(tensor_bytes(tensor, padded=padded), _aligned(tensor.bytes, _HOST_ALIGNMENT))
        layer, part = _place(tensor.name)
        if isinstance(layer, int) and not layer < min(kept, layers):
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
    return Loaded(layers=by_layer, moved=dict(moved), experts=experts, copied=copied, **sums)


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


def tensor_bytes(tensor: WeightTensor, *, padded: bool) -> int:
    """Return the bytes that a tensor takes in a device's buffer."""
    size = tensor.bytes
    if not padded:
        return size
    if tensor.block > 1 and (left := tensor.row % _ROW_PADDING):
        size += (_ROW_PADDING - left) // tensor.block * tensor.block_bytes
    return _aligned(size, _ALIGNMENT)


def _aligned(size: int, multiple: int) -> int:
    return cdiv(size, multiple) * multiple
