"""Models of one kind of layer, and deployments of either engine."""

from __future__ import annotations

from typing import Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan

__all__ = ["layers", "planned"]


def layers(count: int, *caches: Cache, architecture: str | None = None) -> ModelSpec:
    """Return a model whose layers all keep the same caches."""
    return ModelSpec(
        name="test",
        num_hidden_layers=count,
        dtype="bfloat16",
        layers=(LayerRun(count=count, caches=caches),),
        architecture=architecture,
    )


def planned(
    engine: str,
    model: ModelSpec,
    *,
    longest: int = 8192,
    deployment: dict[str, Any] | None = None,
    **args: Any,
) -> CachePlan:
    """Return the plan of `exllamav2` or `exllamav3` with settings of its own."""
    return plan(
        model,
        Deployment(engine=engine, max_model_len=longest, engine_args=args, **(deployment or {})),
    )
