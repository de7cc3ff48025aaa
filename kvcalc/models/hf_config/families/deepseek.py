"""DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash and their kin: one latent for all heads."""

from __future__ import annotations

from kvcalc.core.attention import Mla
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, drafts, num_layers, same

__all__ = ["mla", "read"]


def mla(f: Fields) -> Mla:
    """Return the latent and the rotary key; `num_key_value_heads` says nothing about them."""
    return Mla(
        kv_lora_rank=f.need("kv_lora_rank"), qk_rope_head_dim=f.need("qk_rope_head_dim", low=0)
    )


def read(f: Fields) -> Layers:
    """Return equal layers of latent attention; draft layers are kept apart."""
    latent = mla(f)
    return Layers(same(num_layers(f), latent).layers, drafts(f, latent))
