"""Latent attention against what vLLM, transformers and llama.cpp say it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import Mla
from kvcalc.core.errors import InputError
from kvcalc.models.hf_config import read_config
from tests.models.hf_config import rows
from tests.models.hf_config.oracles import ABSENT, SHARED, config, spec, vllm_signatures

FAMILIES = ("deepseek", "longcat_flash")
MODELS = rows.models(*FAMILIES)
NO_VLLM_ROWS = {"deepseek-ai--DeepSeek-V2": "not asked; 60 layers of what V2-Lite has 27 of"}

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

BUILT_IN: dict[str, dict[str, Any]] = {
    "deepseek_v3(default=V3)": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
    "longcat_flash(default)": {
        "architectures": ["LongcatFlashForCausalLM"],
        "num_layers": 28,
        "num_hidden_layers": 56,  # as the class counts: every attention is one
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
}


@needs_shared
def test_no_row_of_these_families_is_forgotten() -> None:
    """Each model of which an engine was asked is among those compared."""
    asked = rows.vllm_models_of(*FAMILIES)
    assert asked <= set(MODELS) - set(NO_VLLM_ROWS)
    assert len(asked) >= 13
    assert rows.transformers_names_of(*FAMILIES) <= {*MODELS, *BUILT_IN}


@needs_shared
@pytest.mark.parametrize("model", MODELS)
def test_layers_are_those_of_vllm(model: str) -> None:
    """For every row: the latent's width, its bytes a token, and the same on every rank."""
    found = rows.vllm_by_model().get(model, [])
    if model in NO_VLLM_ROWS:
        assert not found
        pytest.skip(f"left out: {NO_VLLM_ROWS[model]}")
    assert found or rows.is_like_one_compared(model, *FAMILIES)
    for row in found:
        assert rows.ours_for_vllm(row) == vllm_signatures(row), row["case"]
        assert rows.ours_in_bytes(row) == rows.vllm_bytes(row), row["case"]


@needs_shared
@pytest.mark.parametrize("model", [*MODELS, *BUILT_IN])
def test_tensors_are_those_of_transformers(model: str) -> None:
    """For every row: the latent as K and the rotary key as V; LongCat twice a layer."""
    read = rows.from_keys(BUILT_IN[model].items()) if model in BUILT_IN else spec(model)
    name = rows.transformers_same_as().get(model, model)
    found = rows.transformers_by_model().get(name, [])
    if not found:
        pytest.skip("left out: not asked, or transformers does not know the model type (kimi_k2)")
    for row in found:
        assert rows.ours_for_transformers(row, read) == rows.transformers_tensors(row)


@needs_shared
@pytest.mark.parametrize(
    ("model", "layers"), [("deepseek-ai--DeepSeek-V3", 61), ("deepseek-ai--DeepSeek-V2-Lite", 27)]
)
def test_latents_are_those_of_llama_cpp(model: str, layers: int) -> None:
    """For every row of a file with the MLA keys; older files keep full K and V, not a latent."""
    read = spec(model)
    found = [
        row
        for row in rows.llama_cpp_rows()
        if row["arch"] == "deepseek2"
        and row["hp"]["block_count"] == layers
        and "attention.key_length_mla" in row["hp"]
    ]
    assert found
    for row in found:
        (held,) = row["caches"]
        assert held["layers"] == rows.layers_with(read, Mla)
        k, _ = rows.cell_bytes(read, row["ctx"], Mla)
        assert (held["k_bytes"], held["v_bytes"]) == (held["cells"] * held["streams"] * k, 0)


@needs_shared
def test_draft_layers_are_kept_apart() -> None:
    """DeepSeek-V3 drafts with one more latent; Kimi K2 and V2-Lite have no draft layer."""
    (draft,) = spec("deepseek-ai--DeepSeek-V3").draft_layers
    assert (draft.count, draft.label) == (1, "mla")
    assert spec("moonshotai--Kimi-K2-Instruct").draft_layers == ()
    assert spec("deepseek-ai--DeepSeek-V2-Lite").draft_layers == ()
    (draft,) = spec("meituan-longcat--LongCat-Flash-Chat").draft_layers
    assert (draft.count, draft.label) == (1, "mla")


@needs_shared
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim"])
def test_a_latent_without_its_sizes_is_refused(model: str, key: str) -> None:
    """No head count stands in for the latent's sizes; null and nonsense are refused by name."""
    values = config(model)
    inner = next((k for k in ("text_config", "language_config") if k in values), None)
    for wrong in (None, -1, 512.0, "512", [512]):
        part = {**(values[inner] if inner else values), key: wrong}
        with pytest.raises(InputError, match=key):
            read_config({**values, inner: part} if inner else part, "config.json", model)


@needs_shared
def test_kv_heads_say_nothing() -> None:
    """`num_key_value_heads` of 128 or of 1, or none: the latent is the same."""
    model = "deepseek-ai--DeepSeek-V3"
    for count in (128, 1, None):
        changed = read_config({**config(model), "num_key_value_heads": count}, "c.json", model)
        assert changed.layers == spec(model).layers


@needs_shared
@pytest.mark.parametrize("model", MODELS)
def test_a_key_taken_away_is_refused_or_noted(model: str) -> None:
    """No config of these families gives other layers in silence when it lacks a key."""
    assert rows.silent_changes(model, ()) == []
