"""Hunyuan: with cross-layer attention only the first layer of every few keeps K and V."""

from __future__ import annotations

from kvcalc.core.attention import SharedKv
from kvcalc.core.errors import NotModelledError
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, full_attention, num_layers, runs

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers; `cla_share_factor` counts where `use_cla` is true only.

    Hunyuan's modeling_hunyuan.py, HunYuanAttention: a layer whose index is no multiple of the
    factor reads the K and V of the last one that is.
    """
    if f.flag("use_mla", default=False):
        raise NotModelledError(
            "use_mla is true: Hunyuan's latent attention is not modelled",
            hint="no published Hunyuan model uses it",
            where=f.where,
        )
    full: Caches = (full_attention(f),)
    factor = 1
    if f.flag("use_cla", default=False):
        factor = f.need("cla_share_factor", high=MAX_LAYERS)
    return Layers(
        runs(
            [
                (SharedKv(source_layer=i - i % factor),) if i % factor else full
                for i in range(num_layers(f))
            ]
        )
    )
