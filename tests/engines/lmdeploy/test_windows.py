"""Blocks before a window, step by step as LMDeploy's own block manager drops and takes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcalc.answers.plan_summary import summarise
from kvcalc.api import load_model
from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan

MISTRAL = load_model("mistral-7b-v0.1")
BLOCK = 64 * 32 * 2 * 8 * 128 * 2


def _plan(length: int = 32_768, window: int | None = None, **args: Any) -> CachePlan:
    model = MISTRAL
    if window is not None:
        cache = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=window)
        model = MISTRAL.with_layers(32, (cache,))
    own = {"backend": "pytorch", **args}
    return plan(model, Deployment(engine="lmdeploy", max_model_len=length, engine_args=own))


def _held(prompt: int, generated: int, window: int, block: int, step: int) -> tuple[int, int]:
    """Return blocks held at the end and at most, by WindowBlockManager.allocate_msg.

    Before a step the blocks that lie before the last `window` tokens of history are dropped, then
    as many are taken as the history and the step's tokens lack.
    """
    history = dropped = held = most = 0
    steps = [min(step, prompt - start) for start in range(0, prompt, step)] + [1] * generated
    for tokens in steps:
        lacking = -(-(history + tokens) // block) - held - dropped
        if history > window:
            inside = (history - 1) // block - (history - window) // block + 1
            gone = max(0, held - inside)
            held, dropped = held - gone, dropped + gone
        held += max(0, lacking)
        history += tokens
        most = max(most, held)
    return held, most


@pytest.mark.parametrize("window", [128, 4096, 2047, 5000])
@pytest.mark.parametrize(("block", "step"), [(64, 8192), (16, 2048), (64, 1000)])
def test_as_the_block_manager_does(window: int, block: int, step: int) -> None:
    found = _plan(window=window, block_size=block, max_prefill_token_num=step)
    for prompt, generated in ((1, 300), (100, 0), (4096, 130), (9000, 70), (20_000, 1)):
        n = prompt + generated
        held, most = _held(prompt, generated, window, block, step)
        if generated or prompt <= min(step, window):
            assert found.held(n) == {"blocks": held}
        assert found.need(n)["blocks"] >= most
    exact = _held(32_768, 0, window, block, step)[1]
    assert found.need(32_768)["blocks"] == exact or step % block


def test_what_is_read() -> None:
    """pagedattention.py, kv_min_loc: 4,096 tokens of history and the one of the step."""
    found = _plan().wastes(10_000)

    assert found.used_bytes == 4097 * BLOCK // 64
    assert found.reserved_bytes == (157 - (10_000 - 4097) // 64) * BLOCK
    assert found.reserved_bytes == found.used_bytes + sum(found.by_name().values())


def test_no_prefix_is_shared() -> None:
    """executor/base.py: sliding window prefix caching is not supported."""
    assert _plan(enable_prefix_caching=True).reuse_tokens is None
    assert any("4,096 tokens of history" in note for note in _plan().notes)


@pytest.mark.parametrize(
    ("blocks", "served"),
    [
        (1 + 63, 62 * 64),  # no window fits: what the blocks hold, less one
        (1 + 64, 32_768),  # a window fits: sequences have no end
        (1 + 192, 32_768),
    ],
)
def test_a_window_that_fits_shortens_nothing(blocks: int, served: int) -> None:
    """engine.py, _get_max_session_len: window_size <= max_tokens takes the limit away."""
    found = _plan().capacity(blocks * BLOCK)

    assert (found.starts, found.max_model_len_served) == (True, served)
    assert found.max_sequences == (blocks - 1) // 192  # 4,096 and 8,192 of a step


def test_a_start_without_room_for_a_step_is_told() -> None:
    told = summarise(_plan(), kv_cache_bytes=65 * BLOCK)

    assert told.start_up is not None
    assert told.start_up.fits
    assert any("its check asks for a window" in note for note in told.notes)


def test_a_window_is_taken_for_all_layers() -> None:
    """default.py reads sliding_window of the config, whichever layers have it."""
    window = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=512)
    full = FullAttention(num_kv_heads=8, head_dim=128)
    mixed = (LayerRun(count=5, caches=(window,)), LayerRun(count=1, caches=(full,)))
    model = msgspec.structs.replace(
        MISTRAL, architecture="Gemma3ForCausalLM", num_hidden_layers=6, layers=mixed
    )
    asked = Deployment(engine="lmdeploy", max_model_len=8192, engine_args={"backend": "pytorch"})
    found = plan(model, asked)

    assert found.held(8192) == {"blocks": 128 - (8192 - 513) // 64}
    assert any("lose what lies before it" in note for note in found.notes)
    with_images = msgspec.structs.replace(model, architecture="Gemma3ForConditionalGeneration")
    assert plan(with_images, asked).held(8192) == {"blocks": 128}
    other = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=256)
    runs = (LayerRun(count=5, caches=(window,)), LayerRun(count=1, caches=(other,)))
    with pytest.raises(UnsupportedError, match="several windows"):
        plan(msgspec.structs.replace(model, layers=runs), asked)


def test_turbomind_gives_nothing_back() -> None:
    made = msgspec.structs.replace(MISTRAL, architecture="MixtralForCausalLM")
    args: dict[str, Any] = {"backend": "turbomind"}
    deployment = Deployment(engine="lmdeploy", max_model_len=32_768, engine_args=args)

    assert plan(made, deployment).held(10_000) == {"blocks": 157}
