"""The shipped models layer by layer against what real engines answered."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.states import TRANSFORMERS_STATES
from kvcalc.models import load_model

SHARED = Path(__file__).parents[3] / "shared"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is absent")

ASKED = {
    "deepseek-v2-lite": "deepseek-ai--DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "gemma-3-27b": "google--gemma-3-27b-it",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "jamba-v0.1": "ai21labs--Jamba-v0.1",
    "llama-2-7b": "meta-llama--Llama-2-7b-hf",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama--Llama-3.1-70B-Instruct",
    "llama-3.1-8b": "meta-llama--Llama-3.1-8B-Instruct",
    "llama-4-scout": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "nemotron-3-nano-30b-a3b": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "opt-13b": "facebook--opt-13b",
    "qwen2.5-72b": "Qwen--Qwen2.5-72B",
    "qwen3-next-80b-a3b": "Qwen--Qwen3-Next-80B-A3B-Instruct",
    "qwen3.5-27b": "Qwen--Qwen3.5-27B",
}
"""Preset -> the oracles' name of it. `qwen3.5-27b-attention` is not a model of its own."""

TRANSFORMERS_NAMES = {
    "jamba-v0.1": "jamba(default=Jamba-v0.1)",
    "llama-2-7b": "meta-llama--Llama-2-7b-chat-hf",
}
"""Where transformers was asked of a model of the same shape."""

DRAFTED = ("deepseek-v3", "qwen3-next-80b-a3b", "qwen3.5-27b")


def rows(file: str, names: set[str]) -> list[dict[str, Any]]:
    with (SHARED / "oracle" / file).open(encoding="utf-8") as lines:
        # Most rows are of other models; parsing all of them takes seconds.
        return [json.loads(line) for line in lines if any(f'"{name}' in line for name in names)]


@functools.cache
def vllm_rows() -> list[dict[str, Any]]:
    return [
        row
        for row in rows("vllm_results.jsonl", set(ASKED.values()))
        if row["vllm_version"] == "0.33.0" and row["gpu"] == "h100" and "layer_specs" in row
    ]


def vllm_specs(name: str, **case: object) -> list[dict[str, Any]]:
    """Return the layer specs of a model at tp 1 with these settings and no others."""
    for row in vllm_rows():
        asked = {
            k: v for k, v in row["case"].items() if k not in ("max_model_len", "available_bytes")
        }
        if row["model"] == ASKED[name] and asked == {"tp": 1, **case}:
            specs: list[dict[str, Any]] = row["layer_specs"]
            return specs
    pytest.fail(f"no row of {name} with {case}")


def as_vllm(cache: Cache, model: ModelSpec) -> tuple[object, ...]:
    """Describe a cache as vLLM's spec does."""
    match cache:
        case Mla():
            width = cache.kv_lora_rank + cache.qk_rope_head_dim
            return ("MLAAttentionSpec", 1, width, None, model.dtype)
        case FullAttention():
            return ("FullAttentionSpec", cache.num_kv_heads, cache.head_dim, None, model.dtype)
        case SlidingWindow(sliding_window=window):
            return ("SlidingWindowSpec", cache.num_kv_heads, cache.head_dim, window, model.dtype)
        case ChunkedAttention(attention_chunk_size=chunk):
            name = "ChunkedLocalAttentionSpec"
            return (name, cache.num_kv_heads, cache.head_dim, chunk, model.dtype)
        case _:
            states = cache.states()
            shapes = tuple(state.shape for state in states)
            return ("MambaSpec", shapes, tuple(state.dtype or model.dtype for state in states))


def from_vllm(spec: dict[str, Any]) -> tuple[object, ...]:
    if spec["class"] == "MambaSpec":
        shapes = tuple(tuple(shape) for shape in spec["shapes"])
        return ("MambaSpec", shapes, tuple(spec["dtypes"]))
    span = spec.get("sliding_window") or spec.get("attention_chunk_size")
    return (spec["class"], spec["num_kv_heads"], spec["head_size"], span, spec["dtype"])


@pytest.mark.parametrize("name", ASKED)
def test_vllm_keeps_the_same_caches(name: str) -> None:
    model = load_model(name)
    ours: Counter[tuple[object, ...]] = Counter()
    for count, cache in model.caches():
        ours[as_vllm(cache, model)] += count
    theirs: Counter[tuple[object, ...]] = Counter()
    for spec in vllm_specs(name):
        theirs[from_vllm(spec)] += spec["num_layers"]
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "auto") for name in ASKED),
        *((name, "fp8") for name in ASKED if not name.startswith("llama-3.1")),  # not asked of it
    ],
)
def test_vllm_keeps_the_same_bytes(name: str, dtype: str) -> None:
    """A page over its tokens, times the layers; the state as it is before padding."""
    model = load_model(name)
    case = {} if dtype == "auto" else {"kv_cache_dtype": dtype}
    growing = state = 0
    for spec in vllm_specs(name, **case):
        if spec["class"] == "MambaSpec":
            state += spec["unpadded_page_size_bytes"] * spec["num_layers"]
        else:
            page, left = divmod(spec["page_size_bytes"], spec["block_size"])
            assert left == 0
            growing += page * spec["num_layers"]
    assert (model.bytes_per_token(dtype), model.state_bytes()) == (growing, state)


@pytest.mark.parametrize("name", DRAFTED)
def test_vllm_adds_the_draft_layers(name: str) -> None:
    model = load_model(name)
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    with_draft, without = (
        {
            from_vllm(spec): spec["num_layers"]
            for spec in specs
            if spec["class"] != "MambaSpec"  # its shape depends on the number of draft tokens
        }
        for specs in (vllm_specs(name, speculative_config=speculative), vllm_specs(name))
    )
    ours = {as_vllm(cache, model): run.count for run in model.draft_layers for cache in run.caches}
    assert ours == {spec: with_draft[spec] - without[spec] for spec in with_draft}


@pytest.mark.parametrize("name", ASKED)
def test_the_model_dtype_is_the_one_vllm_resolved(name: str) -> None:
    (dtype,) = {
        row["model_dtype"]
        for row in vllm_rows()
        if row["model"] == ASKED[name] and "dtype" not in row["case"]
    }
    assert load_model(name).dtype == dtype


@functools.cache
def transformers_rows() -> list[dict[str, Any]]:
    return rows("transformers_results.jsonl", {*ASKED.values(), *TRANSFORMERS_NAMES.values()})


# The other two's rows stand under names that the file no longer has.
@pytest.mark.parametrize("name", sorted(set(ASKED) - {"deepseek-v3", "llama-3.1-405b"}))
def test_transformers_keeps_the_same_bytes(name: str) -> None:
    """A cache of 100 tokens, which is below every window, in the layout of its states."""
    wanted = TRANSFORMERS_NAMES.get(name, ASKED[name])
    found = [
        row
        for row in transformers_rows()
        if row["name"] == wanted
        and row.get("cache") == "DynamicCache"
        and row.get("steps") == "prefill 100"
        and "bytes" in row
    ]
    assert found
    model = load_model(name)
    for row in found:
        assert element_bytes(row["dtype"]) == element_bytes(model.dtype)
        ours = model.growing_bytes(100) + model.state_bytes(TRANSFORMERS_STATES)
        assert row["bytes"] == ours


def kinds_by_layer(model: ModelSpec) -> list[str]:
    return [run.label for run in model.layers for _ in range(run.count)]


def full_layers(model: ModelSpec) -> list[int]:
    return [i for i, kind in enumerate(kinds_by_layer(model)) if kind == "full_attention"]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("gemma-3-27b", "gemma3-27b/"),
        ("gpt-oss-20b", "gpt-oss-20b/"),
        ("llama-4-scout", "llama4-scout"),
    ],
)
def test_llama_cpp_has_the_full_layers_in_the_same_places(name: str, run: str) -> None:
    places = {
        tuple(cache["layers"])
        for row in rows("llamacpp_results.jsonl", {run})
        for cache in row.get("caches") or ()
        if cache["cache"] == "base"
    }
    assert places == {tuple(full_layers(load_model(name)))}


def config(name: str) -> dict[str, Any]:
    path = SHARED / "corpus" / "configs" / f"{ASKED[name]}.json"
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    text: dict[str, Any] = read.get("text_config", {})
    return {**read, **text}


@pytest.mark.parametrize("name", ASKED)
def test_the_published_config_says_so(name: str) -> None:
    model, published = load_model(name), config(name)
    assert model.num_hidden_layers == published["num_hidden_layers"]
    assert (
        model.architecture
        in json.loads(
            (SHARED / "corpus" / "configs" / f"{ASKED[name]}.json").read_text(encoding="utf-8")
        )["architectures"]
    )
    if name != "gemma-3-27b":  # which leaves it out
        assert model.max_position_embeddings == published["max_position_embeddings"]
    if name != "gpt-oss-20b":  # which leaves it out
        assert model.dtype == published.get("torch_dtype", published.get("dtype"))


def test_the_order_of_the_layers_is_the_published_one() -> None:
    for name in ("gpt-oss-20b", "qwen3.5-27b"):
        types = config(name)["layer_types"]
        full = [i for i, kind in enumerate(types) if kind == "full_attention"]
        assert full_layers(load_model(name)) == full
    signs = {"mamba2": "M", "none": "E", "full_attention": "*"}
    pattern = "".join(signs[kind] for kind in kinds_by_layer(load_model("nemotron-3-nano-30b-a3b")))
    assert pattern == config("nemotron-3-nano-30b-a3b")["hybrid_override_pattern"]
    jamba = config("jamba-v0.1")
    period, offset = jamba["attn_layer_period"], jamba["attn_layer_offset"]
    assert full_layers(load_model("jamba-v0.1")) == list(range(offset, 32, period))
    interval = config("qwen3-next-80b-a3b")["full_attention_interval"]
    assert full_layers(load_model("qwen3-next-80b-a3b")) == list(range(interval - 1, 48, interval))


def test_the_attention_layers_of_qwen_alone() -> None:
    whole, alone = load_model("qwen3.5-27b"), load_model("qwen3.5-27b-attention")
    kept = [(count, cache) for count, cache in whole.caches() if cache.kind == "full_attention"]
    assert alone.num_hidden_layers == sum(count for count, _ in kept)
    assert {cache for _, cache in alone.caches()} == {cache for _, cache in kept}
    assert alone.bytes_per_token() == whole.bytes_per_token()
