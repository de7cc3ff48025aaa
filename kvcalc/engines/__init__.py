"""Engines: each turns a model and a deployment into a cache plan by its own rules."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, NotModelledError, UnknownNameError, UnsupportedError
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan

if TYPE_CHECKING:
    from kvcalc.engines.engine import Engine

__all__ = [
    "ALIASES",
    "ENGINES",
    "budgets",
    "engine_asked",
    "engine_of",
    "known",
    "plan",
    "refusal_codes",
    "release_warning",
    "shares_out",
    "start_up_log",
]

ENGINES = {
    "none": "kvcalc.engines.none",
    "vllm": "kvcalc.engines.vllm",
    "sglang": "kvcalc.engines.sglang",
    "llama.cpp": "kvcalc.engines.llamacpp",
    "tensorrt-llm": "kvcalc.engines.tensorrt_llm",
    "transformers": "kvcalc.engines.transformers",
    "lmdeploy": "kvcalc.engines.lmdeploy",
    "tgi": "kvcalc.engines.tgi",
    "mlc-llm": "kvcalc.engines.mlc_llm",
    "vllm-tpu": "kvcalc.engines.vllm_tpu",
    "vllm-ascend": "kvcalc.engines.vllm_ascend",
    "mlx-lm": "kvcalc.engines.mlx_lm",
    "exllamav3": "kvcalc.engines.exllama.v3",
    "exllamav2": "kvcalc.engines.exllama.v2",
    "lmcache": "kvcalc.engines.lmcache",
}
"""Engine name -> the module that plans for it; imported when it is asked for."""

ALIASES = {
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "llama_cpp": "llama.cpp",
    "llama-server": "llama.cpp",
    "trt": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
    "hf": "transformers",
    "huggingface": "transformers",
    "mlx": "mlx-lm",
}
"""Other spellings of engines' names, in lower case."""

_SETTINGS_OF = {
    "ollama": (
        "ollama is a llama-server with settings of its own",
        "use --engine llama.cpp with ollama's settings, such as --engine-arg ollama_num_parallel=2",
    ),
    "turbomind": (
        "turbomind is one of LMDeploy's two engines",
        "use --engine lmdeploy --engine-arg backend=turbomind",
    ),
}
"""What is an engine of another name with settings -> what it is, and how to ask for it."""

_BUDGETS = {
    "vllm": "kvcalc.engines.vllm.budget",
    "sglang": "kvcalc.engines.sglang.budget",
    "llama.cpp": "kvcalc.engines.llamacpp.budget",
    "tensorrt-llm": "kvcalc.engines.tensorrt_llm.budget",
    "transformers": "kvcalc.engines.transformers.budget",
    "lmdeploy": "kvcalc.engines.lmdeploy.budget",
    "mlx-lm": "kvcalc.engines.mlx_lm.budget",
    "exllamav2": "kvcalc.engines.whole_card",
    "exllamav3": "kvcalc.engines.whole_card",
}
"""Engine -> the module that says what it leaves of a card for the cache, where that is modelled."""


_RECORDS = {
    "none": ("none", "ENGINE"),
    "vllm": ("vllm.record", "ENGINE"),
    "vllm-ascend": ("vllm.record", "ASCEND"),
    "vllm-tpu": ("vllm.record", "TPU"),
    "sglang": ("sglang.record", "ENGINE"),
    "llama.cpp": ("llamacpp.record", "ENGINE"),
    "tensorrt-llm": ("tensorrt_llm.record", "ENGINE"),
    "transformers": ("transformers.record", "ENGINE"),
    "lmdeploy": ("lmdeploy.record", "ENGINE"),
    "tgi": ("tgi.record", "ENGINE"),
    "mlc-llm": ("mlc_llm.record", "ENGINE"),
    "exllamav2": ("exllama.record", "V2"),
    "exllamav3": ("exllama.record", "V3"),
}
"""Engine -> the module of its record, and the record's name there; the others have nothing of
their own."""


class Planner(Protocol):
    """What an engine's package offers."""

    def plan(self, model: ModelSpec, deployment: Deployment) -> CachePlan:
        """Return what the engine allocates and holds."""
        ...


def known(name: str) -> str:
    """Return the name of an engine that kvcalc models, of that name or one of its ALIASES.

    Raises:
        UnsupportedError: one that is another with settings.
        UnknownNameError: no such engine.
    """
    folded = name.lower()
    if folded in _SETTINGS_OF:
        message, hint = _SETTINGS_OF[folded]
        raise UnsupportedError(message, hint=hint)
    name = name if name in ENGINES else ALIASES.get(folded, folded)
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return name


@cache
def engine_of(name: str) -> Engine:
    """Return the record of an engine: all that other rooms ask of it.

    Raises:
        UnsupportedError, UnknownNameError: see `known`.
    """
    from kvcalc.engines.engine import Engine

    name = known(name)
    if name not in _RECORDS:
        return Engine(name)
    module, record = _RECORDS[name]
    found: Engine = getattr(import_module(f"kvcalc.engines.{module}"), record)
    return found


def engine_asked(name: str | None) -> Engine:
    """Return the record of an engine; that of none, for a name that its plan refuses as unknown."""
    try:
        return engine_of(name or "none")
    except KvcalcError:
        return engine_of("none")


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache plan of `deployment.engine`.

    Raises:
        UnknownNameError: no such engine.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    name = known(deployment.engine)
    planner: Planner = import_module(ENGINES[name])
    if name != "none":
        from kvcalc.engines.served import check_kinds

        check_kinds(model, name)
    made = planner.plan(model, deployment)
    if model.architecture is None and made.engine != "none":
        note = f"the model names no architecture: {made.engine} is taken to serve it"
        made = msgspec.structs.replace(made, notes=(*made.notes, note))
    warning = release_warning(deployment.engine, deployment.engine_version)
    if warning:
        made = msgspec.structs.replace(made, warnings=(warning, *made.warnings))
    replicas = deployment.data_parallel_size
    note = f"{replicas} replicas hold requests of their own; the figures are those of one"
    said = any(line.endswith("the figures are those of one") for line in made.notes)
    if replicas > 1 and not said:
        made = msgspec.structs.replace(made, notes=(*made.notes, note))
    return made


def refusal_codes(engine: str) -> frozenset[str]:
    """Return the codes of what an engine refuses when it starts; none where nobody listed it."""
    from kvcalc.engines.refusals import by_code  # few questions ask

    return frozenset(by_code(engine))


def release_warning(engine: str, version: str | None) -> str:
    """Say that a release is newer than those whose rules are known; "" where it is not.

    Raises:
        UnknownNameError, UnsupportedError: see `known`.
        UnknownReleaseError: no release, or one older than those that are known.
    """
    if version is None:
        return ""
    releases = getattr(import_module(ENGINES[known(engine)]), "RELEASES", None)
    return "" if releases is None else str(releases.warning(version))


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return how the plan's engine shares out the memory of one GPU of each of the plan's ranks.

    Args:
        model: as published.
        deployment: as asked for; its `gpu` is the card itself.
        plan: of both.
        weights: one term a rank, in the order of the plan's: the weights that lie on one of its
            GPUs, a draft's included.
        free_bytes: what is free of each card before the engine starts; None where it is alone.

    Raises:
        UnsupportedError: an engine whose budget is not modelled, or a deployment without a card.
        InvalidValueError: another number of weights than of ranks.
    """
    engine = known(deployment.engine)
    if engine not in _BUDGETS:
        raise NotModelledError(
            f"what engine {engine!r} leaves of a card for the cache is not modelled",
            hint=f"known for {', '.join(_BUDGETS)}; or give the cache's memory itself",
        )
    module = import_module(_BUDGETS[engine])
    found: tuple[MemoryBudget, ...] = module.budgets(model, deployment, plan, weights, free_bytes)
    return found


def shares_out(engine: str) -> bool:
    """Whether what an engine leaves of a card for the cache is modelled (see `budgets`)."""
    return known(engine) in _BUDGETS


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return what the plan's engine prints about a cache of so many bytes on each rank.

    The lines of its log, or its refusal; nothing for an engine that prints none. None stands for a
    cache that the settings fix.
    """
    module = import_module(ENGINES[known(plan.engine)])
    told = getattr(module, "start_up_log", None)
    return told(plan, kv_cache_bytes) if told is not None else ()
