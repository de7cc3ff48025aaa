"""Slots for LoRA adapters: what vLLM allocates for them before the profile."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_number_of
from kvcalc.core.widths import Span, Widths
from kvcalc.engines.vllm.arguments import switch_of, whole_of
from kvcalc.engines.vllm.settings import Settings

__all__ = ["Slots", "adapters"]

_DEFAULT_RANK = 16
_BYTES = 2


class Slots(NamedTuple):
    """What the slots take, and why."""

    span: Span
    source: str


def adapters(
    model: ModelSpec, widths: Widths, deployment: Deployment, settings: Settings
) -> Slots | None:
    """Return the slots of adapters; None without any (enable_lora, or a number of slots).

    vLLM 0.33 lora/layers/ (create_lora_weights): max_loras pairs of max_lora_rank rows for every
    linear layer, two for query, key and value, two for gate and up. A is whole on every rank, B is
    split; with fully_sharded_loras both are.

    Raises:
        InvalidValueError: a number of slots or a rank that is none.
    """
    slots, rank = whole_of(deployment, "max_loras"), whole_of(deployment, "max_lora_rank")
    enabled = switch_of(deployment, "enable_lora")
    if enabled is False or (enabled is None and slots is None and rank is None):
        return None
    sharded = bool(switch_of(deployment, "fully_sharded_loras"))
    slots, rank = slots or 1, rank or _DEFAULT_RANK
    low, high = (
        model.num_hidden_layers
        * slots
        * rank
        * _BYTES
        * (9 * hidden // split + (5 * hidden + 3 * inner * max(1, experts)) // settings.tp)
        for hidden, inner, experts, split in (
            # The projections of attention alone, and with an MLP or all experts' MLPs.
            (widths.hidden.low, 0, 0, settings.tp),
            (widths.hidden.high, *_inner(model, widths), settings.tp if sharded else 1),
        )
    )
    return Slots(
        Span(low, high),
        f"{format_number_of(slots, 'slot')} for adapters of rank {rank}"
        " (lora/layers/, create_lora_weights)",
    )


def _inner(model: ModelSpec, widths: Widths) -> tuple[int, int]:
    size = model.size
    if size is not None and size.num_experts is not None:
        return widths.expert_inner.high, size.num_experts
    return widths.inner.high, 1
