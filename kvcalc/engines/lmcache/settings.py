"""A deployment as LMCache resolves it: chunk size, the tier and its bytes.

LMCache 0.5.6 v1/config.py; the defaults are those of the configuration's own table.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import KvDtype
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "Settings", "resolve"]

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
