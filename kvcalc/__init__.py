"""What a model's KV cache costs and wastes, to the byte, and what an engine makes of it.

>>> import kvcalc
>>> model = kvcalc.load_model("llama-3.1-8b")
>>> model.bytes_per_token("bfloat16")
131072
>>> plan = kvcalc.plan(model, kvcalc.Deployment(max_model_len=8192))
>>> plan.capacity(kv_cache_bytes=10 * 2**30).max_sequences
10
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.api import (
        CachePlan,
        Capacity,
        CapacityAnswer,
        CheckReport,
        Comparison,
        Deployment,
        Fragmentation,
        GpuSpec,
        KvcalcError,
        Lengths,
        LogAnswer,
        ModelSpec,
        OutOfMemory,
        PerToken,
        ProbeResult,
        ServerMetrics,
        Trace,
        Wastes,
        capacity,
        check,
        compare,
        fragmentation,
        load_gpu,
        load_model,
        per_token,
        plan,
        probe,
        read_log,
        read_metrics,
        read_oom,
        read_trace,
        shape_model,
    )

__version__ = "0.1.0"

__all__ = [
    "CachePlan",
    "Capacity",
    "CapacityAnswer",
    "CheckReport",
    "Comparison",
    "Deployment",
    "Fragmentation",
    "GpuSpec",
    "KvcalcError",
    "Lengths",
    "LogAnswer",
    "ModelSpec",
    "OutOfMemory",
    "PerToken",
    "ProbeResult",
    "ServerMetrics",
    "Trace",
    "Wastes",
    "__version__",
    "capacity",
    "check",
    "compare",
    "fragmentation",
    "load_gpu",
    "load_model",
    "per_token",
    "plan",
    "probe",
    "read_log",
    "read_metrics",
    "read_oom",
    "read_trace",
    "shape_model",
]


def __getattr__(name: str) -> Any:
    # The command line starts without the whole API; a program gets it on first use.
    if name in __all__:
        return getattr(import_module("kvcalc.api"), name)
    raise AttributeError(f"module 'kvcalc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
