"""Whisper and BART: the decoder keeps its own tokens, and the encoder's output once a sequence."""

from __future__ import annotations

from kvcalc.core.attention import CrossAttention, FullAttention
from kvcalc.core.errors import InputError
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return decoder layers; `num_hidden_layers` is the encoder's in these classes."""
    count = f.need("decoder_layers", high=MAX_LAYERS)
    groups = f.need("decoder_attention_heads")
    hidden = f.need("d_model")
    if hidden % groups:
        raise InputError(
            f"{f.name('d_model')} {hidden} is no multiple of {groups} heads",
            hint="correct the config",
            where=f.where,
        )
    size = hidden // groups
    tokens = f.need("max_source_positions", "max_position_embeddings")
    f.notes.append(f"cross-attention is counted for an input of {tokens} encoder tokens")
    return same(
        count,
        FullAttention(num_kv_heads=groups, head_dim=size),
        CrossAttention(num_kv_heads=groups, head_dim=size, encoder_tokens=tokens),
    )
