"""Yuan 2: plain attention behind a filter that looks at the last two tokens' hidden vectors."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.recurrent import ShortConv
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, head_dim, kv_heads, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers, each keeping two hidden vectors beside K and V.

    Yuan's yuan_hf_model.py, YuanAttention: `past_key_value` is K, V and the memory of the
    localized filter (two convolutions over two tokens each).
    """
    return same(
        num_layers(f),
        FullAttention(num_kv_heads=kv_heads(f), head_dim=head_dim(f)),
        ShortConv(hidden_size=f.need("hidden_size"), conv_kernel=3),
    )
