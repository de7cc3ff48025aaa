"""What a config says of the formats that weights are stored in; nothing of it can fail a load."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvcalc.core.layers import LayerRun
from kvcalc.core.size import KeptPart
from kvcalc.core.weight_dtypes import QUANTISED, WIDTHS
from kvcalc.models.hf_config.fields import Fields

__all__ = ["stored", "weight_block"]

_FP8_BITS = 8

_MX_GROUP = 32  # elements that share a scale in the formats called mx
_KEPT: tuple[tuple[KeptPart, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"\battn\b|self_attn(?:\W*$|\W*[qkvo]\w*_proj)")),
    ("recurrent", re.compile(r"linear_attn(?:\W*$|\W*in_proj_qkv)|\bmixer\W*$")),
    ("shared", re.compile(r"shared_experts?(?:\W*$|\W*(?:gate_|up_|down_))")),
    ("mlp", re.compile(r"\bmlp(?:\W*$|\W*(?:\(|gate_|up_|down_)\w*)")),
)
_APART = re.compile("vision|visual|audio|norm|indexer")
_LAYER = re.compile(r"\.([0-9]+)\b")

_Stored = tuple[str | None, str | None, tuple[KeptPart, ...] | None]


def stored(outer: Fields, text: Fields, layers: Sequence[LayerRun]) -> _Stored:
    """Return what weights and experts are stored in, and what a quantisation leaves as it is."""
    section = _of_both(outer, text)
    expert = "mxfp4" if text.quietly("expert_dtype") == "fp4" else None
    if not section:
        dtype = text.quietly("dtype", "torch_dtype") or outer.quietly("dtype", "torch_dtype")
        name = dtype.removeprefix("torch.") if isinstance(dtype, str) else None
        return (name if name in WIDTHS else None), expert, None
    narrow, wide = _scheme(section), _wide(section)
    if wide is not None and narrow != wide:
        # The narrow format is that of the experts; what it leaves is in the wide one.
        return wide, narrow, ()
    return narrow, expert, _kept(section, layers)


def weight_block(outer: Fields, text: Fields) -> int | None:
    """Return the side of the blocks that weights in fp8 are scaled by; None where none are."""
    sides = _of_both(outer, text).get("weight_block_size")
    if not isinstance(sides, list) or len(sides) != 2 or sides[0] != sides[1]:  # noqa: PLR2004
        return None
    return sides[0] if type(sides[0]) is int and sides[0] > 0 else None


def _of_both(outer: Fields, text: Fields) -> Mapping[str, Any]:
    section = _section(outer.quietly("quantization_config", "compression_config"))
    return section or _section(text.quietly("quantization_config"))


def _wide(section: Mapping[str, Any]) -> str | None:
    """Return fp8 where a quantisation is of two formats and that is the wider one."""
    formats = section.get("format"), section.get("quant_algo")
    if not any(f in ("mixed-precision", "MIXED_PRECISION") for f in formats):
        return None
    bits = {bits for bits, _, _ in _groups(section)}
    return "fp8" if _FP8_BITS in bits or section.get("quant_method") == "fp8" else None


def _scheme(section: Mapping[str, Any]) -> str | None:
    """Return the scheme of a quantisation in one word, as `core.weight_dtypes` knows them."""
    method, algorithm = section.get("quant_method"), section.get("quant_algo")
    if method in ("modelopt", "compressed-tensors") or algorithm == "MIXED_PRECISION":
        return _grouped(section, algorithm)
    if method == "bitsandbytes":
        return "bnb-4bit" if section.get("load_in_4bit") else "int8"
    if method in ("awq", "gptq", "gptq_marlin"):
        bits = section.get("bits")
        return _integers(bits, section.get("group_size")) if type(bits) is int else None
    return method if method in ("fp8", "mxfp4") else None


def _grouped(section: Mapping[str, Any], algorithm: Any) -> str | None:
    """Return the narrowest format of the groups of modules, which is that of most weights."""
    found = _groups(section)
    if not found:
        words = {"FP8": "fp8", "NVFP4": "nvfp4", "MIXED_PRECISION": "nvfp4"}
        return words.get(algorithm) if isinstance(algorithm, str) else None
    bits, kind, together = min(found)
    if (bits, kind) == (4, "float"):
        return "mxfp4" if together == _MX_GROUP else "nvfp4"
    return _integers(bits, together) if kind == "int" else {8: "fp8"}.get(bits)


def _integers(bits: int, together: object) -> str | None:
    """Return the format of whole numbers whose scale is of a group of so many."""
    name = {4: "int4", 8: "int8"}.get(bits)
    grouped = f"{name}-g{together}"
    return grouped if grouped in QUANTISED else name


def _groups(section: Mapping[str, Any]) -> list[tuple[int, str, int]]:
    """Return (bits, kind, elements of a scale; 0: not said) for each group of modules."""
    groups = section.get("config_groups")
    entries = list(groups.values()) if isinstance(groups, dict) else groups
    found = []
    for entry in entries if isinstance(entries, list) else ():
        weights = _section(_section(entry).get("weights"))
        bits, kind = weights.get("num_bits"), weights.get("type")
        if type(bits) is int and isinstance(kind, str):
            together = weights.get("group_size")
            found.append((bits, kind, together if type(together) is int else 0))
    return found


def _kept(section: Mapping[str, Any], layers: Sequence[LayerRun]) -> tuple[KeptPart, ...] | None:
    """Return the parts that a quantisation leaves as they are, in most layers that have them.

    None where it is of several formats and says in another file which is of what.
    """
    entries = section.get("ignore") or section.get("modules_to_not_convert")
    if not isinstance(entries, list):
        return None if section.get("quant_algo") == "MIXED_PRECISION" else ()
    names = [entry.replace("\\", "") for entry in entries if isinstance(entry, str)]
    count = sum(run.count for run in layers)
    with_rows = sum(run.count for run in layers if any(cache.rows() for cache in run.caches))
    having = {"attention": with_rows, "recurrent": count - with_rows}
    found = []
    for part, pattern in _KEPT:
        listed = [name for name in names if pattern.search(name) and not _APART.search(name)]
        numbers = {match[1] if (match := _LAYER.search(name)) else "" for name in listed}
        # A pattern without a number is of every layer.
        if "" in numbers or 2 * len(numbers) > having.get(part, count):
            found.append(part)
    return tuple(found)


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
