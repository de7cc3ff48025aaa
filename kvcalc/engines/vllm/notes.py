"""Why each number is what it is: a line for every rule that moved one."""

from __future__ import annotations

from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.settings import Settings

__all__ = ["convention", "explain"]


def explain(
    model: ModelSpec,
    layers: Layers,
    grouping: Grouping,
    ranks: tuple[Rank, ...],
    settings: Settings,
) -> list[str]:
    """Return the notes of a plan."""
    del model, layers, grouping, ranks, settings
    return []


def convention(settings: Settings) -> tuple[str, ...]:
    """Return what the plan takes for granted."""
    del settings
    return ()
