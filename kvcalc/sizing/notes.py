"""What was asked and plays no part: settings that another one stands in the way of."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of
from kvcalc.sizing.question import Question

__all__ = ["beyond_maximum", "without_effect"]


def beyond_maximum(question: Question, longest: int) -> Iterator[str]:
    """Yield a line for every length asked about that is longer than the maximum."""
    for tokens in question.lengths:
        if tokens > longest:
            yield (
                f"no request of {format_count(tokens)} tokens is served with a maximum of"
                f" {format_count(longest)}: it is told how many would have room"
            )


def without_effect(question: Question) -> Iterator[str]:
    """Yield a line for everything that was asked for and changes nothing."""
    deployment = question.deployment
    bytes_known = question.weights_bytes is not None
    if bytes_known and question.quantization is not None:
        yield (
            f"quantization {question.quantization} plays no part: the bytes of the weights are"
            " given"
        )
    given = deployment.kv_cache_memory_bytes is not None
    named = isinstance(deployment.gpu, GpuSpec)
    if given:
        share = engine_of(deployment.engine).share or ""
        own = deployment.engine_args.get(share)
        asked = deployment.gpu_memory_utilization if own is None else own
        if asked is not None:
            yield f"{share} {asked} plays no part in the cache, whose bytes are given"
        if question.instances > 1:
            yield "the cache is that of each server: its bytes are given"
    if given and not named and deployment.enforce_eager is not None:
        yield "enforce_eager plays no part: the bytes of the cache are given, and no GPU"
    if given and not named and (bytes_known or question.quantization is not None):
        yield "the weights play no part: the bytes of the cache are given, and no GPU"
    if question.free_bytes is not None and not named:
        yield "what is free of a card plays no part: none is named"
