"""Engine `sglang`: what SGLang allocates and holds, to the byte.

A plan is made in the order in which SGLang makes it: settings and their defaults (`settings`,
`backends`, `dtypes`, `speculation`), layers sorted into pools (`layers`), bytes charged for a token
and for a state (`assemble`, `windows`), and what a budget comes to (`core.sizing`). Read in 0.5.23.
"""

from __future__ import annotations

from math import ceil

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Floor, Rank
from kvcalc.core.rules import Window
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.sglang.assemble import ranks_of, stage_sizes, stages_of
from kvcalc.engines.sglang.compressed import check_compressed, compressed_ranks
from kvcalc.engines.sglang.families import is_compressed
from kvcalc.engines.sglang.host import host_parts
from kvcalc.engines.sglang.layers import check_host, check_model, check_settings
from kvcalc.engines.sglang.notes import (
    CONVENTION,
    compressed_not_modelled,
    explain,
    explain_compressed,
    not_modelled,
)
from kvcalc.engines.sglang.settings import Settings, resolve
from kvcalc.engines.sglang.speculation import Speculation
from kvcalc.engines.sglang.start_up import start_up_log
from kvcalc.engines.sglang.version import RELEASES

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that SGLang makes.

    Raises:
        UnsupportedError: what SGLang refuses for this model and card, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    doubt = check_model(model, deployment.engine_version, notes)
    model, settings = resolve(model, deployment, notes)
    check_start(settings)
    check_host(model, settings)
    if is_compressed(model):
        return _compressed(model, settings, notes, doubt)
    check_settings(model, settings)
    stages = stages_of(model, settings)
    ranks = ranks_of(stages, settings)
    if not any(rank.pools for rank in ranks):
        raise UnsupportedError(
            f"SGLang keeps no cache for {model.name}",
            hint="use --engine none to see what its layers are",
        )
    notes.extend(explain(model, stages, ranks, settings))
    paged = any(stage.kept.full or stage.kept.window for stage in stages)
    stateful = any(stage.kept.states for stage in stages)
    return _plan(
        model,
        settings,
        ranks,
        notes,
        not_modelled(stages, settings),
        doubt=doubt,
        paged=paged,
        reuse_tokens=settings.page * settings.dcp if settings.radix and not stateful else None,
        pools="mem_cache/memory_pool.py",
    )


def _compressed(model: ModelSpec, settings: Settings, notes: list[str], doubt: str) -> CachePlan:
    check_compressed(model, settings)
    ranks = compressed_ranks(model, settings, stage_sizes)
    notes.extend(explain_compressed(ranks, settings))
    return _plan(
        model,
        settings,
        ranks,
        notes,
        compressed_not_modelled(settings),
        doubt=doubt,
        paged=True,
        reuse_tokens=settings.page if settings.radix else None,
        pools="mem_cache/deepseek_v4_memory_pool.py",
    )


def _plan(
    model: ModelSpec,
    settings: Settings,
    ranks: tuple[Rank, ...],
    notes: list[str],
    unsupported: tuple[str, ...],
    *,
    doubt: str,
    paged: bool,
    reuse_tokens: int | None,
    pools: str,
) -> CachePlan:
    return CachePlan(
        engine="sglang",
        engine_version=str(settings.release),
        model=model.name,
        kv_cache_dtype=settings.layout.dtype.name,
        model_dtype=settings.dtype,
        block_size=settings.page if paged else None,
        ranks=ranks,
        split="tokens",
        max_model_len=settings.context,
        max_sequences=settings.max_requests,
        loads_drafts=settings.speculation is not None and settings.speculation.own,
        reuse_tokens=reuse_tokens,
        report="even_groups" if paged else "exact",
        start="shortens",
        start_spares_tokens=1,
        floors=floors_of(ranks, settings),
        host=host_parts(settings.host, ranks),
        notes=tuple(notes),
        unsupported=unsupported,
        convention=CONVENTION,
        doubt=doubt,
        source=(
            f"SGLang 0.5.23: model_executor/pool_configurator.py, {pools},"
            " mem_cache/kv_cache_configurator.py"
        ),
        resolved=(model, settings),
    )


# What SGLang refuses as it starts by its settings alone, once they are resolved.
#
# SGLang 0.5.23 arg_groups/speculative_hook.py and validation_hook.py; server_args.py before 0.5.13.

_TREES_OVER_PAGES = ("flashinfer", "fa3", "triton")
"""Backends that verify a tree of proposed tokens over pages; Triton since 0.5.13."""
_AMPERE, _TURING_MINOR = 8, 5
_EAGLES = ("EAGLE", "EAGLE3", "STANDALONE")


def check_start(settings: Settings) -> None:
    """Refuse settings that exclude each other.

    Raises:
        UnsupportedError: naming the setting.
    """
    _card(settings)
    _pages(settings)
    if settings.speculation is not None:
        _speculation(settings.speculation, settings)


def _card(settings: Settings) -> None:
    """Refuse what is older than Turing (maybe_downgrade_dtype_for_legacy_gpu)."""
    major, minor = settings.card.capability
    if major < _AMPERE and minor < _TURING_MINOR:
        raise UnsupportedError(
            f"SGLang does not run on {settings.card.name}: it wants a compute capability of 7.5"
            f" at least, and not {major}.{minor}",
            hint="choose a newer GPU",
            code="gpu-too-old",
            setting="gpu",
        )


def _pages(settings: Settings) -> None:
    """Refuse a chunk of prompts that is no whole number of pages (check_server_args).

    Groups of DP attention share the chunk first.
    """
    chunk = settings.chunk // settings.attn_dp
    if chunk <= 0 or settings.role == "decode" or chunk % settings.page == 0:
        return
    shared = f" on each of {settings.attn_dp} groups" if settings.attn_dp > 1 else ""
    least = -(-chunk // settings.page) * settings.page * settings.attn_dp
    raise UnsupportedError(
        f"SGLang computes prompts in whole pages: {format_count(chunk)} tokens at once{shared} are"
        f" no multiple of {settings.page}",
        hint=f"set chunked_prefill_size {least}, or another page_size",
        code="chunk-not-whole-pages",
        setting="chunked_prefill_size",
    )


def _speculation(found: Speculation, settings: Settings) -> None:
    release, backends, name = settings.release, settings.backends, found.algorithm
    if settings.pp > 1 and not (
        release.drafts_over_stages and name == "EAGLE" and settings.role == "prefill"
    ):
        only = "; a prefill server's EAGLE alone" if release.drafts_over_stages else ""
        raise _refused(f"{name} over {settings.pp} pipeline stages{only}", "pp_size 1", "pp_size")
    if settings.attn_dp > 1 and name in ("STANDALONE", "NGRAM"):
        raise _refused(f"{name} with DP attention", "EAGLE, or no DP attention", "dp_size")
    if name in _EAGLES and found.topk > 1:
        if "trtllm_mha" in (backends.main, backends.prefill, backends.decode):
            raise _refused(
                f"attention backend trtllm_mha and {found.topk} branches",
                "speculative_eagle_topk 1",
                "speculative_eagle_topk",
            )
        able = _TREES_OVER_PAGES if release.overlaps_trees else _TREES_OVER_PAGES[:2]
        if settings.page > 1 and backends.main not in able:
            raise _refused(
                f"{found.topk} branches over pages of {settings.page} tokens with attention backend"
                f" {backends.main}",
                f"speculative_eagle_topk 1, page_size 1, or one of {', '.join(able)}",
                "speculative_eagle_topk",
            )


def _refused(what: str, instead: str, setting: str) -> UnsupportedError:
    return UnsupportedError(
        f"SGLang does not start with {what}",
        hint=f"use {instead}",
        code="speculation-settings",
        setting=setting,
    )


def floors_of(ranks: tuple[Rank, ...], settings: Settings) -> tuple[Floor, ...]:
    """Return the states, tokens and window tokens without which SGLang does not start.

    In the order in which it looks: 0.5.23 mem_cache/kv_cache_configurator.py
    (_handle_max_mamba_cache, resolve_max_num_reqs), model_executor/pool_configurator.py
    (MemoryPoolConfig, validate_swa_pool_size).
    """
    windows = {
        pool.name: group.rule.window
        for rank in ranks
        for pool in rank.pools
        for group in pool.groups
        if pool.sized == "window" and isinstance(group.rule, Window)
    }
    names = [(pool.name, pool.sized) for rank in ranks for pool in rank.pools]
    states = any(sized == "states" for _, sized in names)
    found = [_states(settings)] if states and settings.release.names_state_room else []
    kept = next((name for name, sized in names if sized == "tokens"), None)
    if kept is not None:
        found.append(
            Floor(
                code="no-memory-for-blocks",
                pool=kept,
                units=1,
                setting="mem_fraction_static",
                message="nothing is left for the tokens of the cache",
                line="RuntimeError: Not enough memory. Please try to increase"
                " --mem-fraction-static.",
                lowers=False,
            )
        )
    window = windows.get("window tokens")
    if window is not None and settings.release.checks_window_pool:
        found.append(_window(window, settings))
    if states:
        found.append(_requests(settings))
    return tuple(found)


def _states(settings: Settings) -> Floor:
    return Floor(
        code="no-room-for-states",
        pool="states",
        units=1,
        setting="mamba_full_memory_ratio",
        message="the memory for recurrent states holds not one of them"
        f" (mamba_full_memory_ratio {settings.state_ratio:g})",
        line="RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache.",
        lowers=False,
    )


def _requests(settings: Settings) -> Floor:
    each = settings.states_per_request
    return Floor(
        code="no-room-for-requests",
        pool="states",
        units=each,
        setting="max_mamba_cache_size" if settings.max_states else "mamba_full_memory_ratio",
        message=f"a request can come to hold {format_number_of(each, 'state')}, and there are"
        " {units} (max_mamba_cache_size)",
        line="RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any"
        f" requests. max_mamba_cache_size={{units}}, mamba_ratio={each}, resulting max_num_reqs=0."
        if settings.release.names_state_room
        else "AssertionError: max_running_request is zero",
        lowers=False,
        instead=("max_mamba_cache_size", each * settings.attn_dp) if settings.max_states else None,
    )


def _window(window: int, settings: Settings) -> Floor:
    page, tokens = settings.page, settings.max_tokens
    least = (window + page) // page + 1
    ratio = None if not tokens else ceil(least * page / tokens * 1000) / 1000
    return Floor(
        code="window-pool-too-small",
        pool="window tokens",
        units=least,
        setting="swa_full_tokens_ratio",
        message=f"the windows' pool has {{units}} pages of {format_number_of(page, 'token')}, and"
        f" admission needs more than a window of {format_count(window)} and a page",
        line="ValueError: SWA pool cannot hold even one request: the prefill admission floor is"
        f" sliding_window_size ({window}) + page_size ({page}).",
        lowers=False,
        instead=None if ratio is None else ("swa_full_tokens_ratio", ratio),
    )
