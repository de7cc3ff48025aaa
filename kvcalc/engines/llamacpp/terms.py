"""What a context takes of a GPU beside weights and caches, as fit and the budget both count it."""

from __future__ import annotations

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.memory import Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.visible import context_term
from kvcalc.engines.llamacpp.compute import compute_buffer
from kvcalc.engines.llamacpp.loaded import largest_in_layers
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.weights.widths import widths_of

__all__ = ["compute_term", "driver_term", "spilled"]

_CONTEXT, _CONTEXT_SHARED = (0.2, 0.6), (0.0, 0.3)
_FLOAT32 = 4


def driver_term(gpu: GpuSpec) -> Term:
    """Return what the driver's context and kernels take of a GPU."""
    return context_term(gpu, _CONTEXT, _CONTEXT_SHARED)


def spilled(model: ModelSpec, settings: Settings) -> bool:
    """Whether the settings keep weights of layers on the host."""
    layers = settings.placing.n_gpu_layers
    return (layers is not None and layers <= model.num_hidden_layers) or any(
        override.device == HOST for override in settings.placing.overrides
    )


def compute_term(model: ModelSpec, settings: Settings, *, spills: bool = False) -> Term:
    """Return the compute buffer: one micro-batch at full cells (llama-context.cpp, sched_reserve).

    Llama-3.1-8B on a CPU, 512 tokens: 138 MB at 8,192 cells, 164 MB at 32,768, 313 MB where every
    token may have logits, 2,269 MB at 32,768 without flash attention.

    Args:
        model: with its widths, and its tensors where layers stay on the host.
        settings: as resolved.
        spills: weights of some layers stay on the host: a large step copies them to the GPU, one
            tensor after the other (ggml-backend.cpp, ggml_backend_sched_split_graph, op_offload).
    """
    tokens, cells = settings.cells.ubatch, settings.cells.total
    if settings.compute:
        low, high = min(settings.compute), max(settings.compute)
        return Term(name="activation", low_bytes=low, high_bytes=high, source="compute_mib")
    source = f"the compute buffer of {tokens} tokens over {cells} cells (sched_reserve)"
    copied = largest_in_layers(model.weights, model.num_hidden_layers) if spills else 0
    if copied:
        source += ", and the largest tensor of a layer on the host"
    known = compute_buffer(model, settings, gpu=True)
    if known is not None:
        low, high = known.low, known.high + copied
        return Term(name="activation", low_bytes=low, high_bytes=high, source=source)
    widths = widths_of(model)
    row = widths.row
    high = row.high * 3 * _FLOAT32 * tokens + widths.vocab.high * _FLOAT32 * tokens
    high += tokens * cells * 6  # the mask, in 32 and in 16 bits
    if not settings.flash:
        high += (model.num_attention_heads or 128) * tokens * cells * _FLOAT32
    return Term(
        name="activation",
        low_bytes=row.low * _FLOAT32 * tokens,
        high_bytes=high + copied,
        source=source,
    )
