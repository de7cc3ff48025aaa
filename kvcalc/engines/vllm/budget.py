"""What vLLM leaves for the cache: gpu_memory_utilization of the card less what the profile finds.

vLLM 0.33 v1/worker/gpu_worker.py, determine_available_memory, and v1/worker/utils.py,
request_memory; what the releases differ in is said where it matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError
from kvcalc.core.memory import MemoryBudget, Term, TermName, gib_term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_number_of
from kvcalc.core.visible import Visible, driver_context, named_card, visible
from kvcalc.core.widths import Span, Widths, widths_of
from kvcalc.engines.vllm.arguments import limits_of, takes_no_input
from kvcalc.engines.vllm.lora import adapters
from kvcalc.engines.vllm.profile import (
    Asked,
    Step,
    activation,
    communication,
    context,
    counts_graphs,
    encoder,
    graphs,
    step_of,
    token_table,
)
from kvcalc.engines.vllm.settings import Settings, resolve
from kvcalc.engines.vllm.version import release

__all__ = ["budgets"]

_MEASURED = "starts in public logs (tests/engines/vllm/starts.tsv)"


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
    model, settings = resolve(model, deployment, [])
    v0 = release(plan.engine_version).engine == "v0"
    widths = widths_of(model)
    seen = visible(gpu)
    share, why = _share(deployment, settings, seen)
    found = []
    for number, weight in enumerate(weights):
        step = step_of(
            model,
            settings,
            v0=v0,
            last=number == len(weights) - 1,
            experts_dealt=bool(deployment.enable_expert_parallel),
            asked=Asked(deployment.max_num_batched_tokens, deployment.max_num_seqs),
        )
        inside = tuple(
            _terms(model, widths, step, settings, gpu, deployment, v0=v0, first=number == 0)
        )
        captured = _graphs(settings, deployment, gpu)
        outside: tuple[Term, ...] = ()
        if counts_graphs(settings):
            inside += captured
        else:
            outside = captured
        found.append(
            MemoryBudget(
                total_bytes=gpu.memory_bytes,
                share_bytes=share,
                share_source=why,
                terms=(weight, *inside),
                outside=outside,
                seen_bytes=(seen.low_bytes, seen.high_bytes),
                free_bytes=free_bytes,
                before=(_context_before(gpu),),
                checks_share=True,  # request_memory, where the bytes of the cache are given too
                given_bytes=deployment.kv_cache_memory_bytes,
            )
        )
    return tuple(found)


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


def _terms(
    model: ModelSpec,
    widths: Widths,
    step: Step,
    settings: Settings,
    gpu: GpuSpec,
    deployment: Deployment,
    *,
    v0: bool,
    first: bool,
) -> Iterator[Term]:
    itemsize = element_bytes(model.dtype)
    guessed = "" if widths.known else "; the model's widths are guessed: its config told none"
    rows = format_number_of(step.rows, "row")
    sampled = f", or sampling from {rows} of logits" if step.rows else ""
    peak = activation(model, widths, step, gpu.memory_bytes, itemsize)
    yield _term(
        "activation",
        peak,
        f"a step of {format_number_of(step.tokens, 'token')}{sampled}"
        f" (gpu_model_runner.py, profile_run){guessed}",
    )
    limits = limits_of(deployment)
    if widths.multimodal and first and not takes_no_input(limits):
        span = encoder(widths, step, gpu.memory_bytes, itemsize, v0=v0)
        yield _encoder(span, limits or {}, v0=v0)
    slots = adapters(model, widths, deployment, settings)
    if slots is not None:
        yield _term("other", slots.span, slots.source, "adapters")
    table = token_table(settings)
    if table.high:
        yield _term(
            "other", table, "token ids of every sequence, for n-grams (gpu_model_runner.py)", "ids"
        )
    talk = communication(settings)
    if talk.high:
        yield _term("communication", talk, f"NCCL and all-reduce buffers: {_MEASURED}")
    yield _term(
        "context",
        context(settings, gpu.memory_bytes, shared=gpu.memory_kind == "unified"),
        f"kernels, cuBLAS: {_MEASURED}",
        "kernels",
    )


def _encoder(span: Span, limits: dict[str, int], *, v0: bool) -> Term:
    """Return what an encoder takes beside the language model's step.

    V1's cache has room for a step or the largest item however many a prompt may have; V0 profiles
    as many as that.

    Raises:
        UnsupportedError: V0, and more than one a prompt.
    """
    if v0 and max(limits.values(), default=1) > 1:
        raise NotModelledError(
            "V0's profile encodes as many inputs as limit_mm_per_prompt allows: that is not"
            " modelled for more than one",
            hint="set it to one of each kind, or give a later version (0.11.0 or newer)",
        )
    some = " (some kinds are put off)" if 0 in limits.values() else ""
    return _term(
        "other",
        Span(0, span.high) if some else span,
        "the encoder's profile and cache (compute_mm_encoder_budget); its own widths are not known"
        + some,
        "encoder",
    )


def _graphs(settings: Settings, deployment: Deployment, gpu: GpuSpec) -> tuple[Term, ...]:
    if deployment.enforce_eager:
        return ()
    counted = (
        "as estimated in the profile (profile_cudagraph_memory)"
        if counts_graphs(settings)
        else "captured after the cache is made: this release does not count them"
    )
    return (_term("graphs", graphs(gpu.memory_bytes), f"{counted}; {_MEASURED}"),)


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
