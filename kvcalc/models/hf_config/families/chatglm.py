"""ChatGLM 2 and 3 and GLM-4-9B of the old code: grouped heads behind a flag."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, head_dim, heads, num_layers, same

__all__ = ["read"]

_CLASS = "ChatGLMConfig"  # vLLM 0.33 transformers_utils/configs/chatglm.py


def read(f: Fields) -> Layers:
    """Return equal layers; without `multi_query_attention` every query head has its own KV head."""
    groups = heads(f)
    if f.flag("multi_query_attention", default=False):
        groups = f.default_whole("multi_query_group_num", default=1, of=_CLASS)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=head_dim(f)))
