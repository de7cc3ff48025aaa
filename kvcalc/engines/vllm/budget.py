"""What vLLM leaves for the cache: gpu_memory_utilization of the card less what the profile finds.

vLLM 0.33 v1/worker/gpu_worker.py, determine_available_memory, and v1/worker/utils.py,
request_memory; what the releases differ in is said where it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.memory import MemoryBudget, Term, TermName, gib_term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_number_of
from kvcalc.core.visible import Visible, driver_context, named_card, visible
from kvcalc.engines.vllm import profile_v0
from kvcalc.engines.vllm.arguments import graph_mode, limits_of, switch_of, takes_no_input, whole_of
from kvcalc.engines.vllm.profile import (
    Step,
    activation,
    communication,
    context,
    counts_graphs,
    doubt,
    encoder,
    graphs,
    steps_of,
    token_table,
    widened,
)
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.version import release
from kvcalc.weights.widths import Span, Widths, widths_of

__all__ = ["budgets"]


_MEASURED = "starts in public logs (tests/engines/vllm/starts.tsv)"


def _resolved(plan: CachePlan) -> tuple[ModelSpec, Settings]:
    assert isinstance(plan.resolved, tuple)  # noqa: S101 - as plan_on leaves it
    return plan.resolved


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of one GPU of each of the plan's ranks.

    Args:
        model: as published; its `size` makes the spans narrow.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a rank, the draft's weights in it where there is one.
        free_bytes: what is free of the card before the server starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named, or vLLM's rules for it are not known.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    model, settings = _resolved(plan)
    v0 = release(plan.engine_version).engine == "v0"
    seen = visible(gpu)
    share, why = _share(deployment, settings, seen)
    context_before = _context_before(gpu)
    counted = profile_v0.counted(settings) if v0 else None
    found = []
    for number, weight in enumerate(weights):
        last = number == len(weights) - 1
        steps = steps_of(model, settings, deployment, v0=v0, last=last)
        profiled = _Profiled(
            model=model,
            settings=settings,
            deployment=deployment,
            gpu=gpu,
            counted=counted,
            steps=steps,
            doubt=doubt(settings, steps[-1].sampler, v0=v0),
        )
        inside = tuple(_terms(profiled, first=number == 0))
        outside = _graphs(model, settings, deployment, gpu)
        if counts_graphs(settings):
            inside, outside = (*inside, *outside), ()
        rest = tuple(_rest(profiled))
        if counted is None or counted.kernels:
            inside += rest
        else:
            outside += rest
        before: tuple[Term, ...] = (context_before,)
        if counted is not None and counted.context:
            inside, before = (*inside, context_before), ()
        found.append(
            MemoryBudget(
                total_bytes=gpu.memory_bytes,
                share_bytes=share,
                share_source=why,
                terms=(weight, *inside),
                outside=outside,
                seen_bytes=(seen.low_bytes, seen.high_bytes),
                free_bytes=free_bytes,
                before=before,
                checks_share=True,  # request_memory, where the bytes of the cache are given too
                given_bytes=deployment.kv_cache_memory_bytes,
            )
        )
    return tuple(found)


class _Profiled(NamedTuple):
    """What the profile of a rank is of.

    Attributes:
        model: as vLLM runs it.
        settings: as resolved.
        deployment: as asked for.
        gpu: of the rank.
        counted: what V0 takes off the share; None: V1.
        steps: that it may run.
        doubt: how little is known of the release.
    """

    model: ModelSpec
    settings: Settings
    deployment: Deployment
    gpu: GpuSpec
    counted: profile_v0.Counted | None
    steps: tuple[Step, ...]
    doubt: float


def _share(
    deployment: Deployment, settings: Settings, seen: Visible
) -> tuple[tuple[int, int], str]:
    asked = deployment.gpu_memory_utilization
    part = settings.memory_share
    exact = Fraction(str(part))
    default = f" (the default of {settings.release})" if asked is None else ""
    return (ceil(seen.low_bytes * exact), ceil(seen.high_bytes * exact)), (
        f"gpu_memory_utilization {part}{default} of {seen.what}"
        " (v1/worker/utils.py, request_memory)"
    )


def _terms(profiled: _Profiled, *, first: bool) -> Iterator[Term]:
    """Return what torch has at the profile's peak, and what is there already."""
    model, settings, deployment, gpu = profiled[:4]
    widths = widths_of(model)
    step = profiled.steps[-1]
    itemsize = element_bytes(model.dtype)
    guessed = "" if widths.known else "; the model's widths are guessed: its config told none"
    rows = format_number_of(step.rows, "row")
    sampled = f", or sampling from {rows} of logits" if step.rows else ""
    found = activation(model, widths, profiled.steps, gpu.memory_bytes, itemsize)
    peak = widened(found, profiled.doubt, gpu.memory_bytes)
    yield _term(
        "activation",
        peak,
        f"a step of {format_number_of(step.tokens, 'token')}{sampled}"
        f" (gpu_model_runner.py, profile_run){guessed}{_doubted(profiled)}",
    )
    if profiled.counted is not None:
        yield _term(
            "other",
            profile_v0.beyond(profiled.counted, found),
            f"small tensors and gaps between them; this release counts {profiled.counted.source}",
            "allocator",
        )
    limits = limits_of(deployment)
    if widths.multimodal and first and not takes_no_input(limits):
        yield _encoder(profiled, widths, limits or {})
    slots = adapters(model, widths, deployment, settings)
    if slots is not None:
        yield _term("other", slots.span, slots.source, "adapters")
    table = token_table(settings)
    if table.high:
        yield _term(
            "other", table, "token ids of every sequence, for n-grams (gpu_model_runner.py)", "ids"
        )


def _rest(profiled: _Profiled) -> Iterator[Term]:
    """Return what is not torch's."""
    settings, gpu = profiled.settings, profiled.gpu
    talk = communication(settings)
    if talk.high:
        yield _term("communication", talk, f"NCCL and all-reduce buffers: {_MEASURED}")
    span = context(settings, gpu.memory_bytes, shared=gpu.memory_kind == "unified")
    yield _term(
        "context",
        widened(span, profiled.doubt),
        f"kernels, cuBLAS: {_MEASURED}{_doubted(profiled)}",
        "kernels",
    )


def _doubted(profiled: _Profiled) -> str:
    share = round(100 * profiled.doubt)
    return f"; widened by {share} %, the less the more public starts have this profile"


def _encoder(profiled: _Profiled, widths: Widths, limits: dict[str, int]) -> Term:
    """Return what an encoder takes on top of the language model's step.

    V1's cache has room for a step or the largest item however many a prompt may have; V0 profiles
    as many as that.
    """
    model, step = profiled.model, profiled.steps[-1]
    itemsize = element_bytes(model.dtype)
    memory = profiled.gpu.memory_bytes
    if profiled.counted is not None:
        peak = activation(model, widths, profiled.steps, memory, itemsize)
        span = profile_v0.encoder_v0(model, widths, profiled.deployment, step.tokens, peak)
        return _term(
            "other",
            widened(span, profiled.doubt),
            "the encoder's outputs and peak, with the largest items of every kind"
            " (multimodal/profiling.py)",
            "encoder",
        )
    span = encoder(widths, step, memory, itemsize)
    some = " (some kinds are put off)" if 0 in limits.values() else ""
    return _term(
        "other",
        Span(0, span.high) if some else span,
        "the encoder's profile and cache (compute_mm_encoder_budget); its own widths are not known"
        + some,
        "encoder",
    )


def _graphs(
    model: ModelSpec, settings: Settings, deployment: Deployment, gpu: GpuSpec
) -> tuple[Term, ...]:
    if graph_mode(deployment) == "none":
        return ()
    counted = (
        "as estimated in the profile (profile_cudagraph_memory)"
        if counts_graphs(settings)
        else "captured after the cache is made: this release does not count them"
    )
    span = graphs(
        gpu.memory_bytes,
        model.num_hidden_layers,
        tp=settings.tp,
        proposes=deployment.speculative_method not in (None, "ngram", "mtp"),
        shared=gpu.memory_kind == "unified",
    )
    return (_term("graphs", span, f"{counted}; {_MEASURED}"),)


def _context_before(gpu: GpuSpec) -> Term:
    """What the process itself has taken when the share is checked against what is free."""
    return gib_term(
        "context",
        *driver_context(gpu),
        "the driver's context, which is there before the share is checked",
        "driver's context",
    )


def _term(name: TermName, span: Span, source: str, label: str = "") -> Term:
    return Term(name=name, low_bytes=span.low, high_bytes=span.high, source=source, label=label)


# Slots for LoRA adapters: what vLLM allocates for them before the profile.

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
