"""GGUF files: the header read in bounds, and what llama.cpp keeps for the model it describes."""

from __future__ import annotations

from kvcalc.models.gguf.architectures import ARCHITECTURES, WITHOUT_CACHE
from kvcalc.models.gguf.header import Header, read_header
from kvcalc.models.gguf.model import GgufModel, model_of_entries, read_gguf

__all__ = [
    "ARCHITECTURES",
    "WITHOUT_CACHE",
    "GgufModel",
    "Header",
    "model_of_entries",
    "read_gguf",
    "read_header",
]
