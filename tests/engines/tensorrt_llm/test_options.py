"""Every setting of TensorRT-LLM's cache is modelled, harmless, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.tensorrt_llm.options import HARMLESS, NOT_MODELLED
from kvcalc.engines.tensorrt_llm.settings import KNOWN_ARGUMENTS
from kvcalc.models import load_model

CACHE = """
    enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction
    host_cache_size onboard_blocks cross_kv_cache_fraction secondary_offload_min_priority
    event_buffer_max_size attention_dp_events_gather_period_ms enable_partial_reuse
    copy_on_partial_reuse use_uvm max_gpu_total_bytes mamba_ssm_cache_dtype
    tokens_per_block use_kv_cache_manager_v2 max_util_for_resume
    """
"""Fields of KvCacheConfig in 1.2 (llmapi/llm_args.py); its dtype is Deployment.kv_cache_dtype."""

SERVER = """
    max_batch_size max_beam_width max_seq_len max_num_tokens enable_attention_dp
    context_parallel_size pp_partition cp_config sparse_attention_config speculative_config
    enable_chunked_prefill cuda_graph_config disable_overlap_scheduler trust_remote_code
    """
"""Fields of BaseLlmArgs and TorchLlmArgs that one could take to count."""


def _plan(args: dict[str, Any]) -> CachePlan:
    return plan(load_model("llama-3.1-8b"), Deployment(engine="tensorrt-llm", engine_args=args))


@pytest.mark.parametrize("name", (CACHE + SERVER).split())
def test_every_setting_is_of_one_kind(name: str) -> None:
    kinds = (KNOWN_ARGUMENTS, HARMLESS, NOT_MODELLED)

    assert sum(name in kind for kind in kinds) == 1


@pytest.mark.parametrize("name", sorted(NOT_MODELLED))
def test_what_is_not_modelled_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name) as refused:
        _plan({name: 1})

    assert NOT_MODELLED[name] in str(refused.value)
    assert refused.value.hint


def test_the_harmless_change_nothing() -> None:
    plain = _plan({})

    for name in sorted(HARMLESS):
        assert _plan({name: "x"}) == plain


def test_a_setting_that_it_has_not() -> None:
    with pytest.raises(KvcalcError, match="unknown TensorRT-LLM setting 'page_size'"):
        _plan({"page_size": 64})


def test_blocks_in_host_memory() -> None:
    """They are beside the GPU's, which stay as they are."""
    found = _plan({"host_cache_size": 10**10})

    assert found.ranks == _plan({}).ranks
    assert "host memory has room for 2,384 blocks beside the GPU's" in found.notes
    windowed = plan(
        load_model("gpt-oss-20b"),
        Deployment(
            engine="tensorrt-llm",
            engine_args={"host_cache_size": 10**10, "max_attention_window": "model"},
        ),
    )
    assert any("how host memory is shared" in line for line in windowed.unsupported)
