"""What a config says of a model's widths: all of it optional, nothing that a load could fail on.

A value that makes no sense is left out: sizes change nothing of the cache, and who asks for weights
is told what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcalc.core.layers import LayerRun
from kvcalc.core.recurrent import Mamba1, Mamba2
from kvcalc.core.size import ModelSize, Tower
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.weight_formats import stored, weight_block

__all__ = ["model_size"]

_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_INNER = (
    "intermediate_size_mlp",  # Llama 4: of its dense layers; intermediate_size is an expert's
    "dense_intermediate_size",
    "intermediate_size",
    "ffn_hidden_size",
    "ff_intermediate_size",
    "ffn_dim",
    "n_inner",
    "d_ff",
)
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_USED = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
)
_EXPERT_INNER = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
_SHARED_INNER = (
    "moe_shared_expert_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
_SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "num_shared_expert")
_FOUR = frozenset(
    {
        "BloomForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM",
        "GPTJForCausalLM", "GPTNeoForCausalLM", "PhiForCausalLM",
    }
)  # fmt: skip
"""Their MLP is four times as wide as the model unless the config says so."""
_VOCABULARIES = {"Gemma3ForConditionalGeneration": 262_208}
"""Left out by published files: defaults of their classes (transformers, Gemma3TextConfig)."""

_MANY = 100
_HALF = "QWenLMHeadModel"  # its intermediate_size is of gate and up together
_TOWERS = ("vision_config", "audio_config", "visual", "vit_config")
_ENCODES = ("t5", "mt5", "umt5", "bart", "mbart", "whisper")
_ENCODER_LAYERS = ("encoder_layers", "num_layers")


def model_size(
    architecture: str, outer: Fields, text: Fields, layers: Sequence[LayerRun]
) -> ModelSize:
    """Return the sizes that a config gives.

    Args:
        architecture: the class name.
        outer: the whole config.
        text: the part that describes the decoder, the outer keys where it lacks them.
        layers: as they were read.
    """
    count = sum(run.count for run in layers)
    hidden = _whole(text, *_HIDDEN)
    experts = _whole(text, *_EXPERTS)
    if _is_off(text, "enable_moe_block", "use_moe") or experts == 1:
        experts = None
    flags = _expert_layers(text, count, layers) if experts else []
    moe = sum(flags)
    inner, expert_inner = _inner(architecture, text, hidden), _whole(text, *_EXPERT_INNER)
    expert_inner = expert_inner or _whole(text, "intermediate_size") or inner
    dtype, expert_dtype, kept = stored(outer, text, layers)
    has = experts is not None and moe > 0
    vocab = _whole(text, "padded_vocab_size", "vocab_size")
    if vocab is None:
        vocab = _VOCABULARIES.get(architecture)
    return ModelSize(
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocab,
        num_experts=experts if has else None,
        num_experts_per_tok=_whole(text, *_EXPERTS_USED) if has else None,
        moe_intermediate_size=expert_inner if has else None,
        num_moe_layers=moe if has else None,
        num_dense_layers=_dense_layers(text, layers, count, moe),
        first_moe_layer=flags.index(True) if has else None,
        shared_intermediate_size=_shared(text, expert_inner) if has else None,
        expert_hidden_size=_whole(text, "moe_latent_size", "routed_expert_hidden_size"),
        q_lora_rank=_whole(text, "q_lora_rank"),
        qk_nope_head_dim=_whole(text, "qk_nope_head_dim"),
        v_head_dim=_whole(text, "v_head_dim"),
        index_n_heads=_whole(text, "index_n_heads"),
        attention_bias=_flag(text, "attention_bias", "qkv_bias", "use_qkv_bias", "bias"),
        mlp_bias=_flag(text, "mlp_bias"),
        tie_word_embeddings=_flag(text, "tie_word_embeddings", "tie_embedding"),
        towers=_towers(outer),
        weights_dtype=dtype,
        weight_block=weight_block(outer, text),
        expert_dtype=expert_dtype,
        kept=kept,
    )


def _number(value: Any, low: int = 1) -> int | None:
    if isinstance(value, list):  # one a layer: Gemma-3n, Hunyuan
        numbers = [_number(entry, low) for entry in value]
        return max((n for n in numbers if n is not None), default=None)
    return value if type(value) is int and low <= value <= MAX_DIMENSION else None


def _whole(f: Fields, *names: str, low: int = 1) -> int | None:
    """Return the first of these keys that holds a sensible number."""
    found = (_number(f.quietly(name), low) for name in names)
    return next((value for value in found if value is not None), None)


def _flag(f: Fields, *names: str) -> bool | None:
    value = f.quietly(*names)
    return value if isinstance(value, bool) else None


def _is_off(f: Fields, *names: str) -> bool:
    return any(f.quietly(name) is False for name in names)


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _inner(architecture: str, text: Fields, hidden: int | None) -> int | None:
    found = _whole(text, *_INNER)
    if found is None:
        nested = _section(text.quietly("ffn_config"))
        found = _number(nested.get("ffn_hidden_size"))
    if architecture == _HALF and found is not None:
        return found // 2 or None
    if found is None and (wide := _whole(text, "block_ff_dim")) is not None:
        return _lfm2(text, wide)
    ratio = _whole(text, "expansion_ratio")
    if found is None and hidden is not None:
        times = ratio or (4 if architecture in _FOUR else 0)
        return times * hidden or None
    return found


def _lfm2(text: Fields, wide: int) -> int:
    """Return the inner width of LFM2's MLP: transformers 5.24 models/lfm2/modeling_lfm2.py."""
    if not text.quietly("block_auto_adjust_ff_dim"):
        return wide
    multiple = _whole(text, "block_multiple_of") or 256
    factor = text.quietly("block_ffn_dim_multiplier")
    two_thirds = 2 * wide // 3
    if isinstance(factor, float) and 0 < factor < _MANY:
        two_thirds = int(factor * two_thirds)
    return max(1, -(-two_thirds // multiple)) * multiple


def _shared(text: Fields, expert_inner: int | None) -> int | None:
    """Return the inner width of a layer's shared experts together; 0 where there are none."""
    count = _whole(text, *_SHARED_COUNT, low=0)
    own = _whole(text, *_SHARED_INNER, low=0)
    if own is not None:
        # Nemotron-H gives the width of one; Hunyuan and Qwen the width of all, which are one.
        return own * (count if count and text.has("n_shared_experts") else 1)
    if count is None:
        # Llama 4 has one as wide as an expert, and no key for it.
        return expert_inner if text.has("interleave_moe_layer_step") else 0
    return count * (expert_inner or 0)


def _expert_layers(text: Fields, count: int, layers: Sequence[LayerRun]) -> list[bool]:
    """Return which layers have experts, under whichever keys the family uses."""
    notes = [run.note for run in layers for _ in range(run.count)]
    if any(note.startswith("moe") for note in notes):  # Nemotron-H: layers of experts alone
        return [note.startswith("moe") for note in notes]
    words = text.quietly("mlp_layer_types")
    if isinstance(words, list) and len(words) >= count:
        return [word == "sparse" for word in words[:count]]
    listed = text.quietly("moe_layer_freq")
    if isinstance(listed, list) and len(listed) >= count:
        return [bool(entry) for entry in listed[:count]]
    chosen = _chosen(text.quietly("moe_layers_enum", "moe_layers"))
    if chosen is not None:
        return [i in chosen for i in range(count)]
    flags = [True] * count
    for key, offset in (
        ("decoder_sparse_step", 1),
        ("interleave_moe_layer_step", 1),
        ("moe_layer_freq", 0),
    ):
        step = _whole(text, key)
        if step:
            flags = [(i + offset) % step == 0 for i in range(count)]
            break
    period, at = _whole(text, "expert_layer_period"), text.quietly("expert_layer_offset")
    if period and type(at) is int:
        flags = [i % period == at for i in range(count)]
    dense = _whole(text, "first_k_dense_replace", "num_dense_layers", low=0) or 0
    skipped = _chosen(text.quietly("mlp_only_layers")) or frozenset()
    return [has and i >= dense and i not in skipped for i, has in enumerate(flags)]


def _chosen(value: Any) -> frozenset[int] | None:
    """Return layers that a config lists, as a list of numbers or as a text with commas."""
    entries = value.split(",") if isinstance(value, str) and value else value
    if not isinstance(entries, list):
        return None
    return frozenset(
        int(e) for e in entries if str(e).strip().isascii() and str(e).strip().isdigit()
    )


def _dense_layers(text: Fields, layers: Sequence[LayerRun], count: int, moe: int) -> int | None:
    """Return the layers with a dense MLP where they are not simply the others."""
    runs = [(run.count, run.caches, run.note) for run in layers]
    if any(note in ("moe only", "mlp only") for _, _, note in runs):
        return sum(n for n, _, note in runs if note == "mlp only")
    if moe and _flag(text, "enable_moe_block"):
        return count  # Gemma-4: a dense MLP beside the experts
    kept = [cache for _, caches, _ in runs for cache in caches]
    if kept and all(isinstance(cache, (Mamba1, Mamba2)) for cache in kept):
        return 0
    return None


def _towers(outer: Fields) -> tuple[Tower, ...]:
    thinker = _section(outer.quietly("thinker_config"))
    found = []
    for name in _TOWERS:
        section = _section(outer.quietly(name)) or _section(thinker.get(name))
        tower = _tower(section)
        if tower is not None:
            found.append(tower)
    # The encoder of an encoder-decoder, whose keys lie beside those of the decoder.
    if outer.quietly("is_encoder_decoder") is True or outer.quietly("model_type") in _ENCODES:
        names = ("d_model", "hidden_size"), ("encoder_ffn_dim", "d_ff"), _ENCODER_LAYERS
        hidden, inner, layers = (_whole(outer, *keys) for keys in names)
        if hidden is not None and inner is not None and layers is not None:
            found.append(Tower(hidden_size=hidden, intermediate_size=inner, num_layers=layers))
    return tuple(found)


def _tower(section: Mapping[str, Any]) -> Tower | None:
    def first(*names: str) -> int | None:
        found = (_number(section.get(name)) for name in names)
        return next((value for value in found if value is not None), None)

    hidden = first("embed_dim", "vt_hidden_size", "d_model", "hidden_size", "width")
    layers = first("depth", "vt_num_hidden_layers", "num_hidden_layers", "encoder_layers", "layers")
    if hidden is None or layers is None:
        return None
    layers += first("num_global_layers") or 0  # Llama 3.2
    inner = first("vt_intermediate_size", "intermediate_size", "encoder_ffn_dim")
    ratio = section.get("mlp_ratio")
    if isinstance(ratio, (int, float)) and not isinstance(ratio, bool) and 0 < ratio < _MANY:
        inner = inner or int(hidden * ratio)
    inner = inner or 4 * hidden
    return Tower(hidden_size=hidden, intermediate_size=inner, num_layers=layers)
