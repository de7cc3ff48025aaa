"""What the scheduler is set to: tokens and sequences of a step, steps ahead, cached prefixes.

vLLM 0.33 engine/arg_utils.py (batches), config/vllm.py (asynchronous scheduling), config/model.py
and models/interfaces.py (prefix caching), models/gemma4_mm.py (the least step of its videos).
"""

from __future__ import annotations

from kvcalc.core.attention import CrossAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.card import Card, batch_defaults
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.rules import Rules
from kvcalc.engines.vllm.speculation import Speculation

__all__ = [
    "batch_of",
    "caches_prefixes",
    "is_of_experts",
    "keeps_state_by_block",
    "overlaps",
    "runs_ahead",
]

_PREFIX_BY_BLOCK = (
    "FalconH1", "GraniteMoeHybrid", "Jamba", "Mamba", "NemotronH", "Zamba2", "Bamba",
)  # fmt: skip
"""Beginnings of the names of architectures that can keep a state at every block."""

_GEMMA4_VIDEO_TOKENS = 2496
"""vLLM 0.33 models/gemma4_mm.py: a video of 32 frames, 78 tokens each, must fit in one step."""

_OF_EXPERTS = (
    "gptoss", "llama4", "deepseek", "mimov2", "minimax", "dbrx", "grok", "kimi", "laguna", "step3",
    "longcat", "jamba", "dots1",
)  # fmt: skip
"""Architectures of experts whose names do not say so, in lower case."""


def batch_of(
    model: ModelSpec, deployment: Deployment, card: Card, length: int, rules: Rules
) -> tuple[int, int]:
    """Return tokens and sequences of a step.

    engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args.
    """
    defaults = batch_defaults(card, rules)
    seqs = deployment.max_num_seqs or defaults.max_num_seqs
    tokens = deployment.max_num_batched_tokens
    if tokens is None:
        tokens = defaults.max_num_batched_tokens
        if any(isinstance(cache, CrossAttention) for _, cache in model.caches()):
            tokens = max(length, tokens)  # an encoder's output is not computed in chunks
        gemma4 = (model.architecture or "").startswith("Gemma4")
        if gemma4 and "image_prefix" in model.traits and rules.images_in_one_step:
            tokens = max(_GEMMA4_VIDEO_TOKENS, tokens)
        if rules.batch_within_length:
            tokens = min(seqs * length, tokens)
    if deployment.max_num_seqs is None and rules.sequences_within_step:
        seqs = min(seqs, tokens)
    return tokens, seqs


def overlaps(
    model: ModelSpec, deployment: Deployment, rules: Rules, speculation: Speculation | None
) -> bool:
    """Whether steps are scheduled ahead of results: config/vllm.py, VllmConfig.__post_init__."""
    if deployment.async_scheduling is not None:
        return deployment.async_scheduling
    if is_pooling(model):
        return False
    method = speculation.method if speculation is not None else None
    if method in ("suffix", "medusa", "mlp_speculator"):
        return False
    if method == "ngram" and not rules.ngram_overlaps:
        return False
    if method == "draft_model" and not rules.drafts_overlap:
        return False
    return rules.async_scheduling


def runs_ahead(model: ModelSpec) -> bool:
    """Whether 0.25 to 0.28 give a model the newer runner (VllmConfig.use_v2_model_runner).

    They give it to dense models without states.
    """
    return not (is_of_experts(model) or model.has_state_layers)


def is_of_experts(model: ModelSpec) -> bool:
    """Whether a model is of experts, as its architecture's name tells."""
    name = (model.architecture or "").lower()
    return "moe" in name or "mixtral" in name or name.startswith(_OF_EXPERTS)


def caches_prefixes(
    model: ModelSpec, deployment: Deployment, rules: Rules, notes: list[str]
) -> bool:
    """Whether prefixes are cached: config/model.py, is_prefix_caching_supported.

    Raises:
        UnsupportedError: hybrids that the release runs without it alone.
    """
    rows = states = False
    for _, cache in model.caches():
        if isinstance(cache, CrossAttention):
            return bool(deployment.enable_prefix_caching)
        rows = rows or bool(cache.rows())
        states = states or (bool(cache.states()) and not cache.rows())
    asked = deployment.enable_prefix_caching
    if not states:
        return True if asked is None else asked
    if rules.prefix_caching == "off" and asked:
        notes.append("this release caches no prefixes of models with states: turned off")
        return False
    if rules.prefix_caching == "refused" and asked:
        raise UnsupportedError(
            "this release of vLLM does not cache prefixes of models with states",
            hint="leave prefix caching off",
        )
    if rules.state_blocks == "length" and asked and not keeps_state_by_block(model):
        notes.append(
            "this release caches no prefixes of this architecture: asked for and turned off"
        )
        return False
    return (rules.prefix_caching == "on" and rows) if asked is None else asked


def keeps_state_by_block(model: ModelSpec) -> bool:
    """Whether a model can keep a state at every block: SupportsMambaPrefixCaching."""
    return (model.architecture or "").startswith(_PREFIX_BY_BLOCK)
