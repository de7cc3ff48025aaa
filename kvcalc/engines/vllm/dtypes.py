"""Dtypes as vLLM resolves them: of the model, of its KV cache, of its states.

vLLM 0.33 config/model.py (_get_and_verify_dtype), config/cache.py (CacheDType) and
models/config.py (what a model makes of `auto`).
"""

from __future__ import annotations

import msgspec

from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.kernels import BLACKWELL
from kvcalc.engines.vllm.refusals import refuse
from kvcalc.engines.vllm.version import Release

__all__ = ["KV_DTYPES", "in_dtype", "is_pooling", "kv_word", "state_word"]

_POOLING = ("RewardModel", "ForSequenceClassification")
"""Ends of architectures that vLLM serves as pooling models (config/model.py)."""

_SPELLINGS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}

KV_DTYPES = (
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4",
    "nvfp4_4over6",
    "nvfp4_ds_mla",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
"""vLLM 0.33 config/cache.py, CacheDType, ROCm's own formats apart."""

_DTYPE_SINCE = {
    "bfloat16": (0, 11, 0), "float16": (0, 18, 0), "fp8_inc": (0, 10, 0), "fp8_ds_mla": (0, 11, 2),
    "nvfp4": (0, 20, 0), "nvfp4_4over6": (0, 28, 0), "nvfp4_ds_mla": (0, 30, 0),
    "fp8_per_token_head": (0, 20, 0), "int8_per_token_head": (0, 20, 0),
    "int4_per_token_head": (0, 25, 0), "turboquant_k8v4": (0, 20, 0),
    "turboquant_4bit_nc": (0, 20, 0), "turboquant_k3v4_nc": (0, 20, 0),
    "turboquant_3bit_nc": (0, 20, 0),
}  # fmt: skip
"""Dtype -> the first release that has it; the others were always there."""

_STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")
_V32_PLAIN = 2  # 0.11.2: until then `auto` was fp8_ds_mla for DeepSeek-V3.2


def is_pooling(model: ModelSpec) -> bool:
    """Whether vLLM serves a model as one that pools: config/model.py, _SUFFIX_TO_DEFAULTS."""
    return (model.architecture or "").endswith(_POOLING)


def in_dtype(model: ModelSpec, asked: str, card: Card, at: Release, notes: list[str]) -> ModelSpec:
    """Return a model in the dtype that vLLM runs it in: config/model.py, _get_and_verify_dtype.

    Raises:
        UnsupportedError: a dtype that the model or the card has not.
    """
    no_half = _refuses_half(model)
    if asked != "auto":
        dtype = _spelled(asked)
        if dtype == "float16" and no_half:
            refuse(
                at,
                "float16-refused",
                f"vLLM {at} does not run {model.architecture} in float16",
                hint="choose bfloat16 or float32",
                setting="dtype",
            )
        if dtype == "bfloat16":
            _check_bfloat16(card, at)
        return msgspec.structs.replace(model, dtype=dtype)
    if model.dtype == "bfloat16" and at.number < _CHANGES_DTYPE:
        _check_bfloat16(card, at)
    supported = ["bfloat16"] if card.has_bfloat16 else []
    supported += [] if no_half else ["float16"]
    supported.append("float32")
    half = is_pooling(model) or at.number < _PREFERS_BFLOAT16
    preferred = "float16" if half and not no_half else supported[0]
    dtype = model.dtype
    if dtype == "float32":
        dtype = preferred
        notes.append(f"published in float32: vLLM runs it in {dtype}")
    elif dtype not in supported:
        dtype = preferred
        notes.append(f"{card.name} has no {model.dtype}: vLLM runs the model in {dtype}")
    return msgspec.structs.replace(model, dtype=dtype)


def _check_bfloat16(card: Card, at: Release) -> None:
    """Refuse bfloat16 on a card that does not compute in it."""
    if not card.has_bfloat16:
        refuse(
            at,
            "bfloat16-on-old-gpu",
            f"{card.name} has no bfloat16 (compute capability"
            f" {card.capability[0]}.{card.capability[1]})",
            hint="choose --dtype float16",
            setting="dtype",
        )


_CHANGES_DTYPE = (0, 9, 0)
"""Since then a dtype that nobody asked for and the card has not is another one."""
_PREFERS_BFLOAT16 = (0, 9, 1)
"""Before, a model published in float32 was run in float16."""


def _spelled(asked: str) -> str:
    """Return vLLM's spelling of a dtype."""
    return _SPELLINGS.get(asked.lower(), asked.lower())


def _refuses_half(model: ModelSpec) -> bool:
    """config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS."""
    name = model.architecture or ""
    return name.startswith(("Gemma2For", "Gemma3For", "Gemma3Text")) or name == "Glm4ForCausalLM"


def kv_word(model: ModelSpec, asked: str, card: Card, wanted: Release) -> str:
    """Return vLLM's word for the KV cache dtype: what the checkpoint or the model makes of it.

    Args:
        model: in the dtype that vLLM runs it in.
        asked: the dtype that the user names, in any spelling.
        card: the card.
        wanted: the release.

    Raises:
        UnknownNameError: a dtype that no engine has.
        UnsupportedError: one that vLLM, the release or the model has not.
    """
    name = _spelled(asked)
    _check_known(name, asked, model)
    later = _came_later(name, wanted)
    if name == model.dtype and (later or name not in KV_DTYPES):
        return "auto"  # the release has no other word for the model's own dtype
    if later:
        raise UnsupportedError(
            f"vLLM {wanted} has no KV cache dtype {name}: it came with {later}",
            hint="choose --kv-cache-dtype auto or fp8, or a later version",
        )
    name = _told_by_model(name, model, card, wanted)
    if name in ("bfloat16", "float16") and name != model.dtype:
        raise UnsupportedError(
            f"a {name} cache of a {model.dtype} model: vLLM wants both the same",
            hint=f"give --kv-cache-dtype auto, or --dtype {name}",
        )
    return name


def _check_known(name: str, asked: str, model: ModelSpec) -> None:
    """Refuse what no release of vLLM keeps this model's cache in."""
    if ":" in name:
        raise UnsupportedError(
            f"vLLM keeps K and V in one dtype, not in {asked!r:.40}", hint="give one dtype"
        )
    if name in KV_DTYPES:
        return
    try:
        cache_dtype(name)
    except UnknownNameError:  # told as such, beside the names of this engine
        raise UnknownNameError("cache dtype", asked, KV_DTYPES) from None
    if name != "float32" or model.dtype != "float32":
        raise UnsupportedError(
            f"vLLM has no KV cache dtype {asked!r:.40}", hint=f"known: {', '.join(KV_DTYPES)}"
        )


def _came_later(name: str, wanted: Release) -> str | None:
    """Return the release that a KV cache dtype came with; None where the wanted one has it."""
    first = _DTYPE_SINCE.get(name)
    if first is None or wanted.number >= first:
        return None
    return ".".join(map(str, first))


def _told_by_model(name: str, model: ModelSpec, card: Card, wanted: Release) -> str:
    """Return what the checkpoint, then the architecture, makes of a dtype: models/config.py."""
    name = _told_by_checkpoint(name, model, wanted)
    if model.architecture == "GlmMoeDsaForCausalLM" and name == "auto":
        return "fp8_e4m3" if card.family == BLACKWELL else name
    if model.architecture == "DeepseekV32ForCausalLM":
        if name == "bfloat16":
            return "auto"
        first = name == "auto" and wanted.line == (0, 11) and wanted.patch < _V32_PLAIN
        if first or (name.startswith("fp8") and wanted.line <= (0, 17)):
            return "fp8_ds_mla"
    return name


_FOLLOWED_SINCE = {
    ("modelopt", "fp8_e4m3"): (0, 14, 0),
    ("modelopt", "nvfp4"): (0, 20, 0),
    ("compressed-tensors", "fp8_e4m3"): (0, 15, 0),
}
"""Method and what it asks -> the first release whose `auto` is that: utils/torch_utils.py,
get_kv_cache_quant_algo_string; attention layers' `kv_cache_scheme` (attention/layer.py)."""

_ASKED_WINS = (0, 22)
"""First line in which a dtype that is asked for wins over compressed-tensors' scheme."""


def _told_by_checkpoint(name: str, model: ModelSpec, wanted: Release) -> str:
    """Return what the checkpoint's quantisation makes of a dtype."""
    asked, method = model.kv_cache_dtype, model.kv_cache_method or "modelopt"
    if asked is None:
        return name
    since = _FOLLOWED_SINCE.get((method, asked), (0, 14, 0))
    latent = any(cache.kind == "mla" for _, cache in model.caches())
    by_layer = method == "compressed-tensors"  # latent attention's layer does not look at it
    if wanted.number < since or (by_layer and latent):
        return name
    if name == "auto" or (by_layer and wanted.line < _ASKED_WINS):
        return asked
    return name


def state_word(asked: str | None) -> str:
    """Return vLLM's word for a state dtype; `auto` for None.

    Raises:
        UnknownNameError: a dtype that vLLM keeps no state in.
    """
    name = _spelled(asked or "auto")
    if name not in _STATE_DTYPES:
        raise UnknownNameError("state dtype", asked or "", _STATE_DTYPES)
    return name
