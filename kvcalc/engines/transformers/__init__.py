"""Engine `transformers`: what the caches of Hugging Face transformers hold, to the byte.

The model is first put as transformers holds it (`held`); then every layer says what it keeps by
which rule (`layers`, `compressed`, `quantized`), or blocks are made of all layers (`paged`).
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.layers import LayerRun
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.recurrent import LightningAttention
from kvcalc.core.rules import Rule
from kvcalc.engines.served import check_served
from kvcalc.engines.transformers.held import as_held
from kvcalc.engines.transformers.layers import COUNTER_BYTES, Part, counters, parts_of
from kvcalc.engines.transformers.notes import convention, explain, not_modelled
from kvcalc.engines.transformers.offload import resident
from kvcalc.engines.transformers.paged import plan_paged
from kvcalc.engines.transformers.quantized import (
    Quantization,
    check_quantized,
    quantization_of,
    quantized_parts,
)
from kvcalc.engines.transformers.settings import Settings, resolve
from kvcalc.engines.transformers.tensors import tensor_bytes
from kvcalc.engines.transformers.version import RELEASES

__all__ = ["RELEASES", "plan", "tensor_bytes"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return what transformers holds for a sequence.

    Raises:
        UnsupportedError: what transformers refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    number = settings.release.major, settings.release.minor, settings.release.patch
    newer = RELEASES.read(deployment.engine_version).newer
    check_served(model, __package__, "transformers", number, notes, newer=newer)
    settings = _own_cache(model, settings, notes)
    held = as_held(model, settings, notes)
    if settings.cache == "paged":
        return plan_paged(held, settings, notes)
    quantization = None
    if settings.cache == "quantized":
        quantization = quantization_of(settings.arguments, settings)
        check_quantized(held, quantization, settings)
    layers = _layers(held, settings, quantization)
    counted = sum(run.count * counters(run, settings, held.architecture) for run in held.layers)
    host: tuple[HostPart, ...] = ()
    if settings.offloaded:
        layers, host = resident(layers, held, settings, notes)
    pools = _pools(layers)
    if not pools:
        raise UnsupportedError(
            f"transformers keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    notes.extend(explain(held, settings, quantization, counted * COUNTER_BYTES))
    dtype = quantization.dtype if quantization else None
    return CachePlan(
        engine="transformers",
        engine_version=str(settings.release),
        model=model.name,
        kv_cache_dtype=dtype or held.dtype,
        model_dtype=held.dtype,
        block_size=None,
        ranks=(
            Rank(
                name="rank",
                share=held,
                pools=pools,
                multiplicity=settings.tp,
                fixed_bytes=counted * COUNTER_BYTES,
            ),
        ),
        split="fungible",
        start="never_checks",
        max_model_len=settings.max_model_len,
        host=(processes(settings.tp), *host),
        notes=tuple(notes),
        unsupported=not_modelled(held, settings, quantization),
        convention=convention(held, settings, quantization),
        source=f"transformers {settings.release}: cache_utils.py, generation/utils.py",
    )


def _own_cache(model: ModelSpec, settings: Settings, notes: list[str]) -> Settings:
    """MiniMax-01 takes no other cache than its own, which grows (MiniMaxCache)."""
    if not any(isinstance(cache, LightningAttention) for _, cache in model.caches()):
        return settings
    if settings.cache in ("quantized", "paged") or settings.offloaded:
        raise UnsupportedError(
            f"{model.name} takes only the cache class of its own, which grows",
            hint="leave cache_implementation out",
        )
    if settings.cache == "static":
        notes.append(
            "the model takes only the cache class of its own: cache_implementation is"
            " ignored, and the cache grows"
        )
    return settings._replace(cache="dynamic")


def _layers(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> list[tuple[LayerRun, list[Part]]]:
    """Return every layer in order with what it keeps."""
    found: list[tuple[LayerRun, list[Part]]] = []
    for run in model.layers:
        if quantization is None:
            parts = parts_of(run, model.dtype, settings)
        else:
            parts = quantized_parts(run.caches[0], model.dtype, quantization, settings)
        found.extend([(run, parts)] * run.count)
    return found


def _pools(layers: list[tuple[LayerRun, list[Part]]]) -> tuple[Pool, ...]:
    """Put what all layers keep by one rule into one pool; bytes of one pool may serve another."""
    payloads: dict[tuple[str, Rule], dict[str, int]] = {}
    counts: dict[tuple[str, Rule], int] = defaultdict(int)
    for _, parts in layers:
        keys = set()
        for part in parts:
            key = (part.name, part.rule)
            keys.add(key)
            payload = payloads.setdefault(key, {})
            for role, size in part.payload:
                payload[role] = payload.get(role, 0) + size
        for key in keys:
            counts[key] += 1
    pools = []
    for (name, rule), payload in payloads.items():
        unit = rule.slots_per_unit * sum(payload.values())
        group = Group(
            name=name, layers=counts[name, rule], rule=rule, payload=payload, unit_bytes=unit
        )
        pools.append(Pool(name=name, groups=(group,), unit_bytes=unit))
    return tuple(pools)
