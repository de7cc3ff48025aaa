"""Record what the config classes of transformers resolve changed configs to: `pairs.jsonl`.

Small configs of our own, one a model type, with one key left out, set to null or changed; each is
loaded by its class, and what the layers would keep is read from the attributes that the modelling
code and `cache_utils.get_layer_types_and_kwargs` read. No weights, no torch:

    uv run --with transformers==5.24.0 python -m tests.models.hf_config.record_pairs

A line is `{"id", "architecture", "config", "resolved"}`. `resolved` is `{"num_hidden_layers",
"layers"}`, the layers as runs `[count, [cache, ...]]`, a cache being one of

    ["full", kv heads, head dim, v head dim], ["window", ..., tokens], ["chunk", ..., tokens]
    ["cross", ...], with the encoder's tokens last where the config says them
    ["mla", latent, rope]
    ["shared"], nothing of its own
    ["state", convolution kernel, channels, shape of the recurrent state (empty: none)]

or null where the class or the modelling code cannot load the config, with `why`.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Config = dict[str, Any]
Cache = list[Any]

OUT = Path(__file__).with_name("pairs.jsonl")

GONE = object()
"""A change: the key is left out."""


class Case(NamedTuple):
    """A model type, its small config, and how its modelling code sizes a layer.

    `changes` are more values for keys, there or not, on top of those of CHANGES. The config stands
    under the key `part` of the file; `counter` is the attribute that counts the layers.
    """

    architecture: str
    model_type: str
    config: Config
    rule: Callable[[Any, int], list[Cache]]
    changes: dict[str, list[Any]] = {}
    part: str = ""
    counter: str = "num_hidden_layers"


CHANGES: dict[str, list[Any]] = {
    "hidden_size": [192],
    "num_hidden_layers": [GONE, 3],
    "num_attention_heads": [12],
    "num_key_value_heads": [GONE, None, 2],
    "head_dim": [GONE, None, 40],
    "sliding_window": [GONE, None, 20],
    "use_sliding_window": [GONE, True],
    "max_window_layers": [GONE, 0, 9],
    "layer_types": [GONE, None, ["full_attention"] * 4, ["full_attention"] * 3],
    "n_embd": [192],
    "n_layer": [GONE, 3],
    "n_head": [GONE, 12],
    "d_model": [192],
    "n_heads": [GONE, 12],
    "n_layers": [3],
    "num_layers": [3],
    "multi_query": [GONE, None, True, False],
    "kv_lora_rank": [GONE, None, 48],
    "qk_rope_head_dim": [GONE, None, 16],
    "v_head_dim": [GONE, 24],
    "no_rope_layers": [GONE, None, []],
    "no_rope_layer_interval": [GONE, 2],
    "attention_chunk_size": [GONE, None, 20],
    "full_attention_interval": [GONE, 2],
    "sliding_window_pattern": [GONE, None, 3],
    "num_kv_shared_layers": [GONE, 0, 2],
}
"""Key -> what it is changed to wherever a config has it."""


# ---------------------------------------------------------------------- what a layer keeps


def kept(
    config: Any, index: int, kv_heads: int, size: int | None = None, v_size: int | None = None
) -> list[Cache]:
    """Return the K and V of a layer as the cache of transformers 5.24 keeps it.

    cache_utils.get_layer_types_and_kwargs: `layer_types`, else a window or a chunk for every layer
    that has such an attribute.
    """
    layer = config.per_layer_config[index]
    size = size or head_dim(layer)
    sizes = [kv_heads, size, v_size or size]
    types = getattr(config, "layer_types", None)
    sharing = getattr(config, "kv_sharing_modes", None)
    if types is not None:
        kind = types[index]
    elif getattr(layer, "sliding_window", None) is not None:
        kind = "sliding_attention"
    elif getattr(layer, "attention_chunk_size", None) is not None:
        kind = "chunked_attention"
    else:
        kind = "full_attention"
    if sharing is not None and sharing[index] == "reuse":
        return [["shared"]]
    if kind == "full_attention":
        return [["full", *sizes]]
    name = {"sliding_attention": "window", "chunked_attention": "chunk"}[kind]
    tokens = layer.sliding_window if name == "window" else layer.attention_chunk_size
    if not tokens:
        raise ValueError(f"layer {index} is {kind} of {tokens} tokens")
    return [[name, *sizes, tokens]]


def head_dim(layer: Any) -> int:
    """Return the size of a head: as most modelling code has it, `head_dim` or else a quotient."""
    return int(getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)


def quotient(layer: Any) -> int:
    """Return the size of a head where the modelling code looks at no `head_dim`."""
    return int(layer.hidden_size // layer.num_attention_heads)


def grouped(config: Any, index: int) -> list[Cache]:
    """Most decoders: `num_key_value_heads`, which some classes leave at None, and `head_dim`."""
    layer = config.per_layer_config[index]
    return kept(config, index, layer.num_key_value_heads)


def grouped_quotient(config: Any, index: int) -> list[Cache]:
    """StableLM: KV heads of their own, `head_dim` is not looked at."""
    return kept(config, index, config.num_key_value_heads, quotient(config))


def multi_head(config: Any, index: int) -> list[Cache]:
    """GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, MPT, Persimmon: K and V for every query head."""
    return kept(config, index, config.num_attention_heads, quotient(config))


def gpt_bigcode(config: Any, index: int) -> list[Cache]:
    """models/gpt_bigcode: `kv_heads` is 1 for multi-query attention."""
    heads = 1 if config.multi_query else config.num_attention_heads
    return kept(config, index, heads, quotient(config))


def gpt_neo(config: Any, index: int) -> list[Cache]:
    """models/gpt_neo: local layers look `window_size` tokens back."""
    heads, size = config.num_attention_heads, quotient(config)
    if config.attention_layers[index] == "global":
        return [["full", heads, size, size]]
    return [["window", heads, size, size, config.window_size]]


def falcon(config: Any, index: int) -> list[Cache]:
    """models/falcon: one KV head where `multi_query` is true, but for the new architecture.

    That one is left out: transformers repeats K and V for every query head, vLLM does not.
    """
    heads = 1 if config.multi_query else config.num_kv_heads
    return kept(config, index, heads, quotient(config))


def dbrx(config: Any, index: int) -> list[Cache]:
    """models/dbrx: the KV heads stand in `attn_config`."""
    return kept(config, index, config.attn_config.kv_n_heads, quotient(config))


def latent(config: Any, _index: int) -> list[Cache]:
    """models/deepseek_v2 and v3: one latent and one rotary key are cached."""
    return [["mla", config.kv_lora_rank, config.qk_rope_head_dim]]


def two_latents(config: Any, index: int) -> list[Cache]:
    """models/longcat_flash: a layer has two attentions."""
    return [*latent(config, index), *latent(config, index)]


def encoder_decoder(config: Any, _index: int) -> list[Cache]:
    """models/whisper and bart: the decoder's own heads, and the encoder's longest output."""
    heads = config.decoder_attention_heads
    size = config.d_model // heads
    tokens = getattr(config, "max_source_positions", None) or config.max_position_embeddings
    return [["full", heads, size, size], ["cross", heads, size, size, tokens]]


def t5(config: Any, _index: int) -> list[Cache]:
    """models/t5: `d_kv` is the size of a head; how long the encoder's text is, is not set."""
    heads, size = config.num_heads, config.d_kv
    return [["full", heads, size, size], ["cross", heads, size, size]]


def mamba1(config: Any, _index: int) -> list[Cache]:
    """models/mamba and falcon_mamba."""
    inner = config.intermediate_size
    return [["state", config.conv_kernel, inner, [inner, config.state_size]]]


def mamba2(config: Any, _index: int) -> list[Cache]:
    """models/mamba2."""
    inner = int(config.expand * config.hidden_size)
    channels = inner + 2 * config.n_groups * config.state_size
    shape = [config.num_heads, config.head_dim, config.state_size]
    return [["state", config.conv_kernel, channels, shape]]


def named_mamba2(config: Any, inner: int) -> Cache:
    """models/bamba, granitemoehybrid and falcon_h1 spell the sizes alike."""
    channels = inner + 2 * config.mamba_n_groups * config.mamba_d_state
    shape = [config.mamba_n_heads, config.mamba_d_head, config.mamba_d_state]
    return ["state", config.mamba_d_conv, channels, shape]


def jamba(config: Any, index: int) -> list[Cache]:
    """models/jamba: Mamba, and attention where the index leaves the offset."""
    if config.layers_block_type[index] == "attention":
        return kept(config, index, config.num_key_value_heads)
    inner = config.mamba_expand * config.hidden_size
    return [["state", config.mamba_d_conv, inner, [inner, config.mamba_d_state]]]


def bamba(config: Any, index: int) -> list[Cache]:
    """models/bamba: attention at the listed layers."""
    if config.layers_block_type[index] == "full_attention":
        size = head_dim(config)
        return [["full", config.num_key_value_heads, size, size]]
    return [named_mamba2(config, config.mamba_expand * config.hidden_size)]


def granite_hybrid(config: Any, index: int) -> list[Cache]:
    """models/granitemoehybrid: by `layer_types`."""
    if config.layer_types[index] == "full_attention":
        return kept(config, index, config.num_key_value_heads)
    return [named_mamba2(config, config.mamba_expand * config.hidden_size)]


def falcon_h1(config: Any, _index: int) -> list[Cache]:
    """models/falcon_h1: attention and a state in every layer."""
    size = head_dim(config)
    inner = config.mamba_d_ssm or config.mamba_expand * config.hidden_size
    return [["full", config.num_key_value_heads, size, size], named_mamba2(config, inner)]


def nemotron_h(config: Any, index: int) -> list[Cache]:
    """models/nemotron_h: a layer is a mixer, experts or an MLP; the latter two keep nothing."""
    kind = config.layer_types[index]
    if kind == "full_attention":
        size = config.head_dim
        return [["full", config.num_key_value_heads, size, size]]
    if kind != "linear_attention":
        return []
    inner = config.mamba_num_heads * config.mamba_head_dim
    channels = inner + 2 * config.n_groups * config.ssm_state_size
    shape = [config.mamba_num_heads, config.mamba_head_dim, config.ssm_state_size]
    return [["state", config.conv_kernel, channels, shape]]


def gated_delta(config: Any, index: int) -> list[Cache]:
    """models/qwen3_next and qwen3_5."""
    if config.layer_types[index] == "full_attention":
        return kept(config, index, config.num_key_value_heads)
    key, value = config.linear_key_head_dim, config.linear_value_head_dim
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    channels = 2 * key * key_heads + value * value_heads
    # Which way round the state lies differs between engines; the elements do not.
    return [["state", config.linear_conv_kernel_dim, channels, [value_heads, value, key]]]


def lfm2(config: Any, index: int) -> list[Cache]:
    """models/lfm2: attention, or a convolution over the hidden size."""
    if config.layer_types[index] == "full_attention":
        return kept(config, index, config.num_key_value_heads)
    return [["state", config.conv_L_cache, config.hidden_size, []]]


def recurrent_gemma(config: Any, index: int) -> list[Cache]:
    """models/recurrent_gemma: windows and linear recurrent units."""
    if config.layers_block_type[index] == "sliding_attention":
        size, tokens = config.head_dim, config.attention_window_size
        return [["window", config.num_key_value_heads, size, size, tokens]]
    return [["state", config.conv1d_width, config.lru_width, [config.lru_width]]]


# ---------------------------------------------------------------------- the small configs

# Numbers that are hardly any class's default, so that a default shows.
MHA: Config = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6}
GQA: Config = MHA | {"num_key_value_heads": 3}
WIDE: Config = GQA | {"head_dim": 24}
GPT: Config = {"n_embd": 96, "n_layer": 4, "n_head": 6}
BIGCODE: Config = GPT | {"multi_query": True}
WINDOW: Config = {"sliding_window": 32}
QWEN: Config = {"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 2}
MIXED: Config = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
}
MLA: Config = MHA | {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 6,
}
DBRX: Config = {"d_model": 96, "n_layers": 4, "n_heads": 6, "attn_config": {"kv_n_heads": 3}}
DBRX_CHANGES: dict[str, list[Any]] = {
    "head_dim": [40],
    "attn_config": [GONE, {}, {"kv_n_heads": 6}],
}
NESTED_MISTRAL: Config = WIDE | WINDOW | {"model_type": "mistral"}
NESTED_LLAMA: Config = WIDE | {"model_type": "llama"}
ADDED_HEAD_DIM = {"head_dim": [40]}
ADDED_KV_HEADS = {"num_key_value_heads": [2]}
ADDED_WINDOW = {"sliding_window": [32]}
TYPES = {"layer_types": [MIXED["layer_types"]]}
GEMMA: Config = WIDE | {"num_hidden_layers": 8, "sliding_window": 32}
GEMMA_TYPES = {
    "layer_types": [
        ["sliding_attention", "full_attention"] * 4,
        ["full_attention"] * 8,
        ["sliding_attention", "full_attention"] * 3,
    ]
}
DELTA: Config = WIDE | {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
}
DELTA_CHANGES: dict[str, list[Any]] = {
    "linear_conv_kernel_dim": [GONE, 3],
    "linear_key_head_dim": [GONE, 16],
    "linear_num_key_heads": [GONE, 4],
    "linear_num_value_heads": [GONE, 8],
    "linear_value_head_dim": [GONE, 8],
    "layer_types": [["full_attention", "linear_attention"] * 2],
}
MAMBA: Config = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "state_size": 8,
    "conv_kernel": 4,
    "expand": 2,
}
MAMBA_CHANGES: dict[str, list[Any]] = {
    "state_size": [GONE, 32],
    "conv_kernel": [GONE, 3],
    "expand": [GONE, 4],
    "intermediate_size": [160],
}
NAMED_MAMBA2: Config = {
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
NAMED_MAMBA2_CHANGES: dict[str, list[Any]] = {
    "mamba_n_heads": [GONE, 16, 7],
    "mamba_d_head": [GONE, "auto", 8],
    "mamba_d_state": [GONE, 16],
    "mamba_n_groups": [GONE, 4],
    "mamba_d_conv": [GONE, 3],
    "mamba_expand": [GONE, 4],
}
ENCODER_DECODER: Config = {
    "d_model": 96,
    "decoder_layers": 5,
    "decoder_attention_heads": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
}
ENCODER_DECODER_CHANGES: dict[str, list[Any]] = {
    "decoder_layers": [3],
    "decoder_attention_heads": [4],
    "encoder_layers": [GONE, 5],
    "encoder_attention_heads": [GONE, 2],
    "num_hidden_layers": [9],
}

CASES: list[Case] = [
    Case("LlamaForCausalLM", "llama", WIDE, grouped, {"num_key_value_heads": [6]}),
    Case("MistralForCausalLM", "mistral", WIDE | WINDOW, grouped, TYPES),
    Case("Ministral3ForCausalLM", "ministral3", WIDE, grouped, ADDED_WINDOW),
    Case("MixtralForCausalLM", "mixtral", GQA | WINDOW, grouped, ADDED_HEAD_DIM),
    Case("Qwen2ForCausalLM", "qwen2", GQA | QWEN, grouped, ADDED_HEAD_DIM | TYPES),
    Case("Qwen2ForCausalLM", "qwen2", GQA | QWEN | {"use_sliding_window": True}, grouped, TYPES),
    Case("Qwen3ForCausalLM", "qwen3", WIDE | QWEN | {"use_sliding_window": True}, grouped, TYPES),
    Case("Qwen3MoeForCausalLM", "qwen3_moe", WIDE | QWEN, grouped),
    Case("Qwen2MoeForCausalLM", "qwen2_moe", GQA | QWEN, grouped),
    Case(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        GQA | QWEN | {"use_sliding_window": True, "max_window_layers": 3},
        grouped,
        TYPES,
    ),
    Case("GemmaForCausalLM", "gemma", WIDE, grouped),
    Case("Gemma2ForCausalLM", "gemma2", WIDE | WINDOW, grouped, TYPES),
    Case(
        "Gemma3ForCausalLM",
        "gemma3_text",
        GEMMA | {"sliding_window_pattern": 4},
        grouped,
        GEMMA_TYPES | {"_sliding_window_pattern": [2], "use_bidirectional_attention": [True]},
    ),
    Case("Gemma3ForConditionalGeneration", "gemma3", GEMMA, grouped, GEMMA_TYPES, "text_config"),
    Case(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        WIDE | {"num_hidden_layers": 12, "sliding_window": 32, "num_kv_shared_layers": 5},
        grouped,
        {"num_kv_shared_layers": [9, 12], "layer_types": [["full_attention"] * 12]},
    ),
    Case(
        "Gemma4ForCausalLM",
        "gemma4_text",
        WIDE | {"num_hidden_layers": 12, "sliding_window": 32, "global_head_dim": 32},
        grouped,
        {
            "global_head_dim": [GONE, None, 64],
            "num_global_key_value_heads": [1],
            "attention_k_eq_v": [True],
            "num_kv_shared_layers": [2, 5],
            "layer_types": [["full_attention", "sliding_attention"] * 6],
            "use_bidirectional_attention": ["all", "vision"],
        },
    ),
    Case("PhiForCausalLM", "phi", GQA, grouped, ADDED_HEAD_DIM),
    Case("Phi3ForCausalLM", "phi3", GQA | WINDOW, grouped, ADDED_HEAD_DIM),
    Case("PhimoeForCausalLM", "phimoe", GQA | WINDOW, grouped),
    Case(
        "FalconForCausalLM",
        "falcon",
        MHA | {"multi_query": True},
        falcon,
        {"num_kv_heads": [2], "n_embed": [192]},
    ),
    Case("GPTNeoXForCausalLM", "gpt_neox", MHA, multi_head, ADDED_KV_HEADS | ADDED_HEAD_DIM),
    Case("GPT2LMHeadModel", "gpt2", GPT, multi_head, ADDED_KV_HEADS | ADDED_HEAD_DIM),
    Case("GPTJForCausalLM", "gptj", GPT, multi_head, ADDED_KV_HEADS | ADDED_HEAD_DIM),
    Case("GPTBigCodeForCausalLM", "gpt_bigcode", BIGCODE, gpt_bigcode, ADDED_HEAD_DIM),
    Case(
        "GPTNeoForCausalLM",
        "gpt_neo",
        {
            "hidden_size": 96,
            "num_layers": 4,
            "num_heads": 6,
            "window_size": 32,
            "attention_types": [[["global", "local"], 2]],
        },
        gpt_neo,
        {
            "num_heads": [12],
            "head_dim": [40],
            "window_size": [GONE, 20],
            "attention_types": [GONE, [[["global"], 4]], [[["local", "global"], 3]]],
        },
    ),
    Case("OPTForCausalLM", "opt", MHA, multi_head, ADDED_KV_HEADS | ADDED_HEAD_DIM),
    Case(
        "BloomForCausalLM",
        "bloom",
        {"hidden_size": 96, "n_layer": 4, "n_head": 6},
        multi_head,
        {"n_embed": [192], "n_embd": [192]},
    ),
    Case(
        "MptForCausalLM",
        "mpt",
        {"d_model": 96, "n_layers": 4, "n_heads": 6, "attn_config": {}},
        multi_head,
        {
            "head_dim": [40],
            "attn_config": [
                GONE,
                None,
                {"attn_type": "multiquery_attention"},
                {"attn_type": "grouped_query_attention", "kv_n_heads": 2},
            ],
        },
    ),
    Case("StableLmForCausalLM", "stablelm", GQA, grouped_quotient, ADDED_HEAD_DIM),
    Case("Starcoder2ForCausalLM", "starcoder2", GQA | WINDOW, grouped, ADDED_HEAD_DIM),
    Case("CohereForCausalLM", "cohere", GQA, grouped),
    Case(
        "Cohere2ForCausalLM",
        "cohere2",
        GQA | WINDOW | {"sliding_window_pattern": 4},
        grouped,
        TYPES,
    ),
    Case("OlmoForCausalLM", "olmo", GQA, grouped),
    Case("Olmo2ForCausalLM", "olmo2", GQA, grouped),
    Case("Olmo3ForCausalLM", "olmo3", GQA | WINDOW, grouped, TYPES | ADDED_HEAD_DIM),
    Case("OlmoeForCausalLM", "olmoe", GQA, grouped),
    Case("GraniteForCausalLM", "granite", GQA, grouped, ADDED_HEAD_DIM),
    Case("GraniteMoeForCausalLM", "granitemoe", GQA, grouped),
    Case("Glm4ForCausalLM", "glm4", WIDE, grouped),
    Case("Glm4MoeForCausalLM", "glm4_moe", WIDE, grouped),
    Case("Ernie4_5ForCausalLM", "ernie4_5", WIDE, grouped),
    Case("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", GQA, grouped),
    Case("ApertusForCausalLM", "apertus", GQA, grouped),
    Case("ArceeForCausalLM", "arcee", WIDE, grouped),
    Case("HeliumForCausalLM", "helium", WIDE, grouped),
    Case("SeedOssForCausalLM", "seed_oss", WIDE, grouped),
    Case("NemotronForCausalLM", "nemotron", WIDE, grouped),
    Case("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", WIDE, grouped),
    Case("MiniMaxM2ForCausalLM", "minimax_m2", WIDE, grouped),
    Case("PersimmonForCausalLM", "persimmon", MHA, multi_head, ADDED_KV_HEADS | ADDED_HEAD_DIM),
    Case("DbrxForCausalLM", "dbrx", DBRX, dbrx, DBRX_CHANGES),
    Case(
        "Exaone4ForCausalLM",
        "exaone4",
        GQA | WINDOW | {"num_hidden_layers": 8, "sliding_window_pattern": 4},
        grouped,
        GEMMA_TYPES | ADDED_HEAD_DIM | {"sliding_window_pattern": ["LLLG"]},
    ),
    Case(
        "SmolLM3ForCausalLM",
        "smollm3",
        GQA | WINDOW | {"use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0]},
        grouped,
        TYPES | {"no_rope_layers": [[0, 1, 1, 1]]},
    ),
    Case("GptOssForCausalLM", "gpt_oss", WIDE | WINDOW, grouped, TYPES),
    Case(
        "Llama4ForCausalLM",
        "llama4_text",
        WIDE | {"no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 32},
        grouped,
        {"layer_types": [["chunked_attention", "full_attention"] * 2]},
    ),
    Case(
        "Llama4ForConditionalGeneration",
        "llama4",
        WIDE | {"no_rope_layer_interval": 4, "attention_chunk_size": 32},
        grouped,
        {},
        "text_config",
    ),
    Case(
        "Mistral3ForConditionalGeneration", "mistral3", NESTED_MISTRAL, grouped, {}, "text_config"
    ),
    Case("LlavaForConditionalGeneration", "llava", NESTED_LLAMA, grouped, {}, "text_config"),
    Case(
        "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", GQA | QWEN, grouped, {}, "text_config"
    ),
    Case("Qwen3VLForConditionalGeneration", "qwen3_vl", WIDE, grouped, {}, "text_config"),
    Case("LagunaForCausalLM", "laguna", WIDE | WINDOW | MIXED, grouped),
    Case("DeepseekV2ForCausalLM", "deepseek_v2", MLA, latent, {"q_lora_rank": [24]}),
    Case("DeepseekV3ForCausalLM", "deepseek_v3", MLA, latent),
    Case("Glm4MoeLiteForCausalLM", "glm4_moe_lite", MLA, latent),
    Case(
        "LongcatFlashForCausalLM",
        "longcat_flash",
        {k: v for k, v in MLA.items() if k != "num_hidden_layers"} | {"num_layers": 4},
        two_latents,
        {"num_hidden_layers": [6]},
        counter="num_layers",
    ),
    Case("Qwen3NextForCausalLM", "qwen3_next", DELTA, gated_delta, DELTA_CHANGES),
    Case("Qwen3_5ForCausalLM", "qwen3_5_text", DELTA, gated_delta, DELTA_CHANGES),
    Case(
        "JambaForCausalLM",
        "jamba",
        GQA
        | {"attn_layer_period": 4, "attn_layer_offset": 1}
        | {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2},
        jamba,
        {
            "attn_layer_period": [GONE, 2],
            "attn_layer_offset": [GONE, 0, 4],
            "mamba_d_state": [GONE, 32],
            "mamba_d_conv": [GONE, 3],
            "mamba_expand": [GONE, 4],
        },
    ),
    Case("MambaForCausalLM", "mamba", MAMBA, mamba1, MAMBA_CHANGES),
    Case("FalconMambaForCausalLM", "falcon_mamba", MAMBA, mamba1, MAMBA_CHANGES),
    Case(
        "Mamba2ForCausalLM",
        "mamba2",
        MAMBA | {"num_heads": 8, "head_dim": 24, "n_groups": 2},
        mamba2,
        {
            "state_size": [GONE, 32],
            "conv_kernel": [GONE, 3],
            "expand": [GONE, 4],
            "num_heads": [16],
            "n_groups": [GONE, 4],
            "head_dim": [32],
        },
    ),
    Case(
        "BambaForCausalLM",
        "bamba",
        GQA | NAMED_MAMBA2 | {"attn_layer_indices": [1, 3]},
        bamba,
        NAMED_MAMBA2_CHANGES | {"attn_layer_indices": [GONE, None, [], [0], [9]]},
    ),
    Case(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        GQA | NAMED_MAMBA2 | {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
        granite_hybrid,
        NAMED_MAMBA2_CHANGES | {"layer_types": [["linear_attention", "full_attention"] * 2]},
    ),
    Case(
        "FalconH1ForCausalLM",
        "falcon_h1",
        WIDE | NAMED_MAMBA2 | {"mamba_d_ssm": 192},
        falcon_h1,
        NAMED_MAMBA2_CHANGES | {"mamba_d_ssm": [GONE, None, 64]},
    ),
    Case(
        "NemotronHForCausalLM",
        "nemotron_h",
        WIDE
        | {"hybrid_override_pattern": "M-M*", "mamba_num_heads": 8, "mamba_head_dim": 16}
        | {"ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4},
        nemotron_h,
        {
            "hybrid_override_pattern": [GONE, "*E", "MXM*"],
            "layers_block_type": [["mamba", "attention"]],
            "mamba_num_heads": [GONE, 4],
            "mamba_head_dim": [GONE, 8],
            "ssm_state_size": [GONE, 16],
            "n_groups": [GONE, 4],
            "conv_kernel": [GONE, 3],
            "num_hidden_layers": [2],
        },
    ),
    Case(
        "Lfm2ForCausalLM",
        "lfm2",
        GQA | {"conv_L_cache": 3, "full_attn_idxs": [1, 3]},
        lfm2,
        {
            "conv_L_cache": [GONE, 5],
            "full_attn_idxs": [GONE, None, [0], [9]],
            "layer_types": [["conv", "full_attention", "full_attention", "conv"]],
            "conv_dim": [48],
        },
    ),
    Case(
        "RecurrentGemmaForCausalLM",
        "recurrent_gemma",
        GQA
        | {"attention_window_size": 32, "lru_width": 48, "conv1d_width": 4}
        | {"block_types": ["recurrent", "attention"]},
        recurrent_gemma,
        {
            "attention_window_size": [GONE, 20],
            "lru_width": [GONE, None, 96],
            "conv1d_width": [GONE, 3],
            "block_types": [GONE, None, ["attention"], ["recurrent", "recurrent", "attention"]],
        },
    ),
    Case(
        "WhisperForConditionalGeneration",
        "whisper",
        ENCODER_DECODER | {"max_source_positions": 100},
        encoder_decoder,
        ENCODER_DECODER_CHANGES | {"max_source_positions": [GONE, 50]},
        counter="decoder_layers",
    ),
    Case(
        "BartForConditionalGeneration",
        "bart",
        ENCODER_DECODER | {"max_position_embeddings": 100},
        encoder_decoder,
        ENCODER_DECODER_CHANGES | {"max_position_embeddings": [GONE, 50]},
        counter="decoder_layers",
    ),
    Case(
        "T5ForConditionalGeneration",
        "t5",
        {"d_model": 96, "d_kv": 24, "num_layers": 4, "num_decoder_layers": 3, "num_heads": 6},
        t5,
        {"d_kv": [GONE, 24], "num_decoder_layers": [GONE, None, 5], "num_heads": [GONE, 4]},
        counter="num_decoder_layers",
    ),
]


# ---------------------------------------------------------------------- recording


def mutants(case: Case) -> Iterator[tuple[str, Config]]:
    """Yield (what was changed, the config): the config itself, and each change of one key."""
    yield "as it is", case.config
    for key in {**CHANGES, **case.changes}:
        general = CHANGES.get(key, []) if key in case.config else []
        for value in [*general, *case.changes.get(key, [])]:
            changed = dict(case.config)
            if value is GONE:
                changed.pop(key, None)
            else:
                changed[key] = value
            if changed != case.config:
                how = "left out" if value is GONE else json.dumps(value)
                yield f"{key} {how}", changed


def whole(case: Case, config: Config) -> Config:
    """Return the file: the config at its top, or inside its text part."""
    if not case.part:
        return {"model_type": case.model_type, **config}
    return {"model_type": case.model_type, case.part: config}


def resolve(case: Case, config: Config, classes: Any) -> dict[str, Any]:
    """Return what the class and the modelling code make of a config, as layers in runs."""
    loaded = classes[case.model_type].from_dict(copy.deepcopy(config))
    if case.part:
        loaded = loaded.get_text_config(decoder=True)
    runs: list[list[Any]] = []
    for index in range(getattr(loaded, case.counter)):
        caches = case.rule(loaded, index)
        if not all(isinstance(n, (int, str, list)) for cache in caches for n in cache):
            raise TypeError(f"a size of layer {index} is none: {caches}")
        if runs and runs[-1][1] == caches:
            runs[-1][0] += 1
        else:
            runs.append([1, caches])
    return {"num_hidden_layers": sum(run[0] for run in runs), "layers": runs}


def rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of pairs.jsonl in order."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    seen: set[str] = set()
    before: Counter[str] = Counter()
    for case in CASES:
        before[case.model_type] += 1
        again = f" ({before[case.model_type]})" if before[case.model_type] > 1 else ""
        for what, config in mutants(case):
            file = whole(case, config)
            said = json.dumps(file, sort_keys=True)
            if said in seen:
                continue
            seen.add(said)
            row: dict[str, Any] = {
                "id": f"{case.model_type}{again}: {what}",
                "architecture": case.architecture,
                "config": file,
            }
            try:
                row["resolved"] = resolve(case, file, transformers.CONFIG_MAPPING)
            except Exception as error:
                words = " ".join(str(error).split())
                row |= {"resolved": None, "why": f"{type(error).__name__}: {words[:100]}"}
            yield row


def main() -> None:
    """Write pairs.jsonl."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    lines = [json.dumps(row, separators=(",", ":")) for row in rows()]
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} pairs of {len(CASES)} configs")


if __name__ == "__main__":
    main()
