"""From vLLM's groups to a cache plan: pools of blocks on every pipeline stage."""

from __future__ import annotations

from kvcalc.core.model import stage_sizes
from kvcalc.core.plan import Group, Pool, Rank, Rows
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Window
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Placed
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Spec

__all__ = ["ranks_of"]

_NAMES = {
    "full": "full attention",
    "mla": "MLA",
    "window": "window",
    "window_mla": "window",
    "chunk": "chunk",
    "cross": "cross attention",
    "state": "state",
}


def ranks_of(grouping: Grouping, num_hidden_layers: int, settings: Settings) -> tuple[Rank, ...]:
    """Return one rank a pipeline stage; groups are the whole model's, cut to the stage's layers.

    vLLM 0.33 v1/core/kv_cache_planning.py, _project_kv_cache_groups_to_worker.
    """
    names = _names(grouping)
    first = 0
    ranks = []
    sizes = stage_sizes(num_hidden_layers, settings.pp)
    for number, size in enumerate(sizes):
        last_stage = number == len(sizes) - 1
        after = None if last_stage else first + size  # draft layers run on the last stage
        groups = tuple(
            _group(name, members, first, after, settings)
            for name, members in zip(names, grouping.groups, strict=True)
        )
        widest = max((group.unit_bytes for group in groups), default=0)
        pools: tuple[Pool, ...] = ()
        if widest:
            pools = (
                Pool(
                    name="blocks",
                    groups=groups,
                    unit_bytes=widest,
                    units=settings.num_gpu_blocks_override,
                    reserved_units=1,  # block 0 is the null block, never handed out
                ),
            )
        ranks.append(
            Rank(
                name=f"stage {number}" if len(sizes) > 1 else "rank",
                pools=pools,
                multiplicity=settings.tp,
                token_factor=settings.dcp,
            )
        )
        first += size
    return tuple(ranks)


def _names(grouping: Grouping) -> list[str]:
    """Name every group after what its layers keep, numbered where several do."""
    base = []
    for members in grouping.groups:
        spec = members[0].spec
        name = _NAMES[spec.kind]
        if spec.shape[:1] == ("compressor",):
            name = "compressor"
        if spec.kind in ("window", "window_mla", "chunk") and not spec.keeps_all:
            name += f" {spec.limit}"
        base.append(name)
    seen: dict[str, int] = {}
    names = []
    for name in base:
        seen[name] = seen.get(name, 0) + 1
        names.append(f"{name} ({seen[name]})" if base.count(name) > 1 else name)
    return names


def _group(
    name: str, members: list[Placed], first: int, after: int | None, settings: Settings
) -> Group:
    """Return a group's part on one stage, its rows put together by the rule that they fill by."""
    by_rule: dict[Rule, dict[str, int]] = {}
    layers = unit = proposed = 0
    for placed in members:
        if after is None and first == 0:
            count = len(placed.layers)
        else:
            count = sum(
                1 for layer in placed.layers if layer >= first and (after is None or layer < after)
            )
        rule = _rule(placed.spec, settings)
        payload = by_rule.setdefault(rule, {})
        layers += count
        unit += count * placed.spec.page
        proposed += count * placed.proposed_bytes
        for role, size in placed.spec.payload:
            payload[role] = payload.get(role, 0) + count * size
    (rule, payload), *others = by_rule.items()
    return Group(
        name=name,
        layers=layers,
        rule=rule,
        payload=payload,
        unit_bytes=unit,
        lookahead_bytes=proposed,
        also=tuple(Rows(rule=other, payload=rows) for other, rows in others),
        block_size=members[0].spec.block,
    )


def _rule(spec: Spec, settings: Settings) -> Rule:
    block = spec.block
    lookahead = settings.speculation.lookahead if settings.speculation else 0
    match spec.kind:
        case "state":
            return Slots(count=spec.slots)
        case "cross":
            return Fixed(
                block_tokens=block, tokens=spec.encoder, declared=settings.max_num_batched_tokens
            )
        case _ if spec.keeps_all:
            return Grow(
                block_tokens=block,
                lookahead=lookahead,
                limit=spec.limit,
                restarts=spec.kind == "chunk",
            )
        case "window" | "window_mla":
            return Window(
                block_tokens=block,
                window=spec.limit,
                in_flight=settings.in_flight_tokens + settings.extra_retained,
                extra_blocks=1,
            )
        case "chunk":
            return Chunk(block_tokens=block, chunk=spec.limit, in_flight=settings.in_flight_tokens)
    if spec.ratio > 1:
        return Compressed(block_entries=block // spec.ratio, ratio=spec.ratio)
    return Grow(block_tokens=block, lookahead=lookahead)
