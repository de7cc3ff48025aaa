"""DeepSeek V2 and V3, Kimi K2 and their kin: one latent for all heads, and an indexer in V3.2."""

from __future__ import annotations

from kvcalc.core.attention import Indexer, Mla
from kvcalc.core.layers import LayerRun
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, num_layers

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers of latent attention; draft layers are kept apart."""
    mla = Mla(
        kv_lora_rank=f.need("kv_lora_rank"), qk_rope_head_dim=f.need("qk_rope_head_dim", low=0)
    )
    index = f.whole("index_head_dim")
    caches: Caches = (mla,) if index is None else (mla, Indexer(index_head_dim=index))
    drafts = f.whole("num_nextn_predict_layers", low=0, high=MAX_LAYERS) or 0
    draft = (LayerRun(count=drafts, caches=caches),) if drafts else ()
    return Layers((LayerRun(count=num_layers(f), caches=caches),), draft)
