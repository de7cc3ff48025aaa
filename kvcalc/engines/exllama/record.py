"""What the other rooms ask of ExLlamaV2 and V3: see `engines.engine`."""

from __future__ import annotations

from kvcalc.engines.engine import Engine

__all__ = ["V2", "V3"]


class _ExLlama(Engine):
    running = "max_batch_size"


V2 = _ExLlama("exllamav2")
V3 = _ExLlama("exllamav3")
