"""Weights by device of llama.cpp, where no file tells the tensors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.deployment import Deployment
from kvcalc.engines import plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.solve import solve
from kvcalc.sizing.weights import weights_of

_GIB = 2**30
_LAYER = 218_112_000 * 2  # q, o 4,096 squared; k, v 4,096 x 1,024; three of 4,096 x 14,336; norms
_TABLE = 128_256 * 4096 * 2
_NORM = 4096 * 2


def _terms(model: str, gpus: int = 1, **args: Any) -> list[tuple[int, int]]:
    deployment = Deployment(
        engine="llama.cpp", gpu=load_gpu("rtx-4090"), pipeline_parallel_size=gpus, engine_args=args
    )
    found = load_model(model)
    planned = plan(found, deployment)
    terms = weights_of(found, deployment, planned, total_bytes=None, quantization=None)
    return [(term.low_bytes, term.high_bytes) for term in terms]


@pytest.mark.parametrize("layers", [2, 10, 32, 33])
def test_the_embedding_stays_on_the_host(layers: int) -> None:
    """Of Llama-3.1-8B n - 1 layers and the output lie on the card; it shares no matrix."""
    card, *host = _terms("llama-3.1-8b", n_gpu_layers=layers)
    size = (layers - 1) * _LAYER + _TABLE + _NORM
    assert card == (size, size)
    assert host == ([((33 - layers) * _LAYER + _TABLE,) * 2] if layers < 33 else [])


def test_layers_are_shared_out() -> None:
    first, second = _terms("llama-3.1-8b", gpus=2, tensor_split="1,1")
    assert first[0] == first[1]
    assert second[0] - first[0] == _TABLE + _NORM - 2 * _LAYER  # 17 and 15 layers


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("llama-3.1-8b", "gemma-3-27b", "qwen2.5-32b", "qwen3-1.7b")),
    st.integers(1, 80),
    st.integers(1, 4),
)
def test_devices_have_all_of_it(model: str, layers: int, gpus: int) -> None:
    """All devices and the host together have the weights, but for a table that is there twice."""
    size = load_model(model).size
    assert size is not None
    whole = size.weights_bytes or 0
    found = _terms(model, gpus, n_gpu_layers=layers)
    low, high = (sum(term[end] for term in found) for end in (0, 1))
    error = size.weights_error_bytes or 0
    tables = 2 * 2 * (size.vocab_size or 0) * (size.hidden_size or 0)
    # Where every layer is on a card the host, and its table, are no rank of the plan.
    twice = 0 if size.tie_word_embeddings is False else tables // 2  # a tied table
    assert low <= whole + error + twice
    assert high >= whole - error - tables


def test_more_layers_take_more_of_the_card() -> None:
    """So that layers on the card can be solved for by halves."""
    found = [_terms("gemma-3-27b", n_gpu_layers=n)[0] for n in range(2, 64)]
    for end in (0, 1):
        sizes = [term[end] for term in found]
        assert sizes == sorted(sizes)
    gpu = load_gpu("rtx-4090")
    deployment = Deployment(engine="llama.cpp", gpu=gpu, engine_args={"ctx_size": 8192})
    solved = solve(Question(load_model("gemma-3-27b"), deployment), "ngl")
    assert solved.value is not None
    assert solved.possible is not None
    assert 20 < solved.value <= solved.possible < solved.value + 8  # of 62 layers, 47.5 GiB


def test_weights_without_a_cache_must_fit_too() -> None:
    """With the cache on the host the card still has the layers."""
    gpu = load_gpu("rtx-4090")
    for model, layers, fits in (
        ("llama-3.1-8b", None, True),
        ("llama-3.1-70b", None, True),  # fit moves layers to the host
        ("llama-3.1-70b", 81, False),
        ("llama-3.1-70b", 10, True),
        ("llama-3.1-70b", 0, True),
    ):
        args: dict[str, Any] = {"ctx_size": 8192, "no_kv_offload": True, "n_gpu_layers": layers}
        args = {name: value for name, value in args.items() if value is not None}
        deployment = Deployment(engine="llama.cpp", gpu=gpu, engine_args=args)
        found = answer(Question(load_model(model), deployment))
        assert found.fits == fits
        assert found.verdict.startswith("No: the weights of 80 layers") == (not fits)


def test_fewer_layers_are_a_lever_where_all_do_not_fit() -> None:
    deployment = Deployment(
        engine="llama.cpp",
        gpu=load_gpu("rtx-4090"),
        engine_args={"ctx_size": 8192, "n_gpu_layers": 81},
    )
    question = Question(load_model("llama-3.1-70b"), deployment, quantization="q4_k_m")
    found = answer(question, with_levers=True, solve_for=("ngl",))
    (lever,) = (v for v in found.levers if v.name.endswith("layers on the GPU"))
    assert lever.flags == found.solutions[0].flags
    assert "cache in host memory" in [refused.name for refused in found.refused_levers]
