"""What SGLang leaves for the cache: mem_fraction_static of what is free before the weights.

SGLang 0.5.23 mem_cache/kv_cache_configurator.py, _profile_available_bytes: what is free after the
weights, less (1 - mem_fraction_static) of what was free before them. What is kept back is for
steps and graphs, which come later.
"""

from __future__ import annotations

from fractions import Fraction

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks, summed
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.visible import DRIVER_CONTEXT, left_free, named_card
from kvcalc.core.widths import is_multimodal
from kvcalc.engines.sglang.beside import at_start
from kvcalc.engines.sglang.drafts import loaded
from kvcalc.engines.sglang.memory import default_fraction
from kvcalc.engines.sglang.reserve import reserve_of, reserved
from kvcalc.engines.sglang.settings import Settings
from kvcalc.engines.sglang.version import NEWEST

__all__ = ["BEFORE_WEIGHTS", "LEFT_BY_LOADING", "budgets", "fraction_of"]

_GIB = 2**30

BEFORE_WEIGHTS = {"alone": DRIVER_CONTEXT, "bus": (0.25, 1.0), "switched": (1.2, 2.6)}
"""GiB that a rank has taken before it loads anything: the driver's context, NCCL and all-reduce
buffers; alone, on cards that share a bus, or on switched ones (Hopper and later, data centre)."""

LEFT_BY_LOADING = (0.0, 0.3)
"""GiB that loading leaves behind beyond the weights."""

_TOWER_RESERVE = 100 * 2**20
"""SGLANG_VLM_CACHE_SIZE_MB: kept for embeddings of images, which are allocated later."""

_TOWER_FACTORS = (Fraction("0.76"), Fraction("0.9975"))
"""adjust_mem_fraction_for_vlm: 0.95 times 0.8 to 1.05, by the size of the vision tower."""
_TOWER_BASE, _TOWER_LEAST, _TOWER_MOST = Fraction("0.95"), Fraction("0.8"), Fraction("1.05")
_VIT_LAYERS = 24
_VIT_L = 12 * _VIT_LAYERS * 1024**2
"""Parameters of the layers of the tower that the factor is 0.95 for."""
_OLDER_SPREAD = Fraction("0.03")


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of one GPU of each of the plan's ranks.

    Args:
        model: as published.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a rank, the draft's weights in it where there is one.
        free_bytes: what is free of the card before the server starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named, or SGLang's rules for it are not known.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    assert isinstance(plan.resolved, tuple)  # noqa: S101 - as `plan` leaves it
    model, settings = plan.resolved
    seen = left_free(gpu, free_bytes)
    kind = _kind(settings)
    taken_low, taken_high = (int(gib * _GIB) for gib in BEFORE_WEIGHTS[kind])
    free = max(0, seen.low_bytes - taken_high), max(0, seen.high_bytes - taken_low)
    low, high, said = fraction_of(model, settings)
    # The default of a GPU that is smaller than what it keeps free is below nothing.
    share = max(0, int(free[0] * low)), max(0, int(free[1] * high))
    why = (
        f"mem_fraction_static {said} of what is free before the weights: {seen.what}, less what the"
        " ranks have taken by then (kv_cache_configurator.py, _profile_available_bytes)"
    )
    inside = [
        gib_term(
            "context",
            *LEFT_BY_LOADING,
            "what loading leaves behind: starts in public logs",
            "left by loading",
        )
    ]
    if is_multimodal(model):
        inside.append(
            Term(
                name="other",
                low_bytes=_TOWER_RESERVE,
                high_bytes=_TOWER_RESERVE,
                source="kept for embeddings of images (mm_runtime_reservation_gb)",
                label="images",
            )
        )
    context = gib_term(
        "context" if kind == "alone" else "communication",
        *BEFORE_WEIGHTS[kind],
        "the driver's context, NCCL: starts in public logs (tests/engines/sglang/starts.tsv)",
    )
    found = []
    for stage, weight in enumerate(weights, 1):
        held = loaded(weight, model, deployment, settings, last=stage == len(weights))
        cache = share[1] - summed((*held.inside, *inside), "high")
        needed = max(0, at_start(model, settings, plan, cache) - held.freed)
        after = _after(model, settings, (taken_low, taken_high), high, needed)
        found.append(
            MemoryBudget(
                total_bytes=gpu.memory_bytes,
                share_bytes=share,
                share_source=why,
                terms=(*held.inside, *inside),
                outside=(context, *held.beside, after),
                seen_bytes=(seen.low_bytes, seen.high_bytes),
            )
        )
    return tuple(found)


def _after(
    model: ModelSpec,
    settings: Settings,
    taken: tuple[int, int],
    fraction: Fraction,
    needed: int,
) -> Term:
    """Return what comes after the cache, in what mem_fraction_static keeps back.

    No more than the default itself keeps for it, that the default always starts; where the default
    is known with a spread, what the release keeps back shrinks as its fraction grows.

    Args:
        model: as SGLang runs it.
        settings: as resolved.
        taken: bytes before the weights, at least and at most.
        fraction: mem_fraction_static at its most.
        needed: what a start takes at most.
    """
    least, most = taken
    kept = reserved(model, settings) - most
    if settings.mem_fraction is None and settings.release != NEWEST:
        kept -= int(_OLDER_SPREAD * settings.card.memory_bytes)
    # The largest share is of what the least context leaves; the rest of the context is in it.
    needed -= int(fraction * (most - least))
    return Term(
        name="activation",
        low_bytes=0,
        high_bytes=max(0, min(kept, needed)),
        source="the request table, CUDA graphs and a step of chunked_prefill_size tokens, bounded"
        " by the widths; no more than the default keeps for them (memory_hook.py,"
        " handle_gpu_memory_settings)",
    )


def _kind(settings: Settings) -> str:
    if settings.tp * settings.pp == 1:
        return "alone"
    return "switched" if settings.card.hopper or settings.card.sm100 else "bus"


def fraction_of(model: ModelSpec, settings: Settings) -> tuple[Fraction, Fraction, str]:
    """Return mem_fraction_static at least and at most, and how it is said."""
    if settings.mem_fraction is not None:
        given = Fraction(str(settings.mem_fraction))
        return given, given, str(settings.mem_fraction)
    fraction = Fraction(str(default_fraction(settings.card, reserve_of(model, settings))))
    low = high = fraction
    said = f"{float(fraction)} (the default on {settings.card.name}"
    if settings.release != NEWEST:
        low, high = low - _OLDER_SPREAD, high + _OLDER_SPREAD
        said += f"; that of {NEWEST}, {settings.release} may differ by 0.03"
    if is_multimodal(model):
        least, most = _tower_factors(model)
        low, high = low * least, high * most
        said += "; less for a vision tower (adjust_mem_fraction_for_vlm)"
    return low, min(high, Fraction(1)), f"{said})"


def _tower_factors(model: ModelSpec) -> tuple[Fraction, Fraction]:
    """Return the factor of a vision tower; narrower where the tower is known.

    Layers times the square of their width decide, against those of ViT-L; layers that the config
    does not call num_hidden_layers count as 24. Where bytes alone are known: a tower's layers have
    about 12 times as many parameters; embeddings and a projector make it up to twice that.
    """
    size = model.size

    def factor(ratio: Fraction) -> Fraction:
        grown = 1 - Fraction("0.1") * (ratio - 1)
        return _TOWER_BASE * max(_TOWER_LEAST, min(_TOWER_MOST, grown))

    if size is not None and size.towers:
        tower = size.towers[0]
        counts = (tower.num_layers, _VIT_LAYERS)
        found = [factor(Fraction(12 * n * tower.hidden_size**2, _VIT_L)) for n in counts]
        return min(found), max(found)
    if size is None or not size.encoder_bytes:
        return _TOWER_FACTORS
    parameters = Fraction(size.encoder_bytes, 2)
    return factor(parameters / _VIT_L), factor(parameters / 2 / _VIT_L)
