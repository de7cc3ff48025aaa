"""A deployment as LMDeploy resolves it: which engine of its two, and every default put in.

LMDeploy 0.18 messages.py, PytorchEngineConfig and TurbomindEngineConfig.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.lmdeploy.version import Release, release

__all__ = ["POLICIES", "Settings", "resolve"]


POLICIES = {"none": 0, "int4": 4, "int8": 8, "fp8": 16, "fp8_e5m2": 17, "turbo_quant": 42}
"""quant_policy by name (messages.py, QuantPolicy)."""
_KV_DTYPES = {"int4": "int4", "int8": "int8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8_e5m2"}
_BY_NUMBER = {number: name for name, number in POLICIES.items()}
_DEFAULT_MAX_MODEL_LEN = 8192
_DEFAULT_BLOCK = 64
_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "engine_args",
}
_OF = {
    "backend": "both",
    "quant_policy": "both",
    "cache_max_entry_count": "both",
    "free_memory": "both",
    "session_len": "both",
    "max_batch_size": "both",
    "cache_block_seq_len": "turbomind",
    "block_size": "pytorch",
    "kernel_block_size": "pytorch",
    "max_prefill_token_num": "pytorch",
    "num_gpu_blocks": "pytorch",
    "prefix_cache_state_budget": "pytorch",
    "vocab_size": "pytorch",
    "flash_mla": "pytorch",
    "enable_prefix_caching": "both",
}
"""Setting -> the engine that has it; `free_memory`, `vocab_size` and `flash_mla` are kvcalc's."""
_SEQUENCES = {"a100": 384, "a800": 384, "h100": 1024, "h800": 1024, "l20y": 1024, "h200": 1024}
_SEQUENCES_ELSE = 128
"""max_batch_size by what the card's name holds (utils.py, get_max_batch_size)."""
_ASSUMED_CARD = "h100"


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        version: of LMDeploy.
        dtype: that the model is run in: float16 or bfloat16.
        backend: pytorch or turbomind.
        policy: how K and V are packed: a name of POLICIES.
        block: tokens a block; `kernel_block`: tokens of the kernels' blocks in it.
        entry_count: share of the free memory that becomes blocks.
        free_memory: bytes free after the weights; None where they are not told.
        num_gpu_blocks: blocks that the settings fix.
        vocab_size: of the model, which sizes the room for logits.
        flash_mla: that package is installed.
        card_bytes: memory of the card that was named.
        shortens: the engine lowers session_len to what its blocks hold.
    """

    version: str
    dtype: str
    backend: str
    tp: int
    policy: str
    block: int
    block_given: bool
    kernel_block: int | None
    max_model_len: int
    max_batch_size: int
    max_prefill_token_num: int
    prefix_caching: bool
    state_budget: int
    entry_count: float
    free_memory: int | None
    num_gpu_blocks: int | None
    vocab_size: int | None
    flash_mla: bool
    card_bytes: int | None
    shortens: bool


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Args:
        model: as published.
        deployment: as asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: a setting that LMDeploy, or that engine of it, has not.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "LMDeploy", "leave it out; its own go into engine_args")
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name not in _OF:
            raise UnknownNameError("setting of LMDeploy", name, _OF)
    backend = given.get("backend", "pytorch")
    if backend not in ("pytorch", "turbomind"):
        raise UnknownNameError("backend", str(backend), ("pytorch", "turbomind"))
    if "backend" not in given:
        notes.append(
            "the PyTorch engine is taken; LMDeploy prefers TurboMind for models that it has"
            " (backend in engine_args)"
        )
    for name in given:
        if _OF[name] not in ("both", backend):
            raise UnsupportedError(
                f"{name} is a setting of LMDeploy's {_OF[name]} engine", hint="leave it out"
            )
    gpu = deployment.gpu
    if isinstance(gpu, GpuSpec) and gpu.compute_capability is None:
        raise NotModelledError(
            f"{gpu.name} is no CUDA card, and LMDeploy's rules are known here for those alone",
            hint="name an NVIDIA card (kvcalc gpus lists them)",
        )
    numbers = {name: _number(given, name) for name in _OF if name not in _WORDS}
    found = release(deployment.engine_version, str(backend))
    dtype = dtype_of(model, deployment, str(backend), found, notes)
    model = msgspec.structs.replace(model, dtype=dtype)
    free = numbers["free_memory"]
    if "cache_max_entry_count" in given and free is None:
        notes.append(
            "cache_max_entry_count decides what a card leaves for the cache, and plays no part"
            " where the cache's bytes are given"
        )
    block = _same(deployment.block_size, numbers, "block_size", "cache_block_seq_len")
    sequences = _same(deployment.max_num_seqs, numbers, "max_batch_size")
    return Settings(
        version=found.text,
        dtype=dtype,
        backend=str(backend),
        tp=deployment.tensor_parallel_size,
        policy=_policy(given.get("quant_policy"), deployment.kv_cache_dtype, model),
        block=block or _DEFAULT_BLOCK,
        block_given=block is not None,
        kernel_block=numbers["kernel_block_size"],
        max_model_len=_length(model, deployment, numbers["session_len"], notes),
        max_batch_size=sequences or _sequences(gpu, notes),
        max_prefill_token_num=numbers["max_prefill_token_num"] or 8192,
        prefix_caching=_prefix_caching(deployment, given),
        state_budget=numbers["prefix_cache_state_budget"] or 0,
        entry_count=_share(given.get("cache_max_entry_count", 0.8)),
        free_memory=free,
        num_gpu_blocks=_same(deployment.num_gpu_blocks_override, numbers, "num_gpu_blocks"),
        vocab_size=numbers["vocab_size"],
        flash_mla=_switch(given, "flash_mla", default=True),
        card_bytes=gpu.memory_bytes if isinstance(gpu, GpuSpec) else None,
        shortens=backend == "pytorch" or found.shortens_sessions,
    )


_WORDS = (
    "backend",
    "quant_policy",
    "cache_max_entry_count",
    "flash_mla",
    "enable_prefix_caching",
)


def _number(given: dict[str, str | int | float | bool], name: str) -> int | None:
    value = given.get(name)
    low = 0 if name == "prefix_cache_state_budget" else 1
    if value is None:
        return None
    if type(value) is not int or value < low:
        raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from {low}")
    return value


def _switch(given: dict[str, str | int | float | bool], name: str, *, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidValueError(f"{name} is {value!r:.60}, not true or false")
    return value


def _same(neutral: int | None, numbers: dict[str, int | None], *names: str) -> int | None:
    """Return a setting that has several names, which must not disagree."""
    found = {n for n in (neutral, *(numbers[name] for name in names)) if n is not None}
    if len(found) > 1:
        raise InvalidValueError(
            f"{names[0]} is given as {' and as '.join(map(str, sorted(found)))}",
            hint="give it once",
        )
    return next(iter(found), None)


def _share(value: object) -> float:
    """Return cache_max_entry_count; a count of blocks, as it once could be, is refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InvalidValueError(
            f"cache_max_entry_count is {value!r:.60}, not above 0 and below 1",
            hint="it is a share of the free memory; num_gpu_blocks fixes blocks",
        )
    return float(value)


def _policy(given: object, kv_cache_dtype: str, model: ModelSpec) -> str:
    """Return the packing's name, from quant_policy or the KV cache dtype."""
    name = "none"
    if given is not None:
        name = _BY_NUMBER.get(given, str(given)) if isinstance(given, int) else str(given)
        if name not in POLICIES:
            known = [*POLICIES, *map(str, _BY_NUMBER)]
            raise UnknownNameError("quant_policy", name, known)
    if kv_cache_dtype == "auto":
        return name
    asked = model.resolve(kv_cache_dtype).name
    wanted = "none" if asked == model.dtype else _KV_DTYPES.get(asked)
    if wanted is not None and given is not None and wanted != name:
        raise InvalidValueError(
            f"quant_policy {given} packs K and V as {name}, and the KV cache dtype is {asked}",
            hint="give one of them",
        )
    if wanted is None:
        raise UnsupportedError(
            f"LMDeploy keeps no {asked} cache here",
            hint=f"choose a quant_policy: {', '.join(POLICIES)}",
        )
    return wanted


def _length(model: ModelSpec, deployment: Deployment, session: int | None, notes: list[str]) -> int:
    asked = deployment.max_model_len
    if asked and session and asked != session:
        raise InvalidValueError(
            f"session_len {format_count(session)} and the maximum {format_count(asked)} are two"
            " names of one thing",
            hint=f"give one of them: session_len={session}, or a maximum of {asked} tokens",
        )
    length = asked or session or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    return length


def _prefix_caching(deployment: Deployment, given: dict[str, str | int | float | bool]) -> bool:
    neutral = deployment.enable_prefix_caching
    own = _switch(given, "enable_prefix_caching", default=bool(neutral))
    if neutral is not None and own != neutral:
        raise InvalidValueError(
            f"enable_prefix_caching is given as {neutral} and as {own}".lower(),
            hint="give it once",
        )
    return own


def _sequences(gpu: str | GpuSpec | None, notes: list[str]) -> int:
    name = gpu.name if isinstance(gpu, GpuSpec) else gpu
    if name is None:
        name = _ASSUMED_CARD
        notes.append(f"no card was named: {name} is taken, which decides max_batch_size")
    found = (size for part, size in _SEQUENCES.items() if part in name.lower())
    return next(found, _SEQUENCES_ELSE)


# The dtype that LMDeploy runs a model in: float16 or bfloat16, whatever its config says.

_DTYPES = ("float16", "bfloat16")
_BFLOAT16_CARDS = 8
"""Least major compute capability with bfloat16 (utils.py, is_bf16_supported)."""


def dtype_of(
    model: ModelSpec, deployment: Deployment, backend: str, found: Release, notes: list[str]
) -> str:
    """Return the dtype that the model is run in.

    Of a dtype that it does not run the PyTorch engine makes float16 (pytorch/config.py,
    _update_torch_dtype); TurboMind bfloat16 where the card has it (turbomind/converter.py,
    _resolve_dtype), and float16 before 0.10.1 (turbomind/deploy/converter.py).

    Args:
        model: as published.
        deployment: as asked for.
        backend: pytorch or turbomind.
        found: the release.
        notes: a line is added where the model's own is not taken.

    Raises:
        UnsupportedError: a dtype is asked for that LMDeploy does not take (messages.py).
    """
    if deployment.dtype != "auto":
        wanted = cache_dtype(deployment.dtype).name
        if wanted not in _DTYPES:
            raise UnsupportedError(
                f"LMDeploy runs no model in {wanted}", hint=f"choose {' or '.join(_DTYPES)}"
            )
        return wanted
    if model.dtype in _DTYPES:
        return model.dtype
    gpu = deployment.gpu
    capability = gpu.compute_capability if isinstance(gpu, GpuSpec) else None
    old = capability is not None and int(capability.partition(".")[0]) < _BFLOAT16_CARDS
    bfloat16 = backend == "turbomind" and found.prefers_bfloat16 and not old
    taken = "bfloat16" if bfloat16 else "float16"
    notes.append(f"LMDeploy runs no model in {model.dtype}: {taken} is taken")
    return taken
