"""Recurrent and hybrid families against what vLLM, transformers and llama.cpp say they keep."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, Mla
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.errors import InputError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec, row_bytes
from kvcalc.models.hf_config import read_config
from tests.models.hf_config import rows
from tests.models.hf_config.oracles import ABSENT, SHARED, config, spec, vllm_signatures

FAMILIES = (
    "bailing_linear",
    "bamba",
    "falcon_h1",
    "granite_hybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "mamba",
    "mamba2",
    "minicpmv4_6",
    "minimax_text",
    "nemotron_h",
    "qwen3_5",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba2",
)
MODELS = rows.models(*FAMILIES)
REFUSED = {"NX-AI--xLSTM-7b": "matrix memory, normaliser and stabiliser are no kind of layer yet"}
_GONE = "dropped by vLLM before 0.33; rows of 0.19.1 below"
_SAME = "same shape as a sibling of which vLLM was asked"
_NEW = "not asked; other counts of layers and heads than those of which vLLM was"
NO_VLLM_ROWS = REFUSED | {
    "MiniMaxAI--MiniMax-M1-80k": _GONE,
    "MiniMaxAI--MiniMax-Text-01": _GONE,
    "Qwen--Qwen3.5-4B": _NEW,
    "Qwen--Qwen3.5-4B-Base": _NEW,
    "Qwen--Qwen3.5-9B": _NEW,
    "Qwen--Qwen3.5-9B-Base": _NEW,
    "RWKV--rwkv-5-world-3b": "vLLM has no RWKV",
    "Zyphra--Zamba2-2.7B": "not asked",
    "Zyphra--Zamba2-7B": "vLLM 0.33 fails an assertion: its state is larger than its page",
    "google--recurrentgemma-2b": "vLLM 0.33 cannot run it",
    "ibm-ai-platform--Bamba-9B-v1": _GONE,
    "ibm-granite--granite-4.0-h-micro": _SAME,
    "ibm-granite--granite-4.0-h-tiny": _SAME,
    "ibm-granite--granite-4.0-tiny-preview": _NEW,
    "inclusionAI--Ring-mini-linear-2.0": "vLLM 0.33 does not know the architecture",
    "nvidia--NVIDIA-Nemotron-3-Nano-4B-BF16": _NEW,
    "nvidia--NVIDIA-Nemotron-Nano-12B-v2": _NEW,
    "nvidia--NVIDIA-Nemotron-Nano-9B-v2": "not asked; llama.cpp rows below",
    "tiiuae--Falcon-H1-1.5B-Base": _NEW,
    "tiiuae--Falcon-H1-1.5B-Deep-Base": _NEW,
    "tiiuae--Falcon-H1-1.5B-Deep-Instruct": _SAME,
    "tiiuae--Falcon-H1-1.5B-Instruct": _SAME,
    "tiiuae--Falcon-H1-34B-Base": _NEW,
    "tiiuae--Falcon-H1-34B-Instruct": _SAME,
    "tiiuae--Falcon-H1-3B-Instruct": _SAME,
}

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
READ = [m for m in MODELS if m not in REFUSED]


@needs_shared
def test_every_model_of_the_corpus_is_read_or_refused_for_a_reason() -> None:
    """Of each config there is a model, or a refusal that says what is missing."""
    assert len(MODELS) > 40
    for model in MODELS:
        if model in REFUSED:
            with pytest.raises(UnsupportedError):
                spec(model)
        else:
            spec(model)


@needs_shared
def test_no_row_of_these_families_is_forgotten() -> None:
    """Each model of which an engine was asked is among those compared, or left out by name."""
    asked = rows.vllm_models_of(*FAMILIES)
    assert asked <= set(READ) - set(NO_VLLM_ROWS)
    assert len(asked) >= 31
    compared = {*READ, *BUILT_IN, *LEFT_OUT_OF_TRANSFORMERS}
    assert rows.transformers_names_of(*FAMILIES) <= compared
    with_states = {
        row["arch"]
        for row in rows.llama_cpp_rows()
        if any(held["kind"] == "recurrent" for held in row["caches"])
    }
    assert with_states == set(LLAMA_CPP)


@needs_shared
@pytest.mark.parametrize("model", READ)
def test_layers_are_those_of_vllm(model: str) -> None:
    """For every row: kinds, heads, state shapes and dtypes, and the bytes of a token or state."""
    found = rows.vllm_by_model().get(model, [])
    if model in NO_VLLM_ROWS:
        assert not found
        pytest.skip(f"left out: {NO_VLLM_ROWS[model]}")
    assert found or rows.is_like_one_compared(model, *FAMILIES)
    for row in found:
        assert rows.ours_for_vllm(row) == vllm_signatures(row), row["case"]
        if not rows.packing_unknown(row):
            assert rows.ours_in_bytes(row) == rows.vllm_bytes(row), row["case"]


# Older releases give groups of layers with their page instead of layers.
PAGES_0_19 = {
    "MiniMaxAI--MiniMax-M1-80k": (70, 64 * 128 * 128 * 2),
    "ibm-ai-platform--Bamba-9B-v1": (29, (3 * 8448 + 128 * 64 * 128) * 2),
}


@needs_shared
@pytest.mark.parametrize("model", sorted(PAGES_0_19))
def test_states_dropped_by_vllm_are_those_of_its_last_release(model: str) -> None:
    """The page of vLLM 0.19.1 is the state, rounded up to whole tokens of attention."""
    count, size = PAGES_0_19[model]
    read = spec(model)
    assert read.state_bytes() == count * size
    asked = [
        r for r in rows.lines_of("vllm_results.jsonl") if r["model"] == model and "groups" in r
    ]
    assert asked
    for row in asked:
        rank = read.on_rank(row["tp"])
        state = rank.state_bytes() // count
        (token,) = {
            row_bytes(c, kv_dtype(row["kv_cache_dtype"], "bfloat16"))
            for _, c in rank.caches()
            if isinstance(c, FullAttention)
        }
        states = [g for g in row["groups"] if g["spec"] == "MambaSpec"]
        attention = [g for g in row["groups"] if g["spec"] == "FullAttentionSpec"]
        assert sum(g["num_layers"] for g in states) == count
        assert sum(g["num_layers"] for g in attention) == read.num_hidden_layers - count
        for group in attention:
            assert group["page_size_bytes"] == group["block_size"] * token
        for group in states:
            assert state <= group["page_size_bytes"] < state + 16 * token


# ---------------------------------------------------------------------- transformers

# The classes' own defaults, as far as kvcalc asks a config for them.
BUILT_IN: dict[str, dict[str, Any]] = {
    "mamba2(default=codestral-mamba-7b)": {
        "architectures": ["Mamba2ForCausalLM"],
        "num_hidden_layers": 64,
        "hidden_size": 4096,
    },
    "mamba-2.8b-shape": {
        "architectures": ["MambaForCausalLM"],
        "num_hidden_layers": 64,
        "hidden_size": 2560,
    },
    "falcon-mamba(default)": {
        "architectures": ["FalconMambaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 768,
    },
    "jamba(default=Jamba-v0.1)": {
        "architectures": ["JambaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "kimi_linear(default)": {
        "architectures": ["KimiLinearForCausalLM"],
        "num_hidden_layers": 27,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_num_heads": 32,
        "linear_head_dim": 128,
        "layer_types": [
            "full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(27)
        ],
    },
    "falcon_h1(default)": {
        "architectures": ["FalconH1ForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_d_ssm": 1024,
    },
    "qwen3_next(default)": {
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "head_dim": 256,
    },
    "qwen3_5_text(default)": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
    "zamba2(default=Zamba2-2.7B)": {
        "architectures": ["Zamba2ForCausalLM"],
        "num_hidden_layers": 54,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "n_mamba_heads": 8,  # the class's default, with heads of 640; the model has 80 of 64
        "layers_block_type": [
            "hybrid" if i in (6, 12, 18, 24, 30, 36, 42, 47, 51) else "linear_attention"
            for i in range(54)
        ],
    },
    "bamba-9b": {
        "architectures": ["BambaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attn_layer_indices": [9, 18, 27],
    },
    "lfm2(default)": {
        "architectures": ["Lfm2ForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": list(range(32)),
    },
}
LEFT_OUT_OF_TRANSFORMERS = {
    "recurrent_gemma(default=2b)": "its recurrent states live on the module, not in the cache",
    "minimax-text-01-shape": "its states live in a cache class of its own, in the model dtype",
    "Zyphra--Zamba2-7B": "fails: the class does not know the old spelling of its keys",
    "MiniMaxAI--MiniMax-M1-80k": "transformers does not know the model type",
    "RWKV--rwkv-5-world-3b": "transformers does not know the model type",
    "moonshotai--Kimi-K3": "transformers does not know the model type",
}


@needs_shared
@pytest.mark.parametrize("model", [*READ, *BUILT_IN])
def test_tensors_are_those_of_transformers(model: str) -> None:
    """For every row: each tensor's shape; convolutions with all K columns, states in float32."""
    if model in LEFT_OUT_OF_TRANSFORMERS:
        pytest.skip(f"left out: {LEFT_OUT_OF_TRANSFORMERS[model]}")
    read = rows.from_keys(BUILT_IN[model].items()) if model in BUILT_IN else spec(model)
    name = rows.transformers_same_as().get(model, model)
    found = rows.transformers_by_model().get(name, [])
    if not found:
        pytest.skip(
            "left out: not asked (a reconstructed config, or the rows of its twin are not there)"
        )
    for row in found:
        ours = rows.ours_for_transformers(row, read)
        assert ours == rows.transformers_tensors(row), row["steps"]


@needs_shared
def test_recurrent_gemma_and_minimax_as_far_as_their_caches_show() -> None:
    """The attention layers are those of the rows; MiniMax's 70 states lie beside them."""
    gemma = rows.from_keys(
        {
            "architectures": ["RecurrentGemmaForCausalLM"],
            "num_hidden_layers": 26,
            "hidden_size": 2560,
            "num_attention_heads": 10,
        }.items()
    )
    (minimax,) = [
        row["layers"]
        for row in rows.transformers_by_model()["minimax-text-01-shape"]
        if row["steps"] == "prefill 100"
    ]
    for row in rows.transformers_by_model()["recurrent_gemma(default=2b)"]:
        ours = rows.ours_for_transformers(row, gemma)
        shown = {k: n for k, n in ours.items() if k[0] in ("keys", "values")}
        assert shown == rows.transformers_tensors(row), row["steps"]
    states = [c for _, c in spec("MiniMaxAI--MiniMax-Text-01").caches() if c.states()]
    assert states[0].states()[0].shape == (64, 128, 128)
    assert minimax[2]["tensors"][0] == "linear_cache[0][1, 64, 128, 128]:bfloat16"
    assert minimax[2]["tensors"][-1] == "... 70 in all"
    assert rows.layers_with(spec("MiniMaxAI--MiniMax-Text-01"), FullAttention)[:2] == [7, 15]


# ---------------------------------------------------------------------- llama.cpp

_QWEN_35_9B = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
_RWKV_7 = {
    "architectures": ["RWKV7ForCausalLM"],
    "model_type": "rwkv7",
    "num_hidden_layers": 32,
    "hidden_size": 2560,
    "head_dim": 64,
}
LLAMA_CPP: dict[str, str | dict[str, Any]] = {
    "mamba": "state-spaces--mamba-2.8b-hf",
    "mamba2": "mistralai--Mamba-Codestral-7B-v0.1",
    "jamba": "ai21labs--Jamba-v0.1",
    "rwkv7": _RWKV_7,
    "qwen3next": "Qwen--Qwen3-Next-80B-A3B-Instruct",
    "qwen35": _QWEN_35_9B,
    "granitehybrid": "ibm-granite--granite-4.0-h-small",
    "nemotron_h": "nvidia--NVIDIA-Nemotron-Nano-9B-v2",
    "minimax-01": "MiniMaxAI--MiniMax-Text-01",
    "lfm2": "LiquidAI--LFM2-1.2B",
    "kimi-linear": "moonshotai--Kimi-Linear-48B-A3B-Instruct",
    "falcon-h1": "tiiuae--Falcon-H1-7B-Instruct",
}
WITH_SNAPSHOTS = ("qwen35", "nemotron_h", "lfm2")  # honour n_rs_seq: llamacpp.md section 5


@needs_shared
@pytest.mark.parametrize("arch", sorted(LLAMA_CPP))
def test_states_are_those_of_llama_cpp(arch: str) -> None:
    """For every row: the convolution or shift, the state, and which layers have K and V."""
    source = LLAMA_CPP[arch]
    read = spec(source) if isinstance(source, str) else rows.from_keys(source.items())
    found = [row for row in rows.llama_cpp_rows() if row["arch"] == arch]
    assert found
    attention = rows.layers_with(read, FullAttention, Mla)
    for row in found:
        states = rows.sequences(row, arch in WITH_SNAPSHOTS)
        for held in row["caches"]:
            if held["kind"] == "recurrent":
                r, s = rows.state_bytes(read, "conv", "shift"), rows.state_bytes(read, "recurrent")
                assert (held["r_bytes"], held["s_bytes"]) == (states * r, states * s), row["name"]
            elif held["layers"]:
                assert held["layers"] == attention, row["name"]
                cells = held["cells"] * held["streams"]
                k, v = rows.cell_bytes(read, row["ctx"], FullAttention, Mla)
                assert (held["k_bytes"], held["v_bytes"]) == (cells * k, cells * v), row["name"]


# ---------------------------------------------------------------------- what is refused


def _changed(model: str, **changes: Any) -> ModelSpec:
    """Read a config of the corpus with keys changed; None takes one away."""
    values = {**config(model), **changes}
    return read_config({k: v for k, v in values.items() if v is not None}, "config.json", model)


@needs_shared
@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"hybrid_override_pattern": "MEX"}, "'X'"),
        (
            "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4",
            {"layers_block_type": ["mamba", "rope"]},
            "'rope'",
        ),
        ("ibm-granite--granite-4.0-h-small", {"layer_types": ["mamba2"] * 40}, "'mamba2'"),
        ("Zyphra--Zamba2-7B", {"layers_block_type": ["mamba", "x"] * 41}, "'x'"),
        ("google--recurrentgemma-2b", {"block_types": ["recurrent", "full"]}, "'full'"),
        ("Qwen--Qwen3.8-2.4T-A95B", {"layer_types": ["linear"] * 92}, "'linear'"),
    ],
)
def test_unknown_layers_are_refused_with_the_known(
    model: str, changes: dict[str, Any], says: str
) -> None:
    """A word or letter that is not known is named, and the known ones stand in the hint."""
    with pytest.raises(UnknownNameError, match=says) as caught:
        _changed(model, **changes)
    assert "known: " in caught.value.hint
    assert caught.value.where == "config.json"


@needs_shared
@pytest.mark.parametrize(
    ("model", "changes", "key"),
    [
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"hybrid_override_pattern": None}, ""),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"hybrid_override_pattern": ""}, ""),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"mamba_ssm_cache_dtype": "int3"}, ""),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"num_key_value_heads": None}, ""),
        ("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"mamba_num_heads": 0}, ""),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8", {"num_nextn_predict_layers": 999}, ""),
        ("Qwen--Qwen3.8-2.4T-A95B", {"mamba_ssm_dtype": 32}, ""),
        ("Qwen--Qwen3.8-2.4T-A95B", {"layer_types": ["linear_attention"] * 4}, ""),
        ("ai21labs--Jamba-v0.1", {"attn_layer_offset": 8}, ""),
        ("ai21labs--Jamba-v0.1", {"hidden_size": None}, ""),
        ("ibm-ai-platform--Bamba-9B-v1", {"attn_layer_indices": None}, ""),
        ("ibm-ai-platform--Bamba-9B-v1", {"attn_layer_indices": [9, 32]}, ""),
        ("ibm-granite--granite-4.0-h-small", {"layer_types": None}, ""),
        ("ibm-granite--granite-4.0-h-small", {"mamba_n_heads": 100}, ""),
        ("tiiuae--Falcon-H1-7B-Instruct", {"mamba_d_ssm": None}, ""),
        ("mistralai--Mamba-Codestral-7B-v0.1", {"num_heads": 64}, ""),
        ("Zyphra--Zamba2-7B", {"layers_block_type": None}, ""),
        ("Zyphra--Zamba2-7B", {"mamba_headdim": None}, "n_mamba_heads"),
        ("LiquidAI--LFM2-1.2B", {"full_attn_idxs": None}, "layer_types"),
        ("LiquidAI--LFM2-1.2B", {"full_attn_idxs": [16]}, ""),
        ("MiniMaxAI--MiniMax-M1-80k", {"attn_type_list": None}, ""),
        ("MiniMaxAI--MiniMax-M1-80k", {"attn_type_list": [0, 1, 2]}, ""),
        ("MiniMaxAI--MiniMax-M1-80k", {"attn_type_list": [0, 1]}, ""),
        ("inclusionAI--Ring-mini-linear-2.0", {"layer_group_size": None}, ""),
        ("google--recurrentgemma-2b", {"block_types": []}, ""),
        ("RWKV--rwkv-5-world-3b", {"head_size": 48}, ""),
        ("RWKV--rwkv-5-world-3b", {"attention_hidden_size": 2048}, ""),
        ("RWKV--rwkv-5-world-3b", {"model_type": None}, ""),
        ("moonshotai--Kimi-Linear-48B-A3B-Instruct", {"linear_attn_config": None}, ""),
        ("moonshotai--Kimi-Linear-48B-A3B-Instruct", {"kv_lora_rank": None}, ""),
    ],
)
def test_faults_name_their_key(model: str, changes: dict[str, Any], key: str) -> None:
    """A missing, null or nonsensical value is an input error that names the key."""
    with pytest.raises(InputError, match=key or next(iter(changes))) as caught:
        _changed(model, **changes)
    assert caught.value.where == "config.json"


@needs_shared
def test_kimi_layers_stand_in_one_list_each() -> None:
    """A layer in both lists or in neither is refused; lists of a longer model are cut."""
    model = "moonshotai--Kimi-Linear-48B-A3B-Instruct"
    lists = config(model)["linear_attn_config"]
    for kda in ([*lists["kda_layers"], 4], lists["kda_layers"][1:], None):
        with pytest.raises(InputError, match=r"linear_attn_config\.kda_layers"):
            _changed(model, linear_attn_config={**lists, "kda_layers": kda})
    assert _changed(model, num_hidden_layers=4).num_hidden_layers == 4


def test_rwkv_4_is_refused_by_name() -> None:
    """It keeps numbers a channel, which no kind states; 5, 6 and 7 keep a square a head."""
    with pytest.raises(UnsupportedError, match="three numbers a channel"):
        rows.from_keys({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}.items())
    for version in ("rwkv5", "rwkv6", "rwkv7"):
        read = rows.from_keys({**_RWKV_7, "model_type": version}.items())
        assert read.state_bytes() == 32 * (2 * 2560 * 2 + 2560 * 64 * 4)


@needs_shared
def test_spellings_give_the_same_layers() -> None:
    """A pattern of letters, its list of words and the newer words; Qwen3.5 alone and nested."""
    nano = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    newer = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
    pattern = config(nano)["hybrid_override_pattern"]
    for naming in (words, newer):
        listed = [naming[letter] for letter in pattern]
        read = _changed(
            nano, hybrid_override_pattern=None, layers_block_type=listed, num_hidden_layers=None
        )
        assert read.layers == spec(nano).layers
    nested = spec("Qwen--Qwen3.5-27B")
    alone = read_config(
        {**config("Qwen--Qwen3.5-27B")["text_config"], "architectures": ["Qwen3_5ForCausalLM"]},
        "config.json",
        "alone",
    )
    assert alone.layers == nested.layers
    assert alone.draft_layers == nested.draft_layers


@needs_shared
def test_what_is_known_from_code_alone_is_said() -> None:
    """A number that the config does not hold comes with a note that names its source."""
    for model, said in {
        "moonshotai--Kimi-K3": "kda_state_dtype",
        "google--recurrentgemma-2b": "float32",
        "RWKV--rwkv-5-world-3b": "modeling_rwkv5.py",
        "nvidia--NVIDIA-Nemotron-Nano-9B-v2": "NemotronHConfig",
        "openbmb--MiniCPM-V-4_6": "mamba_ssm_dtype",
        "Qwen--Qwen3-Next-80B-A3B-Instruct": "Qwen3NextMTP",
    }.items():
        assert any(said in note for note in spec(model).notes), model


@needs_shared
def test_states_that_no_engine_was_asked_about() -> None:
    """Figures by hand from the models' own code, where no row would notice another dtype."""
    # Nemotron Nano 2: 27 Mamba-2 layers, a float32 state by default of the class.
    conv, state = 3 * (128 * 80 + 2 * 8 * 128), 128 * 80 * 128
    nano = spec("nvidia--NVIDIA-Nemotron-Nano-9B-v2")
    assert nano.state_bytes() == 27 * (conv * 2 + state * 4)
    # RecurrentGemma: a float32 number a channel beside three inputs in the model dtype.
    gemma = spec("google--recurrentgemma-2b")
    assert gemma.state_bytes() == 18 * (3 * 2560 * 2 + 2560 * 4)
    # Ring-linear: what is left over after the last whole group has full attention.
    ring = _changed("inclusionAI--Ring-mini-linear-2.0", num_hidden_layers=22)
    assert rows.layers_with(ring, FullAttention) == [4, 9, 14, 19, 20, 21]
    assert ring.state_bytes() == 16 * 16 * 128 * 128 * 2
    # Zamba2-7B: 81 states of 112 heads, K and V twice as wide as hidden size over heads.
    zamba = spec("Zyphra--Zamba2-7B")
    assert zamba.state_bytes() == 81 * 2 * (3 * (7168 + 2 * 2 * 64) + 112 * 64 * 64)
    assert zamba.bytes_per_token() == 13 * 2 * 32 * 224 * 2


@needs_shared
def test_draft_layers_are_kept_apart() -> None:
    """One full layer for Qwen3-Next; attention and experts for Nemotron 3 Super."""
    (qwen,) = spec("Qwen--Qwen3-Next-80B-A3B-Instruct").draft_layers
    assert (qwen.count, qwen.label) == (1, "full_attention")
    drafts = spec("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8").draft_layers
    assert [(run.count, run.label) for run in drafts] == [(1, "full_attention"), (1, "none")]


BY_RULE = {
    "head_dim": "the hidden size over the heads",
    "intermediate_size": "so many times the hidden size",
    "mamba_ssm_dtype": "the model dtype",
    "num_key_value_heads": "as many as query heads, where the class says so",
}


@needs_shared
@pytest.mark.parametrize("model", READ)
def test_a_key_taken_away_is_refused_or_noted(model: str) -> None:
    """No config of these families gives other layers in silence when it lacks a key."""
    assert rows.silent_changes(model, BY_RULE) == []
