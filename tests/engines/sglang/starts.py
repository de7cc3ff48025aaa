"""Public starts of SGLang against what is predicted for them: facts of logs, and the table of both.

`starts.tsv` holds facts alone, as vLLM's does. Its rows of the fitted half decide what a rank has
taken before the weights (kvcalc/engines/sglang/budget.py); the rest is the engine's arithmetic. The
releases that logged them did that arithmetic the same way; where the fraction is the default's, it
is that of 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvcalc.core.deployment import Deployment
from kvcalc.engines import plan
from kvcalc.models.presets import load_gpu
from tests.engines import starts as starts_of
from tests.engines.starts import first_budget, rows_of, tsv
from tests.engines.vllm.starts import model_of

__all__ = ["Start", "rows", "starts"]


@dataclass(frozen=True)
class Start(starts_of.Start):
    """One start."""

    LOGGED = "left_gib"
    ROUNDING = 0.015


@cache
def starts() -> tuple[Start, ...]:
    """Return all starts with what is predicted for them."""
    return tuple(_start(facts) for facts in tsv(Path(__file__).with_name("starts.tsv")))


def _start(facts: dict[str, str]) -> Start:
    model = model_of(facts["model"])
    fraction = facts["mem_fraction_static"]
    deployment = Deployment(
        engine="sglang",
        gpu=load_gpu(facts["gpu"]),
        tensor_parallel_size=int(facts["tp"]),
        engine_args={"mem_fraction_static": float(fraction)} if fraction else {},
    )
    planned = plan(model, deployment)
    return Start(facts, first_budget(facts, model, deployment, planned))


def rows() -> list[tuple[str, ...]]:
    """Return the table: a row a start, in GiB, under COLUMNS."""
    return rows_of(starts())
