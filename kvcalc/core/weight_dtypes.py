"""What a parameter takes in the formats that weights are stored in, scales counted."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnknownNameError

__all__ = ["QUANTISED", "UNKNOWN_FORMAT", "WIDTHS", "Width", "weight_width"]


class Width(NamedTuple):
    """Bits of a parameter at least and at most.

    Attributes:
        low: bits with the leanest scales that published checkpoints have.
        high: with the richest.
        tables: embedding and head are stored so as well (GGUF).
        native: published only in a recipe of its own: attention may be left as it is.
    """

    low: Fraction
    high: Fraction
    tables: bool = False
    native: bool = False


def _plain(bits: int) -> Width:
    return Width(Fraction(bits), Fraction(bits))


def _gguf(low: str, high: str) -> Width:
    return Width(Fraction(low), Fraction(high), tables=True)


WIDTHS: dict[str, Width] = {
    "float32": _plain(32),
    "bfloat16": _plain(16),
    "float16": _plain(16),
}
"""What models are trained and published in."""

QUANTISED: dict[str, Width] = {
    # A scale of 32 bits for a channel, or for a block of 128 x 128 (DeepSeek).
    "fp8": Width(Fraction(8), Fraction(8) + Fraction(32, 512)),
    "int8": Width(Fraction(8), Fraction(8) + Fraction(32, 512)),
    # Scales of 16 bits for groups of 128, and zero points of 4 bits; groups of 32 at most.
    "int4": Width(4 + Fraction(16, 128), 4 + Fraction(16 + 4, 32)),
    "int4-g128": Width(4 + Fraction(16, 128), 4 + Fraction(16 + 4, 128)),
    "int4-g64": Width(4 + Fraction(16, 64), 4 + Fraction(16 + 4, 64)),
    "int4-g32": Width(4 + Fraction(16, 32), 4 + Fraction(16 + 4, 32)),
    "awq": Width(4 + Fraction(16 + 4, 128), 4 + Fraction(16 + 4, 32)),
    "gptq": Width(4 + Fraction(16, 128), 4 + Fraction(16 + 4, 32)),
    # A scale of 8 bits for 16, and one of 32 bits a tensor.
    "nvfp4": Width(4 + Fraction(8, 16), 4 + Fraction(8, 16), native=True),
    "mxfp4": Width(4 + Fraction(8, 32), 4 + Fraction(8, 32), native=True),
    "mxfp8": Width(8 + Fraction(8, 32), 8 + Fraction(8, 32), native=True),
    # Blocks of 64: a scale of 32 bits, or one of 8 bits that 256 blocks share a scale of.
    "bnb-4bit": Width(4 + Fraction(8, 64), 4 + Fraction(32, 64)),
    # ggml blocks (models.gguf.ggml_types); the mixtures keep some tensors in wider types.
    "q8_0": _gguf("8.5", "8.6"),
    "q5_1": _gguf("6", "6.2"),
    "q5_0": _gguf("5.5", "5.8"),
    "q4_1": _gguf("5", "5.4"),
    "iq4_nl": _gguf("4.5", "5.0"),
    "q3_k_l": _gguf("3.4375", "4.7"),
    "q3_k_s": _gguf("3.4375", "3.9"),
    "q6_k": _gguf("6.5625", "6.9"),
    "q5_k_m": _gguf("5.5", "6.1"),
    "q5_k_s": _gguf("5.5", "5.8"),
    "q4_k_m": _gguf("4.5", "5.3"),
    "q4_k_s": _gguf("4.5", "5.0"),
    "q4_0": _gguf("4.5", "4.95"),
    "q3_k_m": _gguf("3.4375", "4.4"),
    "q2_k": _gguf("2.625", "3.8"),
    "iq4_xs": _gguf("4.25", "4.8"),
}
"""Formats that a checkpoint is brought into."""

UNKNOWN_FORMAT = "unknown"
"""Of weights that are stored in some packed format, and nothing says which."""

_SPELLINGS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "w8a8": "int8",
    "w4a16": "int4",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "fp8_e4m3": "fp8",
    "fp4": "nvfp4",
    "bitsandbytes": "bnb-4bit",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
}


def weight_width(name: str) -> Width:
    """Return the width of a format by its name in any of its usual spellings.

    Raises:
        UnsupportedError: `UNKNOWN_FORMAT`.
        UnknownNameError: no such format; the nearest are named.

    >>> float(weight_width("nvfp4").low)
    4.5
    """
    folded = name.strip().lower()
    folded = _SPELLINGS.get(folded, folded)
    found = WIDTHS.get(folded) or QUANTISED.get(folded)
    if folded == UNKNOWN_FORMAT:
        raise NotModelledError(
            "the format that the weights are stored in is not known",
            hint="name it (--quantization q4_k_m; quantization in Python), or give --weights SIZE",
        )
    if found is None:
        raise UnknownNameError("format of weights", name, [*WIDTHS, *QUANTISED])
    return found
