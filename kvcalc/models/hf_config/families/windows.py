"""Sliding windows: in every layer, in a pattern, or in the layers that the config lists."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.layers import LayerRun
from kvcalc.models.hf_config.families.full import read_dense
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    drafts,
    every_nth_full,
    full_attention,
    heads,
    hidden_per_head,
    num_layers,
    runs,
    same,
    sliding,
    unmasked,
    window,
    window_list,
    windowed,
)

__all__ = [
    "read_cohere2",
    "read_dflash",
    "read_exaone4",
    "read_gemma2",
    "read_gemma3",
    "read_gpt_neo",
    "read_gpt_oss",
    "read_mimo_v2",
    "read_olmo3",
    "read_qwen2",
    "read_qwen2_moe",
    "read_qwen3_moe",
    "read_smollm3",
    "read_step3p5",
]


# Command R7B and A: three window layers to one full layer.
_COHERE2_CLASS = "Cohere2Config"  # transformers 5.24 models/cohere2/configuration_cohere2.py


def read_cohere2(f: Fields) -> Layers:
    """Return window and full layers, by `layer_types` or by the pattern's length."""
    count = num_layers(f)
    local = [False] * count
    if not f.has("layer_types"):
        period = f.default_whole("sliding_window_pattern", default=4, of=_COHERE2_CLASS)
        local = every_nth_full(count, period)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), local)))


# DFlash and DSpark drafts of the Qwen 3 kind: a few layers with K and V by head.
#
# vLLM 0.33 models/qwen3_dflash.py (_resolve_layer_attention) and qwen3_dspark.py.
def read_dflash(f: Fields) -> Layers:
    """Return full layers, and window layers where `layer_types` or `use_swa` say so."""
    count = num_layers(f)
    own = f.section("dflash_config")
    slides = own is not None and own.flag("use_swa", default=False)
    tokens = own.whole("swa_window_size") if own is not None else None
    if tokens is None and (slides or f.has("layer_types")):
        tokens = window(f)
    layers = windowed(f, count, full_attention(f), tokens, [slides] * count)
    return Layers(runs(layers))


# EXAONE 4: window layers by an int or by letters ("LLLG"); none where there is no window.
_EXAONE4_CLASS = "Exaone4Config"  # transformers 5.24 models/exaone4/configuration_exaone4.py


def read_exaone4(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else by `sliding_window_pattern`."""
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f)
    local = [False] * count
    if tokens is not None and not f.has("layer_types"):
        local = _exaone4_pattern(f, count)
    return Layers(runs(windowed(f, count, full, tokens, local)), drafts(f, full))


def _exaone4_pattern(f: Fields, count: int) -> list[bool]:
    letters = f.get("sliding_window_pattern")
    if not isinstance(letters, str):
        return every_nth_full(
            count, f.default_whole("sliding_window_pattern", default=4, of=_EXAONE4_CLASS)
        )
    if not letters or set(letters) - set("LG"):
        raise f.fault("sliding_window_pattern", letters, "an int, or letters L and G")
    # TensorRT-LLM models/modeling_exaone4.py, check_is_sliding: the last layer is full.
    return [letters[i % len(letters)] == "L" and i != count - 1 for i in range(count)]


# Gemma 2: window and full layers in turn, a window layer first.
def read_gemma2(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else in turn (transformers 5.24 Gemma2Config)."""
    count = num_layers(f)
    in_turn = every_nth_full(count, 2)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), in_turn)))


# gpt-oss: window and full layers in turn, a window layer first.
def read_gpt_oss(f: Fields) -> Layers:
    """Return the layers as Gemma 2 has them: transformers 5.24 GptOssConfig has the same rule."""
    return read_gemma2(f)


# Gemma 3: five window layers to one full layer, unless the config says otherwise.
_GEMMA3_CLASS = "Gemma3TextConfig"  # transformers 5.24 models/gemma3/configuration_gemma3.py


def read_gemma3(f: Fields) -> Layers:
    """Return window and full layers, by `layer_types` or by the pattern's length."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    local = [False] * count
    if not f.has("layer_types"):
        names = ("sliding_window_pattern", "_sliding_window_pattern")
        local = every_nth_full(count, f.default_whole(*names, default=6, of=_GEMMA3_CLASS))
    tokens = window(f)
    if tokens and f.flag("use_bidirectional_attention", default=False):
        tokens = tokens // 2 + 1  # as Gemma3TextConfig has it: so far to either side
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))


# GPT-Neo: global and local layers, listed by layer or as repeated patterns.
_GPT_NEO_CLASS = "GPTNeoConfig"  # transformers 5.24 models/gpt_neo/configuration_gpt_neo.py
_GPT_NEO_KINDS = ("global", "local")


def read_gpt_neo(f: Fields) -> Layers:
    """Return the layers by `attention_layers`, else by `attention_types`."""
    count = num_layers(f)
    full = FullAttention(num_kv_heads=heads(f), head_dim=hidden_per_head(f))
    local: Caches = (sliding(full, f.default_whole("window_size", default=256, of=_GPT_NEO_CLASS)),)
    f.notes.append("local layers count as windows; transformers keeps all their tokens")
    words = f.texts("attention_layers", known=_GPT_NEO_KINDS, length=count) or _gpt_neo_patterns(
        f, count
    )
    return Layers(runs([local if word == "local" else (full,) for word in words]))


def _gpt_neo_patterns(f: Fields, count: int) -> list[str]:
    """Return the layers of `attention_types`: [[["global", "local"], 12]]."""
    words: list[str] = []
    for entry in f.items("attention_types") or ():
        match entry:
            # A repetition that cannot fit is not unfolded.
            case [[*pattern], int(times)] if times > 0 and len(pattern) * times <= count:
                words += pattern * times
            case _:
                raise f.fault("attention_types", entry, f"words and how often, {count} in all")
        if len(words) > count:
            break
    if len(words) != count or not all(word in _GPT_NEO_KINDS for word in words):
        raise f.fault("attention_types", f"{len(words)} entries", f"{count} of global and local")
    return words


# MiMo-V2-Flash: window layers with KV heads of their own, and V narrower than K.
def read_mimo_v2(f: Fields) -> Layers:
    """Return the layers by `hybrid_layer_pattern`, where 1 is a window (vLLM 0.33 mimo_v2.py)."""
    count = num_layers(f)
    pattern = f.wholes("hybrid_layer_pattern", high=1, length=count)
    if pattern is None:
        raise f.missing("hybrid_layer_pattern")
    tokens = f.need("sliding_window_size", "sliding_window")
    full = FullAttention(
        num_kv_heads=f.need("num_key_value_heads"),
        head_dim=f.need("head_dim"),
        v_head_dim=f.whole("v_head_dim"),
    )
    local = SlidingWindow(
        num_kv_heads=f.need("swa_num_key_value_heads"),
        head_dim=f.need("swa_head_dim"),
        v_head_dim=f.whole("swa_v_head_dim"),
        sliding_window=tokens,
    )
    f.notes.append(f"window layers see {tokens} tokens, as in vLLM; transformers keeps one more")
    f.notes.append("one draft layer, as in vLLM: the config does not count them")
    layers = runs([(local,) if has_window else (full,) for has_window in pattern])
    return Layers(layers, (LayerRun(count=1, caches=(local,)),))


# Olmo 3: three window layers to one full layer, unless the config says otherwise.
def read_olmo3(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else every fourth full (transformers Olmo3Config)."""
    count = num_layers(f)
    local = every_nth_full(count, 4)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), local)))


# Qwen 2, 2.5 and 3 and what derives from them: a window only where `use_sliding_window` is true.
#
# Their published files state a window and do not use it.
_QWEN2_CLASS = "Qwen2Config"  # transformers 5.24 models/qwen2/configuration_qwen2.py


def read_qwen2(f: Fields) -> Layers:
    """Return full layers, and window layers from `max_window_layers` on where they are used."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    first = count
    if tokens is not None and not f.has("layer_types"):
        first = f.default_whole(
            "max_window_layers", default=28, of=_QWEN2_CLASS, low=0, high=MAX_LAYERS
        )
    layers = windowed(f, count, full, tokens, [i >= first for i in range(count)])
    return Layers(runs(layers), drafts(f, full))


# Qwen2-MoE: full layers; where the window is used, every other layer below a limit has it.
_QWEN2_MOE_CLASS = "Qwen2MoeConfig"  # transformers 5.24 models/qwen2_moe/configuration_qwen2_moe.py


def read_qwen2_moe(f: Fields) -> Layers:
    """Return the layers; `max_window_layers` is where the windows end, not where they begin."""
    count = num_layers(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    limit = 0
    if tokens is not None and not f.has("layer_types"):
        limit = f.default_whole(
            "max_window_layers", default=28, of=_QWEN2_MOE_CLASS, low=0, high=MAX_LAYERS
        )
    local = [has and i < limit for i, has in enumerate(every_nth_full(count, 2))]
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))


# Qwen3-MoE: as dense, with the window of every layer off unless `use_sliding_window` is true.
def read_qwen3_moe(f: Fields) -> Layers:
    """Return equal layers; transformers 5.24 Qwen3MoeConfig drops the window without the flag."""
    if f.flag("use_sliding_window", default=False):
        return read_dense(f)
    return same(num_layers(f), full_attention(f))


# SmolLM3: full layers; a window, where it is used, belongs to the layers without rotary position.
#
# transformers 5.24 models/smollm3/configuration_smollm3.py.
_SMOLLM3_CLASS = "SmolLM3Config"


def read_smollm3(f: Fields) -> Layers:
    """Return full layers, and window layers by `layer_types` or `no_rope_layers`."""
    count = num_layers(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    local = [False] * count
    if tokens is not None and not f.has("layer_types"):
        rotary = f.wholes("no_rope_layers", high=1, length=count)
        if rotary is None:
            period = f.default_whole("no_rope_layer_interval", default=4, of=_SMOLLM3_CLASS)
            rotary = [int(has) for has in every_nth_full(count, period)]
        local = [not has for has in rotary]
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))


# Laguna, Step 3.5 and 3.7: window layers where `layer_types` names them, full layers elsewhere.
def read_step3p5(f: Fields) -> Layers:
    """Return the layers, and draft layers where the config says of what kind they are.

    transformers 5.24 models/{laguna,step3p7}/configuration_*.py: without `layer_types` all are
    full; older files of Step have the draft layers' types at the end of the list.
    """
    count = num_layers(f)
    wanted = f.whole("num_nextn_predict_layers", low=0, high=MAX_LAYERS) or 0
    padded = len(f.items("layer_types") or ()) == count + wanted
    listed = window_list(f, count + wanted if padded else count) or [False] * count
    drafted = window_list(f, wanted, "mtp_layer_types") or listed[count:]
    if wanted > len(drafted):
        f.notes.append(f"{wanted} draft layers, of which the config does not say what they keep")

    tokens = window(f)
    if tokens is None and any(listed + drafted):
        raise f.missing("sliding_window")
    full = full_attention(f)
    local: Caches = (full,) if tokens is None else (sliding(full, tokens),)
    layers = [local if has_window else (full,) for has_window in listed[:count]]
    draft = [local if has_window else (full,) for has_window in drafted]
    return Layers(runs(layers), runs(draft))
