"""What a parameter takes in the formats that weights are stored in, scales counted.

The formats stand in the table beside this module, each with where its bits were read. The mixtures
of llama.cpp keep some matrices in wider types, by the recipe of `llama_tensor_get_type`: for those
the table has the most bits of each, means over the layers.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnknownNameError
from kvcalc.core.tables import read_table

__all__ = ["UNKNOWN_FORMAT", "WIDTHS", "Mixture", "Width", "quantised", "weight_width"]


class Mixture(NamedTuple):
    """The most bits that a mixture gives a matrix of each kind.

    Attributes:
        output_proj: of attention.
        v: the projection of values.
        down: the last matrix of an MLP or expert.
        embedding: the table of words.
        head: the output matrix, which is the embedding where the two are one.
    """

    output_proj: Fraction
    v: Fraction
    down: Fraction
    embedding: Fraction
    head: Fraction


class Width(NamedTuple):
    """Bits of a parameter at least and at most.

    Attributes:
        low: bits with the leanest scales that published checkpoints have.
        high: with the richest; of a mixture, what is in none of its wider types.
        mixture: embedding and head are stored so as well (GGUF, MLX), some matrices wider.
        native: published only in a recipe of its own: attention may be left as it is.
    """

    low: Fraction
    high: Fraction
    mixture: Mixture | None = None
    native: bool = False

    def widened(self, factor: Fraction) -> Width:
        """Return the format with all its upper bounds wider."""
        mixture = self.mixture
        if mixture is not None:
            mixture = Mixture(*(bits * factor for bits in mixture))
        return self._replace(high=self.high * factor, mixture=mixture)


WIDTHS: dict[str, Width] = {
    "float32": Width(Fraction(32), Fraction(32)),
    "bfloat16": Width(Fraction(16), Fraction(16)),
    "float16": Width(Fraction(16), Fraction(16)),
}
"""What models are trained and published in."""

UNKNOWN_FORMAT = "unknown"
"""Of weights that are stored in some packed format, and nothing says which."""

_SPELLINGS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
}

_DYNAMIC = "ud-"
"""Before the name of a mixture: its publisher chose other types for some matrices (unsloth)."""
_DYNAMIC_FACTOR = Fraction(4, 3)
_BITS_PER_WEIGHT = re.compile(r"(?:exl[23][-_ ]?)?(\d{1,2}(?:\.\d{1,3})?)[ ]?bpw")
_MLX_GROUP = re.compile(r"mlx-([2-8])bit-g(32|64|128)")
_HEAD_BITS = Fraction(8)  # of ExLlama's head: 6 unless told otherwise, 8 at most
_HALF = Fraction(16)
_SLACK = Fraction(1, 4)  # bits of scales and of layers that a measurement widens


@cache
def _table() -> tuple[dict[str, Width], dict[str, str]]:
    """Return formats by name, and other spellings of those names."""
    heads, *rows = read_table("kvcalc.weights", "formats.tsv")
    bits = cache(Fraction)  # the same few widths stand in most rows
    widths: dict[str, Width] = {}
    spellings = dict(_SPELLINGS)
    for cells in rows:
        row = dict(zip(heads, cells, strict=True))
        most = [row[name] for name in Mixture._fields]
        mixture = Mixture(*map(bits, most)) if all(most) else None
        native = row["native"] == "y"
        width = Width(bits(row["low"]), bits(row["high"]), mixture, native)
        widths[row["format"]] = width
        spellings |= dict.fromkeys(row["spellings"].split(), row["format"])
    return widths, spellings


def quantised() -> dict[str, Width]:
    """Return the formats that a checkpoint is brought into, by name."""
    return _table()[0]


def weight_width(name: str) -> Width:
    """Return the width of a format by its name in any of its usual spellings.

    Raises:
        UnsupportedError: `UNKNOWN_FORMAT`.
        UnknownNameError: no such format; the nearest are named.

    >>> float(weight_width("nvfp4").low)
    4.5
    >>> float(weight_width("4.25bpw").low)
    4.25
    """
    folded = name.strip().lower()
    if folded in WIDTHS:
        return WIDTHS[folded]
    formats, spellings = _table()
    folded = spellings.get(folded, folded)
    found = WIDTHS.get(folded) or formats.get(folded) or _made_up(folded)
    if folded == UNKNOWN_FORMAT:
        raise NotModelledError(
            "the format that the weights are stored in is not known",
            hint="name it (--quantization q4_k_m; quantization in Python), or give --weights SIZE",
        )
    if found is None:
        raise UnknownNameError("format of weights", name, [*WIDTHS, *formats])
    return found


def _made_up(folded: str) -> Width | None:
    """Return a format whose name says its bits; None where it is none."""
    if folded.startswith(_DYNAMIC):
        inner = folded.removeprefix(_DYNAMIC)
        formats, spellings = _table()
        known = formats.get(spellings.get(inner, inner))
        return None if known is None else known.widened(_DYNAMIC_FACTOR)
    grouped = _MLX_GROUP.fullmatch(folded)
    if grouped is not None:
        bits = int(grouped[1]) + Fraction(32, int(grouped[2]))
        return Width(bits, bits, Mixture(*(bits,) * len(Mixture._fields)))
    said = _BITS_PER_WEIGHT.fullmatch(folded)
    if said is None or not 1 <= float(said[1]) <= _HALF:
        return None
    low = Fraction(said[1])
    high = low + _SLACK
    return Width(low, high, Mixture(high, high, high, _HALF, max(_HEAD_BITS, high)))
