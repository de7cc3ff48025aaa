"""Engine `exllamav3`: pages for global attention, rings and states by batch slot; read from source.

exllamav3 1.4.1 (4f8ad012, 2026-08-08): cache/*.py, modules/sliding_attn.py, gated_delta_net.py,
short_conv.py, mla_attn.py, dsv4.py. What a layer keeps is in v3_layers, settings in v3_settings.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Rule, Slots
from kvcalc.engines.exllama.pages import PAGE, shared_pool
from kvcalc.engines.exllama.v3_layers import Kept, kept_of, on_rank
from kvcalc.engines.exllama.v3_notes import convention, explain, not_modelled
from kvcalc.engines.exllama.v3_settings import RELEASES, Settings, resolve

__all__ = ["RELEASES", "plan"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the cache that exllamav3 allocates.

    Raises:
        UnsupportedError: what exllamav3 refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    model = msgspec.structs.replace(model, kv_cache_dtype=None)
    settings = resolve(model, deployment, notes)
    share = on_rank(model, settings.tp)
    layers = [(run.count, kept_of(run, share, settings)) for run in share.layers]
    pools = _pools(layers, settings)
    if not pools:
        raise UnsupportedError(
            f"exllamav3 keeps no cache for {model.name}: its layers keep nothing",
            hint="use --engine none to see what its layers are",
        )
    slots = any(pool.name != "pages" for pool in pools)
    paged = any(pool.name == "pages" for pool in pools)
    length = min(settings.max_model_len, settings.cache_size) if paged else settings.max_model_len
    return CachePlan(
        engine="exllamav3",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.dtype,
        model_dtype="float16",
        block_size=PAGE if paged else None,
        ranks=(Rank(name="rank", pools=pools, multiplicity=settings.tp),),
        split="fixed",
        max_model_len=length,
        max_sequences=settings.batch if slots else None,
        reuse_tokens=PAGE if paged and not slots else None,
        report="tokens",
        notes=(*notes, *explain(share, settings, pools)),
        unsupported=not_modelled(share, settings, slots=slots),
        convention=convention(settings, slots=slots),
        source=f"exllamav3 {settings.version}: cache/, modules/ (read)",
    )


def _pools(layers: list[tuple[int, Kept]], settings: Settings) -> tuple[Pool, ...]:
    """Return the pages of all layers, a ring for every window, and states, a unit a slot."""
    pages: dict[Rule, dict[str, int]] = defaultdict(dict)
    rings: dict[Rule, dict[str, int]] = defaultdict(dict)
    ring_layers: dict[Rule, int] = defaultdict(int)
    states: dict[str, int] = {}
    history = paged_layers = state_layers = 0
    for count, kept in layers:
        for table, parts in ((pages, kept.pages), (rings, kept.rings)):
            for rule, payload in parts:
                for role, size in payload:
                    table[rule][role] = table[rule].get(role, 0) + count * size
        for rule, _ in kept.rings:
            ring_layers[rule] += count
        for role, size in kept.states:
            states[role] = states.get(role, 0) + count * size
        history += count * kept.history
        paged_layers += count * bool(kept.pages)
        state_layers += count * bool(kept.states)
    found = []
    if pages:
        found.append(shared_pool("pages", pages, paged_layers, settings.pages))
    for rule, sizes in rings.items():
        rows = rule.held(0)
        name, units = f"rings of {rows} rows", settings.batch * rows
        found.append(shared_pool(name, {rule: sizes}, ring_layers[rule], units, None))
    if states:
        found.append(_states(states, history, state_layers, settings.batch))
    return tuple(found)


def _states(states: dict[str, int], history: int, layers: int, batch: int) -> Pool:
    unit = sum(states.values()) + history
    group = Group(
        name="state",
        layers=layers,
        rule=Slots(),
        payload=states,
        unit_bytes=unit,
        lookahead_bytes=history,
    )
    return Pool(name="states", groups=(group,), unit_bytes=unit, units=batch)
