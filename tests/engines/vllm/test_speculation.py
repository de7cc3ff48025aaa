"""Methods that propose tokens: which release has them, what they keep, and what they change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.core.attention import ChunkedAttention, FullAttention, SlidingWindow
from kvcalc.core.errors import NotModelledError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.rules import Grow
from kvcalc.models import load_model
from tests.core import builders
from tests.engines.vllm.asking import asked

_DRAFT = ModelSpec(
    name="draft",
    dtype="bfloat16",
    num_hidden_layers=5,
    layers=(LayerRun(count=5, caches=(FullAttention(num_kv_heads=8, head_dim=128),)),),
)


def _plan(model: ModelSpec | str, at: str, method: str, tokens: int | None = 3, **more: Any) -> Any:
    settings = {"speculative_method": method, "num_speculative_tokens": tokens, **more}
    return asked(model, at, max_model_len=8192, **settings)


@pytest.mark.parametrize(("method", "before", "first"), [
    ("suffix", "0.11.0", "0.11.1"), ("ngram_gpu", "0.17.1", "0.18.0"),
    ("dflash", "0.19.1", "0.20.0"), ("draft_model", "0.14.1", "0.15.0"),
    ("dspark", "0.24.0", "0.25.0"), ("mtp", "0.10.2", "0.11.0"),
    ("qwen3_5_mtp", "0.16.0", "0.17.0"), ("custom_class", "0.21.0", "0.22.0"),
])  # fmt: skip
def test_methods_that_came_later(method: str, before: str, first: str) -> None:
    """config/speculative.py, SpeculativeMethod; engine/arg_utils.py for draft models."""
    with pytest.raises(UnsupportedError, match=f"by {method}: {first} does") as caught:
        _plan("qwen3-8b", before, method)
    assert not isinstance(caught.value, NotModelledError)
    assert caught.value.setting == "speculative_method"


@pytest.mark.parametrize(("method", "last", "later"), [
    ("medusa", "0.32.0", "0.33.0"), ("mlp_speculator", "0.10.1", "0.10.2")])  # fmt: skip
def test_methods_that_went(method: str, last: str, later: str) -> None:
    """0.33 has neither; V1 never had a MLP speculator (gpu_model_runner.py)."""
    with pytest.raises(UnsupportedError, match=f"{last} was the last"):
        _plan("llama-3.1-8b", later, method)


@pytest.mark.parametrize("method", ["extract_hidden_states", "custom_class", "dflash", "dspark"])
def test_what_is_not_modelled_is_no_refusal(method: str) -> None:
    """A method that the release has, of which kvcalc does not know what it keeps."""
    with pytest.raises(NotModelledError):
        _plan("qwen3-8b", "0.33.0", method)


def test_a_method_that_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="banana"):
        _plan("qwen3-8b", "0.33.0", "banana")
    with pytest.raises(NotModelledError, match="banana"):
        _plan("qwen3-8b", "0.34.0", "banana")


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix"])
def test_methods_that_keep_nothing(method: str) -> None:
    """A plan is what it is without them, but for the steps that windows keep room for."""
    plain = asked("llama-3.1-8b", "0.28.0", max_model_len=8192)
    assert _plan("llama-3.1-8b", "0.28.0", method).ranks == plain.ranks


@pytest.mark.parametrize(("at", "method", "slots"), [
    ("0.22.1", "dflash", 3), ("0.23.0", "dflash", 4), ("0.33.0", "dflash", 4),
    ("0.25.0", "dspark", 3), ("0.33.0", "dspark", 3), ("0.15.0", "draft_model", 3)])  # fmt: skip
def test_drafts_keep_layers_and_slots(at: str, method: str, slots: int) -> None:
    """Layers of the draft share the blocks; scheduler.py, num_lookahead_tokens."""
    found = _plan("llama-3.1-8b", at, method, draft_model=_DRAFT)
    assert found.block_bytes == (32 + 5) * 16 * 4096
    (group,) = found.rank.groups()
    assert isinstance(group.rule, Grow)
    assert group.rule.lookahead == slots


def test_draft_windows_make_groups() -> None:
    """Window layers of a draft are planned as layers of the model."""
    window = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=1024)
    draft = _DRAFT.with_layers(5, (window,))
    found = _plan("llama-3.1-8b", "0.33.0", "dflash", draft_model=draft)
    assert {type(group.rule).__name__ for group in found.rank.groups()} == {"Grow", "Window"}


@pytest.mark.parametrize(("at", "method", "steps"), [
    ("0.33.0", "suffix", 1), ("0.33.0", "ngram", 2), ("0.32.0", "ngram", 1),
    ("0.32.0", "medusa", 1), ("0.28.0", "ngram_gpu", 2), ("0.27.0", "draft_model", 1),
    ("0.28.0", "draft_model", 2), ("0.28.0", "dflash", 2), ("0.28.0", "dspark", 2),
    ("0.28.0", "eagle3", 2)])  # fmt: skip
def test_steps_that_overlap(at: str, method: str, steps: int) -> None:
    """config/vllm.py, VllmConfig.__post_init__: windows keep room for the steps in flight."""
    window = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=1024)
    model = msgspec.structs.replace(
        builders.model((6, (window,)), (6, (builders.FULL,))), architecture="LlamaForCausalLM"
    )
    draft: dict[str, Any] = (
        {"draft_model": _DRAFT} if method in ("dflash", "dspark", "draft_model") else {}
    )
    found = _plan(model, at, method, max_num_batched_tokens=1000, max_num_seqs=64, **draft)
    (rule,) = {group.rule for group in found.rank.groups() if not isinstance(group.rule, Grow)}
    assert rule.in_flight == 1000 * steps


@pytest.mark.parametrize(("method", "frees"), [("ngram", True), ("eagle", False), ("mtp", False)])
def test_chunks_beside_what_reads_the_target(method: str, frees: bool) -> None:
    """config/vllm.py: local attention and EAGLE turn the hybrid manager off."""
    chunk = ChunkedAttention(num_kv_heads=8, head_dim=128, attention_chunk_size=1024)
    model = builders.model((6, (chunk,)), (6, (builders.FULL,)))
    model = msgspec.structs.replace(
        model, draft_layers=(LayerRun(count=1, caches=(builders.FULL,)),)
    )
    found = _plan(model, "0.33.0", method)
    kept = {type(group.rule).__name__ for group in found.rank.groups()}
    assert ("Chunk" in kept) == frees


def test_fewer_sequences_draw_blocks_of_tokens() -> None:
    """0.33 config/vllm.py, max_num_active_seqs: each has a query for every token in a step."""
    more = {"draft_model": _DRAFT, "max_num_batched_tokens": 2048, "max_num_seqs": 1024}
    assert _plan("llama-3.1-8b", "0.33.0", "dflash", 15, **more).max_running == 2048 // 16
    assert _plan("llama-3.1-8b", "0.32.0", "dflash", 15, **more).max_running == 1024


def test_tokens_in_multiples_of_the_layers() -> None:
    """SpeculativeConfig, n_predict."""
    assert _plan("mimo-v2-flash", "0.33.0", "mtp", 1)
    layers = sum(run.count for run in load_model("mimo-v2-flash").draft_layers)
    if layers > 1:
        with pytest.raises(UnsupportedError, match="no multiple"):
            _plan("mimo-v2-flash", "0.33.0", "mtp", layers + 1)


def test_own_layers_that_a_release_does_not_run() -> None:
    """models/registry.py: Glm4MoeMTPModel is in 0.10.0, MiMoV2MTPModel in 0.21.0."""
    with pytest.raises(UnsupportedError, match=r"0\.21\.0 does"):
        _plan("mimo-v2-flash", "0.20.2", "mtp", 1)


def test_suffix_proposes_24_by_itself() -> None:
    """suffix_decoding_max_tree_depth: rows of states are kept for as many."""
    found = _plan("qwen3.5-27b", "0.33.0", "suffix", None)
    assert any("24 for proposed tokens" in line for line in found.notes), found.notes


def test_v0_of_releases_with_both() -> None:
    """0.9 and 0.10.0 leave a draft model to V0, which is not modelled."""
    with pytest.raises(NotModelledError, match="V0"):
        _plan("llama-3.1-8b", "0.9.2", "draft_model", draft_model=_DRAFT)
