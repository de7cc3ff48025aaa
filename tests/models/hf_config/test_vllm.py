"""Every row of vLLM 0.33 that says what the layers are, against kvcalc's reading of the config."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2
from kvcalc.models.hf_config import read_config

from .oracles import ABSENT, SHARED, config, our_signatures, spec, vllm_rows, vllm_signatures

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

LEFT_OUT: dict[str, str] = {}
"""Model -> why its rows are not compared. None is left out."""

WIDENED = ("Cohere2ForCausalLM", "Cohere2MoeForCausalLM", "Cohere2VisionForConditionalGeneration")
"""vLLM 0.33 models/commandr.py, CohereAttention: a window of these is the config's and one more
token. The config's is the model's; kvcalc adds the token when it plans vLLM (test_releases)."""


def question(row: dict[str, Any]) -> str:
    """Return what decides the layers; most rows differ in memory, lengths and block sizes only."""
    case = row["case"]
    asked = ("config_patch", "speculative_config", "draft_config", "mamba_ssm_cache_dtype")
    return json.dumps(
        [row["model"], row["tp"], row["model_dtype"], *(case.get(key) for key in asked)],
        sort_keys=True,
    )


def as_asked(row: dict[str, Any]) -> ModelSpec:
    """Return the model with the case's settings put on it, as one rank keeps it."""
    case = row["case"]
    model = spec(row["model"], case.get("config_patch"))
    layers = [*model.layers]
    speculation = case.get("speculative_config")
    if speculation and speculation["method"] == "mtp":
        layers += model.draft_layers
    if "draft_config" in case:
        layers += read_config(case["draft_config"], "draft_config", "draft").layers
    ssm_dtype = case.get("mamba_ssm_cache_dtype")
    drafted = speculation["num_speculative_tokens"] if speculation else 0
    runs = tuple(
        msgspec.structs.replace(
            run,
            caches=tuple(
                widened(with_settings(c, drafted, ssm_dtype), model.architecture)
                for c in run.caches
            ),
        )
        for run in layers
    )
    count = sum(run.count for run in runs)
    # The engine runs a float32 model in half precision; that is its choice, not the config's.
    changed = msgspec.structs.replace(
        model, layers=runs, num_hidden_layers=count, dtype=row["model_dtype"]
    )
    return changed.on_rank(row["tp"])


def with_settings(cache: Cache, drafted: int, ssm_dtype: str | None) -> Cache:
    """Return a state with one more convolution row a drafted token, and in the dtype asked for."""
    if not isinstance(cache, Mamba2 | GatedDeltaNet | KimiDeltaAttention):
        return cache
    return msgspec.structs.replace(
        cache,
        conv_kernel=cache.conv_kernel + drafted,
        state_dtype=ssm_dtype or cache.state_dtype,
    )


def widened(cache: Cache, architecture: str | None) -> Cache:
    """Return a window with the token more that vLLM's class gives it."""
    if architecture not in WIDENED or not isinstance(cache, SlidingWindow):
        return cache
    return msgspec.structs.replace(cache, sliding_window=cache.sliding_window + 1)


def test_layers_are_what_vllm_says() -> None:
    """Kind, KV heads, head sizes, latents, windows, chunks, state shapes and dtypes: every row."""
    answers: dict[str, Any] = {}
    differences = {}
    compared = 0
    for row in vllm_rows():
        if row["model"] in LEFT_OUT:
            continue
        key = question(row)
        if key not in answers:
            answers[key] = our_signatures(as_asked(row))
        compared += 1
        said = vllm_signatures(row)
        if answers[key] != said:
            differences[key] = f"ours {dict(answers[key])}, vLLM {dict(said)}"

    assert not differences
    assert compared >= 4308
    assert set(LEFT_OUT) <= {row["model"] for row in vllm_rows()}


def test_the_checkpoint_cache_dtype_is_what_auto_becomes() -> None:
    """A KV scheme in the checkpoint is followed where vLLM follows it, and only there."""
    differences = {}
    compared = 0
    for row in vllm_rows():
        case = row["case"]
        if not case.get("keep_quantization_config") or "kv_cache_dtype" in case:
            continue
        compared += 1
        asked = spec(row["model"]).kv_cache_dtype
        said = row["kv_cache_dtype"]
        # DeepSeek-V4 has fp8_ds_mla by the engine's own rule, without a scheme.
        if (asked is not None) != (said.startswith("fp8") and said != "fp8_ds_mla"):
            differences[row["model"], row["gpu"]] = (asked, said)

    assert compared
    assert not differences


def test_rows_are_of_configs_that_exist() -> None:
    """No row is compared with a config of another name."""
    assert all(config(row["model"]) for row in vllm_rows())
