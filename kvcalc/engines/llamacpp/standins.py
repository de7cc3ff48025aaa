"""Tensors in place of those of a file that is not at hand: its names, with bounds of their bytes.

Names are those of gguf-py/gguf/constants.py of llama.cpp b11434, so that patterns of tensors find
them; bytes are counted from a model's widths and what its weights are kept in, or from the tensors
of a published checkpoint. What a vision or audio tower has lies in a file of its own (mmproj).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil, floor

import msgspec

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize, TensorClass, WeightTensor
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS, weight_width
from kvcalc.weights.mixers import PartName
from kvcalc.weights.on_rank import bytes_of_parts
from kvcalc.weights.parameters import Parts, count_parts, total
from kvcalc.weights.shapes import shape_of

__all__ = ["total_of", "with_tensors"]

_NAMES: dict[PartName, tuple[str, ...]] = {
    "attention": ("attn_q.weight", "attn_output.weight"),
    "kv": ("attn_k.weight", "attn_v.weight"),
    "latent": ("attn_kv_a_mqa.weight",),
    "recurrent": ("ssm_in.weight", "ssm_out.weight"),
    "mlp": ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
    "shared": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"),
    "experts": ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"),
    "router": ("ffn_gate_inp.weight",),
    "norm": ("attn_norm.weight",),
}
"""Part of a layer -> the tensors that share its bytes alike."""

_CLASSES: dict[TensorClass, PartName] = {
    "attention": "attention",
    "recurrent": "recurrent",
    "mlp": "mlp",
    "experts": "experts",
    "router": "router",
    "norm": "norm",
}
_K_MIXTURES_HEAD = 6.5625  # bits: Q6_K, which llama-quant.cpp keeps the output in
_BITS = 8
_EMBEDDING = (15, 25)
"""Hundredths of a file of 4 GiB or more, and of a smaller one, that its embedding takes at most: of
kvcalc's presets with an output of their own none has more than 14 and 23 in it."""

_LARGE = 4 * 2**30
_LEAST, _MOST = (3, 4), (2, 1)
"""What a parameter takes of the mean over a file, at least and at most, experts apart."""

_EXPERTS = (1, 2), (5, 4)
_PLAIN_BITS = 16
_Q8_0 = 8.5
_WITHOUT_GATE = 2


@lru_cache(maxsize=8)
def with_tensors(model: ModelSpec) -> ModelSpec:
    """Return a model with the tensors of its weights; as it is where nothing tells of any."""
    if model.weights:
        return model
    try:
        return msgspec.structs.replace(model, weights=tuple(_tensors(model)))
    except UnsupportedError:
        return model


def total_of(model: ModelSpec) -> tuple[int, int] | None:
    """Return what the whole file takes at least and at most; None where nothing tells it."""
    size = model.size
    if size is None or size.weights_bytes is None or _repacked(size):
        return None
    error, towers = size.weights_error_bytes or 0, size.encoder_bytes
    whole = size.weights_bytes
    if towers is None and _has_tower(model):
        return max(0, whole - error - _tower(model, size)), whole + error
    return max(0, whole - (towers or 0) - error), max(0, whole - (towers or 0)) + error


def _repacked(size: ModelSize) -> bool:
    """Whether weights are packed in a format of other engines, which a file has in part at most.

    conversion/gpt_oss.py and base.py: experts in mxfp4 stay so, and what lies beside them is kept
    in 16 bits, or in Q8_0 as most files have it.
    """
    word = size.weights_dtype
    if word is None or word in (UNKNOWN_FORMAT, *WIDTHS):
        return False
    return weight_width(word).mixture is None


def _has_tower(model: ModelSpec) -> bool:
    return bool(model.size and model.size.towers) or (model.architecture or "").endswith(
        "ForConditionalGeneration"
    )


def _tower(model: ModelSpec, size: ModelSize) -> int:
    try:
        parts: Parts = {"encoder": count_parts(model, 0, 0).get("encoder", (0, 0))}
        return bytes_of_parts(model, size, parts, "float32")["encoder"][1]
    except UnsupportedError:
        return 0


def _tensors(model: ModelSpec) -> Iterator[WeightTensor]:
    size = model.size or ModelSize()
    if size.parts:
        yield from _of_checkpoint(model, size)
        return
    try:
        outside = count_parts(model, 0, 0)
        layers = [_layer(model, i, outside) for i in range(model.num_hidden_layers)]
    except UnsupportedError:
        if (whole := total_of(model)) is None:
            raise
        yield from _alike(model, *whole)
        return
    tables = _Bytes(model, size, outside, layers)
    shape = shape_of(model.architecture)
    gated = shape is None or shape.matrices > _WITHOUT_GATE
    for i, parts in enumerate(layers):
        for part, span in tables.of(parts).items():
            names = _NAMES[part]
            if not gated and part != "router":
                names = tuple(name for name in names if "_gate" not in name)
            yield from _split(f"blk.{i}.", names, span)
    beside = tables.of(outside)
    embedding = beside.get("embedding", (0, 0))
    yield _tensor("token_embd.weight", *embedding)
    yield _tensor("output_norm.weight", *beside.get("norm", (0, 0)))
    if head := outside.get("head", (0, 0))[1]:
        low, high = beside["head"]
        if not outside["head"][0]:  # where it may be the embedding's copy, that is as large
            low = min(embedding[0], high)
        yield _tensor("output.weight", low, max(high, ceil(head * tables.head_bits / _BITS)))
    drafts = sum(run.count for run in model.draft_layers)
    last = tuple(f"blk.{model.num_hidden_layers + i}.attn_norm.weight" for i in range(drafts))
    if last:
        yield from _split("", last, beside.get("draft", (0, 0)))


def _layer(model: ModelSpec, layer: int, outside: Parts) -> Parts:
    """Return the parameters of one layer alone."""
    found: Parts = {}
    for part, (low, high) in count_parts(model, layer, layer + 1).items():
        beside = outside.get(part, (0, 0))
        found[part] = max(0, low - beside[0]), max(0, high - beside[1])
    return {part: span for part, span in found.items() if span[1] and part in _NAMES}


class _Bytes:
    """What the parameters of a model take, part by part."""

    def __init__(
        self, model: ModelSpec, size: ModelSize, outside: Parts, layers: list[Parts]
    ) -> None:
        self.model, self.size = model, size
        self.mean: tuple[float, float] | None = None
        self.head_bits = 0.0
        known = total_of(model)
        if size.weights_dtype == UNKNOWN_FORMAT and known is not None:
            spans = [total({p: s for p, s in outside.items() if p != "encoder"})]
            spans += [total(parts) for parts in layers]
            least, most = (max(1, sum(ends)) for ends in zip(*spans, strict=True))
            self.mean = _BITS * known[0] / most, _BITS * known[1] / least
        elif (size.weights_dtype or "").endswith(("_k_m", "_k_s", "_k_l", "_k", "_xs", "_nl")):
            self.head_bits = _K_MIXTURES_HEAD

    def of(self, parts: Parts) -> Parts:
        """Return the bytes of some parameters."""
        if self.mean is None:
            found = bytes_of_parts(self.model, self.size, parts, None)
            if not _repacked(self.size):
                return found
            return {
                part: (
                    min(low, floor(parts[part][0] * _Q8_0 / _BITS)) if part != "experts" else low,
                    high,
                )
                for part, (low, high) in found.items()
            }
        return {part: self._by_mean(part, span) for part, span in parts.items()}

    def _by_mean(self, part: PartName, span: tuple[int, int]) -> tuple[int, int]:
        """Return bytes where all that is known of a format is what a file takes as a whole."""
        low, high = self.mean or (0.0, 0.0)
        least, most = _EXPERTS if part == "experts" else (_LEAST, _MOST)
        low, high = low * least[0] / least[1], high * most[0] / most[1]
        if part != "experts" and self.size.num_experts:
            high = max(high, _PLAIN_BITS)  # experts alone are packed (gpt-oss)
        if part in ("norm", "router"):
            high = max(high, 2 * _PLAIN_BITS)
        return floor(span[0] * low / _BITS), ceil(span[1] * high / _BITS)


def _alike(model: ModelSpec, low: int, high: int) -> Iterator[WeightTensor]:
    """Yield layers that share alike in what the embedding and the output leave of a whole."""
    table = high * _EMBEDDING[high < _LARGE] // 100
    count = model.num_hidden_layers
    yield _tensor("token_embd.weight", 0, table)
    yield _tensor("output.weight", 0, table)
    for i in range(count):
        yield _tensor(
            f"blk.{i}.attn_norm.weight", max(0, low - 2 * table) // count, -(-high // count)
        )


def _of_checkpoint(model: ModelSpec, size: ModelSize) -> Iterator[WeightTensor]:
    """Yield tensors of a published checkpoint's classes, layer by layer."""
    for part in size.parts:
        span = part.total_bytes, part.total_bytes
        if part.kind == "embedding":
            yield _tensor("token_embd.weight", *span)
        elif part.kind == "lm_head":
            yield _tensor("output.weight", *span)
        elif part.kind == "draft":
            yield _tensor(f"blk.{model.num_hidden_layers}.attn_norm.weight", *span)
        elif part.layer is not None:
            name = _CLASSES.get(part.kind, "norm")
            yield from _split(f"blk.{part.layer}.", _NAMES[name], span)
        elif part.kind not in ("vision", "audio"):
            yield _tensor("output_norm.weight", *span)


def _split(prefix: str, names: Sequence[str], span: tuple[int, int]) -> Iterator[WeightTensor]:
    """Yield tensors that share bytes alike, the first taking what is left over."""
    count = len(names)
    for i, name in enumerate(names):
        low, high = (size // count + (size % count if not i else 0) for size in span)
        yield _tensor(prefix + name, low, high)


def _tensor(name: str, low: int, high: int) -> WeightTensor:
    return WeightTensor(
        name=name, bytes=low, row=0, block=1, block_bytes=1, more_bytes=max(0, high - low)
    )
