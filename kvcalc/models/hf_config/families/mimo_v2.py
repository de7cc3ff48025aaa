"""MiMo-V2-Flash: window layers with KV heads of their own, and V narrower than K."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.layers import LayerRun
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, num_layers, runs

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `hybrid_layer_pattern`, where 1 is a window (vLLM 0.33 mimo_v2.py)."""
    count = num_layers(f)
    pattern = f.wholes("hybrid_layer_pattern", high=1, length=count)
    if pattern is None:
        raise f.missing("hybrid_layer_pattern")
    tokens = f.need("sliding_window_size", "sliding_window")
    full = FullAttention(
        num_kv_heads=f.need("num_key_value_heads"),
        head_dim=f.need("head_dim"),
        v_head_dim=f.whole("v_head_dim"),
    )
    local = SlidingWindow(
        num_kv_heads=f.need("swa_num_key_value_heads"),
        head_dim=f.need("swa_head_dim"),
        v_head_dim=f.whole("swa_v_head_dim"),
        sliding_window=tokens,
    )
    f.notes.append(f"window layers see {tokens} tokens, as in vLLM; transformers keeps one more")
    f.notes.append("one draft layer, as in vLLM: the config does not count them")
    layers = runs([(local,) if has_window else (full,) for has_window in pattern])
    return Layers(layers, (LayerRun(count=1, caches=(local,)),))
