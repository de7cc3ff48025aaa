"""What vLLM compares of its settings before it loads anything, by release (refusals.tsv).

config/scheduler.py (verify_max_model_len; _verify_args before 0.11.1), config/vllm.py
(VllmConfig.__post_init__, validate_block_size), config/speculative.py, engine/arg_utils.py and
v1/core/encoder_cache_manager.py of 0.2 to 0.33.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kvcalc.core.attention import CrossAttention, Mla, SharedKv
from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.units import format_count, round_up
from kvcalc.engines.vllm.arguments import count_of, graph_mode, switch_of, whole_of
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.refusals import refuse, stands
from kvcalc.engines.vllm.scheduling import is_of_experts
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.version import Release

__all__ = ["check_block", "check_settings", "check_split"]

_LONG_V0 = 32_768
"""V0 computes longer prompts in chunks unasked, where nothing else speaks against it."""
_HEEDS_CHUNKS = (0, 11, 1)
"""Since then V1 can be told not to compute prompts in chunks."""
_VOCABULARY = 64
"""Rows that a vocabulary's table is padded to: layers/vocab_parallel_embedding.py."""
_RANKS_OF_ADAPTERS = (
    ((0, 11, 1), (1, 8, 16, 32, 64, 128, 256, 320, 512)),
    ((0, 8, 0), (8, 16, 32, 64, 128, 256, 320, 512)),
    ((0, 5, 5), (8, 16, 32, 64, 128, 256)),
    ((0, 0, 0), (8, 16, 32, 64)),
)
"""Release from which -> ranks of adapters that it takes: config/lora.py."""
_BLOCKS = (
    ((0, 11, 1), (1, 8, 16, 32, 64, 128, 256)),
    ((0, 8, 5), (1, 8, 16, 32, 64, 128)),
    ((0, 6, 6), (8, 16, 32, 64, 128)),
    ((0, 0, 0), (8, 16, 32)),
)
"""Release from which -> choices of --block-size: engine/arg_utils.py, config/cache.py."""
_FINER_BLOCKS, _FINEST_BLOCK = (0, 30, 0), 32
"""Since then scales of experts are repeated for finer blocks: refine_fp8_moe_block_shape."""
_OVERLAPS = ("mtp", "eagle", "eagle3")
_DRAFTS_OVERLAP = (0, 15, 0)


def check_settings(
    model: ModelSpec, deployment: Deployment, settings: Settings, *, v0: bool
) -> None:
    """Refuse what a release does not start with, whatever its cache.

    Args:
        model: in the dtype that vLLM runs it in.
        deployment: as asked for.
        settings: as resolved for V1.
        v0: the engine before V1 starts.

    Raises:
        UnsupportedError: with the code of the refusal.
    """
    step = _step(model, deployment, settings, v0=v0)
    _check_step(deployment, settings, step)
    if not v0:
        _check_encoder(model, settings, step)
    _check_prefills(deployment, settings)
    _check_proposals(model, deployment, settings, step)
    _check_overlap(deployment, settings)
    _check_choices(deployment, settings)
    _check_cache(model, settings)


def check_split(model: ModelSpec, deployment: Deployment, settings: Settings) -> None:
    """Refuse what ranks and stages cannot share, beside the heads.

    Raises:
        UnsupportedError: with the code of the refusal.
    """
    _check_ranks(model, deployment, settings)
    _check_shared(model, settings)


class _Step(NamedTuple):
    """Tokens and sequences of a step, and whether prompts are computed in chunks; None: unsure."""

    tokens: int
    seqs: int
    chunks: bool | None


def _step(model: ModelSpec, deployment: Deployment, settings: Settings, *, v0: bool) -> _Step:
    asked = deployment.max_num_batched_tokens
    chunks = _chunks(model, deployment, settings, v0=v0)
    tokens, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    if v0:
        tokens = asked or max(settings.max_model_len, tokens)
        seqs = deployment.max_num_seqs or _V0_SEQS
    elif asked is None and chunks is False:
        tokens = max(settings.max_model_len, tokens)
    if not v0 and deployment.max_num_seqs is None and settings.release.number < _FEWER_SEQS:
        seqs = _SEQS_OF_EVERY_CARD
    return _Step(tokens, seqs, chunks)


_V0_SEQS = 256
_FEWER_SEQS, _SEQS_OF_EVERY_CARD = (0, 8, 4), 1024
"""Before, V1 ran as many sequences at once on small cards as on large ones."""


def _chunks(
    model: ModelSpec, deployment: Deployment, settings: Settings, *, v0: bool
) -> bool | None:
    """Whether prompts are computed in chunks: engine/arg_utils.py; None where that is not sure."""
    asked = switch_of(deployment, "enable_chunked_prefill")
    if any(isinstance(cache, CrossAttention) for _, cache in model.caches()):
        return False
    if v0:
        if asked is not None:
            return asked
        return None if settings.max_model_len > _LONG_V0 else False
    if is_pooling(model):
        return asked
    if settings.release.number < _HEEDS_CHUNKS:
        return True
    return True if asked is None else asked


def _check_step(deployment: Deployment, settings: Settings, step: _Step) -> None:
    """Refuse a step that is too small for a prompt or for its sequences."""
    at, length = settings.release, settings.max_model_len
    tokens = format_count(step.tokens)
    if step.chunks is False and step.tokens < length:
        refuse(
            at,
            "prompt-over-step",
            f"a step of {tokens} tokens (max_num_batched_tokens) cannot take a prompt of"
            f" {format_count(length)}, as prefills are not chunked",
            hint=f"max_num_batched_tokens {length}, a maximum of {tokens} tokens, or chunked"
            " prefill",
            setting="max_num_batched_tokens",
        )
    if step.tokens < step.seqs:
        refuse(
            at,
            "step-below-sequences",
            f"a step of {tokens} tokens (max_num_batched_tokens) is smaller than its"
            f" {format_count(step.seqs)} sequences (max_num_seqs)",
            hint=f"max_num_seqs {step.tokens}, or max_num_batched_tokens {step.seqs}",
            setting="max_num_batched_tokens",
        )
    active = whole_of(deployment, "max_num_active_seqs")
    if active is not None and active > step.seqs:
        refuse(
            at,
            "active-over-sequences",
            f"max_num_active_seqs {format_count(active)} is more than max_num_seqs"
            f" {format_count(step.seqs)}",
            hint=f"max_num_active_seqs {step.seqs} at most",
            setting="max_num_active_seqs",
        )


def _check_encoder(model: ModelSpec, settings: Settings, step: _Step) -> None:
    """Refuse a step that is too small for an encoder's input, which is not computed in chunks."""
    encoders = [cache for _, cache in model.caches() if isinstance(cache, CrossAttention)]
    longest = max((cache.encoder_tokens for cache in encoders), default=0)
    if longest > step.tokens:
        refuse(
            settings.release,
            "encoder-over-step",
            f"an input of {format_count(longest)} encoder tokens is more than a step of"
            f" {format_count(step.tokens)} (max_num_batched_tokens), and is not computed in chunks",
            hint=f"max_num_batched_tokens {max(longest, settings.max_model_len)}",
            setting="max_num_batched_tokens",
        )


def _check_prefills(deployment: Deployment, settings: Settings) -> None:
    """Refuse what is said of long and partial prefills where it cannot be."""
    at, length = settings.release, settings.max_model_len
    partial = whole_of(deployment, "max_num_partial_prefills") or 1
    long = whole_of(deployment, "max_long_partial_prefills")
    threshold = count_of(deployment, "long_prefill_token_threshold") or 0
    if long is not None and long > partial:
        refuse(
            at,
            "partial-prefills",
            f"max_long_partial_prefills {long} is more than max_num_partial_prefills {partial}",
            hint=f"max_long_partial_prefills {partial} at most",
            setting="max_long_partial_prefills",
        )
    always = not stands("partial-prefills", at)  # with them the threshold was for them alone
    if threshold > length and (always or partial > 1):
        refuse(
            at,
            "threshold-over-length",
            f"long_prefill_token_threshold {format_count(threshold)} is more than the maximum of"
            f" {format_count(length)} tokens",
            hint=f"long_prefill_token_threshold {length} at most",
            setting="long_prefill_token_threshold",
        )


def _check_proposals(
    model: ModelSpec, deployment: Deployment, settings: Settings, step: _Step
) -> None:
    """Refuse numbers of proposed tokens: config/speculative.py, config/vllm.py."""
    speculation, at = settings.speculation, settings.release
    if speculation is None:
        return
    _check_vocabulary(model, deployment, settings)
    proposed, tokens = speculation.tokens, format_count(step.tokens)
    depth = sum(run.count for run in speculation.layers) if speculation.method == "mtp" else 1
    if proposed > depth and depth and proposed % depth:
        refuse(
            at,
            "proposals-not-divided",
            f"{proposed} proposed tokens are no multiple of the {depth} layers that propose them",
            hint=f"num_speculative_tokens {proposed // depth * depth}",
            setting="num_speculative_tokens",
        )
    slots = _slots_of_drafts(settings, step)
    if step.tokens <= slots:
        refuse(
            at,
            "step-below-drafts",
            f"drafting takes {format_count(slots)} of the {tokens} tokens of a step"
            " (max_num_batched_tokens): none are left to schedule",
            hint=f"max_num_batched_tokens above {format_count(slots)}",
            setting="max_num_batched_tokens",
        )
    wanted = step.seqs * (proposed + 1)
    if switch_of(deployment, "enable_lora") and step.tokens < wanted:
        refuse(
            at,
            "step-below-adapter-drafts",
            f"with adapters a step must take {proposed} proposed tokens and one more of each of"
            f" {format_count(step.seqs)} sequences: {format_count(wanted)}, not {tokens}"
            " (max_num_batched_tokens)",
            hint=f"max_num_batched_tokens {wanted}, or max_num_seqs"
            f" {step.tokens // (proposed + 1)}",
            setting="max_num_batched_tokens",
        )
    largest = _largest_graph(step)
    graphs = graph_mode(deployment) not in ("none", "piecewise") and not is_pooling(model)
    if (
        graphs
        and (settings.attention_backend or "").upper() != "FLASHINFER"
        and largest < proposed + 1
    ):
        refuse(
            at,
            "graphs-below-proposals",
            f"the largest CUDA graph is of {largest} tokens (max_num_seqs {step.seqs}), and a step"
            f" of one sequence has {proposed + 1}: {proposed} proposed and one more",
            hint=f"max_num_seqs {(proposed + 2) // 2} or more, or fewer proposed tokens",
            setting="max_num_seqs",
        )


def _check_vocabulary(model: ModelSpec, deployment: Deployment, settings: Settings) -> None:
    """Refuse a draft model of another vocabulary (verify_equal_vocab_size_if_draft_model)."""
    draft, speculation = deployment.draft_model, settings.speculation
    if not isinstance(draft, ModelSpec) or speculation is None or draft.size is None:
        return
    if speculation.method != "draft_model" or switch_of(deployment, "use_heterogeneous_vocab"):
        return
    own, its = model.size.vocab_size if model.size is not None else None, draft.size.vocab_size
    if None not in (own, its) and own != its:
        refuse(
            settings.release,
            "draft-vocabulary",
            f"the draft {draft.name} has a vocabulary of {its:,}, and {model.name} one of {own:,}",
            hint="a draft model of the same vocabulary",
            setting="draft_model",
        )


def _slots_of_drafts(settings: Settings, step: _Step) -> int:
    """Return tokens of a step that drafting takes: config/speculative.py, config/vllm.py.

    One of every sequence until 0.27 (max_num_new_slots_for_drafting); then one, and since 0.29 all
    tokens proposed ahead.
    """
    speculation, at = settings.speculation, settings.release.number
    if speculation is None:
        return 0
    if at >= (0, 29, 0):
        return speculation.lookahead
    each = int(speculation.method == "draft_model")
    return each if at >= (0, 28, 0) else each * step.seqs


def _largest_graph(step: _Step) -> int:
    """Return tokens of the largest CUDA graph: config/vllm.py, _set_cudagraph_sizes.

    The check that compares it is of the releases that do not count proposed tokens in it.
    """
    most = min(2 * step.seqs, 512, step.tokens)
    sizes: list[int] = [1, 2, 4, *range(8, 513, 8)]
    return max(size for size in sizes if size <= most)


def _check_overlap(deployment: Deployment, settings: Settings) -> None:
    """Refuse steps that are asked to overlap where the release cannot."""
    at = settings.release
    if not deployment.async_scheduling:
        return
    if settings.pp > 1:
        refuse(
            at,
            "async-with-stages",
            f"vLLM {at} does not overlap steps (async_scheduling) over {settings.pp} pipeline"
            " stages",
            hint="leave async_scheduling out, or give a later version (0.15.0 or newer)",
            setting="async_scheduling",
        )
    speculation = settings.speculation
    if speculation is None:
        return
    ahead = (*_OVERLAPS, *(("draft_model",) if at.number >= _DRAFTS_OVERLAP else ()))
    if speculation.method not in ahead:
        refuse(
            at,
            "async-with-proposals",
            f"vLLM {at} does not overlap steps (async_scheduling) while {speculation.method}"
            " proposes tokens",
            hint="leave async_scheduling out",
            setting="async_scheduling",
        )


_Choices = tuple[tuple[tuple[int, int, int], tuple[int, ...]], ...]


def _choices(by_release: _Choices, at: Release) -> tuple[int, ...]:
    return next(values for first, values in by_release if first <= at.number)


def _check_choices(deployment: Deployment, settings: Settings) -> None:
    """Refuse values that the release's options do not list."""
    at, block = settings.release, settings.block_size
    blocks = _choices(_BLOCKS, at)
    if block is not None and block not in blocks:
        refuse(
            at,
            "block-not-taken",
            f"vLLM {at} takes no block of {format_count(block)} tokens",
            hint=f"block_size of {', '.join(map(str, blocks))}",
            setting="block_size",
        )
    rank = whole_of(deployment, "max_lora_rank")
    ranks = _choices(_RANKS_OF_ADAPTERS, at)
    if rank is not None and rank not in ranks and switch_of(deployment, "enable_lora") is not False:
        refuse(
            at,
            "adapter-rank",
            f"vLLM {at} has no slots for adapters of rank {rank}",
            hint=f"max_lora_rank of {', '.join(map(str, ranks))}",
            setting="max_lora_rank",
        )


def _check_cache(model: ModelSpec, settings: Settings) -> None:
    """Refuse cache dtypes that the checkpoint or the kind of attention does not go with."""
    at, word = settings.release, settings.kv_dtype
    stored = model.size.weights_dtype if model.size is not None else None
    if word == "fp8_e5m2" and stored == "fp8":
        refuse(
            at,
            "fp8-e5m2-checkpoint",
            "a cache in fp8_e5m2 beside weights in fp8, whose scales are those of fp8_e4m3",
            hint="choose --kv-cache-dtype fp8_e4m3, or auto",
            setting="kv_cache_dtype",
        )
    latent = any(isinstance(cache, Mla) for _, cache in model.caches())
    if latent and word.startswith("nvfp4") and not word.endswith("_ds_mla"):
        refuse(
            at,
            "nvfp4-with-mla",
            f"a cache in {word} of {model.name}, which keeps latents (MLA)",
            hint="choose --kv-cache-dtype fp8, or auto",
            setting="kv_cache_dtype",
        )


def _check_ranks(model: ModelSpec, deployment: Deployment, settings: Settings) -> None:
    """Refuse widths that ranks do not share evenly, and experts of a model without any."""
    at, tp, size = settings.release, settings.tp, model.size
    if size is None:
        return
    known = size.intermediate_size is not None and size.num_experts is None
    if deployment.enable_expert_parallel and known and not is_of_experts(model):
        refuse(
            at,
            "experts-needed",
            f"expert parallelism (enable_expert_parallel) of {model.name}, which has no experts",
            hint="leave enable_expert_parallel out",
            setting="enable_expert_parallel",
        )
    dense = size.num_experts is None or bool(size.num_dense_layers)
    experts = size.num_experts is not None and not deployment.enable_expert_parallel
    mlp = size.intermediate_size if dense and not size.layer_inner else None
    over = tp * (deployment.data_parallel_size or 1)  # replicas share experts as ranks do
    widths = (
        ("padded rows of the vocabulary", _padded_rows(size.vocab_size, deployment), tp),
        ("columns of an MLP", mlp, tp),
        ("columns of an expert", size.moe_intermediate_size if experts else None, over),
    )
    for what, width, ranks in widths:
        if width is not None and width % ranks:
            refuse(
                at,
                "width-over-ranks",
                f"{format_count(width)} {what} cannot be split evenly over {ranks} ranks",
                hint=f"choose a tensor parallel size that divides {width}",
                setting="tensor_parallel_size",
            )
    whole = size.weight_block if size.weights_dtype == "fp8" else None
    for what, width, ranks in widths[1:]:
        of_experts = what.endswith("expert")
        if whole is None or width is None or (of_experts and size.expert_dtype is not None):
            continue
        part = width // ranks
        finer = math.gcd(whole, part, size.hidden_size or whole)
        refined = of_experts and at.number >= _FINER_BLOCKS and finer >= _FINEST_BLOCK
        if part % whole and not refined:
            refuse(
                at,
                "quantised-width-over-ranks",
                f"{format_count(part)} of the {format_count(width)} {what} are a rank's of {ranks},"
                f" no multiple of the {whole} that a scale of the weights is of",
                hint="choose a smaller tensor parallel size"
                + (", or enable_expert_parallel" if of_experts else ""),
                setting="tensor_parallel_size",
            )


def _padded_rows(vocab_size: int | None, deployment: Deployment) -> int | None:
    """Return the rows of a vocabulary's table as it is shared; None where that is not known."""
    if vocab_size is None or switch_of(deployment, "enable_lora"):
        return None  # adapters add rows
    return round_up(vocab_size, _VOCABULARY)


def _check_shared(model: ModelSpec, settings: Settings) -> None:
    """Refuse stages that part a layer from the one whose K and V it reads.

    layers/attention/attention.py, validate_kv_sharing_target: a stage knows its own layers alone.
    """
    if settings.pp == 1 or not any(isinstance(cache, SharedKv) for _, cache in model.caches()):
        return
    sizes = settings.partition or stage_sizes(model.num_hidden_layers, settings.pp)
    layer, stage, after = 0, 0, sizes[0]
    first = 0
    for run in model.layers:
        for number in range(layer, layer + run.count):
            while number >= after and stage + 1 < len(sizes):
                first, stage = after, stage + 1
                after += sizes[stage]
            for cache in run.caches:
                source = cache.source_layer if isinstance(cache, SharedKv) else None
                if source is not None and source < first:
                    refuse(
                        settings.release,
                        "shared-kv-over-stages",
                        f"layer {number} reads the K and V of layer {source}, which is on another"
                        f" pipeline stage of {settings.pp}",
                        hint="choose a pipeline parallel size of 1, or tensor parallelism",
                        setting="pipeline_parallel_size",
                    )
        layer += run.count


def check_block(layers: Layers, deployment: Deployment, settings: Settings) -> None:
    """Refuse a block that a step cannot fill where prefixes of states are cached by blocks.

    Args:
        layers: as described to the planner, the block raised for the states.
        deployment: as asked for.
        settings: as resolved.

    Raises:
        UnsupportedError: with the code of the refusal.
    """
    if settings.state_mode != "align" or all(p.spec.kind != "state" for p in layers.placed):
        return
    block = layers.block_size
    at, step = settings.release, settings.max_num_batched_tokens
    tokens = format_count(block)
    cached = "where prefixes of states are cached at the ends of steps (mamba cache mode align)"
    if block > step:
        refuse(
            at,
            "block-over-step",
            f"a block of {tokens} tokens is more than a step of {format_count(step)}"
            f" (max_num_batched_tokens), {cached}",
            hint=f"max_num_batched_tokens {block}, or no prefix caching",
            setting="max_num_batched_tokens",
        )
    threshold = count_of(deployment, "long_prefill_token_threshold") or 0
    if 0 < threshold < block:
        refuse(
            at,
            "threshold-below-block",
            f"long_prefill_token_threshold {format_count(threshold)} is less than a block of"
            f" {tokens} tokens, {cached}",
            hint=f"long_prefill_token_threshold {block}, or leave it out",
            setting="long_prefill_token_threshold",
        )
    for name, wrong in (("enable_chunked_prefill", False), ("disable_chunked_mm_input", True)):
        if switch_of(deployment, name) is wrong:
            refuse(
                at,
                "prefixes-need-chunks",
                f"{name} is {str(wrong).lower()}, and prompts must be computed in chunks {cached}",
                hint=f"leave {name} out, or no prefix caching",
                setting=name,
            )
