"""What the other rooms ask of MLC LLM: see `engines.engine`."""

from __future__ import annotations

from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]


class _MlcLlm(Engine):
    running = "max_num_sequence"


ENGINE = _MlcLlm("mlc-llm")
