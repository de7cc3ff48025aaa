"""Engine `tgi`: what Hugging Face's text-generation-inference allocates, to the last block.

Read from source: text-generation-inference at db931fc (2026-01-08, 3.3), its Python server and its
v3 router. Nothing was run.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool, Rank
from kvcalc.core.units import format_count
from kvcalc.engines.every_token import kept_group
from kvcalc.engines.tgi.layers import Shape, shape_of
from kvcalc.engines.tgi.settings import RELEASES, Settings, resolve
from kvcalc.engines.tgi.start_up import SHRINKS, start_up_log
from kvcalc.engines.tgi.warm_up import num_blocks

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that text-generation-inference makes.

    Raises:
        UnsupportedError: what it refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    settings = resolve(model, deployment, notes)
    shape = shape_of(model, settings, notes)
    page = settings.block * shape.page_token_bytes
    group = kept_group(shape.spans, shape.payload, settings.block, page)
    pool = Pool(
        name="blocks",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        units=num_blocks(settings, group.unit_bytes, notes),
        reserved_units=1,  # block 0: backends/v3/src/block_allocator.rs and radix.rs
    )
    if any(span.limit is not None for span in shape.spans):
        notes.append("every layer keeps every token: windows save nothing")
    if not settings.length_given:
        notes.append(SHRINKS)
    return CachePlan(
        engine="tgi",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.kv_dtype,
        block_size=settings.block,
        ranks=(Rank(name="rank", pools=(pool,), multiplicity=settings.tp),),
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_sequences=settings.max_batch_size,
        reuse_tokens=settings.block if settings.prefix_caching else None,
        report="tokens",
        check_spares_reserved=False,  # max_total_tokens is compared with all blocks, block 0 too
        notes=tuple(notes),
        unsupported=_NOT_MODELLED,
        convention=_convention(settings, shape),
        source=f"text-generation-inference {settings.version}: {_SOURCE}",
    )


_NOT_MODELLED = (
    "TGI's rules were read in its source (db931fc), not compared with a running server",
    "CUDA graphs and adapters (LoRA) take memory of their own beside the blocks",
)


_SOURCE = (
    "server/text_generation_server/models/flash_causal_lm.py, warmup and init_kv_cache;"
    " layers/attention/kv_cache.py, KVCache"
)


def _convention(settings: Settings, shape: Shape) -> tuple[str, ...]:
    memory = (
        "The bytes given are those of all blocks: what is free after the warm-up, less 1 -"
        f" {settings.wiggle_room:g} of the whole card, and the warm-up batch's own blocks."
    )
    admission = (
        "A request gets the blocks of its prompt and of all tokens that it may generate but the"
        " last when it is admitted, not as it grows."
    )
    heads = f"{format_count(shape.heads)} KV heads of {format_count(shape.width)} elements"
    return (
        memory,
        admission,
        "Block 0 is kept for health checks; the start-up check counts it all the same.",
        f"A rank keeps {heads}, K and V alike.",
    )
