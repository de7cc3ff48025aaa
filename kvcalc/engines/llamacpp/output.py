"""The output buffer: host memory for logits that a client reads.

llama.cpp b11434 src/llama-context.cpp (llama_context::output_reserve): a row of the vocabulary in
32 bits for every sequence when the context is made; larger when more are asked for at once.
"""

from __future__ import annotations

from kvcalc.core.model import ModelSpec
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["output_buffer"]

_LOGIT_BYTES = 4


def output_buffer(model: ModelSpec, settings: Settings) -> int | None:
    """Return the bytes of the output buffer at start; None where the vocabulary is not known."""
    if model.size is None or model.size.vocab_size is None:
        return None
    return _LOGIT_BYTES * model.size.vocab_size * settings.cells.sequences
