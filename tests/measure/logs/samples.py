"""Logs written by us, in the shapes that engines print, one of every kind that is read.

Figures are those that the engines' rules give, so that a prediction agrees with them:

* vllm-v1: 36,832 tokens are 2,302 blocks of 16 tokens of 147,456 B, 5.058 GiB.
* vllm-v1-budget: 36.0 - 15.5 - 3.5 = 17.0, the estimate of the graphs (2.5) in the activation as
  0.27 has it; 17.0 - 0.5 - 0.1465 = 16.35; 39 - 15.5 - 3.5 - 0.5 - 0.1465 = 19.35.
* sglang: 800,001 slots x 36 layers x 4 heads x 128 x 2 B are 27.47 GiB of K on each of two ranks.
* llama.cpp: 8,192 cells x 32 layers x 1,024 elements x 34/32 B are 272 MiB of K.
* tensorrt-llm: 0.9 x 20 GiB over 32 tokens of 131,072 B are 4,608 blocks.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ALL"]

ALL = {
    path.stem: path.read_text(encoding="utf-8").rstrip("\n")
    for path in sorted((Path(__file__).parent / "written").glob("*.log"))
}
"""Name -> log."""
