"""What a prompt takes beside its cache in MLX: scores where no fused kernel reads the heads."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.engines import budgets, plan
from kvcalc.engines.mlx_lm.budget import scores_term
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing.weights import weights_of

HEADS, STEP = 8, 2048


def asked(gpu: str = "m4-max-128gb", **args: Any) -> Deployment:
    """Return a deployment on one of Apple's chips."""
    return Deployment(engine="mlx-lm", gpu=load_gpu(gpu), engine_args=args)


def model(*runs: tuple[int, Any]) -> ModelSpec:
    """Return a model of 8 query heads with these layers."""
    return ModelSpec(
        name="test",
        num_hidden_layers=sum(count for count, _ in runs),
        dtype="bfloat16",
        num_attention_heads=HEADS,
        max_position_embeddings=65_536,
        layers=tuple(LayerRun(count=count, caches=(cache,)) for count, cache in runs),
    )


def full(width: int, v_width: int | None = None) -> FullAttention:
    return FullAttention(num_kv_heads=2, head_dim=width, v_head_dim=v_width)


def test_peaks_that_were_measured() -> None:
    """Qwen3.5-35B-A3B: about 88 kB a token, of which 20,480 B are cache."""
    spec = load_model("qwen3.5-35b-a3b")
    terms = [scores_term(spec, asked(), tokens) for tokens in (100_000, 196_608)]
    cache = plan(spec, asked()).growth(windows_open=False)[0]
    low, high = (
        (getattr(terms[1], end) - getattr(terms[0], end)) / 96_608 + cache
        for end in ("low_bytes", "high_bytes")
    )

    assert cache == 20_480
    assert 86_000 <= low <= 88_064 <= high <= 92_000


@pytest.mark.parametrize(
    ("gpu", "cache", "sure", "may"),
    [
        ("m4-max-128gb", full(64), False, False),
        ("m4-max-128gb", full(80), False, False),
        ("m4-max-128gb", full(128), False, False),
        ("m4-max-128gb", full(96), False, True),  # since the kernels of 72 and 96
        ("m4-max-128gb", full(256), True, True),
        ("m5-max-128gb", full(256), False, True),  # its matrix units have a kernel of 256
        ("m4-max-128gb", full(160), True, True),
        ("m5-max-128gb", full(128, 64), True, True),
    ],
)
def test_which_heads_have_a_kernel(gpu: str, cache: FullAttention, sure: bool, may: bool) -> None:
    """By width, and by chip."""
    term = scores_term(model((2, cache)), asked(gpu), 32_768)

    assert term.low_bytes == (HEADS * STEP * 32_768 * 2 if sure else 0)
    assert term.high_bytes == ((HEADS * 2 + 2) * STEP * 32_768 if may else 0)


def test_a_quantised_cache_is_read_by_no_kernel() -> None:
    """From quantized_kv_start on; a shorter prompt is read as it is."""
    spec = model((2, full(128)))

    assert scores_term(spec, asked(kv_bits=8), 32_768).low_bytes > 0
    assert scores_term(spec, asked(kv_bits=8, quantized_kv_start=100_000), 32_768).high_bytes == 0


def test_what_bounds_the_context() -> None:
    """A window with its step, the prompt, and the step of the prompt."""
    window = SlidingWindow(num_kv_heads=2, head_dim=256, sliding_window=1024)
    spec = model((2, window))

    assert scores_term(spec, asked(), 65_536).low_bytes == HEADS * STEP * (1024 + STEP) * 2
    both = model((1, window), (1, full(256)))
    assert scores_term(both, asked(), 65_536).low_bytes == HEADS * STEP * 65_536 * 2
    short = scores_term(both, asked(prompt_tokens=4096), 65_536)
    assert short.low_bytes == HEADS * STEP * 4096 * 2
    step = scores_term(both, asked(prefill_step_size=512), 65_536)
    assert step.low_bytes == HEADS * 512 * 65_536 * 2


def test_the_term_is_in_the_budget() -> None:
    """And is left out where nothing is kept."""
    for name, there in (("qwen3.5-35b-a3b", True), ("llama-3.1-8b", False)):
        spec = load_model(name)
        found = plan(spec, asked())
        weights = weights_of(spec, asked(), found, total_bytes=10**9, quantization=None)
        (made,) = budgets(spec, asked(), found, weights)
        labels = [term.label for term in made.terms]
        assert ("attention scores" in labels) == there
