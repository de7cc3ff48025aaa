"""How vLLM plans, whatever the platform: settings, specs, groups, pools.

Settings and their defaults (`settings`), a spec for every layer's cache and the block size (what
the platform describes), groups (`grouping`), pools (`assemble`).
"""

from __future__ import annotations

from math import lcm

import msgspec

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.plan import CachePlan, Floor, Group, Pool, Rank, Rows
from kvcalc.core.recurrent import GatedDeltaNet, KimiDeltaAttention, LightningAttention
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Window
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.arguments import graph_mode
from kvcalc.engines.vllm.attention import packed_dtype
from kvcalc.engines.vllm.checks import check_context_parallel
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.grouping import Grouping, group_layers
from kvcalc.engines.vllm.host import host_parts, notes_on_arguments
from kvcalc.engines.vllm.kernels import BLACKWELL
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.notes import explain
from kvcalc.engines.vllm.offload import check_offload, note_on_offload
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.refusals import stands
from kvcalc.engines.vllm.release_notes import notes_of_release
from kvcalc.engines.vllm.rules import Rules
from kvcalc.engines.vllm.settings import Settings, resolve
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.start_checks import check_block, check_settings, check_split
from kvcalc.engines.vllm.version import LAST_V0, NEWEST

__all__ = ["plan_on"]


_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def plan_on(platform: Platform, model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on a platform.

    Raises:
        UnsupportedError: what vLLM refuses for this model and card, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    allowed = deployment.engine_args.get(_LONGER)
    notes = [
        f"{line}: {_LONGER}={allowed} is set"
        if allowed
        else f"{line}: vLLM refuses that unless {_LONGER}=1 is set"
        for line in beyond(model, deployment.max_model_len)
    ]
    model, settings = resolved = resolve(model, deployment, notes, platform.card)
    cuda = platform.card is None
    if cuda and settings.release.line <= LAST_V0:
        from kvcalc.engines.vllm.v0 import plan_v0, starts_v0

        if starts_v0(model, deployment, settings):
            check_settings(model, deployment, settings, v0=True)
            made = plan_v0(model, settings, deployment, notes)
            check_split(model, deployment, settings)
            return msgspec.structs.replace(made, resolved=resolved)
    if cuda:
        check_settings(model, deployment, settings, v0=False)
    platform.check(model, settings)
    layered = _with_drafts(_as_built(model, settings, notes), settings)
    share = layered.on_rank(settings.tp)
    if cuda:
        check_split(model, deployment, settings)
    layers = platform.describe(model, settings, share, notes)
    if cuda:
        check_block(layers, deployment, settings)
    check_context_parallel(model, layers, settings)
    grouping = group_layers(
        layers.placed,
        packed=layers.packed,
        hybrid_manager=settings.hybrid_manager,
        rules=settings.rules,
    )
    if not grouping.groups:
        raise UnsupportedError(
            f"vLLM keeps no KV cache for {model.name}: it is an encoder",
            hint="use --engine none to see what its layers are",
        )
    check_offload(model, deployment, settings.release, len(grouping.groups))
    ranks = ranks_of(grouping, model.num_hidden_layers, settings)
    if settings.pp == 1:
        ranks = (msgspec.structs.replace(ranks[0], share=share),)
    floors = state_floors(layered, deployment, layers, settings) if cuda else ()
    notes.extend(explain(model, layers, grouping, ranks, settings))
    notes.extend(floor.condition for floor in floors)
    notes.extend(notes_of_release(model, grouping, settings))
    notes.extend(notes_on_arguments(model, deployment))
    notes.extend(filter(None, (note_on_offload(model, deployment, settings.release),)))
    return CachePlan(
        engine=platform.engine,
        engine_version=platform.version or str(settings.release),
        model=model.name,
        kv_cache_dtype=packed_dtype(layers.kv_dtype, model.dtype).name,
        model_dtype=model.dtype,
        block_size=_block_size(grouping),
        ranks=ranks,
        split="one_pool",
        max_model_len=settings.max_model_len,
        max_running=settings.max_running,
        reuse_tokens=_reuse(grouping, layers, settings) if settings.prefix_caching else None,
        report=settings.rules.report,
        # Pages side by side once counted by their width: get_max_concurrency_for_kv_cache_config.
        weighs_groups=grouping.packed and settings.rules.pads_windows,
        check=settings.rules.check,
        check_spares_reserved=settings.rules.spares_null_block,
        check_fixed_units=settings.rules.override_in_check,
        floors=floors,
        host=host_parts(model, deployment, ranks, settings.release),
        notes=tuple(notes),
        unsupported=platform.unsupported(layers, grouping, settings),
        convention=platform.convention(settings),
        doubt=settings.doubt,
        source=platform.source(settings),
        resolved=resolved,
    )


def _as_built(model: ModelSpec, settings: Settings, notes: list[str]) -> ModelSpec:
    """Return the model with the windows that vLLM's class for it makes of the config's."""
    if not settings.rules.widens_cohere or not (model.architecture or "").startswith("Cohere2"):
        return model
    wider: dict[Cache, SlidingWindow] = {
        cache: msgspec.structs.replace(cache, sliding_window=cache.sliding_window + 1)
        for _, cache in model.caches()
        if isinstance(cache, SlidingWindow)
    }
    notes.extend(
        f"window layers see {w.sliding_window} tokens: their own too" for w in set(wider.values())
    )
    layers = tuple(
        msgspec.structs.replace(run, caches=tuple(wider.get(c, c) for c in run.caches))
        for run in model.layers
    )
    return msgspec.structs.replace(model, layers=layers)


def _with_drafts(model: ModelSpec, settings: Settings) -> ModelSpec:
    """Return the model with the layers that propose tokens behind its own."""
    if settings.speculation is None or not settings.speculation.layers:
        return model
    layers = (*model.layers, *settings.speculation.layers)
    return msgspec.structs.replace(
        model, layers=layers, num_hidden_layers=sum(run.count for run in layers)
    )


def _block_size(grouping: Grouping) -> int:
    """Tokens a block of the layers that grow, else of the first group."""
    specs = [members[0].spec for members in grouping.groups]
    for kinds in (("full", "mla"), ("window", "window_mla", "chunk")):
        for spec in specs:
            if spec.kind in kinds:
                return spec.block
    return specs[0].block


def _reuse(grouping: Grouping, layers: Layers, settings: Settings) -> int:
    """Tokens in whole multiples of which a shared prefix is reused.

    vLLM 0.33 v1/core/kv_cache_utils.py, resolve_kv_cache_block_sizes: the scheduler's block.
    """
    if len(grouping.groups) == 1:
        return layers.block_size * settings.dcp
    return lcm(
        *(
            spec.block * (1 if spec.kind == "state" else settings.dcp)
            for spec in (members[0].spec for members in grouping.groups)
        )
    )


# CUDA graphs of decodes over states: every sequence of one has a block for its state.
#
# vLLM 0.20 to 0.33 config/compilation.py, resolve_cudagraph_mode_and_sizes, which refuses more
# sequences than blocks; 0.18 and 0.19 (adjust_cudagraph_sizes_for_mamba_cache) capture smaller
# graphs instead; before, the kernel of a gated delta net fails while they are captured
# (layers/mamba/ops/causal_conv1d.py, causal_conv1d_update with validate_data).

_NO_GRAPH_UNTIL = {"TRITON_MLA": (0, 22), "FLEX_ATTENTION": (0, 20)}
"""Attention backend -> the line of releases from which it is captured in decodes."""
_ONE_TOKEN = {"CUTLASS_MLA": ((0, 0), NEWEST.line), "TRITON_MLA": ((0, 26), (0, 30))}
"""Attention backend -> lines of releases in which its graphs take one token of a sequence."""
_MOST = 512  # sequences of the largest graph
_EVEN_STEPS = (0, 11, 1)
"""Before, sizes of graphs rise by 8; since then by 16 from 256 on."""
_NEEDED = "each sequence of a decode's CUDA graph has a block for its state"


def state_floors(
    model: ModelSpec, deployment: Deployment, layers: Layers, settings: Settings
) -> tuple[Floor, ...]:
    """Return the blocks without which a model with states does not start.

    Args:
        model: with draft layers behind its own.
        deployment: as asked for.
        layers: as described to the planner.
        settings: as resolved.
    """
    if all(p.spec.kind != "state" for p in layers.placed):
        return ()
    whole = graph_mode(deployment) not in ("none", "piecewise")
    if not whole or not _decodes_in_graphs(model, layers, settings):
        return ()
    at, seqs = settings.release, settings.max_num_seqs
    if stands("sequences-over-state-blocks", at):
        return (
            Floor(
                code="sequences-over-state-blocks",
                pool="blocks",
                units=seqs,
                setting="max_num_seqs",
                message=f"max_num_seqs {format_count(seqs)} is more than the {{units}} blocks of"
                f" the cache, and {_NEEDED}",
                line=f"ValueError: max_num_seqs ({seqs}) exceeds available Mamba cache blocks"
                " ({units}). Each decode sequence requires one Mamba cache block, so CUDA graph"
                " capture cannot proceed. Please lower max_num_seqs to at most {units} or increase"
                " gpu_memory_utilization.",
            ),
        )
    checked = any(isinstance(c, (GatedDeltaNet, KimiDeltaAttention)) for _, c in model.caches())
    if checked and settings.speculation is None and stands("graphs-over-state-blocks", at):
        largest = _largest(seqs, settings)
        return (
            Floor(
                code="graphs-over-state-blocks",
                pool="blocks",
                units=largest,
                setting="max_num_seqs",
                message=f"the largest CUDA graph decodes {format_count(largest)} sequences"
                f" (max_num_seqs {format_count(seqs)}), more than the {{units}} blocks of the"
                f" cache, and {_NEEDED}",
                line="AssertionError: assert num_cache_lines >= batch",
            ),
        )
    return ()


def _decodes_in_graphs(model: ModelSpec, layers: Layers, settings: Settings) -> bool:
    """Whether whole decodes are captured: every backend must take what one sequence decodes.

    v1/attention/backends (AttentionCGSupport): those of states and most of attention take any even
    batch; FlashInfer does where trtllm-gen serves it; lightning attention takes one token each.
    """
    at = settings.release.line
    never = any(at < _NO_GRAPH_UNTIL.get(name, at) for name in layers.backends)
    if never or is_pooling(model):
        return False
    if settings.speculation is None:
        return True
    flashinfer = "FLASHINFER" in layers.backends and settings.card.family != BLACKWELL
    single = (_ONE_TOKEN[name] for name in layers.backends if name in _ONE_TOKEN)
    alone = any(first <= at <= last for first, last in single)
    lightning = any(isinstance(cache, LightningAttention) for _, cache in model.caches())
    return not (flashinfer or alone or lightning)


def _largest(seqs: int, settings: Settings) -> int:
    """Return the sequences of the largest decode graph: config/vllm.py, _set_cudagraph_sizes."""
    most = min(seqs, _MOST, settings.max_num_batched_tokens)
    step = 16 if settings.release.number >= _EVEN_STEPS else 8
    sizes: list[int] = [1, 2, 4, *range(8, 256, 8), *range(256, _MOST + 1, step)]
    return max(size for size in sizes if size <= most)


# From vLLM's groups to a cache plan: pools of blocks on every pipeline stage.

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
