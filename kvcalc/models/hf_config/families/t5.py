"""T5: as other encoder-decoders, with a head size of its own and no longest input."""

from __future__ import annotations

from kvcalc.core.attention import CrossAttention, FullAttention
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Layers, same

__all__ = ["read"]

_INPUT = 512  # tokens that T5 was trained on; its positions are relative


def read(f: Fields) -> Layers:
    """Return decoder layers, as many as the encoder's where the config counts those only."""
    count = f.need("num_decoder_layers", "num_layers", high=MAX_LAYERS)
    heads = f.need("num_heads")
    size = f.need("d_kv")
    tokens = f.whole("n_positions") or _INPUT
    f.notes.append(f"cross-attention is counted for an input of {tokens} encoder tokens")
    return same(
        count,
        FullAttention(num_kv_heads=heads, head_dim=size),
        CrossAttention(num_kv_heads=heads, head_dim=size, encoder_tokens=tokens),
    )
