"""Engine `lmcache`: chunks of LMCache's host or disk tier behind vLLM; read from source.

It serves nothing itself: a plan says what a sequence's stored chunks take of a worker's pool. Read
in the wheel of 0.5.6 (3e11e108): v1/memory_management.py (AddressManager), v1/memory_allocators/
tensor_memory_allocator.py, v1/storage_backend/local_cpu_backend.py, v1/metadata.py,
v1/token_database.py, integration/vllm/utils.py.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import msgspec

from kvcalc.core.attention import ChunkedAttention, FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import KvDtype
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Compressed, Grow, Rule
from kvcalc.core.units import format_count
from kvcalc.engines.releases import Releases
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


# What LMCache stores of a token: the rows of every attention layer, as vLLM's cache holds them.

_PLAIN = ("float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8")


class Stored(NamedTuple):
    """One worker's layers.

    Attributes:
        payload: bytes of a token by role, all layers.
        sizes: (layers, bytes of a token of one of them).
        windows: some layers have a window or a chunk.
        latent: the model is one of latent attention.
    """

    payload: dict[str, int]
    sizes: tuple[tuple[int, int], ...]
    windows: bool
    latent: bool

    @property
    def layers(self) -> int:
        """Layers whose rows are stored; a layer with an indexer counts once for each cache."""
        return sum(count for count, _ in self.sizes)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token of all layers."""
        return sum(self.payload.values())


def shard(model: ModelSpec, tp: int, pp: int) -> tuple[ModelSpec, ...]:
    """Return what a worker of each pipeline stage keeps, as vLLM splits the model.

    Raises:
        UnsupportedError: heads or layers that cannot be split so.
    """
    return model.on_rank(tp).stages(pp)


def stored_of(model: ModelSpec, dtype: KvDtype) -> Stored:
    """Return what is stored of one worker's layers.

    metadata.py, get_shapes: [1 or 2, layers, tokens, heads x width] for every group of layers of
    one shape.

    Raises:
        UnsupportedError: layers or dtypes whose chunks are not modelled.
    """
    if dtype.k != dtype.v or dtype.k.name not in _PLAIN:
        raise NotModelledError(
            f"how LMCache stores a cache in {dtype.name} is not modelled",
            hint=f"use {', '.join(_PLAIN)}",
        )
    payload: dict[str, int] = {}
    sizes: list[tuple[int, int]] = []
    windows = latent = False
    for count, cache in model.caches():
        match cache:
            case FullAttention() | SlidingWindow() | ChunkedAttention() | Mla():
                windows = windows or isinstance(cache, (SlidingWindow, ChunkedAttention))
                latent = latent or isinstance(cache, Mla)
            case Indexer(compress_ratio=1):
                pass
            case _ if not cache.rows() and not cache.states():
                continue
            case _:
                raise NotModelledError(
                    f"how LMCache stores {cache.kind} caches is not modelled",
                    hint="models of attention layers alone are",
                )
        size = 0
        for row in cache.rows():
            bytes_ = dtype.bytes_of(row)
            payload[row.role] = payload.get(row.role, 0) + count * bytes_
            size += bytes_
        sizes.append((count, size))
    if not sizes:
        raise UnsupportedError(
            f"LMCache stores nothing of {model.name}: its layers keep no rows",
            hint="use --engine none to see what its layers are",
        )
    return Stored(payload, tuple(sizes), windows, latent)


# A deployment as LMCache resolves it: chunk size, the tier and its bytes.
#
# LMCache 0.5.6 v1/config.py; the defaults are those of the configuration's own table.

RELEASES = Releases("LMCache", (0, 5, 0), (0, 5, 6))
_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "kv_cache_memory_bytes",
    "engine_args",
}
_ARGUMENTS = (
    "chunk_size",
    "tier",
    "max_local_cpu_size",
    "max_local_disk_size",
    "save_unfull_chunk",
    "use_layerwise",
)
_CHUNK, _DEFAULT_MAX_MODEL_LEN = 256, 8192
_CPU_GB = 5.0


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        dtype: of the cache that chunks are copied from.
        chunk: tokens a chunk.
        tier: cpu or disk.
        tier_bytes: of one worker.
        tier_setting: what set them.
        save_unfull_chunk: the last, partial chunk is stored too.
        layerwise: a chunk is an object for every layer.
    """

    version: str
    tp: int
    pp: int
    dtype: KvDtype
    max_model_len: int
    chunk: int
    tier: str
    tier_bytes: int
    tier_setting: str
    save_unfull_chunk: bool
    layerwise: bool


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Raises:
        UnsupportedError: a setting that LMCache has not, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "LMCache", "leave it out; its own go into engine_args")
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name not in _ARGUMENTS:
            raise UnknownNameError("setting of LMCache", name, _ARGUMENTS)
    length = deployment.max_model_len or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    tier, size, setting = _tier(given, deployment.kv_cache_memory_bytes)
    partial, layerwise = (_switch(given, n) for n in ("save_unfull_chunk", "use_layerwise"))
    if partial and layerwise:
        raise NotModelledError(
            "partial chunks of single layers are not modelled",
            hint="leave out save_unfull_chunk or use_layerwise",
        )
    return Settings(
        version=RELEASES.spelled(RELEASES.read(deployment.engine_version).number),
        tp=deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dtype=model.resolve(deployment.kv_cache_dtype),
        max_model_len=length,
        chunk=_chunk(given.get("chunk_size"), deployment.block_size),
        tier=tier,
        tier_bytes=size,
        tier_setting=setting,
        save_unfull_chunk=partial,
        layerwise=layerwise,
    )


def _chunk(own: object, neutral: int | None) -> int:
    if own is not None and (type(own) is not int or own < 1):
        raise InvalidValueError(f"chunk_size is {own!r:.60}, not a whole number from 1")
    if own is not None and neutral not in (None, own):
        raise InvalidValueError(
            f"chunk_size {own} and block_size {neutral} are two names of one thing here",
            hint="give one of them",
        )
    return neutral or (own if isinstance(own, int) else _CHUNK)


def _tier(given: dict[str, str | int | float | bool], memory: int | None) -> tuple[str, int, str]:
    """Return the tier, its bytes and what set them; sizes are in GB of 2**30 bytes."""
    tier = str(given.get("tier", "cpu"))
    if tier not in ("cpu", "disk"):
        raise UnknownNameError("tier", tier, ("cpu", "disk"))
    name = f"max_local_{tier}_size"
    size = given.get(name)
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, (int, float)) or size <= 0
    ):
        raise InvalidValueError(f"{name} is {size!r:.60}, not a number of GB above 0")
    if memory is not None and size is not None:
        raise InvalidValueError(
            f"{name} and the cache's memory are two names of one thing here",
            hint="give one of them",
        )
    if memory is not None:
        return tier, memory, "kv_cache_memory_bytes"
    if size is None and tier == "disk":
        raise NotModelledError(
            "LMCache's disk tier has no bytes by default", hint=f"give {name} in engine_args"
        )
    amount = _CPU_GB if size is None else size
    default = "" if size is not None else ", the default"
    return tier, int(Decimal(str(amount)) * 2**30), f"{name} {amount}{default}"


def _switch(given: dict[str, str | int | float | bool], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name} is {value!r:.60}, not true or false")
    return value
