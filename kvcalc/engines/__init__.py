"""Engines: each turns a model and a deployment into a cache plan by its own rules."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan

__all__ = ["ENGINES", "NOT_YET", "Engine", "known", "plan", "start_up_log"]

ENGINES = {
    "none": "kvcalc.engines.none",
    "vllm": "kvcalc.engines.vllm",
    "sglang": "kvcalc.engines.sglang",
    "llama.cpp": "kvcalc.engines.llamacpp",
    "tensorrt-llm": "kvcalc.engines.tensorrt_llm",
    "transformers": "kvcalc.engines.transformers",
    "lmdeploy": "kvcalc.engines.lmdeploy",
    "mlx-lm": "kvcalc.engines.mlx_lm",
    "exllamav3": "kvcalc.engines.exllama.v3",
    "exllamav2": "kvcalc.engines.exllama.v2",
    "lmcache": "kvcalc.engines.lmcache",
}
"""Engine name -> the module that plans for it; imported when it is asked for."""

NOT_YET = ("tgi", "mlc-llm", "vllm-tpu", "vllm-ascend")
"""Engines that are refused by name: to come, and not approximated until then."""


class Engine(Protocol):
    """What an engine module offers."""

    def plan(self, model: ModelSpec, deployment: Deployment) -> CachePlan:
        """Return what the engine allocates and holds."""
        ...


def known(name: str) -> str:
    """Return the name of an engine that kvcalc models.

    Raises:
        UnsupportedError: an engine that is to come.
        UnknownNameError: no such engine.
    """
    if name in NOT_YET:
        raise UnsupportedError(
            f"this version of kvcalc does not model engine {name!r} yet",
            hint=f"known: {', '.join(ENGINES)} (the model's own arithmetic)",
        )
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return name


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache plan of `deployment.engine`.

    Raises:
        UnknownNameError: no such engine.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    engine: Engine = import_module(ENGINES[known(deployment.engine)])
    return engine.plan(model, deployment)


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return what the plan's engine prints about a cache of so many bytes on each rank.

    The lines of its log, or its refusal; nothing for an engine that prints none. None stands for a
    cache that the settings fix.
    """
    module = import_module(ENGINES[known(plan.engine)])
    told = getattr(module, "start_up_log", None)
    return told(plan, kv_cache_bytes) if told is not None else ()
