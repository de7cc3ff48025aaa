"""LFM2: short convolutions, with full attention at the listed layers."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.recurrent import ShortConv
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, by_type, head_dim, num_layers, runs

__all__ = ["read"]

_CLASS = "Lfm2Config"  # transformers 5.24 models/lfm2/configuration_lfm2.py


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types`, or by `full_attn_idxs`."""
    count = num_layers(f)
    full: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    conv: Caches = (
        ShortConv(
            # vLLM 0.33 lfm2.py reads conv_dim, which equals the hidden size in all models.
            hidden_size=f.need("conv_dim", "hidden_size"),
            conv_kernel=f.default_whole("conv_L_cache", default=3, of=_CLASS),
        ),
    )
    layers = by_type(f, count, {"conv": conv, "full_attention": full})
    if layers is None:
        listed = f.wholes("full_attn_idxs", high=count - 1)
        if listed is None:
            raise f.missing("layer_types", "full_attn_idxs")
        indices = frozenset(listed)
        layers = [full if i in indices else conv for i in range(count)]
    return Layers(runs(layers))
