"""What a plan of transformers says of itself: why a number is what it is, and what is left out."""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, CrossAttention
from kvcalc.core.kind import Chunks, Windowed
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.transformers.quantized import Quantization
from kvcalc.engines.transformers.settings import Settings

__all__ = ["convention", "explain", "not_modelled"]

_BATCHES = (
    "sequences of one batch are padded to the longest of them: each then holds as many tokens as"
    " that one"
)


def explain(
    model: ModelSpec, settings: Settings, quantization: Quantization | None, counter_bytes: int
) -> list[str]:
    """Return a line for every rule that moved a number."""
    notes = []
    spans = {type(cache.span) for _, cache in model.caches() if cache.rows()}
    if settings.cache == "dynamic" and spans & {Windowed, Chunks}:
        notes.append(
            "a window of W tokens shows W - 1 and holds W: the older tensor stays alive behind the"
            " view; right after a prefill the whole of its last step stays"
        )
    if Chunks in spans:
        notes.append("chunks are kept as windows of their size; only the mask differs")
    if settings.cache == "static":
        notes.append(
            f"every layer is allocated for {format_count(settings.static_slots)} tokens (a window"
            " for no more than itself) at its first use"
        )
    if any(state.role == "conv" for _, cache in model.caches() for state in cache.states()):
        notes.append(
            "a convolution keeps all K columns, one more than a next token needs; recurrent states"
            " are kept in float32"
        )
    if quantization and quantization.backend != "fp8":
        notes.append(
            f"the prompt is quantised at once, later tokens {quantization.residual} at a time"
            " together with all before them"
        )
    if counter_bytes:
        notes.append(f"{format_count(counter_bytes)} B of counters lie beside the rows")
    return notes


def convention(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    found = ["A sequence is a batch of its own, without padding."]
    if settings.cache == "dynamic":
        found.append(
            "What a sequence holds is what it holds after a step of one token; what it needs is"
            " what is there right after a prefill"
            + (
                f" of {format_count(settings.prompt_tokens)} tokens."
                if settings.prompt_given
                else " of all its tokens."
            )
        )
    if quantization and quantization.backend != "fp8" and not settings.prompt_given:
        found.append("All tokens are those of the prompt, so that all are quantised.")
    if any(isinstance(cache, CrossAttention) for _, cache in model.caches()):
        found.append("The encoder's output has as many tokens as the model takes at most.")
    return tuple(found)


def not_modelled(
    model: ModelSpec, settings: Settings, quantization: Quantization | None
) -> tuple[str, ...]:
    """Return what is not modelled, with the size of the difference."""
    found = [_BATCHES]
    per_token = model.growing_bytes(1)
    if settings.cache == "dynamic":
        widest = max((_row_bytes(model, i) for i in range(len(model.layers))), default=0)
        found.append(
            "a step copies each layer's rows to append to them: for a moment one layer is there"
            f" twice, {format_count(widest * settings.max_model_len)} B at"
            f" {format_count(settings.max_model_len)} tokens"
        )
    if quantization is not None:
        layers = sum(run.count for run in model.layers)
        found.append(
            "a step makes one layer's rows anew in the model dtype:"
            f" {format_count(per_token // layers * settings.max_model_len)} B at"
            f" {format_count(settings.max_model_len)} tokens"
        )
        if quantization.backend != "fp8" and not settings.prompt_given:
            most = (quantization.residual - 1) * per_token
            found.append(
                f"up to {quantization.residual - 1} tokens behind the prompt wait in the model"
                f" dtype: at most {format_count(most)} B (prompt_tokens tells how many)"
            )
    compressed = [c for _, c in model.caches() if isinstance(c, CompressedAttention)]
    if any(cache.overlap for cache in compressed):
        ratio = min(cache.compress_ratio for cache in compressed if cache.overlap)
        found.append(
            f"a sequence of fewer than {ratio} tokens has no folded window yet, which is counted"
            " all the same"
        )
    return tuple(found)


def _row_bytes(model: ModelSpec, index: int) -> int:
    run = model.layers[index]
    one = model.with_layers(1, run.caches)
    return one.growing_bytes(1)
