"""The start-up check over pipeline stages: 0.14 to 0.16 hold the whole model against one stage.

Two starts that people logged: Qwen3-Coder-30B over stages of 16 and 32 layers (24.0 GiB needed,
3.18 GiB there, 34736 suggested), and GLM-4.7 of GLM-4.5's shape over 8 (81392 of 28.57 GiB).
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc import Deployment, load_model
from kvcalc.core.capacity import capacity
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from tests.docs.refusals import FOLDER

_GIB = 2**30
_LOGGED = 3_414_800_000  # 3.18 GiB


def _coder(version: str, **more: Any) -> CachePlan:
    deployment = Deployment(
        engine="vllm", engine_version=version, max_model_len=262_144, pipeline_parallel_size=2,
        engine_args={"VLLM_PP_LAYER_PARTITION": "16,32"}, **more,
    )  # fmt: skip
    return plan(load_model(str(FOLDER / "inputs" / "stages.json")), deployment)


@pytest.mark.parametrize("version", ["0.14.0", "0.14.1", "0.15.1", "0.16.0"])
def test_the_whole_model_is_held_against_a_stage(version: str) -> None:
    made = _coder(version)
    (line,) = start_up_log(made, _LOGGED)[-1:]

    assert "(24.0 GiB KV cache is needed" in line
    assert "memory (3.18 GiB)" in line
    assert "the estimated maximum model length is 34736." in line
    assert capacity(made, _LOGGED).max_model_len_that_fits == 34_736
    assert not capacity(made, 24 * _GIB - 1).starts
    assert capacity(made, 24 * _GIB + 2**21).starts
    assert any("0.14 to 0.16 compares what all 2 pipeline stages keep" in n for n in made.notes)


@pytest.mark.parametrize("version", ["0.13.0", "0.17.0", "0.25.1"])
def test_other_releases_hold_each_stage_against_its_own(version: str) -> None:
    """The stage of 32 layers needs 16 GiB."""
    made = _coder(version)

    assert not capacity(made, 16 * _GIB - 1).starts
    assert capacity(made, 16 * _GIB + 2**21).starts


def test_eight_stages() -> None:
    deployment = Deployment(
        engine="vllm", engine_version="0.15.1", max_model_len=202_752, pipeline_parallel_size=8,
        engine_args={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": True},
    )  # fmt: skip
    found = capacity(plan(load_model("glm-4.5"), deployment), int(28.57 * _GIB))

    assert (found.starts, found.max_model_len_that_fits) == (False, 81_392)


def test_one_stage_is_as_ever() -> None:
    deployment = Deployment(engine="vllm", engine_version="0.15.1", max_model_len=262_144)
    model = load_model(str(FOLDER / "inputs" / "stages.json"))

    assert capacity(plan(model, deployment), 24 * _GIB + 2**21).starts
