"""Gemma 4: window layers of one shape, full layers of another, and layers that share."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    shared_tail,
    sliding,
    unmasked,
    window,
    window_list,
)

__all__ = ["read"]

_CLASS = "Gemma4TextConfig"  # transformers 5.24 models/gemma4/configuration_gemma4.py


def read(f: Fields) -> Layers:
    """Return window layers, and full layers with `global_head_dim` and their own KV heads."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    local = full_attention(f)
    tokens = window(f)
    if tokens is None:
        raise f.missing("sliding_window")
    heads = None
    if f.flag("attention_k_eq_v", default=False):
        # K is the V of such a layer before its norm and rotation: both are kept all the same.
        heads = f.whole("num_global_key_value_heads")
    full = FullAttention(
        num_kv_heads=heads or local.num_kv_heads,
        head_dim=f.default_whole("global_head_dim", default=512, of=_CLASS),
    )
    has_window = window_list(f, count) or every_nth_full(count, 6)
    has_window[-1] = False  # the class makes the last layer full, whatever the list says
    layers: list[Caches] = [(sliding(local, tokens),) if w else (full,) for w in has_window]
    return Layers(runs(shared_tail(f, layers)))
