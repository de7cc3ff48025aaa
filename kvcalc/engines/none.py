"""Engine `none`: the model's own arithmetic under a stated convention, no engine's habits.

The convention is in CONVENTION, which `--explain` prints.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import KvDtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.kind import All, Chunks, EveryNth, Once, Windowed
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Window
from kvcalc.core.states import STATE_LAYOUTS, VLLM_STATES
from kvcalc.core.units import format_count
from kvcalc.engines.engine import Engine

__all__ = ["CONVENTION", "DEFAULT_BLOCK_SIZE", "DEFAULT_MAX_MODEL_LEN", "ENGINE", "plan"]

DEFAULT_BLOCK_SIZE = 16
DEFAULT_MAX_MODEL_LEN = 8192

CONVENTION = {
    "rows": "K and V rows are kept in the KV cache dtype; latent and rotary rows of MLA likewise.",
    "index": (
        "Indexer rows are kept as the model's published reference stores them (DeepSeek-V3.2:"
        " 128 fp8 and one fp32 scale, 132 B)."
    ),
    "state": (
        "A convolution keeps kernel - 1 rows in the model dtype; a recurrent state is in the dtype"
        " that the config gives it, else in the model dtype. A sequence has one live state:"
        " contiguous and paged both hold it, so it is used, not wasted."
    ),
    "spans": (
        "Layers that keep every token share one pool of blocks. A window of W tokens keeps"
        " min(n, W) tokens and a chunk of C those since the last multiple of C, in whole blocks of"
        " their own, filled round and round (an engine that pages by position can touch one block"
        " more). What a sequence comes to is its fullest moment on the way: a chunk counts as"
        " full. Bytes left by one pool serve another."
    ),
    "pages": "No page is widened and no group of layers is filled up.",
    "ranks": (
        "KV heads are split evenly over tensor-parallel ranks, or replicated evenly when there are"
        " more ranks than heads; an MLA row is on every rank. Layers that do not divide over"
        " pipeline stages go to the stages counted back from the last but one."
    ),
}
"""What `none` assumes, by subject; a plan names the sentences that its model is touched by."""


def _convention(model: ModelSpec, deployment: Deployment) -> tuple[str, ...]:
    caches = [cache for _, cache in model.caches()]
    touched = {
        "rows": any(cache.rows() for cache in caches),
        "index": any(row.role == "index" for cache in caches for row in cache.rows()),
        "state": any(cache.states() for cache in caches),
        "spans": any(not isinstance(cache.span, All) for cache in caches),
        "pages": True,
        "ranks": deployment.num_gpus > deployment.data_parallel_size,
    }
    return tuple(sentence for subject, sentence in CONVENTION.items() if touched[subject])


_KNOWN = {
    "engine",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "kv_cache_memory_bytes",
}


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan of the stated convention.

    Raises:
        UnsupportedError: a setting that only an engine has, heads or layers that cannot be split,
            or a dtype that cannot pack the model's rows.
    """
    deployment.refuse_others(
        _KNOWN, "engine none", "leave it out, or name the engine it belongs to"
    )
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    dtype = model.resolve(deployment.kv_cache_dtype)
    block = deployment.block_size or DEFAULT_BLOCK_SIZE
    length = deployment.max_model_len or model.max_position_embeddings or DEFAULT_MAX_MODEL_LEN
    tp, dcp = deployment.tensor_parallel_size, deployment.decode_context_parallel_size
    _check_context_parallel(model, tp, dcp)
    stages = model.stages(deployment.pipeline_parallel_size)
    ranks = tuple(
        Rank(
            name=f"stage {i}" if len(stages) > 1 else "rank",
            share=share,
            pools=_pools(share, dtype, block),
            multiplicity=tp,
            token_factor=dcp,
        )
        for i, share in enumerate(stage.on_rank(tp) for stage in stages)
    )
    pools = ranks[0].pools
    return CachePlan(
        engine="none",
        model=model.name,
        kv_cache_dtype=dtype.name,
        model_dtype=model.dtype,
        block_size=block,
        ranks=ranks,
        split="one_pool" if all(len(r.pools) == 1 for r in ranks) and pools else "fungible",
        max_model_len=length,
        notes=tuple(_notes(model, deployment)),
        convention=_convention(model, deployment),
        source="the convention of kvcalc (see --explain)",
    )


def _check_context_parallel(model: ModelSpec, tp: int, dcp: int) -> None:
    if dcp == 1:
        return
    for _, cache in model.caches():
        if not cache.rows():
            continue
        if not isinstance(cache.span, All):
            raise UnsupportedError(
                f"decode context parallelism does not split {cache.kind} caches",
                hint="use a decode context parallel size of 1 for this model",
            )
        if cache.replicas(tp) % dcp:
            raise UnsupportedError(
                f"decode context parallel size {dcp}: only {cache.replicas(tp)} of {tp} ranks keep"
                f" the same {cache.kind} rows",
                hint="it splits what tensor parallelism replicates: raise the tensor parallel size",
            )


def _pools(model: ModelSpec, dtype: KvDtype, block: int) -> tuple[Pool, ...]:
    """Put every cache of a rank's layers into the pool that its span asks for."""
    payloads: dict[tuple[str, Rule], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    layers: dict[tuple[str, Rule], int] = defaultdict(int)
    for count, cache in model.caches():
        if cache.rows():
            key = _rule(cache, block)
            layers[key] += count
            for row in cache.rows():
                payloads[key][row.role] += count * dtype.bytes_of(row)
        if cache.states():
            key = ("state", Slots())
            layers[key] += count
            for state in cache.states():
                payloads[key][state.role] += count * VLLM_STATES.bytes_of(state, model.dtype)
    pools = []
    for (name, rule), payload in payloads.items():
        unit = rule.slots_per_unit * sum(payload.values())
        group = Group(
            name=name,
            layers=layers[name, rule],
            rule=rule,
            payload=dict(payload),
            unit_bytes=unit,
        )
        pools.append(Pool(name=name, groups=(group,), unit_bytes=unit))
    # Growing pool first, state last: the order a reader expects.
    return tuple(sorted(pools, key=lambda p: _ORDER.index(type(p.groups[0].rule))))


_ORDER: list[type[Rule]] = [Grow, Compressed, Window, Chunk, Fixed, Slots]


def _rule(cache: Cache, block: int) -> tuple[str, Rule]:
    match cache.span:
        case All():
            return "every token", Grow(block_tokens=block)
        case Windowed(tokens=window):
            return f"window {window}", Window(block_tokens=block, window=window, ring=True)
        case Chunks(tokens=chunk):
            return f"chunk {chunk}", Chunk(block_tokens=block, chunk=chunk, ring=True)
        case EveryNth(ratio=ratio):
            return f"1 in {ratio}", Compressed(block_entries=block, ratio=ratio)
        case Once(tokens=tokens):
            return "encoder", Fixed(block_tokens=tokens, tokens=tokens)


def _notes(model: ModelSpec, deployment: Deployment) -> list[str]:
    notes = beyond(model, deployment.max_model_len)
    asked_for = (deployment.dtype, deployment.kv_cache_dtype)
    if asked_for == ("auto", "auto") and model.resolve("auto").k.name == "float32":
        notes.append(
            "published in float32, and counted so; engines run such a model in 16 bits unless told"
            " otherwise: --dtype bfloat16"
        )
    state = model.state_bytes()
    if state:
        others = [
            f"{layout.engine} holds {format_count(model.state_bytes(layout))}"
            for layout in STATE_LAYOUTS
            if layout != VLLM_STATES and model.state_bytes(layout) != state
        ]
        notes.append(
            f"a sequence keeps {format_count(state)} B of state whatever its length, in vLLM's"
            " layout" + (f"; {' and '.join(others)}" if others else "")
        )
    tp, pp = deployment.tensor_parallel_size, deployment.pipeline_parallel_size
    replicas = {cache.replicas(tp) for _, cache in model.caches() if cache.rows()}
    copies = max(replicas, default=1) // deployment.decode_context_parallel_size
    if copies > 1:
        notes.append(
            f"{copies} of {tp} tensor-parallel ranks keep the same rows: the cache is stored"
            f" {copies} times" + (" in part of the layers" if len(replicas) > 1 else "")
        )
    sizes = stage_sizes(model.num_hidden_layers, pp)
    if len(set(sizes)) > 1:
        notes.append(
            f"{model.num_hidden_layers} layers over {pp} stages:"
            f" {' + '.join(map(str, sizes))}; the fullest stage is shown"
        )
    return notes


class _NoEngine(Engine):
    sequences = None


ENGINE = _NoEngine("none")
