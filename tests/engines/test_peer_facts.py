"""Every line of the shared peer facts is a test of ours, or is listed here with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ABSENT, SHARED

ROOT = Path(__file__).parents[2]

TESTED = {
    # How a line begins -> the test that has its figures.
    "max-token cap 100": "engines/sglang/test_peer_facts.py::test_a_cap_is_rounded_down_to_pages",
    "32 layers, 10,000,000 B": "engines/sglang/test_peer_facts.py::test_a_budget_is_used_up",
    "hybrid 16 full + 16": "engines/sglang/test_peer_facts.py::test_windows_have_a_share",
    "radix off, 1 full": "engines/sglang/test_peer_facts.py::test_requests_decide_on_windows",
    "prefill engine, window 8": "engines/sglang/test_peer_facts.py::test_requests_decide",
    "all 32 layers SWA": "engines/sglang/test_peer_facts.py::test_windows_alone_have_no_ratio",
    "the same with page 1": "engines/sglang/test_peer_facts.py::test_requests_decide_on_windows",
    "disagg decode, window 4": "engines/sglang/test_peer_facts.py::test_a_decoding_server",
    "tokens_per_block 64, one": "engines/tensorrt_llm/test_peer_facts.py::test_the_dry_run",
    "attention DP with tp 4": "engines/tensorrt_llm/test_peer_facts.py::test_the_dry_run",
    "use_sliding_window, sl": "engines/tensorrt_llm/test_peer_facts.py::test_the_last_layers",
    "4 layers at 100 B/token": "engines/tensorrt_llm/test_peer_facts.py::test_a_prompt_under",
    "generation request: one": "engines/tensorrt_llm/test_peer_facts.py::test_a_token_more_under",
    "KV elements/token/GPU": "engines/tensorrt_llm/test_peer_facts.py::test_elements_a_token",
    "Gemma-4 26B-like": "core/test_model.py::test_windows",
    "Qwen3.5-35B-A3B tp4": "core/test_model.py::test_qwen35_35b_on_four_ranks",
    "DeepSeek-V3.2 sequence": "engines/tensorrt_llm/test_peer_facts.py::test_latents_beside",
    "sparse-MLA bf16, P 64": "engines/lmdeploy/test_facts.py::test_sparse_mla_blocks",
    "named caches, 3 blocks": "engines/lmdeploy/test_facts.py::test_tensors_are_rounded_up_to_256",
    "states: max_batches 4": "engines/lmdeploy/test_facts.py::test_slots_of_states",
    "tokensPerBlock 64, 10": "engines/tensorrt_llm/test_peer_facts.py::test_blocks_of_beams",
    "beam 1: blocks per": "engines/tensorrt_llm/test_peer_facts.py::test_blocks_of_one_beam",
    "heads per layer [3,2,1": "engines/tensorrt_llm/test_peer_facts.py::test_a_tensor_for_every",
    "window test: max": "engines/tensorrt_llm/test_peer_facts.py::test_a_window_of_575_tokens",
}

LISTED = {
    # How a line begins -> why no plan has its figures.
    "multimodal encoder-cache": "an encoder's cache and a budget of outputs are no KV cache",
    "sampler slots": "slots of the sampler are no KV cache",
    "state cache (96,) fp32": "a cache that a test names, which no model has; 768 B is its product",
    "free [2048, 768] bytes": "layers that propose tokens are not modelled for LMDeploy",
}


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_line_is_tested_or_listed() -> None:
    path = SHARED / "engines" / "peer-test-facts.md"
    lines = [
        line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")
    ]
    known = (*TESTED, *LISTED)

    assert len(lines) == len(known) == 28
    for line in lines:
        assert sum(line.startswith(start) for start in known) == 1, line


def test_the_tests_that_are_named_are_there() -> None:
    for named in TESTED.values():
        file, _, name = named.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {name}" in text, named
