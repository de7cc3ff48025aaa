"""gpt-oss: window and full layers in turn, a window layer first."""

from __future__ import annotations

from kvcalc.models.hf_config.families import gemma2
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers as Gemma 2 has them: transformers 5.24 GptOssConfig has the same rule."""
    return gemma2.read(f)
