"""Settings: llama-server's defaults, llama.cpp's names, ollama's, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.api import load_model
from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.llamacpp.architectures import architecture
from kvcalc.models.gguf import ARCHITECTURES
from tests.conftest import ABSENT, SHARED

LLAMA = load_model("llama-3.1-8b")
GEMMA = load_model("gemma-3-27b")
QWEN = load_model("qwen3.5-27b")


def _plan(model: ModelSpec = LLAMA, args: dict[str, Any] | None = None, **rest: Any) -> CachePlan:
    return plan(model, Deployment(engine="llama.cpp", engine_args=args or {}, **rest))


def _units(found: CachePlan) -> dict[str, int | None]:
    return {pool.name: pool.units for pool in found.rank.pools}


def test_defaults_are_those_of_llama_server() -> None:
    """Four slots in one pool of the model's own length, f16, no window cache in full."""
    found = _plan()
    assert _units(found) == {"kv": 131072}
    assert (found.max_sequences, found.max_model_len) == (4, 131072)
    assert found.kv_cache_dtype == "float16"
    assert _units(_plan(GEMMA, max_model_len=8192)) == {"kv": 8192, "swa": 4 * 1024 + 512}
    assert found.capacity(at=1000).max_sequences == 4  # places, not cells, are the limit
    assert found.capacity(at=100000).max_sequences == 1


def test_a_number_of_slots_keeps_them_apart() -> None:
    """-np N without -kvu: a cache each, and the context is shared out; --max is one sequence."""
    assert _units(_plan(args={"ctx_size": 10000, "parallel": 16})) == {"kv": 16 * 768}
    assert _units(_plan(max_model_len=8192, max_num_seqs=4)) == {"kv": 4 * 8192}
    assert _units(_plan(args={"kv_unified": True}, max_model_len=8192, max_num_seqs=4)) == {
        "kv": 8192
    }
    # common/fit.cpp: the model's own length for every stream; without fit it is shared out.
    assert _units(_plan(args={"parallel": 2})) == {"kv": 2 * 131072}
    assert _units(_plan(args={"parallel": 2, "fit": "off"})) == {"kv": 131072}


def test_slots_capped_in_one_pool() -> None:
    found = _plan(args={"kv_unified_per_slot": 1000})
    assert _units(found) == {"kv": 4096}
    assert found.max_model_len == 1000
    assert found.capacity().max_sequences == 4
    # tools/server/server.cpp: -c 0 asks for the model's own length all the same.
    assert _units(_plan(args={"kv_unified_per_slot": 1000, "ctx_size": 0})) == {"kv": 131072}


def test_the_same_setting_by_any_of_its_names() -> None:
    expected = _plan(args={"ctx_size": 5000, "parallel": 2, "cache_type_k": "q8_0"})
    for args in (
        {"-c": 5000, "-np": 2, "-ctk": "q8_0"},
        {"n_ctx": "5000", "n_seq_max": 2.0, "type_k": "Q8_0"},
    ):
        assert _plan(args=args) == expected
    assert expected.kv_cache_dtype == "q8_0:float16"
    both = _plan(args={"ctx_size": 5000, "parallel": 2}, kv_cache_dtype="q8_0:f16")
    assert both == expected


def test_windows_in_full() -> None:
    small = _plan(GEMMA, {"parallel": 1, "ctx_size": 32768})
    large = _plan(GEMMA, {"parallel": 1, "ctx_size": 32768, "swa_full": True})
    assert _units(small) == {"kv": 32768, "swa": 1536}
    assert _units(large) == {"kv": 32768, "swa": 32768}
    assert large.wastes(32768).retention_bytes > small.wastes(32768).retention_bytes


def test_states_are_kept_once_more_for_every_token_proposed() -> None:
    alone = _plan(QWEN, {"parallel": 2, "ctx_size": 8192})
    ahead = _plan(
        QWEN, {"parallel": 2, "ctx_size": 8192}, speculative_method="mtp", num_speculative_tokens=3
    )
    assert _units(alone)["state"] == 2
    assert _units(ahead)["state"] == 8
    assert _units(ahead)["mtp kv"] == 2 * 4096


def test_a_draft_model_has_a_context_of_its_own() -> None:
    """As many cells and sequences as the target; f16 whatever the target's types."""
    draft = LLAMA.with_layers(4, LLAMA.layers[0].caches)
    found = _plan(args={"parallel": 2, "ctx_size": 8192}, kv_cache_dtype="q8_0", draft_model=draft)
    pools = {pool.name: pool for pool in found.rank.pools}
    assert _units(found) == {"kv": 8192, "draft kv": 8192}
    assert pools["draft kv"].unit_bytes == draft.bytes_per_token("float16")
    typed = _plan(
        args={"parallel": 2, "ctx_size": 8192, "cache_type_k_draft": "q8_0", "ctvd": "q8_0"},
        draft_model=draft,
    )
    assert typed.rank.pools[1].unit_bytes == draft.bytes_per_token("q8_0")


def test_a_draft_of_another_vocabulary_is_dropped() -> None:
    """common/speculative.cpp: 128 tokens more or less are borne; the server drops the others."""
    asked: dict[str, Any] = {"args": {"parallel": 1, "ctx_size": 8192}}

    def notes(tokens: int) -> list[str]:
        size = msgspec.structs.replace(LLAMA.size, vocab_size=tokens) if LLAMA.size else None
        draft = msgspec.structs.replace(LLAMA, name="draft", size=size)
        return [line for line in _plan(draft_model=draft, **asked).notes if "vocabulary" in line]

    assert not any("drops" in line for line in notes(128_256 - 128))
    (line,) = [line for line in notes(128_256 + 129) if "drops" in line]
    assert line.startswith("draft: a vocabulary of 128,385 tokens does not go with the model's")


def test_a_context_of_0_is_the_models_own() -> None:
    """common/arg.cpp, -c: 0 is loaded from the model, and fit leaves it."""
    assert _units(_plan(args={"ctx_size": 0})) == {"kv": 131072}
    kept = _plan(args={"ctx_size": 0}, kv_cache_memory_bytes=2**30)
    assert _units(kept) == {"kv": 131072}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"swa_full": True}, "swa_full without effect: the model has no sliding layers"),
        ({"fit": "off", "fit_ctx": 9000}, "fit_ctx without effect"),
        ({"fit": False, "fit_ctx": 1, "fit_target": 9}, "fit_ctx and fit_target without effect"),
    ],
)
def test_settings_without_effect_are_told(args: dict[str, Any], said: str) -> None:
    assert any(said in note for note in _plan(args={"ctx_size": 8192, **args}).notes)
    assert not any("without effect" in note for note in _plan(GEMMA, {"swa_full": True}).notes)
    assert not any("without effect" in note for note in _plan(args={"fit_ctx": 9000}).notes)


def _head_of_80(k: str, v: str, flash: str) -> CachePlan:
    heads = FullAttention(num_kv_heads=8, head_dim=80)
    model = LLAMA.with_layers(2, (heads,))
    args = {"ctx_size": 256, "cache_type_k": k, "cache_type_v": v, "flash_attn": flash}
    return _plan(model, args)


@pytest.mark.parametrize(
    ("k", "v", "hint", "cure"),
    [
        ("q8_0", "f16", "keep K in f16, or switch flash attention off", ("f16", "f16", "on")),
        ("q8_0", "f16", "keep K in f16, or switch flash attention off", ("q8_0", "f16", "off")),
        ("q8_0", "q8_0", "keep K in f16, and V too", ("f16", "f16", "on")),
        ("f16", "q8_0", "keep V in f16", ("f16", "f16", "on")),
    ],
)
def test_heads_that_do_not_fill_a_block(
    k: str, v: str, hint: str, cure: tuple[str, str, str]
) -> None:
    """llama_init_from_model: heads of 80 in blocks of 32; what the hint says is accepted."""
    with pytest.raises(UnsupportedError, match="head of 80 elements") as caught:
        _head_of_80(k, v, "on")
    assert hint in str(caught.value.hint)
    assert ("flash_attn=off" in str(caught.value.hint)) == (v == "f16")
    _head_of_80(*cure)


def test_ollama_hands_the_type_on() -> None:
    """Ollama fb30760, llm/server.go: OLLAMA_KV_CACHE_TYPE as it is, with no list of its own."""
    found = _plan(args={"num_ctx": 4096, "ollama_kv_cache_type": "q5_1"})
    assert found.kv_cache_dtype == "q5_1"


def test_a_refusal_names_the_build_asked_for() -> None:
    for version, named in ((None, "b11549"), ("b10488", "b10488"), ("2025-11-19", "2025-11-19")):
        with pytest.raises(UnsupportedError, match=f"llama.cpp {named} does not convert"):
            _plan(load_model("opt-13b"), engine_version=version)


def test_what_llama_cpp_keeps_otherwise_than_the_config_says() -> None:
    """Mistral's and qwen2's windows are ignored, llama4's chunk is 8192, qwen3.5's dtype is too."""
    mistral = load_model("mistral-7b-v0.1")
    found = _plan(mistral, {"parallel": 1, "ctx_size": 32768})
    assert _units(found) == {"kv": 32768}
    assert any("every token" in note for note in found.notes)
    heads = FullAttention(num_kv_heads=2, head_dim=64)
    plain = ModelSpec(
        name="x",
        num_hidden_layers=2,
        dtype="bfloat16",
        layers=(LayerRun(count=2, caches=(heads,)),),
    )
    assert _units(_plan(plain, max_model_len=100, max_num_seqs=1)) == {"kv": 256}


@pytest.mark.parametrize(
    ("args", "rest", "said"),
    [
        ({"ctx_sise": 1}, {}, "unknown llama.cpp setting 'ctx_sise'"),
        ({"c": 1, "n_ctx": 2}, {}, "given twice"),
        ({"ctx_size": 1.5}, {}, "ctx_size is 1.5"),
        ({"ctx_size": -1}, {}, "ctx_size is -1"),
        ({"ctx_size": "many"}, {}, "ctx_size is 'many'"),
        ({"parallel": 0}, {}, "parallel 0"),
        ({"parallel": 257}, {}, "at most 256"),
        ({"parallel": 64, "ctx_size": 16}, {}, "aborts"),
        ({"parallel": 2}, {"max_num_seqs": 3}, "do not agree"),
        ({"ctx_size": 8192, "parallel": 2}, {"max_model_len": 8192}, "do not agree"),
        ({"kv_unified": False}, {}, "share one cache"),
        ({"kv_unified_per_slot": 9, "parallel": 2}, {}, "one pool"),
        ({"swa_full": "perhaps"}, {}, "swa_full is 'perhaps'"),
        ({"cache_type_k": "q3_k"}, {}, "unknown cache dtype"),
        ({"cache_type_k": "q8_0"}, {"kv_cache_dtype": "q4_0"}, "do not agree"),
        ({}, {"kv_cache_dtype": "fp8"}, "no fp8_e4m3 cache"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, {}, "needs flash attention"),
        ({"split_mode": "tensor", "flash_attn": "off"}, {}, "needs flash attention"),
        ({"split_mode": "rows"}, {}, "split_mode is 'rows'"),
        ({"tensor_split": "1,x"}, {}, "tensor_split"),
        ({"tensor_split": "0,0"}, {}, "no part above 0"),
        ({"tensor_split": "1,1"}, {"pipeline_parallel_size": 3}, "2 parts for 3"),
        ({"tensor_split": "1,1", "split_mode": "none"}, {}, "one device"),
        ({"fit_target": "much"}, {}, "fit_target"),
        ({"main_gpu": 1, "split_mode": "none"}, {}, "main_gpu 1 of 1 devices"),
        ({"device": "CUDA0,CUDA0"}, {}, "device is 'CUDA0,CUDA0'"),
        ({"device": "CUDA0,CUDA1", "tensor_split": "1,1,1"}, {}, "3 parts for 2"),
        ({"override_tensor": "exps"}, {}, "override_tensor has 'exps'"),
        ({"override_tensor": "exps=CUDA3"}, {}, "override_tensor has 'exps=CUDA3'"),
        ({"override_tensor": "(=CPU"}, {}, "override_tensor has '(=CPU'"),
        ({"num_ctx": 1, "ctx_size": 1}, {}, "ollama"),
        ({}, {"tensor_parallel_size": 2}, "no tensor_parallel_size"),
        ({}, {"max_num_batched_tokens": 2}, "no max_num_batched_tokens"),
        ({}, {"block_size": 16}, "no block_size"),
        ({}, {"dtype": "float16"}, "model dtype"),
        ({}, {"speculative_method": "medusa"}, "does not speculate"),
        ({}, {"speculative_method": "eagle3"}, "eagle3"),
        ({}, {"speculative_method": "mtp"}, "no multi-token-prediction layers"),
        ({}, {"num_speculative_tokens": 2}, "without a method"),
        ({}, {"gpu": "h100-80gb"}, "is a name"),
        ({}, {"draft_model": "llama-3.2-1b"}, "is a name"),
        ({}, {"engine_version": "b1"}, "no llama.cpp build"),
        ({}, {"engine_version": "b4000"}, "not known"),
        ({}, {"engine_version": "2025-02-31"}, "is no day"),
    ],
)
def test_refusals(args: dict[str, Any], rest: dict[str, Any], said: str) -> None:
    """Each names what is wrong, and says what to do."""
    with pytest.raises(KvcalcError) as caught:
        _plan(args=args, **rest)
    assert said in str(caught.value)
    assert caught.value.hint


def test_refused_models() -> None:
    for name in ("opt-13b", "zamba2-7b"):
        with pytest.raises(UnsupportedError, match="does not convert"):
            _plan(load_model(name))
    with pytest.raises(UnsupportedError, match="one type"):
        _plan(load_model("deepseek-v3"), kv_cache_dtype="f16:q8_0")
    with pytest.raises(UnknownNameError):
        _plan(args={"nonsense": 1})


def test_every_architecture_of_a_file_is_known() -> None:
    for name in ARCHITECTURES:
        assert architecture(name) == name


def test_grok_has_no_flash_attention() -> None:
    grok = msgspec.structs.replace(LLAMA, architecture="grok")
    with pytest.raises(UnsupportedError, match="needs flash attention"):
        _plan(grok, {"cache_type_v": "q8_0"})
    assert any("off for grok" in note for note in _plan(grok).notes)


class TestFit:
    """common/fit.cpp with what is left to the context: a straight line, down to 256s."""

    def test_a_context_that_was_not_given_shrinks(self) -> None:
        found = _plan(kv_cache_memory_bytes=4 * 2**30)
        assert _units(found) == {"kv": 32768}  # 131,072 B a token
        assert found.capacity(4 * 2**30).fits
        shared = _plan(args={"parallel": 2}, kv_cache_memory_bytes=4 * 2**30 + 2**25)
        assert _units(shared) == {"kv": 32768}  # down to 256 for each of two

    def test_no_less_than_fit_ctx(self) -> None:
        assert _units(_plan(kv_cache_memory_bytes=2**20)) == {"kv": 4096}
        assert _units(_plan(args={"fit_ctx": 1024}, kv_cache_memory_bytes=2**20)) == {"kv": 1024}

    def test_what_was_given_stays(self) -> None:
        for args in ({"ctx_size": 8192}, {"ctx_size": 0}, {"fit": False}):
            found = _plan(args=args, kv_cache_memory_bytes=2**20)
            assert _units(found) == {"kv": args.get("ctx_size") or 131072}
            assert not found.capacity(2**20).fits
            assert found.capacity(2**20).max_sequences == 0

    def test_all_where_there_is_room(self) -> None:
        assert _units(_plan(kv_cache_memory_bytes=2**40)) == {"kv": 131072}


class TestOllama:
    def test_a_cache_each(self) -> None:
        """-c num_ctx x parallel -np parallel: a sequence gets exactly num_ctx, in 256s."""
        found = _plan(args={"num_ctx": 5000, "num_parallel": 3, "ollama_kv_cache_type": "q8_0"})
        assert _units(found) == {"kv": 3 * 5120}
        assert found.kv_cache_dtype == "q8_0"

    def test_one_sequence(self) -> None:
        found = _plan(QWEN, {"num_ctx": 8192, "OLLAMA_NUM_PARALLEL": 4})
        assert (found.max_sequences, _units(found)["kv"]) == (1, 8192)

    def test_no_more_than_the_model(self) -> None:
        assert _plan(args={"num_ctx": 2**20}).max_model_len == 131072

    def test_length_by_memory(self) -> None:
        assert _plan(args={"num_parallel": 1}).max_model_len == 4096


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_waste_of_slots_of_their_own() -> None:
    """What a sequence with its own stream does not write is reserved; the room of windows too."""
    found = _plan(GEMMA, {"parallel": 4, "ctx_size": 32768})
    wastes = found.wastes(100)
    rows = {pool.name: pool for pool in found.rank.pools}
    assert (
        wastes.reservation_bytes
        == (8192 - 100) * rows["kv"].unit_bytes + (1024 - 100) * rows["swa"].unit_bytes
    )
    assert wastes.retention_bytes == 512 * rows["swa"].unit_bytes
