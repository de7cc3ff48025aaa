"""Laguna, Step 3.5 and 3.7: window layers where `layer_types` names them, full layers elsewhere."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    full_attention,
    num_layers,
    runs,
    sliding,
    window,
    window_list,
)

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers, and draft layers where the config says of what kind they are.

    transformers 5.24 models/{laguna,step3p7}/configuration_*.py: without `layer_types` all are
    full; older files of Step have the draft layers' types at the end of the list.
    """
    count = num_layers(f)
    wanted = f.whole("num_nextn_predict_layers", low=0, high=MAX_LAYERS) or 0
    padded = len(f.items("layer_types") or ()) == count + wanted
    listed = window_list(f, count + wanted if padded else count) or [False] * count
    drafted = window_list(f, wanted, "mtp_layer_types") or listed[count:]
    if wanted > len(drafted):
        f.notes.append(f"{wanted} draft layers, of which the config does not say what they keep")

    tokens = window(f)
    if tokens is None and any(listed + drafted):
        raise f.missing("sliding_window")
    full = full_attention(f)
    local: Caches = (full,) if tokens is None else (sliding(full, tokens),)
    layers = [local if has_window else (full,) for has_window in listed[:count]]
    draft = [local if has_window else (full,) for has_window in drafted]
    return Layers(runs(layers), runs(draft))
