"""Models whose blocks LMDeploy's PyTorch engine gives back once a window has passed them.

LMDeploy (1263d5c, August 2026) pytorch/configurations/default.py takes `sliding_window` of a config
for the whole model, whichever layers have it; gemma.py (with images) and gpt_oss.py take it back,
and llava_hf.py never asks. pytorch/paging/block_manager/window_block_manager.py then drops the
blocks before the last W tokens of history; with the token of the step that is W + 1, which are what
the kernels read (pytorch/kernels/cuda/pagedattention.py, kv_min_loc).
"""

from __future__ import annotations

from typing import Any

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Group
from kvcalc.core.rules import Window
from kvcalc.engines.every_token import Span

__all__ = ["window_of", "windowed_group"]

_KEPT = {
    "DeepseekV4ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
}
"""Classes for which LMDeploy sets no window."""


def window_of(model: ModelSpec, notes: list[str]) -> int | None:
    """Return the window before which blocks are given back; None where every block is kept.

    Args:
        model: as published.
        notes: a line is added for layers that lose what they read.

    Raises:
        UnsupportedError: layers of several windows, of which a config tells LMDeploy one.
    """
    if model.architecture in _KEPT:
        return None
    caches = [cache for _, cache in model.caches() if cache.rows()]
    windows = {cache.sliding_window for cache in caches if isinstance(cache, SlidingWindow)}
    if len(windows) > 1:
        raise UnsupportedError(
            f"{model.name} has several windows, and LMDeploy takes one for all layers",
            hint="use --engine none to see what its layers are",
        )
    if windows and not all(isinstance(cache, SlidingWindow) for cache in caches):
        notes.append(
            "LMDeploy takes the window for all layers: those that read every token lose what lies"
            " before it"
        )
    return next(iter(windows), None)


def windowed_group(
    spans: tuple[Span, ...],
    payload: dict[str, int],
    block: int,
    page: int,
    window: int,
    step: int,
) -> Group:
    """Return the group of all layers, of which a sequence keeps the blocks of a window.

    Args:
        spans: the layers.
        payload: bytes of one token of one layer, by role.
        block: tokens a block.
        page: bytes of a block of one layer, padding included.
        window: tokens of history that are kept.
        step: tokens of a prompt that are computed at once (max_prefill_token_num), which a longer
            prompt is cut into (scheduler.py, kv_token_limit).
    """
    layers = sum(span.layers for span in spans)
    rule: dict[str, Any] = {"block_tokens": block, "window": window + 1, "in_flight": step}
    return Group(
        name="blocks",
        layers=layers,
        # A step that ends inside a block leaves the window's first block and its own last one.
        rule=Window(**rule, extra_blocks=1 if step % block else 0),
        payload={role: layers * size for role, size in payload.items()},
        unit_bytes=layers * page,
        block_size=block,
    )
