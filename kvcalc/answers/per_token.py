"""Bytes a token, a block and a sequence, taken from a plan."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import Growth, LayerGroup, PerToken, SequenceSize
from kvcalc.core.explain import as_shaped, explain_plan, held_by_layers, keeps_in_all
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.rules import Fixed, Slots
from kvcalc.core.units import add_rates

__all__ = ["DEFAULT_TOKENS", "layer_groups", "per_token", "usual_lengths"]

DEFAULT_TOKENS = (8192, 131072)


def usual_lengths(models: Sequence[ModelSpec]) -> list[int]:
    """Return the lengths to size unasked: the usual ones that some model can reach."""
    longest = [model.max_position_embeddings for model in models]
    known = [most for most in longest if most is not None]
    if len(known) < len(longest):
        return list(DEFAULT_TOKENS)
    return [n for n in DEFAULT_TOKENS if n <= max(known)] or [max(known)]


def per_token(
    plan: CachePlan,
    *,
    tokens: Sequence[int] = DEFAULT_TOKENS,
    explain: bool = False,
    flags: tuple[str, ...] = (),
) -> PerToken:
    """Return what a token, a block and sequences of `tokens` tokens cost under a plan.

    Args:
        plan: whose rules decide; figures are those of its binding rank.
        tokens: lengths of the sequences to size.
        explain: put the formula with its numbers into the result.
        flags: what sets it apart from other plans.
    """
    grown, period = plan.growth()
    past, past_period = plan.growth(windows_open=False)
    everywhere, every_period = plan.growth_all_ranks()
    sequences = tuple(
        SequenceSize(tokens=n, bytes=plan.bytes_used(n), allocated_bytes=plan.bytes_needed(n))
        for n in tokens
    )
    return PerToken(
        model=plan.model,
        engine=plan.engine,
        kv_cache_dtype=plan.kv_cache_dtype,
        num_gpus=plan.num_gpus,
        block_size=plan.block_size,
        sequence_tokens_per_block=(
            plan.block_size * plan.rank.token_factor if plan.block_size else None
        ),
        max_model_len=plan.max_model_len,
        bytes_per_token=grown if period == 1 else None,
        growth=Growth(bytes=grown, tokens=period),
        bytes_per_token_past_windows=past if past_period == 1 else None,
        growth_past_windows=Growth(bytes=past, tokens=past_period),
        bytes_per_token_all_ranks=everywhere if every_period == 1 else None,
        state_bytes=plan.fixed_bytes(Slots),
        encoder_bytes=plan.fixed_bytes(Fixed),
        block_bytes=plan.block_bytes,
        layers=_layers(plan),
        sequences=sequences,
        explain=explain_plan(plan, tokens) if explain else (),
        flags=flags,
    )


def _layers(plan: CachePlan) -> tuple[LayerGroup, ...]:
    """Return the layers of the binding rank, with what the plan charges for them."""
    share, factor = as_shaped(plan), plan.rank.token_factor
    if share is not None:
        return layer_groups(share, plan.kv_cache_dtype, token_factor=factor)
    groups = []
    for held in held_by_layers(plan):
        grown, period = add_rates([held.rows.growth(factor)])
        state = held.rows.rule
        groups.append(
            LayerGroup(
                kind=held.name,
                count=held.layers,
                shape=held.product,
                keeps=held.keeps,
                bytes_per_token=grown if period == 1 else None,
                state_bytes=state.used(1) * held.rows.slot_bytes if isinstance(state, Slots) else 0,
            )
        )
    return tuple(groups)


def layer_groups(
    model: ModelSpec, kv_cache_dtype: str = "auto", *, token_factor: int = 1
) -> tuple[LayerGroup, ...]:
    """Add up layers that keep equal caches, in the order in which they first appear.

    Args:
        model: the layers.
        kv_cache_dtype: what their rows are kept in.
        token_factor: GPUs that share the tokens of a sequence (context parallelism).
    """
    counts: dict[tuple[tuple[Cache, ...], str], int] = {}
    for run in model.layers:
        key = (run.caches, run.note)
        counts[key] = counts.get(key, 0) + run.count
    dtype = model.resolve(kv_cache_dtype)
    groups = []
    for (caches, note), count in counts.items():
        run = LayerRun(count=count, caches=caches, note=note)
        alone = model.with_layers(count, caches)
        size, tokens = alone.growth(dtype)
        grown, period = add_rates([(size, tokens * token_factor)])
        groups.append(
            LayerGroup(
                kind=run.label,
                count=count,
                shape=run.shape,
                keeps=keeps_in_all(caches),
                bytes_per_token=grown if period == 1 else None,
                state_bytes=alone.state_bytes(),
            )
        )
    return tuple(groups)
