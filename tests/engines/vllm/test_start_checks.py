"""What a start refuses of settings, by release: what the tables' examples leave open."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc import Deployment, load_model
from kvcalc.core.errors import UnsupportedError
from kvcalc.engines import plan
from kvcalc.models.presets import load_gpu
from tests.docs.refusals import FOLDER

_LLAMA, _FP8, _SHARED = "llama-3.1-8b", "qwen3-30b-a3b-fp8", "shared.json"


def _refused(version: str, model: str, gpu: str = "h100-80gb", **settings: Any) -> str | None:
    """Return the code that a plan is refused with; None where it is made."""
    source = str(FOLDER / "inputs" / model) if model.endswith(".json") else model
    draft = settings.pop("draft", None)
    if draft is not None:
        settings |= {"draft_model": load_model(draft), "speculative_method": "draft_model",
                     "num_speculative_tokens": 2}  # fmt: skip
    deployment = Deployment(engine="vllm", engine_version=version, gpu=load_gpu(gpu), **settings)
    try:
        plan(load_model(source), deployment)
    except UnsupportedError as error:
        return error.code
    return None


_UNCHUNKED: dict[str, Any] = {"engine_args": {"enable_chunked_prefill": False}}
_OWN_BLOCKS: dict[str, Any] = {
    "kv_cache_dtype": "fp8",
    "max_num_batched_tokens": 1024,
    "max_num_seqs": 16,
    "max_model_len": 8192,
}

CASES: list[tuple[str, str, dict[str, Any], str | None]] = [
    # V0 computes prompts of up to 32,768 tokens whole, V1 in chunks.
    ("0.7.3", _LLAMA, {"max_model_len": 16384, "max_num_batched_tokens": 8192},
     "prompt-over-step"),
    ("0.7.3", _LLAMA, {"max_model_len": 16384}, None),
    ("0.9.0", _LLAMA, {"max_model_len": 16384, "max_num_batched_tokens": 8192}, None),
    # V1 heeds it since 0.11.1; then the step grows to the maximum, unless it is given.
    ("0.11.0", _LLAMA, {"max_model_len": 16384, "max_num_batched_tokens": 8192, **_UNCHUNKED},
     None),
    ("0.11.1", _LLAMA, {"max_model_len": 16384, "max_num_batched_tokens": 8192, **_UNCHUNKED},
     "prompt-over-step"),
    ("0.11.1", _LLAMA, {"max_model_len": 16384, **_UNCHUNKED}, None),
    # As many tokens as sequences are enough; sequences not given are fewer in later releases.
    ("0.25.1", _LLAMA, {"max_model_len": 8192, "max_num_batched_tokens": 128, "max_num_seqs": 128},
     None),
    ("0.6.6", _LLAMA, {"max_model_len": 128, "max_num_batched_tokens": 255},
     "step-below-sequences"),
    ("0.6.6", _LLAMA, {"max_model_len": 128, "max_num_batched_tokens": 256}, None),
    ("0.25.1", _LLAMA, {"max_model_len": 128, "max_num_batched_tokens": 255}, None),
    # A threshold counted for several partial prefills alone.
    ("0.26.0", _LLAMA, {"max_model_len": 8192,
                        "engine_args": {"long_prefill_token_threshold": 9000}}, None),
    ("0.26.0", _LLAMA, {"max_model_len": 8192,
                        "engine_args": {"long_prefill_token_threshold": 9000,
                                        "max_num_partial_prefills": 2}}, "threshold-over-length"),
    ("0.27.0", _LLAMA, {"max_model_len": 8192,
                        "engine_args": {"long_prefill_token_threshold": 9000}},
     "threshold-over-length"),
    # A block of 1,072 tokens in a step of 1,024: where prefixes of states are cached, until 0.26.
    ("0.25.1", "hyb.json", {**_OWN_BLOCKS, "enable_prefix_caching": True}, "block-over-step"),
    ("0.25.1", "hyb.json", _OWN_BLOCKS, None),
    ("0.25.1", "hyb.json", {**_OWN_BLOCKS, "enable_prefix_caching": True,
                            "max_num_batched_tokens": 1072}, None),
    ("0.26.0", "hyb.json", {**_OWN_BLOCKS, "enable_prefix_caching": True}, "block-over-step"),
    ("0.27.0", "hyb.json", {**_OWN_BLOCKS, "enable_prefix_caching": True}, None),
    ("0.29.0", "hyb.json", _OWN_BLOCKS, None),
    # 768 columns of an expert in blocks of 128: of 4 ranks 192 each, which only 0.30 can make finer
    # (by 64); of 16 ranks 48, whose blocks would be of 16.
    ("0.29.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 2}, None),
    ("0.29.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 4},
     "quantised-width-over-ranks"),
    ("0.30.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 4}, None),
    ("0.30.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 16},
     "quantised-width-over-ranks"),
    ("0.29.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 4,
                      "enable_expert_parallel": True}, None),
    ("0.29.0", _FP8, {"max_model_len": 8192, "tensor_parallel_size": 2, "data_parallel_size": 2},
     "quantised-width-over-ranks"),  # replicas share experts as ranks do
    ("0.29.0", "qwen3-30b-a3b-instruct-2507", {"max_model_len": 8192, "tensor_parallel_size": 4},
     None),  # in bfloat16
    # Layers 8 to 19 read K and V of 6 and 7.
    ("0.25.1", _SHARED, {"pipeline_parallel_size": 2}, "shared-kv-over-stages"),
    ("0.25.1", _SHARED, {"pipeline_parallel_size": 2,
                         "engine_args": {"VLLM_PP_LAYER_PARTITION": "6,14"}}, None),
    ("0.25.1", _SHARED, {"pipeline_parallel_size": 2,
                         "engine_args": {"VLLM_PP_LAYER_PARTITION": "7,13"}},
     "shared-kv-over-stages"),
    ("0.25.1", _SHARED, {"tensor_parallel_size": 2}, None),
    ("0.33.0", _SHARED, {"pipeline_parallel_size": 2}, "shared-kv-over-stages"),
    # Vocabularies of 128,256 and 151,936 rows.
    ("0.15.0", _LLAMA, {"max_model_len": 8192, "draft": "qwen3-0.6b"}, "draft-vocabulary"),
    ("0.15.0", _LLAMA, {"max_model_len": 8192, "draft": "llama-3.2-3b"}, None),
    ("0.25.0", _LLAMA, {"max_model_len": 8192, "draft": "qwen3-0.6b",
                        "engine_args": {"use_heterogeneous_vocab": True}}, None),
    # A draft's slots: one of every sequence until 0.27, all proposed tokens since 0.29.
    ("0.27.0", _LLAMA, {"max_model_len": 8192, "draft": "llama-3.2-3b", "max_num_seqs": 256,
                        "max_num_batched_tokens": 256}, "step-below-drafts"),
    ("0.27.0", _LLAMA, {"max_model_len": 8192, "draft": "llama-3.2-3b", "max_num_seqs": 256,
                        "max_num_batched_tokens": 257}, None),
    ("0.29.0", _LLAMA, {"max_model_len": 8192, "draft": "llama-3.2-3b", "max_num_seqs": 256,
                        "max_num_batched_tokens": 256}, None),
    ("0.29.0", _LLAMA, {"max_model_len": 8192, "draft": "llama-3.2-3b", "max_num_seqs": 2,
                        "max_num_batched_tokens": 2}, "step-below-drafts"),
    # The graphs of one sequence's proposals, where graphs are made.
    ("0.12.0", _LLAMA, {"max_model_len": 8192, "max_num_seqs": 1, "speculative_method": "ngram",
                        "num_speculative_tokens": 3}, "graphs-below-proposals"),
    ("0.12.0", _LLAMA, {"max_model_len": 8192, "max_num_seqs": 1, "speculative_method": "ngram",
                        "num_speculative_tokens": 3, "enforce_eager": True}, None),
    ("0.12.0", _LLAMA, {"max_model_len": 8192, "max_num_seqs": 1, "speculative_method": "ngram",
                        "num_speculative_tokens": 1}, None),
]  # fmt: skip


@pytest.mark.parametrize(("version", "model", "settings", "code"), CASES)
def test_refused_or_not(version: str, model: str, settings: dict[str, Any], code: str) -> None:
    assert _refused(version, model, **settings) == code


def test_bfloat16_on_a_gpu_without_it() -> None:
    """Until 0.8.5 the model's own bfloat16 is refused; then it is run in float16."""
    assert _refused("0.8.5", _LLAMA, "t4", max_model_len=8192) == "bfloat16-on-old-gpu"
    assert _refused("0.9.0", _LLAMA, "t4", max_model_len=8192) is None
    asked = {"dtype": "bfloat16", "max_model_len": 8192}
    assert _refused("0.9.0", _LLAMA, "t4", **asked) == "bfloat16-on-old-gpu"


def test_a_refusal_names_the_setting() -> None:
    """The message says both figures, the hint what to set, the error which setting it is."""
    deployment = Deployment(
        engine="vllm", engine_version="0.25.1", gpu=load_gpu("h100-80gb"), max_model_len=8192,
        max_num_batched_tokens=64, max_num_seqs=128,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"64 tokens .* 128 sequences") as caught:
        plan(load_model(_LLAMA), deployment)
    assert caught.value.setting == "max_num_batched_tokens"
    assert caught.value.hint == "max_num_seqs 64, or max_num_batched_tokens 128"
