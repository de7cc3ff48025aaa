"""Sparse attention with indexers, shared indexers and compressed caches, against the oracles."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from kvcalc.core.attention import CompressedAttention, FullAttention, Indexer, Mla, SlidingMla
from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.core.kind import EveryNth
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from tests.models.hf_config import rows
from tests.models.hf_config.oracles import (
    ABSENT,
    SHARED,
    Signatures,
    config,
    spec,
    vllm_signatures,
)

FAMILIES = ("deepseek_dsa", "deepseek_v4", "minimax_m3")
MODELS = rows.models(*FAMILIES)
V4 = rows.models("deepseek_v4")
NO_VLLM_ROWS = {
    "MiniMaxAI--MiniMax-M3": "vLLM 0.33 does not know the text-only class",
    "sgl-project--DeepSeek-V4-Flash-FP8": "vLLM 0.33 does not know model_type deepseek_ref",
    "sgl-project--DeepSeek-V4-Pro-FP8": "vLLM 0.33 does not know model_type deepseek_ref",
}

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
BUILT_IN: dict[str, dict[str, Any]] = {
    "deepseek_v32(default)": {
        "architectures": ["DeepseekV32ForCausalLM"],
        "num_hidden_layers": 61,
        **_MLA,
    },
    "glm_moe_dsa(default)": {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "num_hidden_layers": 78,
        **_MLA,
    },
}


@needs_shared
def test_no_row_of_these_families_is_forgotten() -> None:
    """Each model of which an engine was asked is among those compared."""
    asked = rows.vllm_models_of(*FAMILIES)
    assert asked <= set(MODELS) - set(NO_VLLM_ROWS)
    assert len(asked) >= 15
    assert rows.transformers_names_of(*FAMILIES) <= {*MODELS, *BUILT_IN}


@needs_shared
@pytest.mark.parametrize("model", MODELS)
def test_layers_are_those_of_vllm(model: str) -> None:
    """For every row: latents, indexers, windows, compressed entries and waiting windows."""
    found = rows.vllm_by_model().get(model, [])
    if model in NO_VLLM_ROWS:
        assert not found
        pytest.skip(f"left out: {NO_VLLM_ROWS[model]}")
    assert found or rows.is_like_one_compared(model, *FAMILIES)
    for row in found:
        assert rows.ours_for_vllm(row) == vllm_signatures(row), row["case"]
        assert rows.ours_in_bytes(row) == rows.vllm_bytes(row), row["case"]


@needs_shared
@pytest.mark.parametrize("model", [m for m in [*MODELS, *BUILT_IN] if m not in V4])
def test_tensors_are_those_of_transformers(model: str) -> None:
    """For every row: the latent or K and V, and an indexer's keys where the layer has one."""
    read = rows.from_keys(BUILT_IN[model].items()) if model in BUILT_IN else spec(model)
    name = rows.transformers_same_as().get(model, model)
    found = rows.transformers_by_model().get(name, [])
    if not found:
        pytest.skip("left out: not asked, or the rows of its twin are not there")
    for row in found:
        assert rows.ours_for_transformers(row, read) == rows.transformers_tensors(row)


_NAMED = re.compile(r"(\w+)(?:\[(\w+)\])?\[([\d, ]*)\]:(\w+)")


def _v4_of_transformers(row: dict[str, Any]) -> Signatures:
    """Return the entries, and the widths of the buffers that wait, of all layers of a row."""
    found: Signatures = Counter()
    for layer in row["layers"]:
        for text in layer["tensors"]:
            name, of, shape, _ = _NAMED.fullmatch(text).groups()  # type: ignore[union-attr]
            *_, tokens, width = (int(size) for size in shape.split(","))
            if name == "keys":  # K is V: the row's `values` is the same tensor
                found["window", tokens, width] += layer["n"]
            elif name == "compressed_kv":
                found[f"{of} entries", tokens, width] += layer["n"]
            elif name in ("buffer_kv", "buffer_gate"):
                found[f"{of} waiting", width] += layer["n"]
    return found


def _v4_of_ours(row: dict[str, Any], model: ModelSpec) -> Signatures:
    found: Signatures = Counter()
    for n, c in model.caches():
        match c:
            case SlidingMla():
                found["window", min(row["tokens"], c.sliding_window - 1), c.head_dim] += n
            case CompressedAttention() | Indexer():
                of, width = (
                    ("indexer", c.index_head_dim)
                    if isinstance(c, Indexer)
                    else ("compressor", c.head_dim)
                )
                assert isinstance(c.span, EveryNth)
                found[f"{of} entries", row["tokens"] // c.span.ratio, width] += n
                (state,) = c.states()
                found[f"{of} waiting", state.shape[2]] += 2 * n  # entries and scores
    return found


@needs_shared
@pytest.mark.parametrize("model", V4)
def test_deepseek_v4_is_that_of_transformers(model: str) -> None:
    """For every row: the window, the entries of each ratio, and how wide the waiting ones are."""
    name = rows.transformers_same_as().get(model, model)
    found = rows.transformers_by_model().get(name, [])
    if not found:
        pytest.skip("left out: not asked (deepseek_ref), or the rows of its twin are not there")
    for row in found:
        assert _v4_of_ours(row, spec(model)) == _v4_of_transformers(row), row["steps"]


# ---------------------------------------------------------------------- llama.cpp

LLAMA_CPP = {
    ("deepseek32", 61): "deepseek-ai--DeepSeek-V3.2",
    ("deepseek32", 62): "deepseek-ai--DeepSeek-V3.2",  # with its draft layer, which stays out
    ("glm-dsa", 79): "zai-org--GLM-5",
    ("minimax-m3", 60): "nvidia--MiniMax-M3-NVFP4",
    ("deepseek4", 43): "deepseek-ai--DeepSeek-V4-Flash",
}
KINDS: dict[str, tuple[type, int]] = {
    "mla": (Mla, 1),
    "base": (FullAttention, 1),
    "indexer": (Indexer, 1),
    "raw.swa": (SlidingMla, 1),
    "csa": (CompressedAttention, 4),
    "hca": (CompressedAttention, 128),
    "lid": (Indexer, 4),
}


@needs_shared
@pytest.mark.parametrize(("arch", "layers"), sorted(LLAMA_CPP))
def test_caches_are_those_of_llama_cpp(arch: str, layers: int) -> None:
    """For every row: which layers are in which cache, its bytes a cell, and V4's states."""
    read = spec(LLAMA_CPP[arch, layers])
    found = [
        row
        for row in rows.llama_cpp_rows()
        if (row["arch"], row["hp"]["block_count"]) == (arch, layers)
    ]
    assert found
    for row in found:
        for held in row["caches"]:
            if not held["layers"]:
                continue
            kind, ratio = KINDS[held["cache"]]
            part = rows.only(read, kind, ratio)
            assert held["layers"] == rows.layers_with(part, kind), (row["name"], held["cache"])
            cells = held["cells"] * held["streams"]
            k, v = rows.cell_bytes(part, row["ctx"], kind)
            if (arch, held["cache"]) == ("minimax-m3", "indexer"):
                v = held["v_bytes"] // cells  # an unused V: llamacpp.md section 3, measured
            assert (held["k_bytes"], held["v_bytes"]) == (cells * k, cells * v), row["name"]
        states = rows.state_bytes(read, "compressor")
        assert row["other_bytes"] == states * max(1, row["n_seq_max"]), row["name"]


# ---------------------------------------------------------------------- spellings and refusals


def _changed(model: str, **changes: Any) -> ModelSpec:
    values = {**config(model), **changes}
    return read_config({k: v for k, v in values.items() if v is not None}, "config.json", model)


@needs_shared
def test_shared_indexers_in_every_spelling() -> None:
    """A list, a pattern of letters, and frequency with offset: 21 indexers for 78 layers."""
    model = "zai-org--GLM-5.2"
    listed = spec(model)
    letters = "".join(t[0].upper() for t in config(model)["indexer_types"])
    assert letters.count("F") == 21
    for changes in (
        {"indexer_types": None},  # then by index_topk_freq 4 and index_skip_topk_offset 3
        {"indexer_types": None, "index_topk_pattern": letters},
        {"indexer_types": None, "index_topk_pattern": config(model)["indexer_types"]},
    ):
        assert _changed(model, **changes).layers == listed.layers, changes
    none = {"indexer_types": None, "index_topk_freq": None}
    assert _changed(model, **none).layers == spec("zai-org--GLM-5").layers


@needs_shared
def test_deepseek_v4_in_words() -> None:
    """`layer_types` of the transformers class give the layers of `compress_ratios`."""
    model = "deepseek-ai--DeepSeek-V4-Flash"
    words = {
        0: "sliding_attention",
        4: "compressed_sparse_attention",
        128: "heavily_compressed_attention",
    }
    types = [words[ratio] for ratio in config(model)["compress_ratios"][:43]]
    changes: dict[str, Any] = {"compress_ratios": None, "layer_types": types}
    assert _changed(model, **changes).layers == spec(model).layers
    rates = {"compressed_sparse_attention": 8}
    with pytest.raises(InputError, match=r"compress_rates\.compressed_sparse_attention is 8"):
        _changed(model, **changes, compress_rates=rates)
    reference = spec("sgl-project--DeepSeek-V4-Flash-FP8")
    assert reference.layers == spec(model).layers


@needs_shared
def test_draft_layers_are_kept_apart() -> None:
    """V3.2: latent and indexer, GLM-5.2 too; V4: the window alone; MiniMax-M3: sparse."""
    for model, label, count in (
        ("deepseek-ai--DeepSeek-V3.2", "mla+indexer", 1),
        ("zai-org--GLM-5.2", "mla+indexer", 1),
        ("deepseek-ai--DeepSeek-V4-Flash", "sliding_mla", 1),
        ("nvidia--MiniMax-M3-NVFP4", "full_attention+indexer", 1),
        ("MiniMaxAI--MiniMax-M3", "full_attention+indexer", 7),
    ):
        (draft,) = spec(model).draft_layers
        assert (draft.label, draft.count) == (label, count), model


@needs_shared
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("zai-org--GLM-5.2", {"indexer_types": ["full", "none"]}),
        ("zai-org--GLM-5.2", {"index_topk_pattern": "FX", "indexer_types": None}),
        ("MiniMaxAI--MiniMax-M3", {"layer_types": ["sparse"]}),
    ],
)
def test_unknown_layers_are_refused_with_the_known(model: str, changes: dict[str, Any]) -> None:
    """A word or letter that is not known is named, and the known ones stand in the hint."""
    with pytest.raises(UnknownNameError, match=next(iter(changes))) as caught:
        _changed(model, **changes)
    assert "known: " in caught.value.hint


@needs_shared
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("zai-org--GLM-5.2", {"indexer_types": ["full"]}),
        ("zai-org--GLM-5.2", {"index_topk_freq": 0, "indexer_types": None}),
        ("zai-org--GLM-5.2", {"index_skip_topk_offset": -1, "indexer_types": None}),
        ("deepseek-ai--DeepSeek-V3.2", {"index_head_dim": 0}),
        ("deepseek-ai--DeepSeek-V3.2", {"kv_lora_rank": None}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": None}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": [0, 0, 4]}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"compress_ratios": [16] * 44}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"qk_rope_head_dim": 512}),
        ("deepseek-ai--DeepSeek-V4-Flash", {"sliding_window": 0}),
        ("MiniMaxAI--MiniMax-M3", {"sparse_attention_config": None}),
        ("MiniMaxAI--MiniMax-M3", {"sparse_attention_config": {"sparse_attention_freq": [1]}}),
        ("MiniMaxAI--MiniMax-M3", {"num_key_value_heads": None}),
        ("MiniMaxAI--MiniMax-M3", {"head_dim": None}),
    ],
)
def test_faults_name_their_key(model: str, changes: dict[str, Any]) -> None:
    """A missing, null or nonsensical value is an input error that names the key."""
    with pytest.raises(InputError, match=next(iter(changes))) as caught:
        _changed(model, **changes)
    assert caught.value.where == "config.json"


@needs_shared
@pytest.mark.parametrize("model", MODELS)
def test_a_key_taken_away_is_refused_or_noted(model: str) -> None:
    """No config of these families gives other layers in silence when it lacks a key."""
    assert rows.silent_changes(model, ()) == []
