"""How the tests of the vLLM engine ask for a plan, and what they look at in one."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kvcalc.api import load_gpu, load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.rules import Window
from kvcalc.engines import plan
from tests.engines.vllm import rows

__all__ = ["GIB", "NGRAM", "asked", "in_flight", "refused", "widths"]

GIB = 2**30

NGRAM: dict[str, Any] = {"speculative_method": "ngram", "num_speculative_tokens": 2}
"""Two tokens proposed without any layer of their own."""

_card = cache(load_gpu)


@cache
def _named(name: str) -> ModelSpec:
    """Return a preset, or a model of the oracle's rows (those are named owner--model)."""
    return rows.model(name) if "--" in name else load_model(name)


def asked(
    model: str | ModelSpec, release: str = "0.33", gpu: str = "h100-80gb", **settings: Any
) -> CachePlan:
    """Return the plan of a release for a model on a card."""
    spec = _named(model) if isinstance(model, str) else model
    return plan(spec, Deployment(engine="vllm", engine_version=release, gpu=_card(gpu), **settings))


def refused(
    model: str | ModelSpec, release: str = "0.33", gpu: str = "h100-80gb", **settings: Any
) -> str:
    """Return why a plan is refused."""
    with pytest.raises(UnsupportedError) as caught:
        asked(model, release, gpu, **settings)
    return caught.value.message


def widths(found: CachePlan) -> list[tuple[str, int, int | None]]:
    """Return name, layers and tokens a block of every group of the first rank."""
    return [(group.name, group.layers, group.block_size) for group in found.ranks[0].groups()]


def in_flight(found: CachePlan) -> int:
    """Return the tokens in flight that windows keep room for."""
    (tokens,) = {
        group.rule.in_flight for group in found.ranks[0].groups() if isinstance(group.rule, Window)
    }
    return tokens
