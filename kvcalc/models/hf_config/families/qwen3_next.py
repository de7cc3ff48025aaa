"""Qwen3-Next: gated delta net with full attention every few layers."""

from __future__ import annotations

from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    draft_runs,
    num_layers,
    repeat,
    runs,
)
from kvcalc.models.hf_config.states import need_attention

__all__ = ["layers", "read"]

_CLASS = "Qwen3NextConfig"
# transformers 5.24 models/qwen3_next/configuration_qwen3_next.py; Qwen3_5TextConfig has the same


def read(f: Fields) -> Layers:
    """Return the layers, and the one draft layer that the checkpoints hold unnamed."""
    # vLLM 0.33: a draft layer is one full-attention layer (measured).
    drafts = f.default_whole(
        "num_nextn_predict_layers", default=1, of="vLLM's Qwen3NextMTP", low=0, high=64
    )
    return layers(f, None, drafts)


def layers(f: Fields, dtype: str | None, drafts: int) -> Layers:
    """Return the layers by `layer_types`, or full attention as the last of every interval.

    Args:
        f: the config.
        dtype: what the recurrent state is pinned to.
        drafts: draft layers, each of full attention.
    """
    count = num_layers(f)
    full = need_attention(f)
    linear = GatedDeltaNet(
        num_k_heads=f.default_whole("linear_num_key_heads", default=16, of=_CLASS),
        num_v_heads=f.default_whole("linear_num_value_heads", default=32, of=_CLASS),
        head_k_dim=f.default_whole("linear_key_head_dim", default=128, of=_CLASS),
        head_v_dim=f.default_whole("linear_value_head_dim", default=128, of=_CLASS),
        conv_kernel=f.default_whole("linear_conv_kernel_dim", default=4, of=_CLASS),
        state_dtype=dtype,
    )
    kinds: dict[str, Caches] = {"linear_attention": (linear,), "full_attention": (full,)}
    found = by_type(f, count, kinds)
    if found is None:
        interval = f.default_whole("full_attention_interval", default=4, of=_CLASS, high=MAX_LAYERS)
        found = repeat([(linear,)] * (interval - 1) + [(full,)], count)
    return Layers(runs(found), draft_runs(drafts, full))
