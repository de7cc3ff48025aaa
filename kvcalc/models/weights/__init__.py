"""Exact weight bytes from safetensors headers; no tensor's data is read."""

from kvcalc.models.weights.files import read_safetensors, stated_bytes
from kvcalc.models.weights.header import ShardIndex, Tensor, read_header, read_index
from kvcalc.models.weights.summary import Weights, gather, summarise, with_stated, with_weights

__all__ = [
    "ShardIndex",
    "Tensor",
    "Weights",
    "gather",
    "read_header",
    "read_index",
    "read_safetensors",
    "stated_bytes",
    "summarise",
    "with_stated",
    "with_weights",
]
