"""A model given by its shape alone: layers, KV heads and head size."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec

__all__ = ["shape_model"]


def shape_model(
    num_hidden_layers: int,
    num_kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    dtype: str = "bfloat16",
    max_position_embeddings: int | None = None,
) -> ModelSpec:
    """Return a model of equal layers of full attention, named after its shape.

    Raises:
        InvalidValueError: a number out of range.
        UnsupportedError: a dtype that models are not kept in.

    >>> shape_model(16, 4, 256).name
    '16 layers x 4 KV heads x 256'
    >>> shape_model(16, 4, 256).bytes_per_token()
    65536
    """
    cache = FullAttention(num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)
    heads = "head" if num_kv_heads == 1 else "heads"
    layers = "layer" if num_hidden_layers == 1 else "layers"
    width = f"{head_dim}" if v_head_dim in (None, head_dim) else f"{head_dim}/{v_head_dim}"
    return ModelSpec(
        name=f"{num_hidden_layers} {layers} x {num_kv_heads} KV {heads} x {width}",
        num_hidden_layers=num_hidden_layers,
        dtype=dtype,
        layers=(LayerRun(count=num_hidden_layers, caches=(cache,)),),
        max_position_embeddings=max_position_embeddings,
    )
