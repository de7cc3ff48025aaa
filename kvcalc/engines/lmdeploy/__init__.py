"""Engine `lmdeploy`: what LMDeploy's PyTorch and TurboMind engines allocate, to the last block."""

from __future__ import annotations

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool, Rank
from kvcalc.core.rules import Window
from kvcalc.core.units import format_count
from kvcalc.engines.every_token import kept_group
from kvcalc.engines.lmdeploy.layers import Shape, shape_of, split
from kvcalc.engines.lmdeploy.packing import tensors_of
from kvcalc.engines.lmdeploy.pytorch import indexer_bytes, rank_of
from kvcalc.engines.lmdeploy.settings import Settings, resolve
from kvcalc.engines.lmdeploy.version import RELEASES
from kvcalc.engines.served import check_served

__all__ = ["RELEASES", "plan"]


_TURBOMIND_READ = (0, 16, 0)
"""Which architectures TurboMind had before was not read."""
_NAMES = {
    "int8": "int8_asym",
    "int4": "int4_asym",
    "fp8": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "turbo_quant": "turbo_quant",
}


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that LMDeploy makes.

    Raises:
        UnsupportedError: what LMDeploy refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    settings = resolve(model, deployment, notes)
    check_model(model, settings, deployment.engine_version, notes)
    model = msgspec.structs.replace(model, dtype=settings.dtype, kv_cache_dtype=None)
    if settings.backend == "turbomind":
        rank, shape = turbomind_rank(model, settings)
        block = settings.block
    else:
        rank, block, shape = rank_of(model, settings, notes)
    rank = msgspec.structs.replace(rank, share=split(model, settings.tp))
    windows = any(limit is not None for _, limit, _ in shape.spans)
    freed = isinstance(rank.pools[0].groups[0].rule, Window)
    if windows and not freed:
        notes.append("every layer keeps every token: windows and chunks save nothing")
    # executor/base.py, _maybe_disable_unsupported_prefix_caching: where the engine has a window.
    shares = settings.prefix_caching and not (freed if settings.backend == "pytorch" else windows)
    name = _NAMES.get(settings.policy, model.dtype)
    return CachePlan(
        engine="lmdeploy",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=name,
        model_dtype=model.dtype,
        block_size=block,
        ranks=(rank,),
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_sequences=settings.max_batch_size,
        reuse_tokens=block if shares else None,
        report="tokens",
        check="window" if freed else "units",
        start="shortens" if settings.shortens else "never_checks",
        start_spares_tokens=block if settings.backend == "pytorch" else 0,
        notes=tuple(notes),
        unsupported=tuple(_not_modelled(shape, settings, block)),
        convention=tuple(_convention(rank.pools[-1].name == "states", settings)),
        source=f"LMDeploy {settings.version}: {_SOURCES[settings.backend]}",
        resolved=settings,
    )


_SOURCES = {
    "pytorch": "pytorch/engine/cache_engine/, pytorch/engine/executor/base.py",
    "turbomind": "src/turbomind/kernels/attention/block.h, Layout",
}


def check_model(
    model: ModelSpec, settings: Settings, version: str | None, notes: list[str]
) -> None:
    """Refuse an architecture that the engine has not: module_map.py, supported_models.py.

    Raises:
        UnsupportedError: the release does not serve it, or its other engine does.
        NotModelledError: nothing says whether it does.
    """
    asked = RELEASES.read(version)
    if settings.backend == "turbomind" and asked.number < _TURBOMIND_READ:
        return
    span = check_served(model, __package__, "LMDeploy", asked.number, notes, newer=asked.newer)
    if span is not None and span.how not in ("own", settings.backend):
        raise UnsupportedError(
            f"{model.architecture} is served by LMDeploy's {span.how} engine alone",
            hint=f"choose backend={span.how} in engine_args",
            code="unserved-model",
        )


def _convention(states: bool, settings: Settings) -> list[str]:
    found = ["The bytes given are those of the blocks: cache_max_entry_count of what is free."]
    if states:
        found.append("States come on top of them, in slots that the batch size fixes.")
    if settings.backend == "pytorch":
        found.append(
            "One block is reserved for dummy inputs, and the longest sequence is one block less"
            " than the others hold; a config that names no dtype is run in float16 by LMDeploy"
            " (dtype says otherwise)."
        )
    return found


def _not_modelled(shape: Shape, settings: Settings, block: int) -> list[str]:
    found = []
    keys = indexer_bytes(shape)
    if keys:
        found.append(
            "the sparse indexers' keys are caches of their own, made once the model is built:"
            f" {format_count(keys)} B a token, {format_count(keys * block)} B a block"
        )
    if settings.backend == "turbomind":
        found.append(
            "TurboMind's rules were read in its source, not compared with a running engine, apart"
            " from one log"
        )
    return found


# LMDeploy's TurboMind engine: blocks in which all layers lie one behind another.
#
# Read, not run: lmdeploy src/turbomind/kernels/attention/block.h (Layout) and
# models/llama/unified_attention_layer.cc at 0.16; BlockManager.cc before.

_SHARED_HEAD = 576
"""A head of so many elements is MLA's: K and V are one row."""
_POLICIES = ("none", "int4", "int8")


def turbomind_rank(model: ModelSpec, settings: Settings) -> tuple[Rank, Shape]:
    """Return one rank's pool and the shape of its layers.

    Raises:
        UnsupportedError: layers or packings that are not modelled.
    """
    if settings.policy not in _POLICIES:
        raise UnsupportedError(
            f"TurboMind has no quant_policy {settings.policy}",
            hint=f"it has {', '.join(_POLICIES)}; the PyTorch engine has more",
        )
    share = split(model, settings.tp)
    for _, cache in share.caches():
        if cache.states():
            raise NotModelledError(
                f"how TurboMind keeps {cache.kind} states is not modelled",
                hint="the PyTorch engine's are: backend=pytorch",
            )
    shape = shape_of(share)
    if shape.index_width or (shape.latent and shape.k != _SHARED_HEAD):
        raise NotModelledError(
            f"how TurboMind keeps the layers of {model.name} is not modelled",
            hint="the PyTorch engine's are: backend=pytorch",
        )
    tensors = tensors_of(shape.heads, shape.k, shape.v, settings.policy, model.dtype)
    if shape.latent:
        tensors = tuple(t for t in tensors if t.role in ("k", "k_scale"))
    page = settings.block * sum(t.token_bytes for t in tensors)
    payload = {t.role: t.token_bytes for t in tensors}
    group = kept_group(shape.spans, payload, settings.block, page)
    blocks = settings.num_gpu_blocks
    if blocks is None and settings.free_memory is not None:
        blocks = int(settings.free_memory * settings.entry_count) // group.unit_bytes
        if not blocks:
            raise UnsupportedError(
                "no block fits into the memory", hint="give more memory or a larger share of it"
            )
    pool = Pool(name="blocks", groups=(group,), unit_bytes=group.unit_bytes, units=blocks)
    return Rank(name="rank", pools=(pool,), multiplicity=settings.tp), shape
