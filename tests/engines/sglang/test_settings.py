"""SGLang's settings: pages by kernel, layouts, parallelism, states, defaults, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention
from kvcalc.core.capacity import short_of
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool
from kvcalc.engines.refusals import rows
from kvcalc.engines.sglang.card import Card
from kvcalc.engines.sglang.families import EXTRA_BUFFER
from kvcalc.engines.sglang.memory import Reserve, cache_bytes, default_chunk, default_fraction
from kvcalc.engines.sglang.requests import requests_at_once, table_bytes
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu

_H100 = Card("h100-80gb", 85_520_809_984, (9, 0))


def _plan(name: str, args: dict[str, Any] | None = None, **settings: Any) -> CachePlan:
    from kvcalc.engines import plan

    if "gpu" in settings:
        settings["gpu"] = load_gpu(settings["gpu"])
    deployment = Deployment(engine="sglang", engine_args=args or {}, **settings)
    return plan(load_model(name), deployment)


def _pool(found: CachePlan, name: str) -> Pool:
    (pool,) = (pool for pool in found.rank.pools if pool.name == name)
    return pool


@pytest.mark.parametrize(
    ("name", "gpu", "args", "page"),
    [
        ("llama-3.1-8b", "h100-80gb", {}, 1),
        ("llama-3.1-8b", "a100-80gb", {}, 1),
        ("llama-3.1-8b", "rtx-5090", {}, 1),
        ("llama-3.1-8b", "b200", {}, 64),
        ("llama-3.1-8b", "b200", {"page_size": 128}, 128),
        ("llama-3.1-8b", "b200", {"page_size": 1}, 64),
        ("llama-3.1-8b", "b200", {"attention_backend": "triton"}, 1),
        ("llama-3.1-8b", "b200", {"attention_backend": "fa4"}, 128),
        ("llama-3.1-8b", "h100-80gb", {"page_size": 16}, 16),
        ("mimo-v2-flash", "b200", {}, 128),
        ("deepseek-v3", "h100-80gb", {}, 1),
        ("deepseek-v3", "b200", {}, 64),
        ("deepseek-v3", "h100-80gb", {"attention_backend": "flashmla"}, 64),
        ("deepseek-v3.2", "h100-80gb", {}, 64),
        ("minimax-m3-nvfp4", "h100-80gb", {}, 128),
        ("minimax-m3-nvfp4", "b200", {}, 128),
        ("minimax-m3-nvfp4", "a100-80gb", {}, 1),
        ("minimax-m3-nvfp4", "h100-80gb", {"page_size": 64}, 64),
        ("deepseek-v4-flash", "h100-80gb", {"page_size": 64}, 256),
        ("qwen3.5-27b", "h100-80gb", {}, 1),
        ("qwen3.5-27b", "b200", {}, 64),
    ],
)
def test_pages(name: str, gpu: str, args: dict[str, Any], page: int) -> None:
    assert _plan(name, args, gpu=gpu).block_size == page


@pytest.mark.parametrize(
    ("gpu", "dtype", "args", "size"),
    [
        ("h100-80gb", "auto", {}, 576 * 2 + 132),
        ("h100-80gb", "fp8_e4m3", {}, 656 + 132),
        ("b200", "auto", {}, 576 + 132),
        ("b200", "fp8_e4m3", {"dsa_prefill_backend": "flashmla_kv",
                              "dsa_decode_backend": "flashmla_kv"}, 656 + 132),
    ],
)  # fmt: skip
def test_sparse_attention(gpu: str, dtype: str, args: dict[str, Any], size: int) -> None:
    """656 B with scales on Hopper, 576 B for TensorRT-LLM's kernels; 132 B of index key."""
    found = _plan("deepseek-v3.2", args, gpu=gpu, kv_cache_dtype=dtype)

    assert found.growth() == (61 * size, 1)


@pytest.mark.parametrize(
    ("gpu", "args", "layouts", "copies"),
    [
        ("b200", {}, 1, 0),
        ("b200", {"prefill_kv_cache_dequant_dtype": "fp8_e4m3"}, 2, 1),
        ("rtx-5090", {}, 1, 1),
    ],
)
def test_nvfp4(gpu: str, args: dict[str, Any], layouts: int, copies: int) -> None:
    """Rows of half a byte an element, one or two layouts of scales, and a copy of one layer."""
    found = _plan("llama-3.1-8b", {**args, "page_size": 64}, gpu=gpu, kv_cache_dtype="nvfp4")
    elements = 2 * 8 * 128
    cell = 32 * (elements // 2 + layouts * elements // 16) + copies * elements

    assert found.block_bytes == 64 * cell
    assert found.growth() == (32 * elements * 9 // 16, 1)


def test_scales_of_32() -> None:
    found = _plan("llama-3.1-8b", gpu="b200", kv_cache_dtype="mxfp8")

    assert found.growth() == (32 * 2 * 8 * 128 * 33 // 32, 1)


def test_heads_on_more_ranks_than_there_are() -> None:
    """8 KV heads over 16 ranks are one a rank; over 3 or 12 they cannot be split."""
    assert _plan("llama-3.1-8b", tensor_parallel_size=16).growth() == (32 * 2 * 128 * 2, 1)
    with pytest.raises(KvcalcError, match="32 attention heads over 3 ranks"):
        _plan("llama-3.1-8b", tensor_parallel_size=3)
    with pytest.raises(KvcalcError, match="32 attention heads over 12 ranks"):
        _plan("llama-3.1-8b", {"tp_size": 12})


@pytest.mark.parametrize(
    ("settings", "args"),
    [
        ({"tensor_parallel_size": 8, "data_parallel_size": 4}, {"enable_dp_attention": True}),
        ({}, {"enable_dp_attention": True, "tp_size": 8, "dp_size": 4}),
        ({"tensor_parallel_size": 8}, {"attn_dp_size": 4}),
        ({}, {"--tensor-parallel-size": 8, "--attention-data-parallel-size": 4}),
    ],
)
def test_groups_of_attention_however_they_are_said(
    settings: dict[str, Any], args: dict[str, Any]
) -> None:
    """arg_groups/parallel_hook.py: dp_size moves to attn_dp_size, and replicas are none."""
    found = _plan("llama-3.1-8b", args, **settings)
    notes = [note for note in found.notes if "requests of their own" in note]

    assert found.growth() == (65_536, 1)
    (note,) = notes
    assert note.startswith("4 groups of DP attention, of 2 ranks each, hold requests of their own")


def test_one_group_of_attention_is_none() -> None:
    found = _plan("llama-3.1-8b", {"enable_dp_attention": True}, tensor_parallel_size=4)

    assert found.growth() == _plan("llama-3.1-8b", tensor_parallel_size=4).growth()
    assert any("dp_size of 1 is one group" in note for note in found.notes)


def test_it_starts_with_less_than_the_maximum() -> None:
    """managers/tp_worker.py: requests are held to a token less than the pool has."""
    found = _plan("llama-3.1-8b").capacity(1000 * 131_072)

    assert (found.fits, found.starts, found.max_model_len_served) == (False, True, 999)
    assert not _plan("llama-3.1-8b").capacity(131_072).starts


def test_requests_at_once_are_places() -> None:
    capped = _plan("llama-3.1-8b", {"max_running_requests": 8}, max_model_len=1024)
    groups = _plan(
        "llama-3.1-8b", {"attn_dp_size": 2, "max_running_requests": 8}, tensor_parallel_size=8
    )

    assert (capped.max_sequences, groups.max_sequences) == (8, 4)
    assert capped.capacity(20 * 2**30).max_sequences == 8
    assert _plan("llama-3.1-8b").max_sequences is None


def test_cutlass_mla_in_older_releases() -> None:
    """It read pages of 128 until 0.5.15, and is gone from 0.5.23."""
    args = {"attention_backend": "cutlass_mla"}

    assert _plan("deepseek-v3", args, gpu="b200", engine_version="0.5.15").block_size == 128
    with pytest.raises(KvcalcError, match="attention backend 'cutlass_mla'"):
        _plan("deepseek-v3", args, gpu="b200")


def test_a_backend_of_prefill_alone_leaves_the_page() -> None:
    """The page of flashmla is taken where decode has it; that of trtllm_mha for either."""
    flash = {"prefill_attention_backend": "flashmla", "decode_attention_backend": "flashinfer"}
    rows = {"prefill_attention_backend": "trtllm_mha", "decode_attention_backend": "fa3"}

    assert _plan("deepseek-v3", flash).block_size == 1
    assert _plan("llama-3.1-8b", rows).block_size == 64


def test_four_bits_by_their_names() -> None:
    new = _plan("llama-3.1-8b", kv_cache_dtype="fp4_mx_block16")
    own = _plan("llama-3.1-8b", {"kv_cache_dtype": "fp4_mx_block16"})
    old = _plan("llama-3.1-8b", kv_cache_dtype="fp4_e2m1", engine_version="0.5.15")

    assert new == own
    assert new.growth() == old.growth() == (32 * 2 * 8 * 128 * 9 // 16, 1)


def _told(found: CachePlan, part: str) -> str:
    (note,) = (note for note in found.notes if part in note)
    return note


def test_notes_say_which_settings_decide() -> None:
    scout = _plan("llama-4-scout", tensor_parallel_size=8, max_model_len=8192)
    assert "takes 8,193 of its tokens, of which there are 0.8" in _told(scout, "windows' pool hol")
    assert not [note for note in _plan("llama-4-scout").notes if "windows' pool hol" in note]

    assert "no more than 5,000 tokens" in _told(
        _plan("llama-3.1-8b", {"max_total_tokens": 5000}), "max_total_tokens"
    )
    assert "plays no part" in _told(
        _plan("llama-3.1-8b", {"mem_fraction_static": 0.9}), "mem_fraction_static"
    )
    assert "OVERWRITE_LONGER_CONTEXT_LEN=1" in _told(
        _plan("llama-3.1-8b", {"context_length": 200_000}), "200,000 tokens are more"
    )
    assert "5 serve one" in _told(_plan("qwen3.5-27b"), "request table")
    assert "disable_hybrid_swa_memory" in _told(
        _plan("gpt-oss-20b", disable_hybrid_kv_cache_manager=True), "hybrid_kv"
    )
    assert "read as SGLang's" in _told(_plan("llama-3.1-8b", async_scheduling=True), "async")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        # 10 GB are 76,293.9 tokens of 131,072 B: one page of a token more than 76,293.
        ({"hicache_size": 10}, f"{76_294 * 131_072:,} B in host memory"),
        ({"hicache_size": 10, "page_size": 64}, f"{1193 * 64 * 131_072:,} B in host memory"),
        ({"hicache_ratio": 1.5}, "1.5 tokens for every token"),
        ({}, "2 tokens for every token"),
    ],
)
def test_a_pool_in_host_memory(args: dict[str, Any], said: str) -> None:
    """mem_cache/pool_host/base.py: GB of 10**9 B, rounded down to pages, and one page more."""
    found = _plan("llama-3.1-8b", {"enable_hierarchical_cache": True, **args})
    plain = _plan("llama-3.1-8b", {"page_size": args.get("page_size", 1)})

    assert said in _told(found, "HiCache")
    assert found.ranks == plain.ranks


def test_attention_dp() -> None:
    """Ranks in groups: heads are shared within one, requests are split among them."""
    args = {"enable_dp_attention": True, "dp_size": 4, "max_running_requests": 64}
    found = _plan("llama-3.1-8b", args, tensor_parallel_size=8)

    assert found.growth() == (32 * 2 * 4 * 128 * 2, 1)
    assert found.num_gpus == 2
    assert found.rank.outside_bytes == table_bytes(16, 131_072 + 4)


def test_context_parallel_latents() -> None:
    """Latents are shared by the ranks, index keys are not: the gain of two ranks is below two."""
    one = _plan("deepseek-v3.2", tensor_parallel_size=8, kv_cache_dtype="fp8_e4m3",
                engine_version="0.5.23", args={"dsa_prefill_backend": "flashmla_kv",
                                               "dsa_decode_backend": "flashmla_kv"})  # fmt: skip
    two = _plan("deepseek-v3.2", tensor_parallel_size=8, kv_cache_dtype="fp8_e4m3",
                decode_context_parallel_size=2)  # fmt: skip

    assert (one.block_bytes, two.block_bytes) == (64 * 61 * (656 + 132), 64 * 61 * (576 + 264))
    budget = 40 * 2**30
    assert two.capacity(budget).kv_cache_tokens == 2 * 64 * (budget // (64 * 61 * 840))


def test_the_fewest_tokens_of_all_stages() -> None:
    """61 layers on two stages: the one with 31 decides for both."""
    found = _plan("deepseek-v3", pipeline_parallel_size=2)

    assert [rank.pools[0].unit_bytes for rank in found.ranks] == [30 * 1152, 31 * 1152]
    assert found.capacity(2**30).kv_cache_tokens == 2**30 // (31 * 1152)


@pytest.mark.parametrize(
    ("settings", "args", "slots"),
    [
        ({}, {}, 5),
        ({}, {"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
        ({"async_scheduling": False}, {"mamba_radix_cache_strategy": "extra_buffer"}, 4),
        ({"async_scheduling": False}, {}, 3),
        ({"async_scheduling": False}, {"mamba_radix_cache_strategy": "no_buffer"}, 3),
        ({"engine_version": "0.5.13"}, {}, 3),
        ({"engine_version": "0.5.13"}, {"mamba_radix_cache_strategy": "extra_buffer"}, 5),
        ({"engine_version": "0.5.14"}, {}, 5),
        ({"pipeline_parallel_size": 2}, {}, 4),
        ({"enable_prefix_caching": False}, {}, 1),
    ],
)
def test_slots_of_states(settings: dict[str, Any], args: dict[str, Any], slots: int) -> None:
    found = _plan("qwen3.5-27b", args, **settings)

    assert _pool(found, "states").held(1000) == slots


def test_states_without_prefixes_are_as_many_as_requests() -> None:
    found = _plan("qwen3.5-27b", max_num_seqs=24, enable_prefix_caching=False)
    budget = 20 * 2**30
    tokens, states = found.capacity(budget).pools

    assert states.units == 24
    assert states.total_bytes == 25 * 153_944_064
    assert tokens.units == (budget - states.total_bytes) // 65_536


def test_states_keep_the_memory_ratio() -> None:
    """Nine parts to ten; the padding slot is paid for, the padding page is not."""
    found = _plan("qwen3.5-27b", {"mamba_full_memory_ratio": 0.5})
    budget = 30 * 2**30
    tokens, states = found.capacity(budget).pools
    each = states.unit_bytes

    assert states.units == (budget / 3 - each) // each
    assert tokens.units == (budget - states.total_bytes) // 65_536
    assert tokens.total_bytes == (tokens.units + 1) * 65_536


def test_states_in_other_dtypes() -> None:
    """A convolution is in bfloat16 whatever the model dtype; recurrent states as asked."""
    plain = _pool(_plan("qwen3.5-27b"), "states").unit_bytes
    half = _pool(_plan("qwen3.5-27b", {"mamba_ssm_dtype": "bfloat16"}), "states").unit_bytes
    recurrent = 48 * 48 * 128 * 128 * 4

    assert plain - half == recurrent // 2
    assert _plan("granite-4.0-h-small").rank.groups()[1].payload["recurrent"] == (
        36 * 128 * 64 * 128 * 4
    )


def test_proposed_states() -> None:
    """Four verified tokens: a recurrent state each, and a window that they share."""
    found = _plan(
        "qwen3.5-27b", num_speculative_tokens=3, max_num_seqs=16, enable_prefix_caching=False
    )
    proposed = _pool(found, "proposed states")
    conv, recurrent = 48 * 10_240 * 2, 48 * 48 * 128 * 128 * 4

    assert proposed.unit_bytes == 4 * recurrent + conv * (4 + 3 - 1)
    budget = 30 * 2**30
    tokens, states, made, draft = found.capacity(budget).pools
    assert (states.units, made.units) == (16, 16)
    # What a proposed token is charged is a whole state, its window not shared.
    charged = 17 * states.unit_bytes + 17 * 4 * states.unit_bytes
    assert tokens.units == (budget - charged) // (65_536 + 65_536 // 16)
    assert draft.units == tokens.units


def test_windows_only_where_sglang_has_a_pool_for_them() -> None:
    """Gemma 3's windows keep every token, gpt-oss's have a pool of four fifths of the tokens."""
    gemma, oss = _plan("gemma-3-27b"), _plan("gpt-oss-20b")
    plain = _plan("gpt-oss-20b", {"disable_hybrid_swa_memory": True})

    assert [pool.name for pool in gemma.rank.pools] == ["tokens"]
    assert [pool.name for pool in plain.rank.pools] == ["tokens"]
    full, window = oss.capacity(20 * 2**30).pools
    assert window.units == int(full.units * 0.8)
    assert gemma.wastes(5000).retention_bytes > 0
    assert any("52 layers with a window keep every token" in note for note in gemma.notes)


def test_a_model_without_attention() -> None:
    found = _plan("falcon-mamba-7b")

    assert found.block_size is None
    assert [pool.name for pool in found.rank.pools] == ["states"]


@pytest.mark.parametrize(
    ("tokens", "context", "asked", "states", "requests"),
    [
        (400_000, 131_072, None, None, 2048),
        (10**7, 8192, None, None, 4096),
        (600_000, 128_000, None, None, 2400),
        (1000, 8192, None, None, 500),
        (400_000, 8192, 128, None, 128),
        (400_000, 8192, 128, 26, 26),
    ],
)
def test_requests_at_once(
    tokens: int, context: int, asked: int | None, states: int | None, requests: int
) -> None:
    assert requests_at_once(tokens, context, asked, states) == requests


def test_the_request_table_is_beside_the_budget() -> None:
    """And has rows for proposed tokens, in whole pages."""
    plain = _plan("llama-3.1-8b")
    draft = _plan("deepseek-v3", gpu="b200", num_speculative_tokens=3)

    assert plain.rank.outside_bytes == table_bytes(2048, 131_072 + 4)
    assert plain.capacity(2**30).kv_cache_tokens == 2**30 // 131_072
    # Pages of 64: twice the four tokens of a step and 63 more.
    assert draft.rank.outside_bytes == table_bytes(48, 163_840 + 2 * 4 + 63)


def test_default_fraction() -> None:
    """512 MiB, 1.5 MiB a token of a chunk, the ranks, and the graphs are kept back."""
    reserved = 512 + 8192 * 1.5 + 1 / 8 * 1024 + 256 * 2 + 58 * 8
    memory = 85_520_809_984 / 2**20

    assert default_chunk(_H100) == 8192
    assert default_fraction(_H100, Reserve(tp=1, pp=1, chunk=8192)) == round(
        1 - reserved / memory, 3
    )
    eager = default_fraction(_H100, Reserve(tp=1, pp=1, chunk=2048, graphs=False))
    assert eager == round(1 - 10 * 1024 / memory, 3)


def test_older_releases() -> None:
    """No slot of padding is paid for until 0.5.15, and the request table had no row more before."""
    old, middle, new = (
        _plan("qwen3.5-27b", engine_version=version) for version in ("0.5.10", "0.5.15", "0.5.23")
    )
    budget = 153_944_064 * 19

    assert [_units(plan, budget) for plan in (old, middle, new)] == [9, 9, 8]
    tables = [
        _plan("llama-3.1-8b", engine_version=version).rank.outside_bytes
        for version in ("0.5.10", "0.5.15")
    ]
    assert tables[1] - tables[0] == (131_072 + 4) * 4
    assert len(_plan("gemma-4-26b-a4b").rank.pools) == 2
    with pytest.raises(KvcalcError, match=r"Gemma4ForConditionalGeneration yet: 0\.5\.11 does"):
        _plan("gemma-4-26b-a4b", engine_version="0.5.10")


def _units(found: CachePlan, budget: int) -> int:
    return next(pool.units for pool in found.capacity(budget).pools if pool.name == "states")


def test_cache_bytes() -> None:
    total = 80 * 2**30

    assert cache_bytes(64 * 2**30, total, 0.875) == 54 * 2**30
    assert cache_bytes(64 * 2**30, total, 0.875, multimodal_mib=1024) == 53 * 2**30


_TREE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 8,
}


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        ({**_TREE, "attention_backend": "triton", "page_size": 16}, {}),
        ({"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"},
         {"pipeline_parallel_size": 2}),
        ({"page_size": 64, "chunked_prefill_size": 1024}, {}),
        ({"page_size": 64, "chunked_prefill_size": -1}, {}),
        ({"page_size": 64, "chunked_prefill_size": 1000, "disaggregation_mode": "decode"}, {}),
        ({"speculative_algorithm": "NEXTN"}, {"engine_version": "0.5.14"}),
        ({"mamba_radix_cache_strategy": "no_buffer"}, {"engine_version": "0.5.13"}),
    ],
)  # fmt: skip
def test_what_starts(args: dict[str, Any], settings: dict[str, Any]) -> None:
    """The neighbour of what is refused is planned."""
    assert _plan("qwen3.5-27b", args, **settings).block_size


@pytest.mark.parametrize(
    ("name", "args", "chosen"),
    [
        ("qwen3.5-27b", {"speculative_algorithm": "NEXTN"}, (3, 1, 4)),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE"}, (3, 1, 4)),
        ("llama-3.1-8b", {"speculative_algorithm": "EAGLE3"}, (5, 4, 8)),
        ("llama-3.1-8b", {"speculative_algorithm": "STANDALONE"}, (3, 1, 4)),
    ],
)
def test_numbers_that_sglang_chooses(
    name: str, args: dict[str, Any], chosen: tuple[int, int, int]
) -> None:
    """Without numbers of proposed tokens SGLang takes its own: they say so, and size the same."""
    draft: dict[str, Any] = {"max_model_len": 8192}
    if name.startswith("llama"):
        draft["draft_model"] = load_model("qwen3-0.6b")
    given = dict(zip(("speculative_num_steps", "speculative_eagle_topk",
                      "speculative_num_draft_tokens"), chosen, strict=True))  # fmt: skip
    found, told = _plan(name, args, **draft), _plan(name, {**args, **given}, **draft)

    assert any(f"{chosen[0]} steps, {chosen[1]} branches" in note for note in found.notes)
    assert not any("chooses them" in note for note in told.notes)
    assert found.ranks == told.ranks


def test_a_draft_that_was_made_for_less_than_the_target_s_context() -> None:
    """SGLang gives the draft the target's context, and refuses what is beyond the draft's own."""
    asked = {"speculative_algorithm": "STANDALONE"}
    draft = load_model("qwen3-0.6b")  # made for 40,960 tokens
    with pytest.raises(UnsupportedError, match="40,960") as caught:
        _plan("llama-3.1-8b", asked, draft_model=draft)

    assert caught.value.code == "length-over-model"
    assert (
        _plan("llama-3.1-8b", asked, draft_model=draft, max_model_len=40_960).loads_drafts is False
    )
    longer = {**asked, "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": 1}
    assert _plan("llama-3.1-8b", longer, draft_model=draft).max_model_len == 131_072


@pytest.mark.parametrize(
    ("name", "args", "settings", "code"),
    [
        ("qwen3.5-27b", {"max_running_requests": 4, "enable_dp_attention": True, "dp_size": 8},
         {"tensor_parallel_size": 8}, "no-room-for-requests"),
        ("deepseek-v3", {"enable_dp_attention": True, "dp_size": 3},
         {"tensor_parallel_size": 8}, "groups-over-ranks"),
        ("llama-3.1-8b", {"enable_hierarchical_cache": True, "disable_radix_cache": True}, {},
         "contradiction"),
        ("llama-3.1-8b", {"enable_hierarchical_cache": True, "hicache_ratio": 0.5},
         {"engine_version": "0.5.14"}, "host-cache-too-small"),
        ("llama-3.1-8b", {}, {"gpu": "v100-32gb"}, "gpu-too-old"),
        ("llama-3.1-8b", {}, {"tensor_parallel_size": 5}, "heads-over-ranks"),
        ("qwen1.5-4b", {}, {"tensor_parallel_size": 5}, "width-over-ranks"),  # 6,912 columns
        ("qwen3-235b-a22b-fp8", {}, {"tensor_parallel_size": 8}, "quantised-width-over-ranks"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "nvfp4"}, "cache-dtype-refused"),
        ("deepseek-v3", {"attention_backend": "trtllm_mha"}, {"gpu": "b200"},
         "no-attention-backend"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_code(
    name: str, args: dict[str, Any], settings: dict[str, Any], code: str
) -> None:
    """What SGLang does not start with is told by the code of its table."""
    with pytest.raises(UnsupportedError) as caught:
        _plan(name, args, **settings)

    assert caught.value.code == code
    assert any(row.code == code for row in rows("sglang"))


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        ({"max_running_requests": 8, "enable_dp_attention": True, "dp_size": 8},
         {"tensor_parallel_size": 8}),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 0.5}, {"engine_version": "0.5.15"}),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 1.0}, {"engine_version": "0.5.14"}),
        ({}, {"gpu": "t4"}),
    ],
)  # fmt: skip
def test_the_neighbour_of_a_refusal(args: dict[str, Any], settings: dict[str, Any]) -> None:
    """One step away SGLang starts."""
    assert _plan("llama-3.1-8b", args, **settings).ranks


def test_blocks_of_scales_that_ranks_share() -> None:
    """Experts of 1,536 columns: 384 on 4 ranks are 3 blocks, 192 on 8 none; whole ones are."""
    assert _plan("qwen3-235b-a22b-fp8", tensor_parallel_size=4).ranks
    assert _plan("qwen3-235b-a22b-fp8", tensor_parallel_size=8, enable_expert_parallel=True).ranks
    assert _plan("qwen3-235b-a22b", tensor_parallel_size=8).ranks


def _floors(name: str, args: dict[str, Any], **settings: Any) -> dict[str, int]:
    return {floor.code: floor.units for floor in _plan(name, args, **settings).floors}


def test_what_memory_must_hold() -> None:
    """States by the release, of one request; a window and more than a page; one page of tokens."""
    assert _floors("qwen3.5-27b", {}) == {
        "no-room-for-states": 1,
        "no-memory-for-blocks": 1,
        "no-room-for-requests": 5,  # 3, and 2 that follow overlapping batches
    }
    assert _floors("qwen3.5-27b", {}, engine_version="0.5.12") == {
        "no-memory-for-blocks": 1,
        "no-room-for-requests": 3,
    }
    assert _floors("qwen3.5-27b", {"disable_radix_cache": True})["no-room-for-requests"] == 1
    assert _floors("gpt-oss-20b", {}) == {"no-memory-for-blocks": 1, "window-pool-too-small": 130}
    assert "window-pool-too-small" not in _floors("gpt-oss-20b", {}, engine_version="0.5.15")
    assert _floors("gpt-oss-20b", {"page_size": 64})["window-pool-too-small"] == 4


@pytest.mark.parametrize(("tokens", "starts"), [(129, False), (130, True)])
def test_the_windows_pool_at_its_edge(tokens: int, starts: bool) -> None:
    """`sliding_window_size + page_size >= swa_tokens` is refused (validate_swa_pool_size)."""
    made = _plan("gpt-oss-20b", {"swa_full_tokens_ratio": tokens / 65_536 + 1e-9,
                                 "max_total_tokens": 65_536})  # fmt: skip
    found = short_of(made, 2**36)

    assert (found is None) is starts
    assert made.capacity(2**36).starts is starts


def test_the_model_s_own_path_is_no_draft_of_its_own() -> None:
    """A draft's path that is the model's means its own layers, and not all of it once more."""
    own = _plan("qwen3.5-27b", {"speculative_algorithm": "NEXTN"})
    same = _plan("qwen3.5-27b", {"speculative_algorithm": "NEXTN"},
                 draft_model=load_model("qwen3.5-27b"))  # fmt: skip

    assert same.ranks == own.ranks
    assert same.loads_drafts
    assert own.loads_drafts


@pytest.mark.parametrize(
    ("name", "args", "settings", "message"),
    [
        ("llama-3.1-8b", {"page_sise": 1}, {}, "unknown SGLang setting 'page_sise'"),
        ("llama-3.1-8b", {"page_size": 0}, {}, "page_size is 0"),
        ("llama-3.1-8b", {"page_size": 16}, {"block_size": 32}, "contradict"),
        ("llama-3.1-8b", {"swa_full_tokens_ratio": 1.5}, {}, "at most 1"),
        ("llama-3.1-8b", {"disable_radix_cache": "no"}, {}, "neither true nor false"),
        ("llama-3.1-8b", {}, {"gpu_memory_utilization": 0.9}, "no gpu_memory_utilization"),
        ("llama-3.1-8b", {}, {"num_gpu_blocks_override": 9}, "no num_gpu_blocks_override"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "q8_0"}, "KV cache dtype"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "nvfp4"}, "reads no nvfp4"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "mxfp8"}, "on Blackwell alone"),
        ("llama-3.1-8b", {}, {"gpu": "mi300x"}, "no CUDA card"),
        ("llama-3.1-8b", {}, {"engine_version": "0.4.9"}, "is not known"),
        ("llama-3.1-8b", {}, {"num_speculative_tokens": 3}, "no layers that propose"),
        ("deepseek-v3", {}, {"kv_cache_dtype": "mxfp8", "gpu": "b200"}, "no mxfp8 cache for MLA"),
        ("deepseek-v3.2", {}, {"kv_cache_dtype": "fp8_e5m2"}, "for sparse attention"),
        ("minimax-m3", {}, {}, "does not serve MiniMaxM3ForCausalLM"),
        ("minimax-m3-nvfp4", {}, {"kv_cache_dtype": "mxfp8"}, "MiniMax's sparse attention"),
        ("minimax-m3-nvfp4", {}, {"num_speculative_tokens": 1}, "speculation is not modelled"),
        ("rwkv-5-world-3b", {}, {}, "does not serve RwkvForCausalLM"),
        ("jamba-v0.1", {}, {}, "does not serve JambaForCausalLM"),
        ("gpt-oss-20b", {}, {"tensor_parallel_size": 16, "decode_context_parallel_size": 2},
         "of windows and states"),
        ("gpt-oss-20b", {}, {"kv_cache_dtype": "fp4_mx_block16"}, "beside states or windows"),
        ("qwen3.5-27b", {"page_size": 64, "mamba_radix_cache_strategy": "no_buffer",
                         "disable_overlap_schedule": True}, {}, "pages of one token"),
        ("qwen3.5-27b", {"mamba_radix_cache_strategy": "no_buffer"}, {}, "where batches overlap"),
        ("qwen3.5-27b", {"speculative_algorithm": "NEXTN"}, {"engine_version": "0.5.13"},
         "tracked by no_buffer"),
        ("qwen3.5-27b", {"mamba_radix_cache_strategy": "extra_buffer",
                         "disable_radix_cache": True}, {"engine_version": "0.5.13"},
         "without a prefix cache"),
        ("falcon-mamba-7b", {"mamba_radix_cache_strategy": "extra_buffer"}, {}, "extra slots"),
        ("deepseek-v3", {"enable_dp_attention": True, "dp_size": 3},
         {"tensor_parallel_size": 8}, "does not divide"),
        ("llama-3.1-8b", {"attention_backend": "foo"}, {}, "attention backend 'foo'"),
        ("llama-3.1-8b", {}, {"attention_backend": "FLASHINFER"}, "backend 'FLASHINFER'"),
        ("llama-3.1-8b", {"attention_backend": "aiter"}, {}, "not run on CUDA"),
        ("llama-3.1-8b", {"attention_backend": "trtllm_mla"}, {"gpu": "b200"}, "serves MLA models"),
        ("deepseek-v3", {"attention_backend": "trtllm_mla"}, {}, "does not run deepseek-v3 on"),
        ("deepseek-v3", {"attention_backend": "trtllm_mha"}, {"gpu": "b200"}, "without MLA alone"),
        ("deepseek-v3", {"attention_backend": "fa3"}, {"gpu": "a100-80gb"}, "does not run"),
        ("deepseek-v3", {"attention_backend": "trtllm_mla"},
         {"gpu": "b200", "kv_cache_dtype": "fp8_e5m2"}, "reads no fp8_e5m2"),
        ("llama-3.1-8b", {"speculative_num_steps": 3}, {}, "without speculative_algorithm"),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}, {},
         "without speculative_eagle_topk"),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1}, {},
         "without speculative_num_steps"),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE"}, {"pipeline_parallel_size": 2},
         "over 2 pipeline stages"),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE", "disaggregation_mode": "prefill"},
         {"pipeline_parallel_size": 2, "engine_version": "0.5.20"}, "over 2 pipeline stages"),
        ("llama-3.1-8b", {"speculative_algorithm": "NGRAM", "enable_dp_attention": True},
         {"tensor_parallel_size": 2, "data_parallel_size": 2}, "NGRAM with DP attention"),
        ("qwen3.5-27b", {**_TREE, "attention_backend": "trtllm_mha"}, {}, "trtllm_mha and 4"),
        ("qwen3.5-27b", {**_TREE, "attention_backend": "triton", "page_size": 16},
         {"engine_version": "0.5.12", "enable_prefix_caching": False},
         "4 branches over pages of 16 tokens"),
        ("llama-3.1-8b", {"page_size": 64, "chunked_prefill_size": 1000}, {}, "no multiple of 64"),
        ("deepseek-v3.2", {"chunked_prefill_size": 256, "enable_dp_attention": True},
         {"tensor_parallel_size": 8, "data_parallel_size": 8}, "32 tokens at once on each of 8"),
        ("llama-3.1-8b", {"hicache_ratio": 3}, {}, "without enable_hierarchical_cache"),
        ("gpt-oss-20b", {"enable_hierarchical_cache": True}, {}, "full attention and MLA alone"),
        ("llama-3.1-8b", {"tp_size": 2, "tensor_parallel_size": 4}, {}, "contradict"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "fp4_e2m1"}, "no KV cache dtype fp4_e2m1"),
        ("llama-3.1-8b", {}, {"kv_cache_dtype": "nvfp4", "engine_version": "0.5.15",
                              "gpu": "b200"}, "no KV cache dtype nvfp4"),
    ],
)  # fmt: skip
def test_refused(name: str, args: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KvcalcError, match=message):
        _plan(name, args, **settings)


def test_layers_of_two_shapes_are_refused() -> None:
    from kvcalc.engines import plan

    runs = tuple(
        LayerRun(count=2, caches=(FullAttention(num_kv_heads=heads, head_dim=64),))
        for heads in (2, 4)
    )
    model = ModelSpec(name="mixed", dtype="bfloat16", num_hidden_layers=4, layers=runs)

    with pytest.raises(KvcalcError, match="in one shape"):
        plan(model, Deployment(engine="sglang"))


def test_every_model_with_tracked_states_is_served() -> None:
    assert "Qwen3_5ForConditionalGeneration" in EXTRA_BUFFER
    for gpu in ("h100-80gb", "b200"):
        for name in ("qwen3.5-27b", "nemotron-3-nano-30b-a3b", "lfm2-1.2b", "kimi-k3"):
            found = _plan(name, gpu=gpu)
            for n in (1, 100, 5000):
                wastes = found.wastes(n)
                assert wastes.reserved_bytes == found.bytes_held(n)
