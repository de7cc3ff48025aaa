"""What SGLang leaves for the cache: mem_fraction_static of what is free before the weights.

SGLang 0.5.23 mem_cache/kv_cache_configurator.py, _profile_available_bytes: what is free after the
weights, less (1 - mem_fraction_static) of what was free before them. What is kept back is for
steps and graphs, which come later.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks, summed
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv, round_up
from kvcalc.core.visible import DRIVER_CONTEXT, left_free, named_card
from kvcalc.engines.sglang.families import is_latent
from kvcalc.engines.sglang.memory import (
    Reserve,
    default_fraction,
    default_graph_batch,
    graphs_mib,
    reserved_mib,
)
from kvcalc.engines.sglang.requests import requests_at_once, table_bytes
from kvcalc.engines.sglang.settings import Settings
from kvcalc.engines.sglang.version import NEWEST
from kvcalc.weights.on_rank import weights_on_rank
from kvcalc.weights.shapes import shape_of
from kvcalc.weights.split import VOCABULARY_MULTIPLE
from kvcalc.weights.widths import Widths, is_multimodal, widths_of

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


_MIB = 2**20
_ITEMSIZE = 2
_WORKSPACES = 512 * _MIB
"""Workspaces of attention kernels and of cuBLAS: what SGLang itself reckons with for such."""
_HIDDEN_COPIES, _INNER_BYTES = 7, 7
"""Copies of the residual stream that are alive in a layer, and bytes for each of an MLP's inner
width: gate and up and their product in 16 bits, and a copy of it in 8 where kernels quantise."""
_LOGIT_BYTES = 14
"""Of a logit at the sampler's peak: in 16 bits, in 32, and probabilities and noise in 32."""
_LATENT_WORKSPACE = Fraction("0.025")
"""Part of the card that MLA's prefill and sparse indexers may take, as vLLM's do."""


def at_start(model: ModelSpec, settings: Settings, plan: CachePlan, cache_bytes: int) -> int:
    """Return the bytes that a rank takes at most after its cache: table, step, graphs, workspaces.

    Args:
        model: as SGLang runs it.
        settings: as resolved.
        plan: of both.
        cache_bytes: the cache at its most; tokens decide how many requests run at once.
    """
    widths = widths_of(model)
    graphs = int(graphs_mib(settings.card, reserve_of(model, settings)) * _MIB)
    computed = max(_chunk(widths, settings), _sampling(widths, settings))
    if is_latent(model):
        computed += int(_LATENT_WORKSPACE * settings.card.memory_bytes)
    return _WORKSPACES + graphs + computed + _table(settings, plan, cache_bytes)


def _chunk(widths: Widths, settings: Settings) -> int:
    """Return the tensors of a layer for a chunk of a prompt."""
    dense = -(-widths.inner.high * _INNER_BYTES // settings.tp)
    inner = -(-widths.expert_inner.high // settings.tp)
    # Workspaces of routed experts: gate and up or the outputs in one, the products in the other.
    routed = widths.experts.high * (max(2 * inner, widths.hidden.high) + inner)
    streams = widths.hidden.high * _HIDDEN_COPIES
    return settings.chunk * (dense + _ITEMSIZE * (streams + routed))


def _sampling(widths: Widths, settings: Settings) -> int:
    """Return the logits of the largest batch that a graph is captured for, and their copies."""
    batch = settings.graph_batch or default_graph_batch(settings.card, settings.tp)
    rows = batch * max(1, settings.proposed)
    stream = widths.hidden.high * _ITEMSIZE * _HIDDEN_COPIES
    return rows * (widths.vocab.high * _LOGIT_BYTES + stream)


def _table(settings: Settings, plan: CachePlan, cache_bytes: int) -> int:
    """Return the request table for as many requests as the largest cache makes room for."""
    tokens = plan.capacity(max(1, cache_bytes), at=1).kv_cache_tokens
    requests = requests_at_once(tokens, settings.context, settings.max_requests)
    return table_bytes(requests, settings.context + settings.row_extra)


_SHARE_THEIR_OWN = ("Qwen3_5", "Ernie4_5")
"""Beginnings of architectures whose draft has one table for both where the model's are tied."""


class Loaded(NamedTuple):
    """Where the weights of a rank lie.

    Attributes:
        inside: what is there when the cache is sized.
        beside: what comes after it.
        freed: bytes of `inside` that are given back once the cache is there, at least.
    """

    inside: tuple[Term, ...]
    beside: tuple[Term, ...] = ()
    freed: int = 0


def loaded(
    weights: Term, model: ModelSpec, deployment: Deployment, settings: Settings, *, last: bool
) -> Loaded:
    """Return where the weights of a rank lie.

    Args:
        weights: of the rank, the draft's layers included.
        model: as SGLang runs it.
        deployment: as asked for.
        settings: as resolved.
        last: the rank is of the last pipeline stage, where the draft is.
    """
    found = settings.speculation
    if found is None or not found.layers or not last:
        return Loaded((weights,))
    tables = _tables(model, settings) if found.own else (0, 0)
    if settings.release.loads_draft_first:
        if not tables[1]:
            return Loaded((weights,))
        own = _term(tables, "the draft's own embedding and head, which the target's replace later")
        return Loaded((weights, own), freed=tables[0])
    draft = _of_draft(model, deployment, settings)
    low, high = weights.low_bytes - draft[1], weights.high_bytes - draft[0]
    target = Term(
        name="weights",
        low_bytes=max(0, low),
        high_bytes=max(0, low, high),
        source=f"{weights.source}; the draft is loaded after the cache is sized",
    )
    after = (draft[0], draft[1] + tables[1])
    return Loaded((target,), (_term(after, "the draft, loaded after the cache is sized"),))


def _term(span: tuple[int, int], what: str) -> Term:
    low, high = span
    source = f"{what} (speculative/eagle_worker_v2.py, init_lm_head)"
    return Term(name="weights", low_bytes=low, high_bytes=high, source=source, label="draft")


def _of_draft(model: ModelSpec, deployment: Deployment, settings: Settings) -> tuple[int, int]:
    """Return the bytes of a draft's weights on a rank, as the weights of the rank count them."""
    draft = deployment.draft_model
    if settings.speculation is not None and not settings.speculation.own:
        if not isinstance(draft, ModelSpec):
            return 0, 0
        term = weights_on_rank(draft, tp=settings.tp)
        return term.low_bytes, term.high_bytes
    with_it, without = (
        weights_on_rank(model, tp=settings.tp, pp=settings.pp, stage=settings.pp - 1, drafts=drafts)
        for drafts in (True, False)
    )
    ends = (with_it.low_bytes - without.low_bytes, with_it.high_bytes - without.high_bytes)
    return max(0, min(ends)), max(0, *ends)


def _tables(model: ModelSpec, settings: Settings) -> tuple[int, int]:
    """Return the bytes of a draft's embedding and head on a rank, beyond what its layers count.

    Both are divided by the ranks; under DP attention by those of a group, or not at all.
    """
    size = model.size
    shape = shape_of(model.architecture)
    if size is None or size.vocab_size is None or size.hidden_size is None:
        return 0, 0
    if shape is not None and shape.draft_tables:
        return 0, 0  # the checkpoint's draft has both, and they are counted with its layers
    tied = size.tie_word_embeddings
    if tied is None and shape is not None:
        tied = shape.tied
    one = bool(tied) and (model.architecture or "").startswith(_SHARE_THEIR_OWN)
    whole = round_up(size.vocab_size, VOCABULARY_MULTIPLE) * size.hidden_size * _ITEMSIZE
    count = 1 if one else 2
    least, most = count * cdiv(whole, settings.tp), count * cdiv(whole, settings.attn_tp)
    known = shape is not None and shape.draft_tables is False
    return (least if known else 0), most


# What SGLang itself reckons with for steps and graphs: the settings that decide it.


def reserve_of(model: ModelSpec, settings: Settings) -> Reserve:
    """Return what of a server decides how much its default keeps back."""
    return Reserve(
        tp=settings.tp,
        pp=settings.pp,
        chunk=settings.chunk,
        attn_dp=settings.attn_dp,
        graph_batch=settings.graph_batch,
        max_requests=settings.max_requests,
        latent=is_latent(model),
        graphs=settings.graphs,
    )


def reserved(model: ModelSpec, settings: Settings) -> int:
    """Return the bytes that SGLang itself reckons with for steps and graphs."""
    return int(reserved_mib(settings.card, reserve_of(model, settings)) * _MIB)
