"""Ring-linear (BailingMoeLinearV2): lightning attention, the last of every group full attention."""

from __future__ import annotations

from kvcalc.core.recurrent import LightningAttention
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, drafts, heads, num_layers, runs
from kvcalc.models.hf_config.states import need_attention

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `layer_group_size`.

    inclusionAI/Ring-mini-linear-2.0 modeling_bailing_moe_linear_v2.py, decoder layer: layers left
    over after the last whole group are full attention too.
    """
    count = num_layers(f)
    full = need_attention(f)
    state = LightningAttention(num_heads=heads(f), head_dim=full.head_dim)
    group = f.need("layer_group_size", high=MAX_LAYERS)
    whole = count // group * group
    layers: list[Caches] = [
        (full,) if (i + 1) % group == 0 or i >= whole else (state,) for i in range(count)
    ]
    return Layers(runs(layers), drafts(f, full))
