"""Engines: each turns a model and a deployment into a cache plan by its own rules."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan

__all__ = ["ENGINES", "Engine", "plan"]

ENGINES = {"none": "kvcalc.engines.none"}
"""Engine name -> the module that plans for it; imported when it is asked for."""

_NAMED_ELSEWHERE = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "transformers")


class Engine(Protocol):
    """What an engine module offers."""

    def plan(self, model: ModelSpec, deployment: Deployment) -> CachePlan:
        """Return what the engine allocates and holds."""
        ...


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache plan of `deployment.engine`.

    Raises:
        UnknownNameError: no such engine.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    name = deployment.engine
    if name in _NAMED_ELSEWHERE and name not in ENGINES:
        raise UnsupportedError(
            f"this version of kvcalc does not model engine {name!r} yet",
            hint=f"known: {', '.join(ENGINES)} (the model's own arithmetic)",
        )
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    engine: Engine = import_module(ENGINES[name])
    return engine.plan(model, deployment)
