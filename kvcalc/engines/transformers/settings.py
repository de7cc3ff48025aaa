"""A deployment as transformers resolves it: which cache, and every default put in."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.transformers.arguments import Arguments
from kvcalc.engines.transformers.version import Release, release

__all__ = ["Settings", "resolve"]

_DEFAULT_MAX_MODEL_LEN = 8192

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
    "kv_cache_memory_bytes",
    "engine_args",
}

_CACHES = {
    "dynamic": ("dynamic", False),
    "offloaded": ("dynamic", True),
    "static": ("static", False),
    "offloaded_static": ("static", True),
    "sliding_window": ("static", False),
    "hybrid": ("static", False),
    "hybrid_chunked": ("static", False),
    "offloaded_hybrid": ("static", True),
    "offloaded_hybrid_chunked": ("static", True),
    "quantized": ("quantized", False),
    "paged": ("paged", False),
}
"""cache_implementation -> (cache, offloaded); generation/configuration_utils.py of 5.24, whose
deprecated names all mean the static cache."""


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        cache: dynamic, static, quantized or paged.
        offloaded: layers wait in the host's memory.
        max_model_len: the longest sequence.
        static_slots: of a static cache: generate makes one for all tokens but the last.
        prompt_tokens: tokens of the prompt; max_model_len where it is not told.
        prompt_given: it was told.
        chunk_tokens: tokens of one step of the prefill.
        arguments: settings of the quantised and the paged cache.
    """

    release: Release
    cache: str
    offloaded: bool
    tp: int
    max_model_len: int
    static_slots: int
    prompt_tokens: int
    prompt_given: bool
    chunk_tokens: int
    page_size: int | None
    arguments: Arguments


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Args:
        model: as it is run.
        deployment: as asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: a setting that transformers, or this cache of it, has not.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "transformers", "leave it out; its own go into engine_args")
    wanted = release(deployment.engine_version)
    arguments = Arguments(deployment)
    word = arguments.text("cache_implementation") or "dynamic"
    if word not in _CACHES:
        raise UnknownNameError("cache_implementation", word, _CACHES)
    cache, offloaded = _CACHES[word]
    arguments.belong_to(cache)
    if deployment.block_size is not None and cache != "paged":
        raise UnsupportedError(
            f"the {cache} cache has no blocks", hint="leave block_size out, or use the paged cache"
        )
    asked = model.resolve(deployment.kv_cache_dtype).name
    if deployment.kv_cache_dtype != "auto" and asked != model.dtype:
        raise UnsupportedError(
            f"transformers keeps K and V in the model dtype, {model.dtype}, not in {asked}",
            hint="for fewer bits: cache_implementation=quantized and nbits in engine_args",
        )
    length, slots = _length(model, deployment, arguments, wanted, notes)
    prompt = arguments.number("prompt_tokens")
    if prompt is not None and prompt > length:
        raise InvalidValueError(f"prompt_tokens {prompt} is more than the maximum, {length}")
    chunk = arguments.number("prefill_chunk_size")
    return Settings(
        release=wanted,
        cache=cache,
        offloaded=offloaded,
        tp=deployment.tensor_parallel_size,
        max_model_len=length,
        static_slots=slots,
        prompt_tokens=prompt or length,
        prompt_given=prompt is not None,
        chunk_tokens=min(chunk or length, prompt or length),
        page_size=_page_size(deployment, arguments),
        arguments=arguments,
    )


def _length(
    model: ModelSpec,
    deployment: Deployment,
    arguments: Arguments,
    wanted: Release,
    notes: list[str],
) -> tuple[int, int]:
    """Return the longest sequence, and the slots of a static cache for it.

    generate makes it for max_length - 1 tokens, or for max_cache_len where that is more and the
    release looks at it (generation/utils.py, generate and _prepare_cache_for_generation). With
    max_cache_len alone it is a StaticCache that the user makes.
    """
    asked, cache = deployment.max_model_len, arguments.number("max_cache_len")
    if cache and not asked:
        return cache, cache
    length = asked or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    slots = max(1, length - 1)
    if cache and not wanted.reads_max_cache_len:
        notes.append(
            f"generate of {wanted} never reads max_cache_len: its cache has"
            f" {format_count(slots)} slots"
        )
    elif cache:
        slots = max(slots, cache)
        notes.append(
            f"generate makes a static cache as long as the longer of max_cache_len"
            f" {format_count(cache)} and the maximum {format_count(length)}, less the last token"
        )
        length = max(length, cache)
    return length, slots


def _page_size(deployment: Deployment, arguments: Arguments) -> int | None:
    """Return tokens a page; `block_size` is its older name (ContinuousBatchingConfig)."""
    page, block = arguments.number("page_size"), deployment.block_size
    if page is not None and block is not None and page != block:
        raise InvalidValueError(
            f"page_size {page} and block_size {block} are two names of one thing",
            hint="give one of them",
        )
    return page or block
