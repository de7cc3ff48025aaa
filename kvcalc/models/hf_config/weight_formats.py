"""What a config says of the formats that weights are stored in; nothing of it can fail a load."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvcalc.core.layers import LayerRun
from kvcalc.core.size import KeptPart
from kvcalc.models.hf_config.fields import Fields
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS, quantised

__all__ = ["format_of_section", "stored", "weight_block"]

_FP8_BITS = 8

_MLX_GROUPS = (32, 64, 128)
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
    narrow, wide = format_of_section(section), _wide(section)
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
    section = _section(outer.quietly("quantization_config", "compression_config", "quantization"))
    section = section or _section(text.quietly("quantization_config", "quantization"))
    inner = _section(section.get("quantization"))
    return {**section, **inner} if inner else section


def _wide(section: Mapping[str, Any]) -> str | None:
    """Return fp8 where a quantisation is of two formats and that is the wider one."""
    formats = section.get("format"), section.get("quant_algo")
    if not any(f in ("mixed-precision", "MIXED_PRECISION") for f in formats):
        return None
    bits = {bits for bits, _, _ in _groups(section)}
    return "fp8" if _FP8_BITS in bits or section.get("quant_method") == "fp8" else None


def format_of_section(section: Mapping[str, Any]) -> str | None:
    """Return the format that a `quantization_config` says, as `weights.formats` knows it.

    UNKNOWN_FORMAT for a method whose bits it does not say; None where there is no method.
    """
    method, algorithm = section.get("quant_method"), section.get("quant_algo")
    method = method.lower() if isinstance(method, str) else None
    if method is None and algorithm is None:
        return _of_mlx(section)
    if method == "compressed-tensors" or algorithm is not None or _is_modelopt(method):
        found = _grouped(section, algorithm)
    elif method == "bitsandbytes":
        four = section.get("load_in_4bit", section.get("_load_in_4bit"))
        found = "bnb-4bit" if four else "int8"
    elif method == "quark":
        found = _of_quark(section)
    elif method in ("exl2", "exl3"):
        bits = section.get("bits")
        found = f"{bits:g}bpw" if isinstance(bits, (int, float)) else None
    elif (bits := _bits(section)) is not None:
        found = _integers(bits, section.get("group_size", section.get("q_group_size")))
    else:
        found = _METHODS.get(method or "")
    return found or UNKNOWN_FORMAT


_METHODS = {
    **{name: name for name in ("fp8", "mxfp4", "mxfp8", "nvfp4", "awq", "gptq")},
    **dict.fromkeys(("fbgemm_fp8", "ptpc_fp8", "w8a8_fp8"), "fp8"),
    **dict.fromkeys(("w8a8_int8", "eetq", "int8"), "int8"),
    "modelopt_fp4": "nvfp4",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "gpt_oss_mxfp4": "mxfp4",
}
"""Methods that have one format, or whose config leaves the bits out."""

_ALGORITHMS = (
    ("W4A8_AWQ", "int4"),
    ("W4A16_AWQ", "awq"),
    ("AWQ", "awq"),
    ("MIXED_PRECISION", "nvfp4"),
    ("NVFP4", "nvfp4"),
    ("MXFP4", "mxfp4"),
    ("MXFP8", "mxfp8"),
    ("FP8", "fp8"),
    ("W8A8", "int8"),
    ("W8A16", "int8-grouped"),
    ("W4A16", "int4"),
)
"""What ModelOpt calls its algorithms begins or holds so; the first that fits counts."""


def _is_modelopt(method: str | None) -> bool:
    return method is not None and method.startswith("modelopt")


def _bits(section: Mapping[str, Any]) -> int | None:
    """Return the bits that a config of whole numbers says, in any of its spellings."""
    for name in ("bits", "w_bit", "weight_bits", "nbits"):
        if type(section.get(name)) is int:
            return int(section[name])
    inner = _section(section.get("quant_config"))
    inner = _section(inner.get("weight_quant_params")) or inner
    return _bits(inner) if inner else None


def _of_mlx(section: Mapping[str, Any]) -> str | None:
    """Return MLX's format: its configs have bits, a group and perhaps a mode, and no method."""
    mode, bits = section.get("mode"), section.get("bits")
    if mode in ("mxfp4", "mxfp8", "nvfp4"):
        return str(mode)
    if type(bits) is not int:
        return None
    name, group = f"mlx-{bits}bit", section.get("group_size")
    by_layer = any(isinstance(value, dict) for value in section.values())
    exact = type(group) is int and group in _MLX_GROUPS and not by_layer
    known = name in quantised()
    return UNKNOWN_FORMAT if not known else f"{name}-g{group}" if exact else name


def _of_quark(section: Mapping[str, Any]) -> str | None:
    weight = _section(section.get("global_quant_config")).get("weight")
    weight = weight[0] if isinstance(weight, list) and weight else weight
    dtype = str(_section(weight).get("dtype", "")).lower()
    names = (("fp8", "fp8"), ("fp4", "mxfp4"), ("int4", "int4"), ("int8", "int8"))
    return next((name for word, name in names if word in dtype), None)


def _grouped(section: Mapping[str, Any], algorithm: Any) -> str | None:
    """Return the narrowest format of the groups of modules, which is that of most weights."""
    found = _groups(section)
    if not found:
        word = algorithm.upper() if isinstance(algorithm, str) else ""
        named = next((name for part, name in _ALGORITHMS if part in word), None)
        return named or _METHODS.get(str(section.get("quant_method")).lower())
    bits, kind, together = min(found)
    if (bits, kind) == (4, "float"):
        return "mxfp4" if together == _MX_GROUP else "nvfp4"
    return _integers(bits, together) if kind == "int" else {8: "fp8"}.get(bits)


def _integers(bits: int, together: object) -> str | None:
    """Return the format of whole numbers whose scale is of a group of so many."""
    grouped = type(together) is int and together > 0
    names = {8: "int8-grouped" if grouped else "int8"}
    name = names.get(bits, f"int{bits}")
    exact = f"{name}-g{together}"
    known = quantised()
    return exact if exact in known else name if name in known else None


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
