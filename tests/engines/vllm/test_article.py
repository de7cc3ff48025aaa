"""Qwen3.5-27B in 15 GiB at 8,192 tokens: the answers of the real vLLM 0.33, and why they are so."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from tests.engines.vllm.asking import GIB, asked, widths

_MEMORY = 15 * GIB
_TOKEN = 65_536
"""Bytes of a token: 16 layers x 4 heads x 256 x (K, V) x 2."""

_STATE = 3_207_168
"""Bytes of a state: 48 x 128 x 128 x 4, and 3 x 10,240 x 2 of its convolution."""

_OFF: dict[str, Any] = {"enable_prefix_caching": False}


def _qwen(gpu: str, **settings: Any) -> CachePlan:
    settings.setdefault("max_num_seqs", 256)  # an H100's own 1,024 want more blocks than there are
    return asked("qwen3.5-27b", gpu=gpu, max_model_len=8192, **settings)


@pytest.mark.parametrize(
    ("gpu", "settings", "block", "blocks", "tokens", "concurrency"),
    [
        ("h100-80gb", {}, 832, 295, 127_191, "15.53"),
        ("a100-80gb", {}, 784, 313, 150_829, "18.41"),
        ("h100-80gb", _OFF, 784, 313, 183_149, "22.36"),
        ("a100-80gb", _OFF, 784, 313, 183_149, "22.36"),
        ("h100-80gb", {"kv_cache_dtype": "fp8"}, 1600, 307, 167_662, "20.47"),
    ],
)
def test_what_the_engine_answers(
    gpu: str, settings: dict[str, Any], block: int, blocks: int, tokens: int, concurrency: str
) -> None:
    found = _qwen(gpu, **settings)
    capacity = found.capacity(_MEMORY)

    assert (found.block_size, capacity.num_blocks) == (block, blocks)
    assert capacity.kv_cache_tokens == tokens
    assert f"{capacity.max_concurrency:.2f}" == concurrency
    assert capacity.fits
    assert capacity.starts
    assert start_up_log(found, _MEMORY) == (
        "Available KV cache memory: 15.0 GiB",
        (
            f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for 8,192 tokens per"
            f" request: {concurrency}x"
        ),
    )


@pytest.mark.parametrize(
    ("gpu", "settings", "slots", "blocks", "sequences"),
    [
        ("h100-80gb", {}, 3, 10, 15),  # 294 // 19: the null block is no sequence's
        ("a100-80gb", {}, 2, 11, 18),  # 312 // 17
        ("h100-80gb", _OFF, 1, 11, 22),  # 312 // 14
        ("h100-80gb", {"kv_cache_dtype": "fp8"}, 3, 6, 20),  # 306 // 15
    ],
)
def test_blocks_of_a_request(
    gpu: str, settings: dict[str, Any], slots: int, blocks: int, sequences: int
) -> None:
    """Three groups of state layers take the same few blocks, the fourth one every block."""
    found = _qwen(gpu, **settings)

    assert [group.rule.peak(8192) for group in found.rank.groups()] == [slots] * 3 + [blocks]
    assert found.need(8192) == {"blocks": 3 * slots + blocks}
    assert found.capacity(_MEMORY).max_sequences == sequences


@pytest.mark.parametrize(("gpu", "block"), [("h100-80gb", 832), ("a100-80gb", 784)])
def test_a_block_covers_a_state(gpu: str, block: int) -> None:
    """783 tokens of one layer are as large as a state: rounded up to 16, or to 64."""
    found = _qwen(gpu)

    assert found.block_size == block
    assert found.block_bytes == block * _TOKEN
    assert _STATE == 783 * _TOKEN // 16
    assert widths(found) == [
        ("state (1)", 16, block),
        ("state (2)", 16, block),
        ("state (3)", 16, block),
        ("full attention", 16, block),
    ]


@pytest.mark.parametrize(("gpu", "slots"), [("h100-80gb", 831), ("a100-80gb", 783)])
def test_worst_tail(gpu: str, slots: int) -> None:
    """All but one slot of a request's last block are empty."""
    found = _qwen(gpu)

    assert found.tail_slots() == slots
    assert found.max_tail_bytes() == slots * _TOKEN


@pytest.mark.parametrize(
    ("model", "sequences"), [("qwen3.5-27b", 23), ("qwen3.5-27b-attention", 30)]
)
def test_sequences_by_the_models_own_arithmetic(model: str, sequences: int) -> None:
    """Thirty when the state is left out, twenty-three with it."""
    found = plan(load_model(model), Deployment(max_model_len=8192))

    assert found.capacity(_MEMORY).max_sequences == sequences


def test_notes_on_hopper() -> None:
    assert _qwen("h100-80gb").notes == (
        (
            "attention block raised from 16 to 832 tokens so that its page of one layer"
            " (3,407,872 B) covers one state (3,207,168 B), in steps of 64 where FlashInfer's"
            " kernels leave checkpoints"
        ),
        (
            "a state's page is widened from 3,207,168 to 3,407,872 B, the attention page (5.89 %"
            " of it is padding)"
        ),
        (
            "3 blocks a request in every group of state layers: the running one, the last one at a"
            " block's end, as prefixes are cached, one for a checkpoint inside a prefill"
        ),
        "without prefix caching (--no-enable-prefix-caching) it would be 1 block",
        "4 groups of 16 layers share block ids: a request takes its own blocks for each of them",
        "it does not start with fewer than 256 blocks (max_num_seqs)",
    )


def test_notes_on_ampere() -> None:
    """FlashInfer's kernels do not run there: no step of 64, no block for a checkpoint."""
    assert _qwen("a100-80gb").notes == (
        (
            "attention block raised from 16 to 784 tokens so that its page of one layer"
            " (3,211,264 B) covers one state (3,207,168 B)"
        ),
        (
            "a state's page is widened from 3,207,168 to 3,211,264 B, the attention page (0.13 %"
            " of it is padding)"
        ),
        (
            "2 blocks a request in every group of state layers: the running one, the last one at a"
            " block's end, as prefixes are cached"
        ),
        "without prefix caching (--no-enable-prefix-caching) it would be 1 block",
        "4 groups of 16 layers share block ids: a request takes its own blocks for each of them",
        "it does not start with fewer than 256 blocks (max_num_seqs)",
    )


def test_notes_without_prefix_caching() -> None:
    found = _qwen("h100-80gb", **_OFF)

    assert "1 block a request in every group of state layers: the running one" in found.notes
    assert not any("in steps of 64" in note or "without prefix" in note for note in found.notes)
    assert found.reuse_tokens is None
    assert _qwen("h100-80gb").reuse_tokens == 832


def test_convention() -> None:
    assert _qwen("h100-80gb").convention == (
        "A step has 8,192 tokens and 256 sequences (`vllm serve` on h100-80gb, unless given).",
        "FlashAttention, FlashInfer, FlashMLA and DeepGEMM are installed, as in vLLM's images.",
        "Block 0 is the null block: it is logged and allocated, and never handed out.",
        (
            "Unless its bytes are given, the cache gets what is left of 0.92 of the card; CUDA"
            " graphs are estimated and taken off."
        ),
    )
    assert _qwen("h100-80gb").unsupported == ()


def test_the_default_of_sequences_is_refused() -> None:
    """config/compilation.py, resolve_cudagraph_mode_and_sizes: 295 blocks, 1,024 sequences."""
    found = _qwen("h100-80gb", max_num_seqs=None)
    capacity = found.capacity(_MEMORY)

    assert (capacity.num_blocks, capacity.fits, capacity.starts) == (295, True, False)
    assert start_up_log(found, _MEMORY)[-1].startswith(
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (295)."
    )
    assert _qwen("h100-80gb", max_num_seqs=295).capacity(_MEMORY).starts
    assert not _qwen("h100-80gb", max_num_seqs=296).capacity(_MEMORY).starts
    assert _qwen("h100-80gb", max_num_seqs=None, enforce_eager=True).floors == ()
