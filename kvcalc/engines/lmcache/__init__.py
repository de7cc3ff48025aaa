"""Engine `lmcache`: chunks of LMCache's host or disk tier behind vLLM; read from source.

It serves nothing itself: a plan says what a sequence's stored chunks take of a worker's pool. Read
in the wheel of 0.5.6 (3e11e108): v1/memory_management.py (AddressManager), v1/memory_allocators/
tensor_memory_allocator.py, v1/storage_backend/local_cpu_backend.py, v1/metadata.py,
v1/token_database.py, integration/vllm/utils.py.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Compressed, Grow, Rule
from kvcalc.core.units import format_count
from kvcalc.engines.lmcache.layers import Stored, shard, stored_of
from kvcalc.engines.lmcache.settings import RELEASES, Settings, resolve
from kvcalc.engines.served import check_known

__all__ = ["RELEASES", "plan"]

_ALIGNMENT = 4096
"""Every object is rounded up to so many bytes (AddressManager.ALIGN_BYTES)."""

_PROMPT = (
    "A sequence's tokens are those of its prompt: generated ones are stored only with"
    " save_decode_cache."
)
_BESIDE = "Chunks lie behind vLLM, in a pool of each worker beside the cache on its GPU."


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return what LMCache stores of sequences, and how many chunks its tier holds.

    Raises:
        UnsupportedError: what LMCache's in-process connector has not, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    check_known(model, "kvcalc.engines.vllm", "vLLM")
    notes = beyond(model, deployment.max_model_len)
    if deployment.dtype != "auto":
        model = msgspec.structs.replace(model, dtype=deployment.dtype)
    settings = resolve(model, deployment, notes)
    stages = [stored_of(stage, settings.dtype) for stage in shard(model, settings.tp, settings.pp)]
    latent = stages[0].latent
    if latent and settings.layerwise and settings.tp > 1:
        raise NotModelledError(
            "which ranks store single layers of a latent model is not modelled",
            hint="leave use_layerwise out",
        )
    ranks = tuple(
        Rank(
            name="rank" if settings.pp == 1 else f"stage {number}",
            pools=(_pool(stage, settings),),
            multiplicity=1 if latent else settings.tp,
        )
        for number, stage in enumerate(stages)
    )
    notes += _notes(stages, settings, ranks)
    return CachePlan(
        engine="lmcache",
        engine_version=settings.version,
        model=model.name,
        kv_cache_dtype=settings.dtype.name,
        block_size=settings.chunk,
        ranks=ranks,
        split="fixed",
        max_model_len=settings.max_model_len,
        reuse_tokens=settings.chunk,
        report="tokens",
        notes=tuple(notes),
        unsupported=_not_modelled(settings, ranks[0]),
        convention=(_PROMPT, _BESIDE),
        source=f"LMCache {settings.version}: v1/memory_management.py, local_cpu_backend.py (read)",
    )


def _pool(stored: Stored, settings: Settings) -> Pool:
    """Return the pool of one worker: in chunks, or in tokens where partial chunks are stored."""
    chunk = settings.chunk
    if settings.layerwise:
        unit = sum(count * _aligned(chunk * size) for count, size in stored.sizes)
    else:
        unit = _aligned(chunk * stored.token_bytes)
    held = settings.tier_bytes // unit
    rule: Rule = Compressed(block_entries=1, ratio=chunk, on_demand=True)
    payload = {role: chunk * size for role, size in stored.payload.items()}
    if settings.save_unfull_chunk:
        rule, payload, unit = Grow(block_tokens=1), stored.payload, stored.token_bytes
        held *= chunk
    group = Group(
        name="chunks",
        layers=stored.layers,
        rule=rule,
        payload=payload,
        unit_bytes=unit,
        block_size=1 if settings.save_unfull_chunk else chunk,
    )
    return Pool(name="chunks", groups=(group,), unit_bytes=unit, units=held)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _notes(stages: list[Stored], settings: Settings, ranks: tuple[Rank, ...]) -> list[str]:
    stored = stages[0]
    size = format_count(settings.tier_bytes)
    notes = [f"a worker's {settings.tier} tier has {size} B ({settings.tier_setting})"]
    if not settings.save_unfull_chunk:
        notes.append(
            f"only whole chunks of {settings.chunk} tokens are stored: the last"
            f" {settings.chunk - 1} tokens at most are not, and are no waste here"
        )
    if stored.windows:
        notes.append("windowed layers are stored whole: vLLM runs without its hybrid manager")
    if stored.latent:
        notes.append("an MLA model's chunks are the same on all ranks: the first one alone stores")
    if ranks[0].pools[0].groups[0].content_bytes < ranks[0].pools[0].unit_bytes:
        notes.append(f"objects are rounded up to {_ALIGNMENT} B")
    if settings.layerwise:
        notes.append("each layer's part of a chunk is an object of its own (use_layerwise)")
    return notes


def _not_modelled(settings: Settings, rank: Rank) -> tuple[str, ...]:
    pool = rank.pools[0]
    chunk = pool.unit_bytes * (settings.chunk if settings.save_unfull_chunk else 1)
    read = "LMCache's rules were read in its source, not compared with a running one"
    moving = (
        "objects on their way to or from the tier take room of the pool too: at least a chunk,"
        f" {format_count(chunk)} B"
    )
    others = (
        "the multiprocess server (lmcache_mp_connector), peer-to-peer pools and compressed remote"
        " tiers have objects of other sizes"
    )
    partial = f"a partial chunk is rounded up to {_ALIGNMENT} B, which is not counted"
    return (read, moving, others, *((partial,) if settings.save_unfull_chunk else ()))
