"""Qwen3-Next and Qwen3.5: gated delta net with full attention every few layers."""

from __future__ import annotations

from kvcalc.core.layers import LayerRun
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    by_type,
    full_attention,
    num_layers,
    repeat,
    runs,
)

__all__ = ["read"]

_CLASS = "Qwen3NextConfig"  # transformers 5.24 models/qwen3_next/configuration_qwen3_next.py


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types`, or full attention as the last of every interval."""
    count = num_layers(f)
    full = full_attention(f)
    linear = GatedDeltaNet(
        num_k_heads=f.default_whole("linear_num_key_heads", default=16, of=_CLASS),
        num_v_heads=f.default_whole("linear_num_value_heads", default=32, of=_CLASS),
        head_k_dim=f.default_whole("linear_key_head_dim", default=128, of=_CLASS),
        head_v_dim=f.default_whole("linear_value_head_dim", default=128, of=_CLASS),
        conv_kernel=f.default_whole("linear_conv_kernel_dim", default=4, of=_CLASS),
        # Qwen3.5 pins its recurrent state; Qwen3-Next leaves it to the model dtype.
        state_dtype=f.text("mamba_ssm_dtype"),
    )
    layers = by_type(f, count, {"linear_attention": (linear,), "full_attention": (full,)})
    if layers is None:
        interval = f.default_whole("full_attention_interval", default=4, of=_CLASS)
        layers = repeat([(linear,)] * (interval - 1) + [(full,)], count)
    # vLLM 0.33: a draft layer is one full-attention layer (measured).
    drafts = f.whole("mtp_num_hidden_layers", low=0, high=MAX_LAYERS) or 0
    draft = (LayerRun(count=drafts, caches=(full,)),) if drafts else ()
    return Layers(runs(layers), draft)
