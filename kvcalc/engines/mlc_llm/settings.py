"""A deployment as MLC-LLM resolves it: mode, sequences, lengths and dtype, every default put in."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.mlc_llm.models import Compiled
from kvcalc.engines.releases import Releases

__all__ = ["MODES", "PAGE", "RELEASES", "Settings", "resolve"]

_READ = "79d603f"
MODES = ("local", "interactive", "server")
PAGE = 16
"""EngineConfigNode.kv_cache_page_size."""
RELEASES = Releases("MLC-LLM", (0, 20, 0), (0, 20, 0), lines=True, commits=(_READ,))
_COUNTS = (
    "max_total_sequence_length",
    "prefill_chunk_size",
    "max_batch_size",
    "vocab_size",
    "params_bytes",
    "temp_buffer_bytes",
    "gpu_memory",
    "attention_sink_size",
    "prefix_cache_max_num_recycling_seqs",
)
_WORDS = ("mode", "quantization", "prefix_cache_mode")
_FROM_ZERO = ("temp_buffer_bytes", "attention_sink_size", "prefix_cache_max_num_recycling_seqs")
_KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "dtype",
    "tensor_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "engine_args",
}
_DTYPES = {
    **dict.fromkeys(
        (
            "q0f16",
            "q3f16_0",
            "q3f16_1",
            "q4f16_0",
            "q4f16_1",
            "q4f16_2",
            "q4f16_autoawq",
            "q4f16_ft",
            "e5m2_e5m2_f16",
            "e4m3_e4m3_f16",
            "e4m3_e4m3_f16_max_calibrate",
        ),
        "float16",
    ),
    **dict.fromkeys(
        (
            "q0bf16",
            "q4bf16_0",
            "q4bf16_1",
            "fp8_e4m3fn_bf16_block_scale",
            "fp8_e4m3fn_bf16_block_scale_static_activation",
        ),
        "bfloat16",
    ),
    **dict.fromkeys(("q0f32", "q4f32_1"), "float32"),
}
"""Quantisation -> dtype of what is computed and of K and V (quantization.py, model_dtype)."""
_USUAL = "q4f16_1"
_MAX_BATCH = 128
"""gen_config's max_batch_size, the most sequences that a compiled model takes."""
_SINKS = 4
"""MistralConfig.attention_sink_size."""
_LOCAL_SEQUENCES = 4
_LENGTH_ELSE = 8192


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        mode: local, interactive or server.
        dtype: of K and V, which is the model's after quantisation.
        sequences: max_num_sequence.
        context: the compiled context window; None in a cache that has one window for all layers.
        max_model_len: the longest sequence.
        chunk: the compiled prefill_chunk_size.
        total: max_total_sequence_length where it was given.
        memory: bytes of the card; params_bytes, temp_buffer_bytes, vocab_size: of the model.
        sinks: attention_sink_size.
        recycled: states kept beside those of running sequences.
    """

    version: str
    mode: str
    tp: int
    dtype: str
    sequences: int
    context: int | None
    max_model_len: int
    chunk: int
    total: int | None
    utilization: float
    memory: int | None
    params_bytes: int | None
    temp_buffer_bytes: int
    vocab_size: int | None
    sinks: int
    prefix_caching: bool
    recycled: int


def resolve(
    model: ModelSpec, deployment: Deployment, found: Compiled, window: int | None, notes: list[str]
) -> Settings:
    """Return the settings; a line is added to `notes` for what was assumed.

    Args:
        model: as published.
        deployment: as asked for.
        found: how the model is compiled.
        window: the one window of the whole cache, if it has one.
        notes: gets the lines.

    Raises:
        UnsupportedError: a setting that MLC-LLM has not, or that kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "MLC-LLM", "leave it out; its own go into engine_args")
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name == "speculative_mode":
            raise NotModelledError("MLC-LLM's speculation is not modelled", hint="leave it out")
        if name not in _COUNTS and name not in _WORDS:
            raise UnknownNameError("setting of MLC-LLM", name, (*_COUNTS, *_WORDS))
    counts = {name: _count(given, name) for name in _COUNTS}
    mode = _word(given, "mode", MODES, "local")
    radix = _word(given, "prefix_cache_mode", ("radix", "disable"), "radix") == "radix"
    if deployment.enable_prefix_caching is not None:
        radix = deployment.enable_prefix_caching
    if deployment.block_size not in (None, PAGE):
        raise NotModelledError(
            f"MLC-LLM's kernels are known for pages of {PAGE} tokens", hint="leave block_size out"
        )
    context, length = _lengths(model, deployment, found, window, notes)
    most = counts["max_batch_size"] or _MAX_BATCH
    sequences = deployment.max_num_seqs
    if sequences is None:
        sequences = {"local": min(_LOCAL_SEQUENCES, most), "interactive": 1}.get(mode, most)
    # Gemma 2 takes its chunk from the context that it has before that is cut to the window.
    whole = model.max_position_embeddings if found.windows == "cut" else context
    chunk = counts["prefill_chunk_size"]
    if chunk is None or (whole is not None and chunk > whole):
        limits = (found.chunk, whole, window)
        chunk = min(limit for limit in limits if limit is not None)
    recycled = counts["prefix_cache_max_num_recycling_seqs"]
    return Settings(
        version=_version(deployment.engine_version),
        mode=mode,
        tp=deployment.tensor_parallel_size,
        dtype=_dtype(deployment, given, notes),
        sequences=sequences,
        context=context,
        max_model_len=length,
        chunk=chunk,
        total=counts["max_total_sequence_length"],
        utilization=deployment.gpu_memory_utilization or 0.85,
        memory=counts["gpu_memory"] or _memory(deployment.gpu),
        params_bytes=counts["params_bytes"],
        temp_buffer_bytes=counts["temp_buffer_bytes"] or 0,
        vocab_size=counts["vocab_size"],
        sinks=_SINKS if counts["attention_sink_size"] is None else counts["attention_sink_size"],
        prefix_caching=radix,
        recycled=sequences if recycled is None else recycled,
    )


def _count(given: dict[str, str | int | float | bool], name: str) -> int | None:
    value = given.get(name)
    low = 0 if name in _FROM_ZERO else 1
    if value is None:
        return None
    if type(value) is not int or value < low:
        raise InvalidValueError(f"{name} is {value!r:.60}, not a whole number from {low}")
    return value


def _word(
    given: dict[str, str | int | float | bool], name: str, known: tuple[str, ...], usual: str
) -> str:
    value = str(given.get(name, usual))
    if value not in known:
        raise UnknownNameError(name, value, known)
    return value


def _memory(gpu: str | GpuSpec | None) -> int | None:
    return gpu.memory_bytes if isinstance(gpu, GpuSpec) else None


def _lengths(
    model: ModelSpec, deployment: Deployment, found: Compiled, window: int | None, notes: list[str]
) -> tuple[int | None, int]:
    """Return the compiled context window (None: the cache has a window) and the longest sequence.

    MistralConfig and Gemma2Config, __post_init__; EstimateMemoryUsageOnMode, step 2.
    """
    asked, longest = deployment.max_model_len, model.max_position_embeddings
    notes.extend(beyond(model, asked))
    if window is not None:
        notes.append(f"no maximum length: the cache has one window of {format_count(window)}")
        return None, asked or longest or _LENGTH_ELSE
    if longest is None:
        notes.append(f"the model names no maximum: {format_count(_LENGTH_ELSE)} tokens are taken")
        longest = _LENGTH_ELSE
    if found.windows == "cut":
        cut = min(
            (getattr(c, "sliding_window", longest) for _, c in model.caches()), default=longest
        )
        if cut < longest:
            notes.append(f"the context is cut to the window of {format_count(cut)} tokens")
            longest = cut
    if asked is not None and asked > longest:
        notes.append(f"the length is cut to the {format_count(longest)} that the model has")
    return longest, min(asked or longest, longest)


def _dtype(
    deployment: Deployment, given: dict[str, str | int | float | bool], notes: list[str]
) -> str:
    """Return the dtype of K and V, which the quantisation decides, or `dtype` where it is given."""
    name = given.get("quantization")
    if name is None and deployment.dtype == "auto":
        notes.append(f"no quantization was named: {_USUAL} is taken, which computes in float16")
        name = _USUAL
    if name is not None and str(name) not in _DTYPES:
        raise UnknownNameError("quantization", str(name), _DTYPES)
    found = _DTYPES[str(name)] if name is not None else deployment.dtype
    if deployment.dtype not in ("auto", found) or found not in _DTYPES.values():
        raise UnsupportedError(
            f"MLC-LLM computes in {found} with {name}, not in {deployment.dtype}"
            if name is not None
            else f"MLC-LLM computes in no {found}",
            hint="the quantization decides: q0f16, q0bf16, q0f32 and so on",
        )
    if deployment.kv_cache_dtype not in ("auto", found):
        raise UnsupportedError(
            f"MLC-LLM keeps K and V in the dtype that it computes in ({found}) and no other",
            hint="leave kv_cache_dtype out",
        )
    return found


def _version(text: str | None) -> str:
    RELEASES.read(text)
    return _READ
