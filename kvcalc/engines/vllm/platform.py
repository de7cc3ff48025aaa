"""What a platform decides inside vLLM's planner, and the plugin that brings it.

vLLM plans in the same order on every platform; a plugin (TPU, Ascend) replaces how layers are
described to the planner, its block size rules and its refusals, and keeps settings, groups, pools,
checks and figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.checks import check_split
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers, describe
from kvcalc.engines.vllm.notes import convention
from kvcalc.engines.vllm.release_notes import not_modelled, release_convention
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.version import NEWEST

__all__ = ["CUDA", "Platform"]

Describe = Callable[[ModelSpec, Settings, ModelSpec, list[str]], Layers]
"""(whole model, settings, one rank's share, notes) -> what the planner is told of the layers."""


class Platform(NamedTuple):
    """One platform.

    Attributes:
        engine: the engine's name in kvcalc.
        version: what is followed, where that is not vLLM's own release.
        card: stands in for the card where the platform has no CUDA cards; its memory decides the
            defaults of a step.
        describe: the specs of a rank's layers.
        check: refuses ways to split a model over ranks.
        convention: what a plan takes for granted.
        unsupported: what is not modelled.
        source: engine, version, files.
    """

    engine: str
    version: str | None
    card: Card | None
    describe: Describe
    check: Callable[[ModelSpec, Settings], None]
    convention: Callable[[Settings], tuple[str, ...]]
    unsupported: Callable[[Layers, Grouping, Settings], tuple[str, ...]]
    source: Callable[[Settings], str]


def _convention(settings: Settings) -> tuple[str, ...]:
    return (*convention(settings), *release_convention(settings))


def _source(settings: Settings) -> str:
    newest = settings.release.line >= NEWEST.line
    planning = "kv_cache_planning.py" if newest else "kv_cache_utils.py"
    return f"vLLM {settings.release}: v1/kv_cache_interface.py, v1/core/{planning}"


CUDA = Platform(
    engine="vllm",
    version=None,
    card=None,
    describe=describe,
    check=check_split,
    convention=_convention,
    unsupported=not_modelled,
    source=_source,
)
"""vLLM itself, on NVIDIA cards."""
