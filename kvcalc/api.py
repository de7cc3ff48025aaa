"""The public functions, in the form that a program wants them; `kvcalc` exports them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvcalc.core import compare as _compare
from kvcalc.core import fragmentation as _fragmentation
from kvcalc.core.capacity import Capacity
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.lengths import Lengths, Over
from kvcalc.core.model import ModelSpec
from kvcalc.core.per_token import per_token
from kvcalc.core.plan import CachePlan
from kvcalc.core.results import Comparison, Fragmentation, PerToken
from kvcalc.core.waste import Wastes
from kvcalc.engines import plan as _plan
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import load_gpu
from kvcalc.workload.traces import Trace, read_trace

__all__ = [
    "CachePlan",
    "Capacity",
    "Comparison",
    "Deployment",
    "Fragmentation",
    "GpuSpec",
    "KvcalcError",
    "Lengths",
    "ModelSpec",
    "PerToken",
    "Trace",
    "Wastes",
    "compare",
    "fragmentation",
    "load_gpu",
    "load_model",
    "per_token",
    "plan",
    "read_trace",
    "shape_model",
]

_EXAMPLE_MODEL = "qwen3.5-27b-attention"
_EXAMPLE_MAX = 8192


def plan(model: ModelSpec, deployment: Deployment | None = None) -> CachePlan:
    """Return what an engine allocates and holds for a model.

    Args:
        model: as `load_model` or `shape_model` returns it.
        deployment: how it is served; engine `none` on one GPU when left out. A GPU may be given
            by name.

    Raises:
        UnknownNameError: no such engine, dtype or GPU.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    deployment = deployment or Deployment()
    if isinstance(deployment.gpu, str):
        deployment = msgspec.structs.replace(deployment, gpu=load_gpu(deployment.gpu))
    return _plan(model, deployment)


def compare(
    plan: CachePlan,
    lengths: Lengths | Iterable[int],
    *,
    workload: str = "requests",
    over: Over = "clip",
    kv_cache_bytes: int | None = None,
) -> Comparison:
    """Compare paging under a plan with contiguous reservation of plan.max_model_len tokens.

    Args:
        plan: the engine's plan.
        lengths: total tokens of each request, or a histogram of them (`read_trace(...).lengths`).
        workload: what to call the requests.
        over: what happens to requests longer than the maximum: clip, exclude or keep.
        kv_cache_bytes: a cache on each rank, to say how many requests fit each way.

    Raises:
        InvalidValueError: no request is left to compare.
    """
    histogram = lengths if isinstance(lengths, Lengths) else Lengths.of(lengths)
    return _compare.compare(
        plan, histogram, workload=workload, over=over, kv_cache_bytes=kv_cache_bytes
    )


def fragmentation(
    *,
    request_bytes: int | None = None,
    free_bytes: int | None = None,
    largest_free_bytes: int | None = None,
    holes: Sequence[int] | None = None,
    plan: CachePlan | None = None,
) -> Fragmentation:
    """Say whether a request fits into free memory in one piece, in blocks, and what else would.

    Args:
        request_bytes: the allocation asked for; one sequence of the plan's maximum when left out.
        free_bytes: free memory, all holes together.
        largest_free_bytes: the largest hole.
        holes: every hole, instead of the two.
        plan: whose sequences are counted; the example model's, of 8,192 tokens, when left out.

    Raises:
        UsageError: neither holes nor free and largest, or holes that contradict them.
        InvalidValueError: a size below zero, a request of nothing, largest beyond free.
    """
    memory = _fragmentation.Memory(
        free_bytes=free_bytes,
        largest_free_bytes=largest_free_bytes,
        holes=None if holes is None else tuple(holes),
        request_bytes=request_bytes,
    )
    if plan is None:
        plan = _plan(load_model(_EXAMPLE_MODEL), Deployment(max_model_len=_EXAMPLE_MAX))
    return _fragmentation.fragmentation(plan, memory)
