"""A question about memory without a memory is never a yes, whatever the settings fix."""

from __future__ import annotations

import pytest

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.engines import ENGINES
from kvcalc.models import load_model
from kvcalc.sizing import Question, answer
from kvcalc.sizing.solve import SETTINGS, solve

_ARGS = {"transformers": {"cache_implementation": "static"}}


def _asked(engine: str, **more: object) -> Question:
    args = _ARGS.get(engine, {})
    deployment = Deployment(engine=engine, max_model_len=4096, engine_args=args, **more)  # type: ignore[arg-type]  # a test's own
    return Question(load_model("llama-3.1-8b"), deployment)


@pytest.mark.parametrize("engine", ENGINES)
def test_never_a_yes(engine: str) -> None:
    question = _asked(engine)
    try:
        found = answer(question)
    except KvcalcError as error:
        assert isinstance(error, UsageError)
        assert "memory" in error.message
        return
    assert (found.fits, found.may_fit) == (None, None)
    assert found.missing_bytes == 0
    assert found.verdict.startswith("Needs ")
    assert "name the GPU (--gpu)" in found.verdict


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_is_solved_for_without_a_memory(setting: str) -> None:
    question = _asked("llama.cpp")
    if setting == "kv-memory":
        assert solve(question, setting).value == 4096 * 32 * 8 * 128 * 2 * 2
        return
    with pytest.raises(UsageError, match="memory"):
        solve(question, setting)


def test_what_is_needed_is_what_fits() -> None:
    """The size in the answer is enough on a GPU of which a twentieth may be the driver's."""
    verdict = answer(_asked("llama.cpp")).verdict
    most = float(verdict.removeprefix("Needs up to ").split(" GiB")[0])
    for size, fits in ((most / 0.95, True), (most - 0.5, False)):
        gpu = GpuSpec(name="x", title="x", memory_bytes=int(size * 2**30), compute_capability="9.0")
        deployment = Deployment(
            engine="llama.cpp",
            max_model_len=4096,
            gpu=gpu,
            engine_args={"fit": False, "n_gpu_layers": 99},
        )
        assert answer(_asked("llama.cpp")._replace(deployment=deployment)).fits is fits


def test_what_cannot_be_is_no_without_a_memory_too() -> None:
    question = _asked("llama.cpp")
    deployment = Deployment(engine="llama.cpp", engine_args={"parallel": 2, "ctx_size": 8192})
    found = answer(question._replace(deployment=deployment, sequences=3))
    assert found.fits is False
    assert found.verdict.startswith("No: ")
    assert "no more than 2 run at once" in found.verdict
