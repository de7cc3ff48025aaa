"""LongCat-Flash: two latent attentions in every layer, so two caches."""

from __future__ import annotations

from kvcalc.models.hf_config.families.deepseek import mla
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Layers, draft_runs, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers of two latents each; a draft layer has one."""
    latent = mla(f)
    # num_hidden_layers, where transformers 5.24 saves it, counts the attentions: twice num_layers.
    count = f.need("num_layers", high=MAX_LAYERS)
    attentions = f.whole("num_hidden_layers", high=2 * MAX_LAYERS)
    if attentions not in (None, count, 2 * count):
        raise f.fault("num_hidden_layers", attentions, f"twice num_layers {count}")
    drafts = f.default_whole(
        "num_nextn_predict_layers", default=1, of="vLLM's LongCatFlashMTP", low=0, high=64
    )
    return Layers(same(count, latent, latent).layers, draft_runs(drafts, latent))
