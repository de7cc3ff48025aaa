"""What LMDeploy's own tests, sources and logs say, in figures."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from kvcalc.api import load_model, shape_model
from kvcalc.core.attention import FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.conftest import ABSENT, SHARED
from tests.property import strategies as some
from tests.property.strategies import SETTINGS


def _plan(model: ModelSpec, *, tp: int = 1, version: str | None = None, **args: Any) -> CachePlan:
    args.setdefault("backend", "pytorch")
    return plan(
        model,
        Deployment(
            engine="lmdeploy",
            engine_version=version,
            tensor_parallel_size=tp,
            max_model_len=8192,
            max_num_seqs=4,
            engine_args=args,
        ),
    )


def _layers(count: int, *caches: Cache) -> ModelSpec:
    run = LayerRun(count=count, caches=caches)
    return ModelSpec(name="test", num_hidden_layers=count, dtype="bfloat16", layers=(run,))


SPARSE = _layers(1, Mla(kv_lora_rank=512, qk_rope_head_dim=64), Indexer(index_head_dim=128))


def test_sparse_mla_blocks() -> None:
    """test_cache_engine.py: K [64, 1, 576] in 16 bits or [64, 1, 656] in fp8; V of no width."""
    assert _plan(SPARSE).block_bytes == 64 * 576 * 2
    assert _plan(SPARSE, quant_policy="fp8").block_bytes == 64 * 656
    (note,) = [line for line in _plan(SPARSE).unsupported if "indexers" in line]
    assert "132 B a token" in note


def test_tensors_are_rounded_up_to_256() -> None:
    """test_cache_engine.py: 160 B take 256, 384 take 512; here 5 tokens of a head of 16: 160."""
    model = _layers(2, FullAttention(num_kv_heads=1, head_dim=16))
    found = _plan(model, block_size=5)

    assert found.block_bytes == 2 * 2 * 256
    assert found.wastes(5).page_padding_bytes == 2 * 2 * (256 - 160)


@pytest.mark.parametrize(("budget", "slots"), [(3, 9), (0, 6), (2, 8)])
def test_slots_of_states(budget: int, slots: int) -> None:
    """test_executor_base.py: four sequences and a prefix budget of 3: 4 + 2 + 3 slots."""
    found = _plan(load_model("qwen3.5-27b"), prefix_cache_state_budget=budget)
    (state,) = found.rank.pools[1:]

    assert state.units == slots
    assert slots - state.reserved_units == 4
    # 48 layers of 4 x 10,240 columns and 48 x 128 x 128 numbers, in 16 bits.
    assert state.unit_bytes == 48 * 2 * (4 * 10_240 + 48 * 128 * 128)


def test_a_pool_holds_blocks_and_one_is_reserved() -> None:
    """Llama-3.1-8B, 64 tokens: 8 MiB; 64 GiB free on an H100 give 6,303 blocks."""
    deployment = Deployment(
        engine="lmdeploy",
        gpu="h100-80gb",
        max_model_len=8192,
        engine_args={"backend": "pytorch", "free_memory": 64 * 2**30, "vocab_size": 128256},
    )
    found = plan(load_model("llama-3.1-8b"), deployment)
    answer = found.capacity()

    assert found.block_bytes == 8 * 2**20
    assert (answer.num_blocks, answer.kv_cache_tokens) == (6303, 6303 * 64)
    assert answer.max_sequences == 6302 // 128


def test_prefill_is_halved_until_sixteen_blocks_fit() -> None:
    """_get_runtime_size: at 8,192 tokens 8 blocks would fit, at 4,096 there are 125."""
    vocab, block = 128256, 8 * 2**20
    reserve = (8192 + 8) * vocab * 2
    free = reserve + 10 * block
    found = _plan(load_model("llama-3.1-8b"), free_memory=free, vocab_size=vocab)

    left = free - (4096 + 8) * vocab * 2
    assert found.capacity().num_blocks == int(left * 0.8) // block
    assert any("becomes 4096" in note for note in found.notes)
    with pytest.raises(UnsupportedError, match="fewer than three blocks"):
        _plan(load_model("llama-3.1-8b"), free_memory=block, vocab_size=vocab)
    with pytest.raises(UnsupportedError, match="do not tell their width"):
        _plan(load_model("llama-3.1-8b"), free_memory=free)


def test_windows_save_nothing() -> None:
    """gemma.py and gpt_oss.py set the window back to -1: every block is kept, and prefixes too."""
    model = _layers(1, SlidingWindow(num_kv_heads=1, head_dim=64, sliding_window=128))
    model = msgspec.structs.replace(model, architecture="GptOssForCausalLM")
    found = _plan(model, enable_prefix_caching=True)

    assert found.held(1280) == {"blocks": 20}
    assert found.wastes(1280).retention_bytes == (1280 - 128) * 2 * 64 * 2
    assert found.reuse_tokens == 64
    assert any("save nothing" in note for note in found.notes)


@pytest.mark.parametrize(("policy", "expected"), [(0, 4096), (8, 2112), (4, 1088)])
def test_turbomind_tokens(policy: int, expected: int) -> None:
    """block.h Layout, Llama-3.1-8B: bytes a token and layer by quant_policy."""
    found = _plan(load_model("llama-3.1-8b"), backend="turbomind", quant_policy=policy)

    assert found.block_size == 64
    assert found.block_bytes == 32 * 64 * expected


def test_turbomind_shares_k_and_v_of_mla() -> None:
    found = _plan(
        load_model("deepseek-v3"), version="0.12.0", backend="turbomind", cache_block_seq_len=128
    )

    assert found.block_bytes == 61 * 128 * 576 * 2


def test_a_turbomind_log() -> None:
    """lmdeploy-064: internlm-chat-7b, 128 tokens a block of 64 MB: 159 blocks, 20,352 tokens."""
    found = _plan(
        shape_model(32, 32, 128), version="0.1.x", backend="turbomind", cache_block_seq_len=128
    )
    assert found.block_bytes == 64 * 2**20
    for memory in (159 * 64 * 2**20, 160 * 64 * 2**20 - 1):
        answer = found.capacity(memory)
        assert (answer.num_blocks, answer.kv_cache_tokens) == (159, 20352)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced() -> None:
    """The list has one case of LMDeploy."""
    path = SHARED / "logs" / "cases.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [c for c in cases if c["engine"] == "lmdeploy" and c.get("verifiable")]

    assert [(c["id"], c["blocks"], c["tokens"]) for c in found] == [("lmdeploy-064", 159, 20352)]


def test_heads_divide_or_are_repeated() -> None:
    """Qwen3.5-35B-A3B's 2 KV heads on 8 ranks: one each. Query heads must divide."""
    assert _plan(load_model("qwen3.5-35b-a3b"), tp=8).block_bytes == 10 * 64 * 2 * 256 * 2
    with pytest.raises(UnsupportedError, match="28 attention heads"):
        _plan(load_model("qwen2.5-7b"), tp=8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"nbits": 4}, "unknown setting of LMDeploy 'nbits'"),
        ({"backend": "vllm"}, "unknown backend"),
        ({"quant_policy": 5}, "unknown quant_policy"),
        ({"cache_block_seq_len": 64}, "a setting of LMDeploy's turbomind engine"),
        ({"cache_max_entry_count": 1200}, "not above 0 and below 1"),
        ({"block_size": "a"}, "block_size is 'a'"),
        ({"flash_mla": 1}, "not true or false"),
        ({"kernel_block_size": 48}, "no multiple of kernel_block_size"),
        ({"backend": "turbomind", "quant_policy": "fp8"}, "TurboMind has no quant_policy fp8"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        _plan(load_model("llama-3.1-8b"), **args)


@pytest.mark.parametrize(
    ("name", "backend", "message"),
    [
        ("qwen3.5-27b", "turbomind", "gated_delta_net states is not modelled"),
        ("jamba-v0.1", "pytorch", "does not serve JambaForCausalLM"),
        ("gemma-4-26b-a4b", "pytorch", "does not serve Gemma4ForConditionalGeneration"),
        ("deepseek-v3.2", "turbomind", "by LMDeploy's pytorch engine alone"),
    ],
)
def test_models_that_are_not_modelled(name: str, backend: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _plan(load_model(name), backend=backend)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_version": "0.10.0"}, "0.10.0 is not modelled"),
        ({"engine_version": "x"}, "no LMDeploy release"),
        ({"pipeline_parallel_size": 2}, "LMDeploy has no pipeline_parallel_size"),
        ({"kv_cache_dtype": "q8_0"}, "keeps no q8_0 cache"),
        ({"block_size": 32, "engine_args": {"block_size": 64}}, "given as 32 and as 64"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, InvalidValueError), match=message):
        plan(load_model("llama-3.1-8b"), Deployment(engine="lmdeploy", **settings))


def test_a_kv_cache_dtype_is_a_quant_policy() -> None:
    model = load_model("llama-3.1-8b")
    for dtype, policy in (("int8", 8), ("fp8", 16), ("bfloat16", 0)):
        asked = Deployment(engine="lmdeploy", kv_cache_dtype=dtype, max_model_len=8192)
        assert plan(model, asked).block_bytes == _plan(model, quant_policy=policy).block_bytes


@SETTINGS
@given(some.models(), some.some_tokens)
def test_every_plan_conserves(model: ModelSpec, n: int) -> None:
    """Reserved = used + wastes for any model that LMDeploy has blocks for."""
    for backend in ("pytorch", "turbomind"):
        try:
            found = _plan(model, backend=backend)
        except UnsupportedError:
            continue
        wastes = found.wastes(n)
        assert found.bytes_held(n) == wastes.reserved_bytes
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
