"""How vLLM plans, whatever the platform: settings, specs, groups, pools.

Settings and their defaults (`settings`), a spec for every layer's cache and the block size (what
the platform describes), groups (`grouping`), pools (`assemble`).
"""

from __future__ import annotations

from math import lcm

import msgspec

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines.vllm.assemble import ranks_of
from kvcalc.engines.vllm.attention import packed_dtype
from kvcalc.engines.vllm.checks import check_context_parallel
from kvcalc.engines.vllm.graphs import state_floors
from kvcalc.engines.vllm.grouping import Grouping, group_layers
from kvcalc.engines.vllm.host import host_parts, notes_on_arguments
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.notes import explain
from kvcalc.engines.vllm.offload import check_offload, note_on_offload
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.release_notes import notes_of_release
from kvcalc.engines.vllm.settings import Settings, resolve
from kvcalc.engines.vllm.start_checks import check_block, check_settings, check_split
from kvcalc.engines.vllm.version import LAST_V0

__all__ = ["plan_on"]

_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def plan_on(platform: Platform, model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on a platform.

    Raises:
        UnsupportedError: what vLLM refuses for this model and card, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    allowed = deployment.engine_args.get(_LONGER)
    notes = [
        f"{line}: {_LONGER}={allowed} is set"
        if allowed
        else f"{line}: vLLM refuses that unless {_LONGER}=1 is set"
        for line in beyond(model, deployment.max_model_len)
    ]
    model, settings = resolved = resolve(model, deployment, notes, platform.card)
    cuda = platform.card is None
    if cuda and settings.release.line <= LAST_V0:
        from kvcalc.engines.vllm.v0 import plan_v0, starts_v0

        if starts_v0(model, deployment, settings):
            check_settings(model, deployment, settings, v0=True)
            made = plan_v0(model, settings, deployment, notes)
            check_split(model, deployment, settings)
            return msgspec.structs.replace(made, resolved=resolved)
    if cuda:
        check_settings(model, deployment, settings, v0=False)
    platform.check(model, settings)
    layered = _with_drafts(_as_built(model, settings, notes), settings)
    share = layered.on_rank(settings.tp)
    if cuda:
        check_split(model, deployment, settings)
    layers = platform.describe(model, settings, share, notes)
    if cuda:
        check_block(layers, deployment, settings)
    check_context_parallel(model, layers, settings)
    grouping = group_layers(
        layers.placed,
        packed=layers.packed,
        hybrid_manager=settings.hybrid_manager,
        rules=settings.rules,
    )
    if not grouping.groups:
        raise UnsupportedError(
            f"vLLM keeps no KV cache for {model.name}: it is an encoder",
            hint="use --engine none to see what its layers are",
        )
    check_offload(model, deployment, settings.release, len(grouping.groups))
    ranks = ranks_of(grouping, model.num_hidden_layers, settings)
    if settings.pp == 1:
        ranks = (msgspec.structs.replace(ranks[0], share=share),)
    floors = state_floors(layered, deployment, layers, settings) if cuda else ()
    notes.extend(explain(model, layers, grouping, ranks, settings))
    notes.extend(floor.condition for floor in floors)
    notes.extend(notes_of_release(model, grouping, settings))
    notes.extend(notes_on_arguments(model, deployment))
    notes.extend(filter(None, (note_on_offload(model, deployment, settings.release),)))
    return CachePlan(
        engine=platform.engine,
        engine_version=platform.version or str(settings.release),
        model=model.name,
        kv_cache_dtype=packed_dtype(layers.kv_dtype, model.dtype).name,
        model_dtype=model.dtype,
        block_size=_block_size(grouping),
        ranks=ranks,
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_running=settings.max_running,
        reuse_tokens=_reuse(grouping, layers, settings) if settings.prefix_caching else None,
        report=settings.rules.report,
        # Pages side by side once counted by their width: get_max_concurrency_for_kv_cache_config.
        weighs_groups=grouping.packed and settings.rules.pads_windows,
        check=settings.rules.check,
        check_spares_reserved=settings.rules.spares_null_block,
        check_fixed_units=settings.rules.override_in_check,
        floors=floors,
        host=host_parts(model, deployment, ranks, settings.release),
        notes=tuple(notes),
        unsupported=platform.unsupported(layers, grouping, settings),
        convention=platform.convention(settings),
        doubt=settings.doubt,
        source=platform.source(settings),
        resolved=resolved,
    )


def _as_built(model: ModelSpec, settings: Settings, notes: list[str]) -> ModelSpec:
    """Return the model with the windows that vLLM's class for it makes of the config's."""
    if not settings.rules.widens_cohere or not (model.architecture or "").startswith("Cohere2"):
        return model
    wider: dict[Cache, SlidingWindow] = {
        cache: msgspec.structs.replace(cache, sliding_window=cache.sliding_window + 1)
        for _, cache in model.caches()
        if isinstance(cache, SlidingWindow)
    }
    notes.extend(
        f"window layers see {w.sliding_window} tokens: their own too" for w in set(wider.values())
    )
    layers = tuple(
        msgspec.structs.replace(run, caches=tuple(wider.get(c, c) for c in run.caches))
        for run in model.layers
    )
    return msgspec.structs.replace(model, layers=layers)


def _with_drafts(model: ModelSpec, settings: Settings) -> ModelSpec:
    """Return the model with the layers that propose tokens behind its own."""
    if settings.speculation is None or not settings.speculation.layers:
        return model
    layers = (*model.layers, *settings.speculation.layers)
    return msgspec.structs.replace(
        model, layers=layers, num_hidden_layers=sum(run.count for run in layers)
    )


def _block_size(grouping: Grouping) -> int:
    """Tokens a block of the layers that grow, else of the first group."""
    specs = [members[0].spec for members in grouping.groups]
    for kinds in (("full", "mla"), ("window", "window_mla", "chunk")):
        for spec in specs:
            if spec.kind in kinds:
                return spec.block
    return specs[0].block


def _reuse(grouping: Grouping, layers: Layers, settings: Settings) -> int:
    """Tokens in whole multiples of which a shared prefix is reused.

    vLLM 0.33 v1/core/kv_cache_utils.py, resolve_kv_cache_block_sizes: the scheduler's block.
    """
    if len(grouping.groups) == 1:
        return layers.block_size * settings.dcp
    return lcm(
        *(
            spec.block * (1 if spec.kind == "state" else settings.dcp)
            for spec in (members[0].spec for members in grouping.groups)
        )
    )
