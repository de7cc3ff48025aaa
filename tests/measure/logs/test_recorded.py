"""Logs that real engines left here (tests.measure.real_engines) are what kvcalc says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.measure.logs import Given, answered, read_start
from kvcalc.models import load_model
from tests.measure.tiny_models import write_config

RECORDED = Path(__file__).parents[1] / "recorded"
_CASES = sorted(path.stem for path in RECORDED.glob("*.log"))


@pytest.mark.parametrize("name", [name for name in _CASES if name.startswith("llamacpp")])
def test_llamacpp(name: str) -> None:
    """The model is read from the log itself."""
    found = answered(read_start(str(RECORDED / f"{name}.log")))

    assert found.differences == ()
    assert {"cache_size", "k_size", "v_size", "cells", "kv_buffer"} <= set(found.agrees)


@pytest.mark.parametrize("name", [name for name in _CASES if name.startswith("vllm")])
def test_vllm(name: str, tmp_path: Path) -> None:
    """The CPU build, whose blocks are of 128 tokens."""
    write_config(tmp_path, name.removeprefix("vllm-"))
    given = Given(model=load_model(str(tmp_path)))
    found = answered(read_start(str(RECORDED / f"{name}.log"), given), given)

    assert found.engine_version == "0.32.0"
    assert set(found.agrees) == {"kv_cache_tokens", "max_concurrency"}
    assert found.differences == ()


def test_they_are_there() -> None:
    assert len(_CASES) >= 4
