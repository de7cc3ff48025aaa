"""What vLLM makes of a checkpoint: padded experts, tables in the dtype of the run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.engines import engine_of, plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing.weights import weights_of

GIB = 2**30


def weights(model: str, gpu: str, **settings: Any) -> tuple[float, float]:
    """Return the bounds of the weights on a GPU, in GiB."""
    spec = load_model(model)
    deployment = Deployment(engine="vllm", gpu=load_gpu(gpu), max_model_len=8192, **settings)
    found = plan(spec, deployment)
    (term, *_) = weights_of(spec, deployment, found, total_bytes=None, quantization=None)
    return term.low_bytes / GIB, term.high_bytes / GIB


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-80gb", "rtx-5090"])
def test_marlin_pads_experts(gpu: str) -> None:
    """Of gpt-oss-20b 13.72 GiB were logged: 2,880 x 2,880 becomes 2,944 x 3,072."""
    low, high = weights("gpt-oss-20b", gpu)

    assert 13.6 < low < 13.715
    assert 13.725 < high < 13.8


@pytest.mark.parametrize(
    ("gpu", "version", "low", "high"),
    [
        ("h100-80gb", "0.33.0", 12.81, 13.75),  # Triton pads nothing of it, Marlin does
        ("b200", "0.33.0", 13.2, 13.75),  # 128 x 128 or 128 x 256
        ("b200", "0.20.0", 13.2, 14.2),  # 256 x 256
        ("rtx-5090", "0.12.0", 12.81, 13.75),
    ],
)
def test_kernels_of_a_card(gpu: str, version: str, low: float, high: float) -> None:
    """mxfp4_round_up_hidden_size_and_intermediate_size, by the kernels that a card can get."""
    found = weights("gpt-oss-20b", gpu, engine_version=version)

    assert found[0] == pytest.approx(low, abs=0.05)
    assert found[1] == pytest.approx(high, abs=0.06)


def test_padding_grows_with_the_ranks() -> None:
    """A quarter of 2,880 is 720, which becomes 768: more than a quarter of 2,944."""
    one = weights("gpt-oss-120b", "a100-80gb")[0]
    four = weights("gpt-oss-120b", "a100-80gb", tensor_parallel_size=4)[0]

    assert four > one / 4
    experts = weights(
        "gpt-oss-120b", "a100-80gb", tensor_parallel_size=4, enable_expert_parallel=True
    )
    assert experts[0] < four


def test_other_formats_are_not_padded() -> None:
    """Nothing is known to be added to them."""
    for name in ("qwen3-30b-a3b-fp8", "llama-3.1-8b"):
        spec = load_model(name)
        deployment = Deployment(engine="vllm", gpu=load_gpu("h100-80gb"), max_model_len=8192)
        made = engine_of(deployment.engine).loading(spec, deployment, plan(spec, deployment))
        assert made.experts == (Fraction(1), Fraction(1))
        assert made.copied_bytes == 0
