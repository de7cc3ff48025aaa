"""K and V of every token, by head: plain decoders, and those that spell their heads otherwise.

A multimodal wrapper (`nested`) is read by the family of the language model in it.
"""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import InputError, NotModelledError, UnknownNameError
from kvcalc.core.recurrent import ShortConv
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    drafts,
    full_attention,
    head_dim,
    heads,
    hidden_per_head,
    kv_heads,
    num_layers,
    runs,
    same,
    unmasked,
    window,
    windowed,
)
from kvcalc.models.hf_config.registry import ARCHITECTURES, MODEL_TYPES, family

__all__ = [
    "read_chatglm",
    "read_dbrx",
    "read_deci",
    "read_dense",
    "read_falcon",
    "read_gpt_bigcode",
    "read_grok",
    "read_mpt",
    "read_multi_head",
    "read_nested",
    "read_openelm",
    "read_stablelm",
    "read_yuan",
]


# Plain decoders: every layer keeps K and V of every token, or all of them of one window.
def read_dense(f: Fields) -> Layers:
    """Return equal layers, with the window that the config puts in force.

    A window is every layer's in vLLM 0.33 (engine/arg_utils.py, `sliding_window`) and in
    transformers 5.24 (cache_utils.py, `get_layer_types_and_kwargs`), unless `layer_types` differ.
    """
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f)
    layers = windowed(f, count, full, tokens, [tokens is not None] * count)
    return Layers(runs(layers), drafts(f, full))


# GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM and Persimmon: K and V for every query head.
#
# Their modelling code looks at no `num_key_value_heads` and no `head_dim`.
def read_multi_head(f: Fields) -> Layers:
    """Return equal layers of multi-head attention."""
    return same(num_layers(f), FullAttention(num_kv_heads=heads(f), head_dim=hidden_per_head(f)))


# ChatGLM 2 and 3 and GLM-4-9B of the old code: grouped heads behind a flag.
_CHATGLM_CLASS = "ChatGLMConfig"  # vLLM 0.33 transformers_utils/configs/chatglm.py


def read_chatglm(f: Fields) -> Layers:
    """Return equal layers; without `multi_query_attention` every query head has its own KV head."""
    groups = heads(f)
    if f.flag("multi_query_attention", default=False):
        groups = f.default_whole("multi_query_group_num", default=1, of=_CHATGLM_CLASS)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=head_dim(f)))


# DBRX: the KV heads stand in `attn_config`.
_DBRX_CLASS = "DbrxAttentionConfig"  # transformers 5.24 models/dbrx/configuration_dbrx.py


def read_dbrx(f: Fields) -> Layers:
    """Return equal layers of grouped-query attention."""
    attention = f.section("attn_config")
    if attention is None:
        raise f.missing("attn_config")
    groups = attention.default_whole("kv_n_heads", default=1, of=_DBRX_CLASS)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))


# Nemotron-NAS and DeciLM: KV heads, or nothing at all, layer by layer.
def read_deci(f: Fields) -> Layers:
    """Return the layers by `block_configs`, else by `num_key_value_heads_per_layer`."""
    count = num_layers(f)
    size = head_dim(f)
    blocks = f.sections("block_configs", length=count)
    if blocks is None:
        groups = f.wholes("num_key_value_heads_per_layer", low=1, length=count)
        if groups is None:
            raise f.missing("block_configs", "num_key_value_heads_per_layer")
        return Layers(runs([(FullAttention(num_kv_heads=n, head_dim=size),) for n in groups]))
    layers = [_block_attention(block, heads(f), size) for block in blocks]
    notes = {i: "attention is left out" for i, caches in enumerate(layers) if not caches}
    return Layers(runs(layers, notes))


def _block_attention(block: Fields, query_heads: int, size: int) -> Caches:
    """Return what a block keeps; vLLM 0.33 models/nemotron_nas.py, DeciLMDecoderLayer."""
    attention = block.section("attention")
    if attention is None:
        raise block.missing("attention")
    if attention.flag("no_op", default=False) or attention.flag(
        "replace_with_linear", default=False
    ):
        return ()
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        if attention.get(key):
            raise NotModelledError(
                f"{attention.name(key)} is set: attention to some tokens only is not modelled",
                hint="no published model of this architecture uses it",
                where=block.where,
            )
    group = attention.need("n_heads_in_group", high=MAX_LAYERS)
    if query_heads % group:
        raise attention.fault("n_heads_in_group", group, f"a divisor of {query_heads} heads")
    return (FullAttention(num_kv_heads=query_heads // group, head_dim=size),)


# Falcon: one KV head in the old architecture, grouped heads in the new.
def read_falcon(f: Fields) -> Layers:
    """Return equal layers; `multi_query` counts in the old architecture only, and is its default.

    vLLM 0.33 transformers_utils/model_arch_config_convertor.py, FalconModelArchConfigConvertor.
    """
    if f.flag("new_decoder_architecture", default=False):
        groups = f.whole("num_kv_heads", "n_head_kv") or heads(f)
        f.notes.append("transformers keeps K and V once for every query head instead")
    else:
        # FalconConfig takes an explicit null at its word: not true.
        single = f.flag("multi_query", default=not f.is_null("multi_query"))
        groups = 1 if single else heads(f)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))


# StarCoder and its kin: one KV head, unless `multi_query` is false.
def read_gpt_bigcode(f: Fields) -> Layers:
    """Return equal layers; multi-query is the class's default (transformers GPTBigCodeConfig)."""
    groups = 1 if f.flag("multi_query", default=True) else heads(f)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))


# Grok 1 and 2: full attention; a window is switched off in what is published.
def read_grok(f: Fields) -> Layers:
    """Return equal layers; `sliding_window_size` -1 is no window."""
    if window(f, "sliding_window_size") is not None:
        raise NotModelledError(
            f"{f.name('sliding_window', 'sliding_window_size')} is set: which of Grok's layers"
            " have a window is not known",
            hint="no published Grok model uses one",
            where=f.where,
        )
    return same(num_layers(f), full_attention(f))


# MPT: attention of three types, told apart in `attn_config`.
_MULTI_HEAD, _MULTI_QUERY, _GROUPED = (
    "multihead_attention",
    "multiquery_attention",
    "grouped_query_attention",
)


def read_mpt(f: Fields) -> Layers:
    """Return equal layers; llm-foundry models/layers/attention.py has the three types."""
    attention = f.section("attn_config")
    kind = (attention and attention.text("attn_type")) or _MULTI_HEAD
    match kind:
        case "multihead_attention":
            groups = heads(f)
        case "multiquery_attention":
            groups = 1
        case "grouped_query_attention" if attention is not None:
            groups = attention.need("kv_n_heads")
        case _:
            known = (_MULTI_HEAD, _MULTI_QUERY, _GROUPED)
            raise UnknownNameError("attn_config.attn_type", kind[:60], known, where=f.where)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))


# OpenELM: KV heads by layer.
def read_openelm(f: Fields) -> Layers:
    """Return layers of `num_kv_heads` heads each."""
    count = num_layers(f, "num_transformer_layers")
    groups = f.wholes("num_kv_heads", low=1, length=count)
    if groups is None:
        raise f.missing("num_kv_heads")
    size = f.need("head_dim")
    return Layers(runs([(FullAttention(num_kv_heads=n, head_dim=size),) for n in groups]))


# StableLM: KV heads of their own, and no `head_dim`: the modelling code divides.
def read_stablelm(f: Fields) -> Layers:
    """Return equal layers of grouped-query attention."""
    return same(num_layers(f), FullAttention(num_kv_heads=kv_heads(f), head_dim=hidden_per_head(f)))


# Yuan 2: plain attention behind a filter that looks at the last two tokens' hidden vectors.
def read_yuan(f: Fields) -> Layers:
    """Return equal layers, each keeping two hidden vectors beside K and V.

    Yuan's yuan_hf_model.py, YuanAttention: `past_key_value` is K, V and the memory of the
    localized filter (two convolutions over two tokens each).
    """
    return same(
        num_layers(f),
        FullAttention(num_kv_heads=kv_heads(f), head_dim=head_dim(f)),
        ShortConv(hidden_size=f.need("hidden_size"), conv_kernel=3),
    )


# Vision and audio models around a language model of another family: that family reads it.
def read_nested(f: Fields) -> Layers:
    """Return the language model's layers, by its own class or its model type."""
    names = [name for name in f.items("architectures") or () if isinstance(name, str)]
    inner = next((n for n in names if ARCHITECTURES.get(n, "nested") != "nested"), None)
    if inner is None:
        model_type = f.text("model_type") or ""
        inner = MODEL_TYPES.get(model_type)
        if inner is None or ARCHITECTURES[inner] == "nested":
            raise InputError(
                f"{f.name('model_type')} {model_type!r:.60} names no language model that is known",
                hint="add the architectures line of the language model to its part of the config",
                where=f.where,
            )
    return family(inner, f.where)(f)
