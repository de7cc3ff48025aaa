"""vLLM's first engine (V0): one pool of blocks in which every attention layer keeps every token.

vLLM 0.8.5 worker/cache_engine.py (CacheEngine.get_cache_block_size), worker/worker.py
(raise_if_cache_size_invalid), executor/executor_base.py (initialize_cache), engine/arg_utils.py
(_is_v1_supported_oracle: when it starts V0). It was deleted in 0.11.
"""

from __future__ import annotations

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Mla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank, Rows
from kvcalc.core.rules import Grow, Slots
from kvcalc.core.units import format_count, round_up
from kvcalc.engines.vllm.arguments import gib_of
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.host import host_parts, swap_part
from kvcalc.engines.vllm.kernels import BLACKWELL
from kvcalc.engines.vllm.settings import DEFAULT_BLOCK_SIZE, Settings
from kvcalc.engines.vllm.speculation import starts_v0_for

__all__ = ["plan_v0", "starts_v0"]

_HOPPER = 9
_MLA_SINCE = (0, 7, 1)
_FLASHMLA_SINCE = (0, 8, 0)
_PADDED_HEAD = 256
"""Size of K and V to which MLA heads were padded before vLLM kept latents (0.7.1)."""
_ALWAYS_V0 = ("BloomForCausalLM", "BartForConditionalGeneration", "MBartForConditionalGeneration")
_OFFLOADS_ITSELF = (0, 8, 3)
"""V1 has cpu_offload_gb; before, engine/arg_utils.py, _is_v1_supported_oracle, falls back to V0."""
_DEFAULT_SEQS = 256
_GRAPH_STEP = 8


def starts_v0(model: ModelSpec, deployment: Deployment, settings: Settings) -> bool:
    """Whether a release starts V0 for a model and card (0.8 to 0.10 have both engines)."""
    at = settings.release
    if at.engine is not None:
        return at.engine == "v0"
    if at.line < (0, 8):
        return True
    if at.number >= (0, 10, 2):
        return False
    states = model.has_state_layers
    cross = any(isinstance(cache, CrossAttention) for _, cache in model.caches())
    if states or cross or not settings.card.has_bfloat16 or model.architecture in _ALWAYS_V0:
        return True
    reads_fp8 = settings.card.family == _HOPPER or (
        settings.card.family == BLACKWELL and at.number >= (0, 10, 0)
    )
    if settings.kv_dtype.startswith("fp8") and not reads_fp8:
        return True
    offloads = at.number < _OFFLOADS_ITSELF and gib_of(deployment, "cpu_offload_gb") is not None
    if offloads or starts_v0_for(settings.speculation, at.number):
        return True
    return at.line <= (0, 8) and (
        model.dtype == "float32"
        or settings.speculation is not None
        or is_pooling(model)
        or deployment.pipeline_parallel_size > 1
    )


def plan_v0(
    model: ModelSpec, settings: Settings, deployment: Deployment, notes: list[str]
) -> CachePlan:
    """Return the plan that V0 makes.

    Args:
        model: in the dtype that vLLM runs it in.
        settings: as resolved.
        deployment: as asked for.
        notes: those that were made on the way.

    Raises:
        UnsupportedError: what V0 has not, or kvcalc does not model of it.
    """
    _check(model, settings)
    block = settings.block_size or _block(model, settings)
    ranks = tuple(
        _rank(stage, number, block, settings, deployment)
        for number, stage in enumerate(
            model.on_rank(settings.tp).stages(settings.pp, settings.partition)
        )
    )
    limits = {rows.rule.limit for r in ranks for rows in r.rows() if isinstance(rows.rule, Grow)}
    if limits - {None}:
        notes.append("V0 frees nothing behind a window: every layer keeps every token")
    if any(len(r.pools) > 1 for r in ranks):
        slots = format_count(ranks[0].pools[-1].units or 0)
        notes.append(
            f"states lie outside the pool of blocks, one for each of {slots} sequences"
            " (max_num_seqs); the memory profile has taken their bytes already"
        )
    unsupported: tuple[str, ...] = ()
    if settings.pp > 1:
        unsupported = (
            (
                f"V0's start-up check gives a sequence 1 / {settings.pp} of the blocks: it refuses"
                " lengths above that, which this plan does not"
            ),
        )
    return CachePlan(
        engine="vllm",
        engine_version=str(settings.release._replace(engine="v0")),
        model=model.name,
        kv_cache_dtype=kv_dtype(settings.kv_dtype, model.dtype).name,
        model_dtype=model.dtype,
        block_size=block,
        ranks=ranks,
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_running=deployment.max_num_seqs or _DEFAULT_SEQS,
        reuse_tokens=block if deployment.enable_prefix_caching else None,
        report="tokens",
        check_spares_reserved=False,
        host=tuple(
            part
            for part in (
                swap_part(deployment, ranks),
                *host_parts(model, deployment, ranks, settings.release),
            )
            if part
        ),
        notes=tuple(notes),
        unsupported=unsupported,
        convention=("This is V0, the engine before V1: it has no null block.",),
        doubt=settings.doubt,
        source=f"vLLM {settings.release.major}.{settings.release.minor} worker/cache_engine.py",
    )


def _check(model: ModelSpec, settings: Settings) -> None:
    heads = model.num_attention_heads
    if heads is not None and heads % settings.tp:
        raise UnsupportedError(
            f"{heads} attention heads cannot be split over {settings.tp} ranks",
            hint=f"choose a tensor parallel size that divides {heads}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    if settings.speculation is not None:
        raise NotModelledError(
            "V0 gives a draft model a cache of its own, which is not modelled",
            hint="leave speculation out, or give a later version (0.10.2 or newer)",
        )
    if settings.dcp > 1:
        raise UnsupportedError(
            "V0 has no decode context parallelism", hint="give a later version (0.11.0 or newer)"
        )
    for _, cache in model.caches():
        known = (FullAttention, SlidingWindow, ChunkedAttention, Mla)
        if cache.rows() and not isinstance(cache, known):
            raise NotModelledError(
                f"V0's rules for {cache.kind} caches are not known",
                hint="use --engine none for the model's own arithmetic",
            )


def _block(model: ModelSpec, settings: Settings) -> int:
    """Return tokens a block: 64 for FlashMLA on Hopper."""
    mla = any(isinstance(cache, Mla) for _, cache in model.caches())
    flash = settings.card.family == _HOPPER and settings.release.number >= _FLASHMLA_SINCE
    return 64 if mla and flash else DEFAULT_BLOCK_SIZE


def _rank(
    stage: ModelSpec, number: int, block: int, settings: Settings, deployment: Deployment
) -> Rank:
    rows: dict[Grow, dict[str, int]] = {}
    layers = entry = state_layers = 0
    states: dict[str, int] = {}
    for count, cache in stage.caches():
        if cache.rows():
            payload, kept = _payload(cache, stage, settings)
            layers += count
            entry += count * kept
            rule = Grow(
                block_tokens=block,
                limit=getattr(cache, "sliding_window", None)
                or getattr(cache, "attention_chunk_size", None),
                restarts=isinstance(cache, ChunkedAttention),
            )
            mine = rows.setdefault(rule, {})
            for role, size in payload.items():
                mine[role] = mine.get(role, 0) + count * size
        elif cache.states():
            state_layers += count
            for tensor in cache.states():
                size = tensor.elements * element_bytes(stage.dtype)
                states[tensor.role] = states.get(tensor.role, 0) + count * size
    pools = []
    if rows:
        (rule, payload), *others = rows.items()
        group = Group(
            name="attention",
            layers=layers,
            rule=rule,
            payload=payload,
            unit_bytes=block * entry,
            also=tuple(Rows(rule=r, payload=p) for r, p in others),
            block_size=block,
        )
        pools.append(
            Pool(
                name="blocks",
                groups=(group,),
                unit_bytes=block * entry,
                units=settings.num_gpu_blocks_override,
            )
        )
    if states:
        size = sum(states.values())
        group = Group(
            name="state", layers=state_layers, rule=Slots(), payload=states, unit_bytes=size
        )
        pools.append(
            Pool(
                name="states",
                groups=(group,),
                unit_bytes=size,
                units=_state_slots(deployment),
                beside=True,
            )
        )
    return Rank(
        name=f"stage {number}" if settings.pp > 1 else "rank",
        share=stage,
        pools=tuple(pools),
        multiplicity=settings.tp,
    )


def _payload(cache: Cache, stage: ModelSpec, settings: Settings) -> tuple[dict[str, int], int]:
    """Return bytes of a token by role, and as they are kept: V as wide as K."""
    dtype = kv_dtype(settings.kv_dtype, stage.dtype)
    payload: dict[str, int] = {row.role: dtype.bytes_of(row) for row in cache.rows()}
    if isinstance(cache, Mla):
        if settings.release.number >= _MLA_SINCE:
            return payload, sum(payload.values())
        heads = (stage.num_attention_heads or 0) // settings.tp
        if not heads:
            raise NotModelledError(
                "before 0.7.1 vLLM kept MLA as K and V of every query head, and their number is not"
                " known",
                hint="give a later version",
            )
        kept = heads * _PADDED_HEAD * element_bytes(dtype.k.name)
        return {"k": kept, "v": kept}, 2 * kept
    return payload, 2 * max(payload.values())


def _state_slots(deployment: Deployment) -> int:
    """Return sequences that have room for their states: max_num_seqs, as graphs are captured."""
    seqs = deployment.max_num_seqs or _DEFAULT_SEQS
    if deployment.enforce_eager:
        return seqs
    if seqs <= _GRAPH_STEP:
        return 1 << (seqs - 1).bit_length()
    return round_up(seqs, _GRAPH_STEP)
