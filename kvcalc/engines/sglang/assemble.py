"""From sorted layers to a cache plan: the pools of every pipeline stage.

Every pool has a page (the states' a slot) that no request gets (SGLang 0.5.23
mem_cache/memory_pool.py). The budget does not pay for the page of tokens, so that a pool outgrows
it by as much; for the slot of states it does.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Group, Pool, Rank
from kvcalc.core.plan import Rows as RuleRows
from kvcalc.core.rules import Grow, Rule, Slots, Window
from kvcalc.core.sizing import Sized, StateBudget, TokenBudget
from kvcalc.core.units import round_up
from kvcalc.engines.sglang.families import WINDOWED
from kvcalc.engines.sglang.layers import Kept, Rows, States, on_rank, sort_layers
from kvcalc.engines.sglang.requests import LEAST_REQUESTS, table_bytes
from kvcalc.engines.sglang.settings import Settings

__all__ = ["Stage", "ranks_of", "request_cap", "requests_known", "stage_sizes", "stages_of"]


class Stage(NamedTuple):
    """What one rank of a pipeline stage keeps: its own layers, and those that propose tokens."""

    share: ModelSpec
    kept: Kept
    draft: Kept


_NOTHING = Kept(None, None, None)


def stages_of(model: ModelSpec, settings: Settings) -> list[Stage]:
    """Return the stages; layers that propose tokens are on the last.

    Raises:
        UnsupportedError: heads, layers or shapes that SGLang cannot split or keep.
    """
    shared = on_rank(model, settings)
    parts = shared.stages(settings.pp, stage_sizes(shared.num_hidden_layers, settings.pp))
    stages = [Stage(part, sort_layers(part.layers, shared, settings), _NOTHING) for part in parts]
    if settings.own_windows and len({_kinds(stage.kept) for stage in stages}) > 1:
        raise NotModelledError(
            "a pipeline stage without windows, or with nothing else, is not modelled for SGLang",
            hint="choose fewer pipeline stages",
        )
    if settings.speculation is not None and settings.speculation.layers:
        stages[-1] = stages[-1]._replace(draft=_draft(model, settings, settings.speculation.layers))
    return stages


def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage: the last ones have a layer more.

    distributed/utils.py, get_pp_indices.

    Raises:
        UnsupportedError: more stages than layers.

    >>> stage_sizes(61, 4)
    (15, 15, 15, 16)
    """
    if stages > layers:
        raise UnsupportedError(
            f"{layers} layers cannot be split over {stages} pipeline stages",
            hint="choose at most as many stages as the model has layers",
        )
    base, more = divmod(layers, stages)
    return (base,) * (stages - more) + (base + 1,) * more


def _kinds(kept: Kept) -> tuple[bool, bool]:
    return kept.full is None, kept.window is None


def _draft(model: ModelSpec, settings: Settings, layers: tuple[LayerRun, ...]) -> Kept:
    if settings.dcp > 1:
        raise NotModelledError(
            "speculation under decode context parallelism is not modelled for SGLang",
            hint="use a decode context parallel size of 1",
        )
    count = sum(run.count for run in layers)
    draft = msgspec.structs.replace(model, layers=layers, num_hidden_layers=count, draft_layers=())
    shared = on_rank(draft, settings)
    apart = settings.own_windows and model.architecture in WINDOWED
    return sort_layers(shared.layers, shared, settings._replace(own_windows=apart), draft=True)


def ranks_of(stages: list[Stage], settings: Settings) -> tuple[Rank, ...]:
    """Return one rank a pipeline stage."""
    states = _state_budget(stages, settings)
    drafted = stages[-1].draft
    return tuple(
        Rank(
            name=f"stage {number}" if len(stages) > 1 else "rank",
            share=stage.share,
            pools=tuple(_pools(stage, settings)),
            multiplicity=settings.attn_tp,
            token_factor=settings.dcp,
            outside_bytes=_table(states, settings),
            sizing=_sizing(stage.kept, drafted, states, settings),
        )
        for number, stage in enumerate(stages)
    )


def _table(states: StateBudget | None, settings: Settings) -> int:
    """Bytes of the request table; 0 where the memory decides how many requests there are."""
    if states is not None and states.states is None:
        return 0
    requests = requests_known(settings) - (0 if settings.release.pads_table else 1)
    return table_bytes(requests, settings.context + settings.row_extra)


def requests_known(settings: Settings) -> int:
    """Return the requests at once that the settings tell, else the least of the default."""
    known = LEAST_REQUESTS if settings.max_requests is None else settings.max_requests
    if settings.max_states is not None:
        known = min(known, settings.max_states // settings.attn_dp // settings.states_per_request)
    return max(1, known)


def _pools(stage: Stage, settings: Settings) -> list[Pool]:
    kept, draft = stage.kept, stage.draft
    pools = []
    if kept.full is not None:
        pools.append(_token_pool("tokens", kept.full, settings))
    if kept.window is not None:
        pools.append(_window_pool("window tokens", kept.window, settings))
    if kept.states is not None:
        pools.append(_state_pool(kept.states, settings))
        if settings.proposed:
            pools.append(_proposed_pool(kept.states))
    if draft.full is not None:
        pools.append(_token_pool("draft tokens", draft.full, settings))
    if draft.window is not None:
        pools.append(_window_pool("draft window tokens", draft.window, settings))
    return pools


def _pool(name: str, group: Group, sized: Sized) -> Pool:
    return Pool(
        name=name,
        groups=(group,),
        unit_bytes=group.unit_bytes,
        reserved_units=1,
        reserved_is_extra=True,
        sized=sized,
    )


def _token_pool(name: str, rows: Rows, settings: Settings) -> Pool:
    """Return a pool that keeps every token; windows in it keep what they no longer read."""
    spec, page = settings.speculation, settings.page
    ahead = 0
    if spec is not None and spec.layers:
        ahead = spec.alloc_len(page) * (2 if settings.overlap else 1)
    filled: list[tuple[Rule, dict[str, int]]] = []
    if rows.payload:
        filled.append((Grow(block_tokens=page, lookahead=ahead), rows.payload))
    for (limit, chunk), read in rows.windows.items():
        windowed = Grow(block_tokens=page, lookahead=ahead, limit=limit, restarts=chunk)
        filled.append((windowed, read))
    (rule, payload), *others = filled
    group = Group(
        name="MLA" if rows.latent else "attention",
        layers=rows.layers,
        rule=rule,
        payload=payload,
        unit_bytes=page * rows.cell,
        also=tuple(RuleRows(rule=other, payload=kept) for other, kept in others),
        block_size=page,
    )
    return _pool(name, group, "tokens")


def _window_pool(name: str, rows: Rows, settings: Settings) -> Pool:
    """Return the windows' pool; admission asks for a window and a page more.

    model_executor/pool_configurator.py, validate_swa_pool_size.
    """
    if len(rows.windows) != 1:
        raise UnsupportedError(
            "SGLang gives all windows one size, and these differ:"
            f" {', '.join(str(limit) for limit, _ in rows.windows)}",
            hint="use --engine none for the model's own arithmetic",
        )
    ((limit, _), payload), *_ = rows.windows.items()
    group = Group(
        name=f"window {limit}",
        layers=rows.layers,
        rule=Window(block_tokens=settings.page, window=limit, extra_blocks=1),
        payload=payload,
        unit_bytes=settings.page * rows.cell,
        block_size=settings.page,
    )
    return _pool(name, group, "window")


def _state_pool(states: States, settings: Settings) -> Pool:
    group = Group(
        name="state",
        layers=states.layers,
        rule=Slots(count=settings.states_per_request),
        payload=states.payload,
        unit_bytes=states.slot,
    )
    return _pool("states", group, "states")


def _proposed_pool(states: States) -> Pool:
    """Return the states of proposed tokens, kept until it is known which of them stand."""
    group = Group(
        name="proposed state",
        layers=states.layers,
        rule=Slots(),
        payload={},
        unit_bytes=states.proposed,
        lookahead_bytes=states.proposed,
    )
    return _pool("proposed states", group, "proposed")


def _state_budget(stages: list[Stage], settings: Settings) -> StateBudget | None:
    """Return what states cost the budget: by the stage with the most, on every stage the same.

    mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache.
    """
    kept = [stage.kept.states for stage in stages if stage.kept.states is not None]
    if not kept:
        return None
    total, layers = sum(states.slot for states in kept), sum(states.layers for states in kept)
    charge = total
    if settings.pp > 1:
        charge = int(total * (max(states.layers for states in kept) / layers))
    fixed = None
    if settings.max_states is not None:
        fixed = max(1, settings.max_states // settings.attn_dp)
    elif not settings.radix and settings.max_requests is not None:
        fixed = settings.max_requests
    return StateBudget(
        charge_bytes=charge,
        states=fixed,
        memory_ratio=settings.state_ratio,
        per_request=settings.states_per_request,
        proposed=settings.proposed,
        max_requests=settings.max_requests,
        padding=int(settings.release.charges_padding),
    )


def _sizing(kept: Kept, draft: Kept, states: StateBudget | None, settings: Settings) -> TokenBudget:
    full, window = kept.full, kept.window
    if window is None:
        cell = full.cell if full is not None else 0
        return TokenBudget(
            page_tokens=settings.page,
            token_bytes=cell + (_charged(full, draft, settings) if full is not None else 0),
            max_tokens=settings.max_tokens,
            unpriced_tokens=settings.context,
            states=states,
        )
    each = window.cell // window.tensors
    window_bytes = window.cell + (each * draft.window.tensors if draft.window else 0)
    token_bytes = 0
    full_each = full.cell // full.tensors if full is not None else each
    if full is not None:
        token_bytes = full.cell
    if draft.full is not None:
        token_bytes += full_each * draft.full.tensors
    limit = next(iter(window.windows))[0]
    capped = window_tokens(limit, settings) if full is not None else None
    return TokenBudget(
        page_tokens=settings.page,
        token_bytes=token_bytes,
        window_bytes=window_bytes,
        window_ratio=settings.window_ratio if full is not None and capped is None else None,
        window_tokens=capped,
        max_tokens=settings.max_tokens,
        states=states,
    )


def _charged(rows: Rows, draft: Kept, settings: Settings) -> int:
    """Bytes that a token is charged for the layers that propose: as if they were the target's.

    model_executor/pool_configurator.py, DefaultPoolConfigurator.
    """
    spec = settings.speculation
    if spec is None or not spec.num_layers:
        return 0
    if spec.algorithm == "DFLASH":
        return draft.full.cell if draft.full is not None else 0
    charged = int((rows.cell - rows.index_cell) * spec.num_layers / rows.tensors)
    return charged + (draft.full.index_cell if draft.full is not None else 0)


# How many window tokens a pool has where requests decide, and not a ratio.
#
# SGLang 0.5.23 model_executor/pool_configurator.py: SWARequestCapPoolConfigurator,
# compute_swa_request_cap.


def request_cap(
    *,
    window: int,
    page: int,
    requests: int,
    chunk: int,
    decode_tokens: int,
    eviction_interval: int,
    proposed: int = 0,
    overlap: bool = True,
    decode_role: bool = False,
    extra_slots: int = 0,
) -> int:
    """Return the most window tokens that so many requests can hold at once.

    Args:
        window: tokens of the window.
        page: tokens a page.
        requests: requests at once.
        chunk: tokens of a prompt computed at once.
        decode_tokens: tokens that a request may be given in one step of decoding.
        eviction_interval: steps after which tokens out of reach are given back.
        proposed: tokens verified at once; 0 without speculation.
        overlap: two batches are under way at once.
        decode_role: the server decodes what another has prefilled.
        extra_slots: requests that such a server receives ahead.

    >>> request_cap(window=8, page=4, requests=2, chunk=16, decode_tokens=4, eviction_interval=4)
    76
    """
    each = window + max(1, eviction_interval) * (proposed or 1) + page + decode_tokens
    if decode_role:
        return each * requests + (window + page) * extra_slots
    return each * requests + (2 if overlap else 1) * chunk + page


def window_tokens(window: int, settings: Settings) -> int | None:
    """Return the pool's window tokens, in whole pages; None where the ratio decides.

    Requests decide where no prefix is kept, their number is given and prompts are computed in
    chunks.
    """
    decoding = settings.role == "decode"
    if settings.max_requests is None or settings.radix or (not decoding and settings.chunk <= 0):
        return None
    spec, page = settings.speculation, settings.page
    decode_tokens = page
    if spec is not None:
        decode_tokens = spec.serial_alloc_len(page)
        if settings.overlap:
            decode_tokens = 2 * spec.alloc_len(page)
    cap = request_cap(
        window=window,
        page=page,
        requests=settings.max_requests,
        chunk=settings.chunk,
        decode_tokens=decode_tokens,
        eviction_interval=settings.eviction_interval,
        proposed=settings.proposed,
        overlap=settings.overlap,
        decode_role=decoding,
        extra_slots=settings.extra_slots,
    )
    return round_up(cap, page)
