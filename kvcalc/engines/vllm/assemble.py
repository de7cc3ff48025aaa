"""From vLLM's groups to a cache plan: pools of blocks on every pipeline stage."""

from __future__ import annotations

from kvcalc.core.model import stage_sizes
from kvcalc.core.plan import Group, Pool, Rank, Rows
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Window
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.rules import Rules
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec

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
    whole = None
    if settings.pp > 1 and settings.rules.checks_whole_model:
        whole = max(_width(_on_stage(members, 0, None)) for members in grouping.groups)
    first = 0
    ranks = []
    sizes = settings.partition or stage_sizes(num_hidden_layers, settings.pp)
    for number, size in enumerate(sizes):
        last_stage = number == len(sizes) - 1
        after = None if last_stage else first + size  # draft layers run on the last stage
        staged = [_on_stage(members, first, after) for members in grouping.groups]
        groups = tuple(
            _group(name, members, settings) for name, members in zip(names, staged, strict=True)
        )
        widest = max((group.unit_bytes for group in groups), default=0)
        checked = whole
        if grouping.packed and widest:
            widest, checked = _packed_widths(staged, widest, settings.rules)
        pools: tuple[Pool, ...] = ()
        if widest:
            pools = (
                Pool(
                    name="blocks",
                    groups=groups,
                    unit_bytes=widest,
                    check_unit_bytes=checked,
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


_Staged = list[tuple[Placed, int]]
"""A group's specs on one stage, each with its layers there."""


def _on_stage(members: list[Placed], first: int, after: int | None) -> _Staged:
    if after is None and first == 0:
        return [(placed, len(placed.layers)) for placed in members]
    return [
        (
            placed,
            sum(1 for n in placed.layers if n >= first and (after is None or n < after)),
        )
        for placed in members
    ]


def _width(members: _Staged) -> int:
    """Bytes of a block of a group's layers."""
    return sum(placed.spec.page * count for placed, count in members)


def _packed_widths(staged: list[_Staged], widest: int, rules: Rules) -> tuple[int, int | None]:
    """Return bytes of a block of pages side by side, as allocated and as the check counts them.

    Until 0.22 every page size of the compressed caches had as many places as the group with the
    most layers of one size; until 0.26 each had as many as it needs; then the widest group decides
    (vLLM v1/core/kv_cache_utils.py of 0.20, 0.23, 0.27; _get_packed_kv_cache_layout). The check
    kept the first of these rules until 0.28.
    """
    if rules.spares_null_block:
        return widest, None
    counts: list[dict[int, int]] = []
    for members in staged:
        by_page: dict[int, int] = {}
        for placed, count in members:
            by_page[placed.spec.page] = by_page.get(placed.spec.page, 0) + count
        counts.append(by_page)
    compressed = {placed.spec.page for placed, _ in staged[0]}
    product = sum(compressed) * max(max(by_page.values()) for by_page in counts)
    if rules.packing == "products":
        return product, product
    if rules.packing == "sums":
        pages = {page for by_page in counts for page in by_page}
        total = sum(page * max(by_page.get(page, 0) for by_page in counts) for page in pages)
        return total, product
    return widest, product


def _group(name: str, members: _Staged, settings: Settings) -> Group:
    """Return a group's part on one stage, its rows put together by the rule that they fill by."""
    by_rule: dict[Rule, dict[str, int]] = {}
    layers = unit = proposed = 0
    for placed, count in members:
        rule = _rule(placed.spec, settings)
        payload = by_rule.setdefault(rule, {})
        layers += count
        unit += count * placed.spec.page
        proposed += count * placed.proposed_bytes
        for role, size in placed.spec.payload:
            payload[role] = payload.get(role, 0) + count * size
    (rule, payload), *others = by_rule.items()
    pages = {placed.spec.page for placed, _ in members}
    return Group(
        name=name,
        layers=layers,
        rule=rule,
        payload=payload,
        unit_bytes=unit,
        lookahead_bytes=proposed,
        also=tuple(Rows(rule=other, payload=rows) for other, rows in others),
        block_size=members[0][0].spec.block,
        page_bytes=pages.pop() if len(pages) == 1 else None,
    )


def _rule(spec: Spec, settings: Settings) -> Rule:
    block = spec.block
    lookahead = settings.speculation.lookahead if settings.speculation else 0
    match spec.kind:
        case "state":
            return Slots(count=spec.slots, every=spec.every or None)
        case "cross":
            step = settings.max_num_batched_tokens if settings.rules.declares_step else None
            return Fixed(block_tokens=block, tokens=spec.encoder, declared=step)
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
