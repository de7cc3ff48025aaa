"""Engine `mlx-lm`: what the caches of Apple's mlx-lm hold, to the byte.

Every layer says what it keeps by which rule (`layers`, `states`); which class of mlx-lm runs the
model decides how windows and latents are kept (`architectures`).
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Rule
from kvcalc.engines.mlx_lm.architectures import class_of
from kvcalc.engines.mlx_lm.layers import parts_of
from kvcalc.engines.mlx_lm.notes import convention, explain, not_modelled
from kvcalc.engines.mlx_lm.settings import RELEASES, Settings, resolve

__all__ = ["RELEASES", "plan"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return what mlx-lm holds for a sequence.

    Raises:
        UnsupportedError: what mlx-lm refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    kind = class_of(model)
    if kind.dense_only and settings.quantizes:
        raise UnsupportedError(
            f"mlx-lm's attention of {model.architecture} cannot read a quantised cache (it fails at"
            " the next token)",
            hint="leave kv_bits out",
        )
    pools = _pools(model, settings)
    if not pools:
        raise UnsupportedError(
            f"mlx-lm keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    rules = {group.rule for pool in pools for group in pool.groups}
    notes.extend(explain(model, settings, rules))
    packed = settings.quantizes and not kind.lists
    return CachePlan(
        engine="mlx-lm",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=f"int{settings.bits}_asym_g{settings.group}" if packed else model.dtype,
        model_dtype=model.dtype,
        block_size=None,
        ranks=(Rank(name="rank", pools=pools),),
        split="fungible",
        max_model_len=settings.max_model_len,
        notes=tuple(notes),
        unsupported=not_modelled(model, settings),
        convention=convention(model, settings),
        source=f"mlx-lm {settings.version}: models/cache.py, generate.py",
    )


def _pools(model: ModelSpec, settings: Settings) -> tuple[Pool, ...]:
    """Return a pool for every rule, all layers that follow it together."""
    sizes: dict[tuple[str, Rule], dict[str, int]] = defaultdict(dict)
    layers: dict[tuple[str, Rule], int] = defaultdict(int)
    for run in model.layers:
        rules_of_run = set()
        for part in parts_of(run, model, settings):
            key = (part.name, part.rule)
            rules_of_run.add(key)
            for role, size in part.payload:
                sizes[key][role] = sizes[key].get(role, 0) + run.count * size
        for key in rules_of_run:
            layers[key] += run.count
    pools = []
    for (name, rule), payload in sizes.items():
        unit = rule.slots_per_unit * sum(payload.values())
        group = Group(
            name=name, layers=layers[name, rule], rule=rule, payload=payload, unit_bytes=unit
        )
        pools.append(Pool(name=name, groups=(group,), unit_bytes=unit))
    return tuple(pools)
