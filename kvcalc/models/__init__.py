"""Where models come from: presets, preset files and bare shapes."""

from __future__ import annotations

from kvcalc.models.shape import shape_model
from kvcalc.models.sources import load_model

__all__ = ["load_model", "shape_model"]
