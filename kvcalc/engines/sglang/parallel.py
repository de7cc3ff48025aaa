"""How ranks share a model: tensor, pipeline and decode context parallelism, groups of DP attention.

SGLang 0.5.23 arg_groups/parallel_hook.py (handle_deprecated_dp_attention), layers/linear.py
(QKVParallelLinear).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count, format_number_of, round_up
from kvcalc.core.values import MAX_RANKS, MAX_STAGES
from kvcalc.engines.sglang.arguments import Arguments

__all__ = ["Parallel", "check_heads", "check_widths", "parallel_of"]


class Parallel(NamedTuple):
    """How many ranks and groups there are.

    Attributes:
        tp, pp: ranks of a stage, and stages.
        attn_tp, attn_dp: ranks of one group of DP attention, and groups.
        dcp: ranks that share the tokens of a sequence.
        replicas: servers beside each other, groups apart.
    """

    tp: int
    pp: int
    attn_tp: int
    attn_dp: int
    dcp: int
    replicas: int


def parallel_of(deployment: Deployment, arguments: Arguments, notes: list[str]) -> Parallel:
    """Return how many ranks there are, and how many of them share the heads of a request.

    `dp_size` counts replicas, and under enable_dp_attention groups of the tensor-parallel ranks;
    0.5.23 calls those attn_dp_size.

    Args:
        deployment: as asked for.
        arguments: SGLang's own settings.
        notes: a line is added for groups of DP attention.

    Raises:
        InvalidValueError: sizes that contradict each other.
        UnsupportedError: groups that the ranks do not divide into.
    """
    own = {
        "tp_size": deployment.tensor_parallel_size,
        "pp_size": deployment.pipeline_parallel_size,
        "dcp_size": deployment.decode_context_parallel_size,
    }
    tp, pp, dcp = (
        arguments.integer(name, None if ours == 1 else ours, called="the deployment") or 1
        for name, ours in own.items()
    )
    for name, size, most in (("tp_size", tp, MAX_RANKS), ("pp_size", pp, MAX_STAGES)):
        if size > most:
            raise InvalidValueError(f"{name} {size} is more than {most}")
    groups = _groups(deployment, arguments, notes)
    if tp % groups:
        raise UnsupportedError(
            f"{groups} groups of DP attention: dp_size does not divide tp_size {tp}",
            hint="DP attention shares the tensor-parallel ranks",
            code="groups-over-ranks",
            setting="dp_size",
        )
    attn_tp = tp // groups
    if attn_tp % dcp:
        raise InvalidValueError(f"dcp_size {dcp} does not divide the {attn_tp} ranks of attention")
    if groups > 1:
        notes.append(
            f"{groups} groups of DP attention, of {format_number_of(attn_tp, 'rank')} each, hold"
            " requests of their own; the figures are those of one"
        )
    moved = arguments.flag("enable_dp_attention") and not arguments.integer("attn_dp_size")
    replicas = 1 if moved else deployment.data_parallel_size
    return Parallel(tp, pp, attn_tp, groups, dcp, replicas)


def _groups(deployment: Deployment, arguments: Arguments, notes: list[str]) -> int:
    groups = arguments.integer("attn_dp_size") or 1
    replicas = deployment.data_parallel_size
    if arguments.flag("enable_dp_attention"):
        asked = arguments.integer(
            "dp_size", None if replicas == 1 else replicas, called="data_parallel_size"
        )
        groups = asked or 1 if groups == 1 else groups
        if groups == 1:
            notes.append(
                "enable_dp_attention with a dp_size of 1 is one group, as without it: name the"
                " groups (--dp, dp_size or attn_dp_size)"
            )
        return groups
    size = arguments.integer("dp_size")
    if size not in (None, replicas):
        raise InvalidValueError(
            f"dp_size {size} and data_parallel_size {replicas} contradict each other",
            hint="with enable_dp_attention, dp_size is a part of tp_size",
        )
    return groups


def check_heads(model: ModelSpec, parallel: Parallel) -> None:
    """Refuse ranks that heads cannot be split over: SGLang's layers assert it.

    Raises:
        UnsupportedError: attention heads that the ranks do not divide; KV heads that neither
            divide the ranks nor are divided by them.
    """
    ranks = parallel.attn_tp
    heads = model.num_attention_heads
    if heads is not None and heads % ranks:
        raise UnsupportedError(
            f"SGLang cannot split {format_count(heads)} attention heads over {ranks} ranks",
            hint="choose a tensor parallel size that divides them",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    shards = ranks // parallel.dcp
    for _, cache in model.caches():
        count = getattr(cache, "num_kv_heads", None)
        if count is not None and count % shards and shards % count:
            raise UnsupportedError(
                f"SGLang cannot split {count} KV heads over {shards} ranks",
                hint="choose a tensor parallel size that divides them, or that they divide",
                code="heads-over-ranks",
                setting="tensor_parallel_size",
            )


def check_widths(model: ModelSpec, parallel: Parallel, *, experts_whole: bool) -> None:
    """Refuse widths that ranks cannot share evenly.

    layers/linear.py, layers/vocab_parallel_embedding.py, layers/moe/fused_moe_triton/layer.py;
    of weights in fp8 the blocks that share a scale: layers/quantization/fp8.py.

    Args:
        model: as SGLang runs it.
        parallel: how many ranks there are.
        experts_whole: experts are spread over ranks and not split.

    Raises:
        UnsupportedError: a vocabulary, the columns of an MLP or of an expert.
    """
    size, tp = model.size, parallel.tp
    if size is None:
        return
    dense = size.num_experts is None or bool(size.num_dense_layers)
    vocabulary = None if size.vocab_size is None else round_up(size.vocab_size, _VOCABULARY)
    widths = (
        ("padded rows of the vocabulary", vocabulary if parallel.attn_dp == 1 else None),
        ("columns of an MLP", size.intermediate_size if dense and not size.layer_inner else None),
        ("columns of an expert", None if experts_whole else size.moe_intermediate_size),
    )
    for what, width in widths:
        if width is not None and width % tp:
            raise UnsupportedError(
                f"SGLang cannot split {format_count(width)} {what} over {tp} ranks",
                hint="choose a tensor parallel size that divides them",
                code="width-over-ranks",
                setting="tensor_parallel_size",
            )
    block = size.weight_block if size.weights_dtype == "fp8" else None
    for what, width in widths[1:]:
        if block is None or width is None or (size.expert_dtype and what.endswith("expert")):
            continue
        if width // tp % block:
            raise UnsupportedError(
                f"{format_count(width // tp)} {what} on each of {tp} ranks are no whole number of"
                f" the {block} that share a scale of the weights in fp8",
                hint="choose a smaller tensor parallel size, or expert parallelism (ep_size)",
                code="quantised-width-over-ranks",
                setting="tensor_parallel_size",
            )


_VOCABULARY = 64
"""Rows that a vocabulary's table is padded to: layers/vocab_parallel_embedding.py."""
