"""What a plan of exllamav3 says of itself: why a number is what it is, and what is left out."""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Pool
from kvcalc.core.units import format_count
from kvcalc.engines.exllama.v3_settings import Settings

__all__ = ["convention", "explain", "not_modelled"]


def explain(model: ModelSpec, settings: Settings, pools: tuple[Pool, ...]) -> tuple[str, ...]:
    """Return a line for every rule that moved a number."""
    caches = [cache for _, cache in model.caches()]
    rings = any(pool.name.startswith("rings") for pool in pools)
    states = next((pool for pool in pools if pool.name == "states"), None)
    slots = rings or states is not None
    conv = states is not None and "conv" in states.groups[0].payload
    recurrent = states is not None and "recurrent" in states.groups[0].payload
    entries = any(isinstance(cache, CompressedAttention) for cache in caches)
    history = states.groups[0].lookahead_bytes if states else 0
    windows = any(isinstance(cache, SlidingWindow) for cache in caches)
    told = {
        f"K and V are kept in float16, whatever the model dtype ({model.dtype})": (
            model.dtype != "float16" and settings.bits is None
        ),
        f"{settings.batch} batch slots are allocated, whether sequences use them or not"
        " (max_batch_size)": slots,
        "a window has a ring of its own in every slot, in float16, two pages longer than itself": (
            rings
        ),
        "windows lie in pages as every token does, and save nothing": windows and not rings,
        "convolutions keep all K columns": conv,
        "recurrent states are in float32": recurrent,
        "compressed entries stay in float16, whatever cache_quant says": (
            entries and settings.bits is not None
        ),
        f"a slot has {format_count(history)} B to take proposed tokens back": history > 0,
        "an MLA model's latent takes the bits of K; its rotary key stays in float16": (
            settings.bits is not None and any(isinstance(cache, Mla) for cache in caches)
        ),
    }
    return tuple(line for line, holds in told.items() if holds)


def convention(settings: Settings, *, slots: bool) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    whole = "The whole cache is allocated when the model is loaded"
    found = [f"{whole}; pages of 256 tokens are shared by all sequences."]
    if not settings.size_given:
        found = [*found, "Without cache_size it has room for one sequence of the maximum."]
    if slots:
        found = [*found, "A sequence takes a batch slot, which bounds how many run at once."]
    return tuple(found)


def not_modelled(model: ModelSpec, settings: Settings, *, slots: bool) -> tuple[str, ...]:
    """Return what is not modelled, with the size of the difference."""
    found = ["exllamav3's rules were read in its source, not compared with a running engine"]
    widest = max(
        (
            c.num_kv_heads * c.head_dim
            for _, c in model.caches()
            if isinstance(c, (FullAttention, SlidingWindow))
        ),
        default=0,
    )
    if settings.bits is not None and widest:
        copy = 4 * widest * settings.cache_size
        found.append(
            "attention kernels that cannot read quantised pages make one layer's in float16 for a"
            f" moment: {format_count(copy)} B"
        )
    if slots:
        found.append(
            "checkpoints of states and rings are kept in the host's memory: up to 4 GiB"
            " (recurrent_cache_size)"
        )
    if settings.tp > 1:
        found.append("heads are split evenly here; exllamav3 splits them by the cards' memory")
    found.append("a draft model's cache comes on top: plan it as a model of its own")
    return tuple(found)
