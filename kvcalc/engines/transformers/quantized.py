"""The quantised cache: K and V in groups of few bits, the newest tokens in the model dtype.

transformers 5.24 cache_utils.py, QuantizedCache with QuantoQuantizedLayer, HQQQuantizedLayer and
Fp8QuantizedLayer.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import FullAttention, Mla
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.rules import Grow, Rule, Slots, Stepped
from kvcalc.core.units import cdiv
from kvcalc.engines.transformers.arguments import Arguments
from kvcalc.engines.transformers.layers import Part
from kvcalc.engines.transformers.settings import Settings

__all__ = ["Quantization", "check_quantized", "quantization_of", "quantized_parts"]

_NBITS = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8)}
_THREE_BITS, _TENS = 3, 10
"""hqq packs ten values of 3 bits into an int32 along the group (bitpack.py, pack_3bit_32)."""
_SCALE_BYTES = 4
"""Backend fp8: one float32 scale a tensor, of keys and of values."""


class Quantization(NamedTuple):
    """How K and V are packed.

    Attributes:
        backend: quanto, hqq or fp8.
        nbits: bits an element.
        group: elements that share a scale and a zero point.
        residual: tokens that are quantised together.
    """

    backend: str
    nbits: int
    group: int
    residual: int

    def tensor_bytes(self, elements: int, model_dtype: str) -> int:
        """Return the bytes of so many elements of keys or of values, a whole number of groups."""
        if self.backend == "fp8":
            return elements
        groups = elements // self.group
        data = self.group * self.nbits // 8
        if self.nbits == _THREE_BITS:
            data = 4 * cdiv(self.group, _TENS)
        return groups * (data + 2 * element_bytes(model_dtype))

    @property
    def dtype(self) -> str | None:
        """The name of the cache dtype; None for one that kvcalc has no name for."""
        if self.backend == "fp8":
            return "fp8_e4m3"
        return f"int{self.nbits}_asym_g{self.group}" if self.nbits in (2, 4, 8) else None


def quantization_of(arguments: Arguments, settings: Settings) -> Quantization:
    """Return the backend and its settings; unset ones are those of the layer's class.

    Raises:
        UnknownNameError: no such backend.
        UnsupportedError: what the backend or the release has not, or kvcalc does not model.
    """
    backend = arguments.text("backend") or "quanto"  # generation/utils.py, cache_config
    given = {
        "nbits": arguments.number("nbits"),
        "axis_key": arguments.number("axis_key", 0),
        "axis_value": arguments.number("axis_value", 0),
        "q_group_size": arguments.number("q_group_size"),
        "residual_length": arguments.number("residual_length"),
    }
    if backend == "fp8":
        if not settings.release.quantizes_fp8:
            raise UnsupportedError(
                f"transformers {settings.release} has no backend fp8", hint="5.21 and later have it"
            )
        for name, value in given.items():
            if value is not None:
                raise UnsupportedError(
                    f"the fp8 backend has no {name}", hint="leave it out, or use quanto or hqq"
                )
        return Quantization("fp8", 8, 1, 1)
    if backend not in _NBITS:
        raise UnknownNameError("backend", backend, [*_NBITS, "fp8"])
    nbits, group = given["nbits"] or 4, given["q_group_size"] or 64
    if nbits not in _NBITS[backend]:
        raise UnsupportedError(
            f"{backend} has no {nbits} bits", hint=f"it has {', '.join(map(str, _NBITS[backend]))}"
        )
    for name in ("axis_key", "axis_value"):
        if given[name]:
            raise NotModelledError(
                f"{name} {given[name]}: only groups along axis 0 are modelled", hint="leave it out"
            )
    if group * nbits % 8 and nbits != _THREE_BITS:
        raise UnsupportedError(
            f"groups of {group} elements of {nbits} bits are no whole bytes",
            hint="use a group size of 64",
        )
    return Quantization(backend, nbits, group, given["residual_length"] or 128)


def check_quantized(model: ModelSpec, quantization: Quantization, settings: Settings) -> None:
    """Check that the model has only layers that the quantised cache has.

    Raises:
        UnsupportedError: another kind of layer, or rows that are no whole groups.
    """
    for run in model.layers:
        kinds = [cache.kind for cache in run.caches]
        if len(kinds) != 1 or not isinstance(run.caches[0], (FullAttention, Mla)):
            raise UnsupportedError(
                "QuantizedCache is only for models with nothing but full attention, and"
                f" {model.name} has layers that keep {'+'.join(kinds) or 'nothing'}",
                hint="use the dynamic or the static cache",
            )
        for row in run.caches[0].rows():
            if row.count * row.width % quantization.group:
                raise UnsupportedError(
                    f"{row.count} x {row.width} elements a token are no whole groups of"
                    f" {quantization.group}",
                    hint="choose a q_group_size that divides them",
                )
    if settings.chunk_tokens < min(quantization.residual, settings.prompt_tokens):
        raise NotModelledError(
            f"a prefill in steps of {settings.chunk_tokens} tokens, fewer than are quantised"
            " together, is not modelled",
            hint=f"use a prefill_chunk_size of at least {quantization.residual}",
        )


def quantized_parts(
    cache: Cache, dtype: str, quantization: Quantization, settings: Settings
) -> list[Part]:
    """Return what one layer keeps: quantised tokens, newer ones, and scales of whole tensors."""
    rows = [(row.role, row.count * row.width) for row in cache.rows()]
    packed = tuple((role, quantization.tensor_bytes(n, dtype)) for role, n in rows)
    if quantization.backend == "fp8":
        scales = (("scale", _SCALE_BYTES * len(rows)),)
        return [
            Part("every token", Grow(block_tokens=1), packed),
            Part("scales", Slots(), scales),
        ]
    if not settings.prompt_given or quantization.residual == 1:
        return [Part("every token", Grow(block_tokens=1), packed)]
    plain = tuple((role, n * element_bytes(dtype)) for role, n in rows)
    first, step = settings.prompt_tokens, quantization.residual
    settled: Rule = Stepped(first=first, step=step)
    newest: Rule = Stepped(first=first, step=step, rest=True)
    return [
        Part("quantised tokens", settled, packed),
        Part("newest tokens", newest, plain),
    ]
