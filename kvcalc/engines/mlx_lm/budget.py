"""What MLX-LM leaves for a cache: all of it, less attention scores that no kernel keeps apart.

MLX's fused attention of a prompt keeps no scores: for heads of 64, 80 and 128 in all releases, of
72 and 96 in the newest, of 256 on chips with matrix units (M5), and for no other
(mlx/backend/metal/scaled_dot_product_attention.cpp, has_fused_kernel and use_fallback). Else one
layer's scores of a step of the prompt against the whole context lie in memory at once, in 16 bits,
with a mask of one byte a place (mlx/fast.cpp, the fallback: where and softmax take over its
buffer). A quantised cache is read by no fused kernel (mlx_lm models/base.py,
quantized_scaled_dot_product_attention).

Peaks of Qwen3.5-35B-A3B that were measured grow by about 88 kB a token: 20,480 B of cache, and of
16 heads x 2,048 tokens 65,536 B of scores and 2,048 B of mask are 88,064.
"""

from __future__ import annotations

import re

import msgspec

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import Cache
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines import whole_card
from kvcalc.engines.mlx_lm.settings import Settings, resolve

__all__ = ["budgets", "scores_term"]

_FUSED = (64, 80, 128)
_FUSED_LATELY = (72, 96)
_WITH_MATRIX_UNITS = 256
_WITHOUT_THEM = re.compile(r"m[1-4]-")
_SCORE_BYTES, _MASK_BYTES = 2, 1


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of the device; as `whole_card.budgets`, which says the rest."""
    made = whole_card.budgets(model, deployment, plan, weights, free_bytes)
    term = scores_term(model, deployment, plan.max_model_len)
    if term.high_bytes == 0:
        return made
    return tuple(msgspec.structs.replace(one, terms=(*one.terms, term)) for one in made)


def scores_term(model: ModelSpec, deployment: Deployment, longest: int) -> Term:
    """Return what the scores of a prompt of the longest sequence take, beside its cache.

    Args:
        model: as published.
        deployment: as asked for.
        longest: tokens of the longest sequence.
    """
    settings = resolve(model, deployment, [])
    prompt = min(longest, settings.prompt_tokens or longest)
    step = min(settings.prefill_step, prompt)
    heads = model.num_attention_heads or 0
    low = high = 0
    for _, cache in model.caches():
        seen = _context(cache, prompt, step)
        if seen is None:
            continue
        scores, mask = (heads * step * seen * _SCORE_BYTES, step * seen * _MASK_BYTES)
        sure, may = _unfused(cache, settings, str(getattr(deployment.gpu, "name", "")))
        low = max(low, scores if sure else 0)
        high = max(high, scores + 2 * mask if may else 0)
    return Term(
        name="activation",
        low_bytes=low,
        high_bytes=high,
        source=f"scores of a layer without a fused kernel: {format_count(step)} tokens of the"
        f" prompt against {format_count(prompt)} (scaled_dot_product_attention.cpp, use_fallback)",
        label="attention scores",
    )


def _context(cache: Cache, prompt: int, step: int) -> int | None:
    """Return the tokens that a step sees in a layer; None for one without attention."""
    match cache:
        case FullAttention() | Mla():
            return prompt
        case SlidingWindow(sliding_window=window):
            return min(prompt, window + step)
        case ChunkedAttention(attention_chunk_size=chunk):
            return min(prompt, chunk + step)
    return None


def _unfused(cache: Cache, settings: Settings, gpu: str) -> tuple[bool, bool]:
    """Return whether no fused kernel reads a cache: surely, and possibly."""
    if settings.quantizes or isinstance(cache, Mla):
        return True, True
    width = getattr(cache, "head_dim", 0)
    if getattr(cache, "v_head_dim", None) not in (None, width):
        return True, True
    if width in _FUSED:
        return False, False
    if width == _WITH_MATRIX_UNITS:
        return _WITHOUT_THEM.match(gpu) is not None, True
    return width not in _FUSED_LATELY, True
