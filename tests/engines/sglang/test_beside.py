"""What SGLang takes beside its share while it starts: what published starts refute is not said."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import Deployment
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.weights.widths import widths_of
from tests.engines.sglang.starts import Start, starts

_GIB = 2**30
_CARDS = (
    "t4", "l4", "a10g", "rtx-3090", "rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-80gb",
    "h200", "b200",
)  # fmt: skip
_SMALL = ("t4", "l4", "a10g", "rtx-3090", "rtx-4090")
_RELEASES = tuple(f"0.5.{patch}" for patch in range(10, 24))


def _asked(model: str, gpu: str, *, free: int | None = None, **settings: Any) -> CapacityAnswer:
    fraction = settings.pop("fraction", None)
    deployment = Deployment(
        engine="sglang",
        gpu=load_gpu(gpu),
        engine_args={} if fraction is None else {"mem_fraction_static": fraction},
        **{"max_model_len": 8192, **settings},
    )
    return answer(Question(load_model(model), deployment, free_bytes=free))


@pytest.mark.parametrize("start", starts(), ids=lambda start: str(start.facts["id"]))
def test_a_start_that_ran_is_not_doubted(start: Start) -> None:
    """Every row that started has room at the most; the one that was refused has no cache."""
    assert (start.logged > 0) == (start.budget.shortfall("low") <= 0 < start.budget.cache_bytes[1])


@pytest.mark.parametrize("gpu", _CARDS)
@pytest.mark.parametrize("release", _RELEASES)
def test_the_default_of_every_release_starts(gpu: str, release: str) -> None:
    """Also where the default is known as +-0.03 only, and with a context as long as the model's."""
    model = "qwen3-1.7b" if gpu in _SMALL else "qwen3-8b"
    for length in (8192, 40_960):
        assert _asked(model, gpu, engine_version=release, max_model_len=length).fits


@pytest.mark.parametrize("gpu", _CARDS)
def test_almost_all_of_a_card_is_not_sure(gpu: str) -> None:
    for fraction in (0.99, 1.0):
        assert not _asked("qwen3-1.7b", gpu, fraction=fraction).fits


@pytest.mark.parametrize(
    ("model", "gpu", "more"),
    [
        ("qwq-32b", "l4", {"tensor_parallel_size": 4, "fraction": 0.85}),
        ("qwen3-8b", "h100-80gb", {"free": 40 * _GIB}),
        ("qwen3-8b", "h100-80gb", {"engine_version": "0.5.20"}),
        ("qwen3-8b", "rtx-3090", {"fraction": 0.88}),
        ("qwen3-8b", "h100-80gb", {"fraction": 0.9}),
        ("qwen3-8b", "l40s", {"fraction": 0.9}),
    ],
)
def test_above_the_default_and_on_a_card_that_others_use(
    model: str, gpu: str, more: dict[str, Any]
) -> None:
    assert _asked(model, gpu, **more).fits


def test_what_is_taken_is_what_a_start_makes() -> None:
    """By hand: Llama-3.1-8B at 0.9 on an H100 with chunks of 8,192 tokens, context 8,192."""
    model = load_model("llama-3.1-8b")
    widths = widths_of(model)
    assert (widths.hidden.high, widths.inner.high, widths.vocab.high) == (4096, 14_336, 128_256)
    found = _asked("llama-3.1-8b", "h100-80gb", fraction=0.9)
    (term,) = [term for term in found.budget[0].terms if term.name == "activation"]
    layers = 8192 * (2 * 7 * 4096 + 7 * 14_336)
    logits = 256 * (14 * 128_256 + 2 * 7 * 4096)
    graphs = (256 * 2 + 58 * 8) * 2**20
    table = 4097 * (8192 + 4) * 4
    twice = int(0.9 * (int(1.05 * _GIB) - _GIB // 4))
    expected = 512 * 2**20 + graphs + max(layers, logits) + table - twice
    assert abs(term.high_bytes - expected) <= 1
