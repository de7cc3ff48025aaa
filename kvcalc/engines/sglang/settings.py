"""A deployment as SGLang resolves it: every default put in, every setting it has checked.

SGLang 0.5.23 server_args.py and arg_groups/; what a setting is called on either side is in
`arguments`.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.sglang.arguments import Arguments, refuse_others
from kvcalc.engines.sglang.backends import Asked, Backends, backends_of, page_of
from kvcalc.engines.sglang.card import Card, card_of
from kvcalc.engines.sglang.dtypes import (
    Layout,
    StateDtypes,
    in_dtype,
    index_dtype,
    kv_word,
    layout_of,
    state_dtypes,
)
from kvcalc.engines.sglang.families import (
    EXTRA_BUFFER,
    WINDOWED,
    WINDOWED_AT_FIRST,
    is_compressed,
    keeps_states,
)
from kvcalc.engines.sglang.host import Host, host_of
from kvcalc.engines.sglang.memory import default_chunk
from kvcalc.engines.sglang.parallel import Parallel, check_heads, check_widths, parallel_of
from kvcalc.engines.sglang.speculation import DEFAULT_REQUESTS, Speculation, speculation_of
from kvcalc.engines.sglang.version import Release, release

__all__ = ["Settings", "resolve"]

_DEFAULT_CONTEXT = 8192
_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_WINDOW_RATIO = 0.8
_COMPRESSED_RATIO = 0.1
_COMPRESSED_REQUESTS = 256
_STATE_RATIO = 0.9
_EVICTION_INTERVAL = 128
_WITHOUT_WINDOWS_ON_HOST = "Step3p5ForCausalLM"
"""Its windows have no pool of their own where prefixes are copied to the host (overrides.py)."""


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        attn_tp: ranks that share the heads of a request (tensor parallelism within one of the
            groups of DP attention).
        attn_dp: groups of DP attention; each serves requests of its own.
        word: KV cache dtype in SGLang's words, `auto` for the model dtype.
        layout: how the rows are kept.
        page: tokens a page.
        context: the longest sequence.
        max_requests: requests at once on one rank, as asked for; None for the default.
        max_tokens: the most tokens of the pool; None without a limit.
        radix: prefixes are kept and shared.
        overlap: a batch is prepared while another runs.
        tracked: how states are tracked: no_buffer, extra_buffer or extra_buffer_lazy.
        own_windows: windows have a pool of their own.
        mem_fraction: memory for weights and cache, as asked for; None for the default.
        fp4_indexer: index keys of DeepSeek-V4 are kept in four bits.
        waiting_dtype: dtype of its tokens that wait to be folded.
        host: copies in host memory (HiCache); None without.
        index_dtype: dtype of MiniMax-M3's index keys; None where an indexer has its own.
    """

    release: Release
    card: Card
    tp: int
    pp: int
    attn_tp: int
    attn_dp: int
    dcp: int
    dtype: str
    word: str
    layout: Layout
    states: StateDtypes
    backends: Backends
    page: int
    context: int
    max_requests: int | None
    max_tokens: int | None
    chunk: int
    radix: bool
    overlap: bool
    tracked: str
    own_windows: bool
    window_ratio: float
    state_ratio: float
    max_states: int | None
    eviction_interval: int
    role: str
    extra_slots: int
    mem_fraction: float | None
    graph_batch: int | None
    graphs: bool
    speculation: Speculation | None
    fp4_indexer: bool = False
    waiting_dtype: str = "float32"
    index_dtype: str | None = None
    host: Host | None = None

    @property
    def whole_fp8(self) -> bool:
        """Whether DeepSeek-V4's rows are all in fp8, without scales: TensorRT-LLM's kernels."""
        return self.layout.dtype.name == "fp8_e4m3"

    @property
    def states_per_request(self) -> int:
        """State slots that a request can come to hold: _calculate_mamba_ratio."""
        if not self.radix:
            return 1
        if self.tracked == "no_buffer":
            return 3
        return 3 + (2 if self.overlap and self.tracked == "extra_buffer" else 1)

    @property
    def proposed(self) -> int:
        """Tokens verified at once; 0 without speculation."""
        return self.speculation.tokens if self.speculation else 0

    @property
    def row_extra(self) -> int:
        """Places of a row of the request table beyond the context.

        mem_cache/allocation_sizing.py, get_req_to_token_extra_context_len.
        """
        extra = 4 + self.proposed
        page = self.page * self.dcp
        if self.speculation is not None and page > 1:
            extra = max(extra, 2 * self.speculation.alloc_len(page) + page - 1)
        return extra


def resolve(
    model: ModelSpec, deployment: Deployment, notes: list[str]
) -> tuple[ModelSpec, Settings]:
    """Return the model in the dtype that SGLang runs it in, and the settings.

    Args:
        model: as published.
        deployment: as asked for.
        notes: a line is added for what was assumed or changed.

    Raises:
        UnsupportedError: a setting that SGLang has not, or refuses for this model or card.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    refuse_others(deployment)
    arguments = Arguments(deployment)
    wanted = release(deployment.engine_version)
    card = card_of(deployment, notes)
    dtype = arguments.word("dtype", _given(deployment.dtype), called="dtype")
    model = in_dtype(model, dtype or "auto", notes)
    cached = arguments.word(
        "kv_cache_dtype", _given(deployment.kv_cache_dtype), called="kv_cache_dtype"
    )
    word = kv_word(model, cached or "auto", card, wanted, notes)
    speculation = speculation_of(model, deployment, arguments, notes)
    parallel = parallel_of(deployment, arguments, notes)
    check_heads(model, parallel)
    check_widths(model, parallel, experts_whole=bool(deployment.enable_expert_parallel))
    caching = deployment.enable_prefix_caching
    radix = not arguments.flag(
        "disable_radix_cache",
        None if caching is None else not caching,
        called="enable_prefix_caching",
    )
    scheduling = deployment.async_scheduling
    overlap = not arguments.flag(
        "disable_overlap_schedule",
        None if scheduling is None else not scheduling,
        called="async_scheduling",
    )
    _say_counterparts(deployment, notes, overlap=overlap)
    page = arguments.integer("page_size", deployment.block_size, called="block_size")
    strategy = arguments.word("mamba_radix_cache_strategy") or "auto"
    tracked, overlap = _tracking(
        model,
        strategy,
        wanted,
        radix=radix,
        overlap=overlap,
        page=page,
        proposes=speculation is not None,
    )
    overlap = overlap and _overlaps(wanted, parallel, speculation)
    topk = speculation.topk if speculation else 1
    backends = backends_of(
        model,
        card,
        arguments,
        Asked(
            release=wanted,
            backend=deployment.attention_backend,
            word=word,
            topk=topk,
            tracked=tracked != "no_buffer" or not radix or speculation is not None,
            shared_context=parallel.dcp > 1,
        ),
    )
    page = page_of(model, card, backends, page, notes, topk=topk)
    if keeps_states(model) and radix and tracked == "no_buffer" and page > 1:
        raise UnsupportedError(
            f"SGLang keeps prefixes of {model.name} with pages of one token alone, not {page}",
            hint="disable_radix_cache, or choose another attention backend",
            code="state-tracking",
            setting="mamba_radix_cache_strategy",
        )
    context = arguments.integer("context_length", deployment.max_model_len, called="max_model_len")
    if context is None:
        context = model.max_position_embeddings
    if context is None:
        context = _DEFAULT_CONTEXT
        notes.append(f"the model names no maximum: {format_count(context)} tokens are taken")
    allowed = arguments.integer(_LONGER, None)
    notes.extend(
        f"{line}: {_LONGER}={allowed} is set"
        if allowed
        else f"{line}: SGLang refuses that unless {_LONGER}=1 is set"
        for line in beyond(model, context, stretched=False)
    )
    _check_draft_length(deployment.draft_model, context, allowed=bool(allowed))
    requests = arguments.integer(
        "max_running_requests", deployment.max_num_seqs, called="max_num_seqs"
    )
    compressed = is_compressed(model)
    if requests is None and (speculation is not None or compressed):
        requests = _COMPRESSED_REQUESTS if compressed else DEFAULT_REQUESTS
    if requests is not None and requests < parallel.attn_dp:
        raise UnsupportedError(
            f"SGLang shares max_running_requests {requests} over {parallel.attn_dp} groups of DP"
            " attention: none is left for each",
            hint=f"set max_running_requests {parallel.attn_dp} at least",
            code="no-room-for-requests",
            setting="max_running_requests",
        )
    chunk = arguments.integer(
        "chunked_prefill_size",
        deployment.max_num_batched_tokens,
        called="max_num_batched_tokens",
    )
    settings = Settings(
        release=wanted,
        card=card,
        tp=parallel.tp,
        pp=parallel.pp,
        attn_tp=parallel.attn_tp,
        attn_dp=parallel.attn_dp,
        dcp=parallel.dcp,
        dtype=model.dtype,
        word=word,
        layout=layout_of(
            model,
            word,
            card,
            backends,
            arguments.word("prefill_kv_cache_dequant_dtype"),
            arguments.word("dsv4_attn_backend"),
        ),
        states=state_dtypes(
            model,
            arguments.word(
                "mamba_ssm_dtype",
                _given(deployment.mamba_ssm_cache_dtype),
                called="mamba_ssm_cache_dtype",
            ),
            arguments.word("SGLANG_MAMBA_CONV_DTYPE"),
            arguments.word("SGLANG_MAMBA_SSM_DTYPE"),
        ),
        backends=backends,
        page=page,
        context=context,
        max_requests=None if requests is None else requests // parallel.attn_dp,
        max_tokens=arguments.integer("max_total_tokens"),
        chunk=default_chunk(card) if chunk is None else chunk,
        radix=radix,
        overlap=overlap,
        tracked=tracked,
        own_windows=(model.architecture in (WINDOWED_AT_FIRST if wanted.first_read else WINDOWED))
        and not (
            model.architecture == _WITHOUT_WINDOWS_ON_HOST
            and arguments.flag("enable_hierarchical_cache")
        )
        and not arguments.flag(
            "disable_hybrid_swa_memory",
            deployment.disable_hybrid_kv_cache_manager,
            called="disable_hybrid_kv_cache_manager",
        ),
        window_ratio=arguments.number("swa_full_tokens_ratio")
        or (_COMPRESSED_RATIO if compressed else _WINDOW_RATIO),
        state_ratio=arguments.number("mamba_full_memory_ratio") or _STATE_RATIO,
        max_states=arguments.integer("max_mamba_cache_size"),
        eviction_interval=_or(
            arguments.integer("SGLANG_SWA_EVICTION_INTERVAL"), _EVICTION_INTERVAL
        ),
        role=arguments.word("disaggregation_mode") or "null",
        extra_slots=_or(arguments.integer("disaggregation_decode_extra_slots"), 0),
        mem_fraction=arguments.number("mem_fraction_static"),
        graph_batch=arguments.integer(
            "cuda_graph_max_bs",
        ),
        graphs=not arguments.flag(
            "disable_cuda_graph", deployment.enforce_eager, called="enforce_eager"
        ),
        speculation=speculation,
        fp4_indexer=arguments.flag("enable_deepseek_v4_fp4_indexer"),
        host=host_of(arguments, wanted, role=arguments.word("disaggregation_mode"), radix=radix),
        index_dtype=index_dtype(model, word, card, backends.decode),
        waiting_dtype=arguments.word("SGLANG_DSV4_COMPRESS_STATE_DTYPE") or "float32",
    )
    return model, settings


def _say_counterparts(deployment: Deployment, notes: list[str], *, overlap: bool) -> None:
    """Say which of SGLang's settings stands for one that it has under another name."""
    asked = deployment.async_scheduling
    if asked is not None:
        said = "async_scheduling is read as SGLang's own: without disable_overlap_schedule"
        if not asked:
            said = "no async_scheduling is read as SGLang's disable_overlap_schedule"
        elif not overlap:
            said += "; batches do not overlap all the same, as states are tracked by no_buffer"
        notes.append(said)
    if deployment.disable_hybrid_kv_cache_manager:
        notes.append(
            "disable_hybrid_kv_cache_manager is read as SGLang's disable_hybrid_swa_memory: no pool"
            " of windows"
        )


def _given(word: str | None) -> str | None:
    return None if word == "auto" else word


def _check_draft_length(draft: object, context: int, *, allowed: bool) -> None:
    """Refuse a draft model that was made for less than the target's context.

    configs/model_config.py, _derive_context_length: the draft is given the target's.
    """
    longest = draft.max_position_embeddings if isinstance(draft, ModelSpec) else None
    if longest is None or allowed or context <= longest:
        return
    raise UnsupportedError(
        f"the draft was made for {format_count(longest)} tokens, and is given the"
        f" {format_count(context)} of the target",
        hint=f"set {_LONGER}=1, or context_length {longest}",
        code="length-over-model",
        setting="context_length",
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _tracking(
    model: ModelSpec,
    strategy: str,
    release: Release,
    *,
    radix: bool,
    overlap: bool,
    page: int | None,
    proposes: bool,
) -> tuple[str, bool]:
    """Return how states are tracked, and whether batches still overlap.

    arg_groups/overrides.py, _mamba_radix_cache_resolution, and mamba_hook.py,
    validate_mamba_no_buffer; server_args.py, _handle_mamba_radix_cache before 0.5.14.

    Raises:
        UnsupportedError: extra slots for a model that has none; none, where batches overlap or
            tokens are proposed.
    """
    if not keeps_states(model):
        return ("no_buffer" if strategy == "auto" else strategy), overlap
    able = model.architecture in EXTRA_BUFFER
    asked = strategy
    if strategy == "auto":
        wanted = release.chooses_tracking and (overlap or (page is not None and page > 1))
        strategy = "extra_buffer" if wanted and able and radix else "no_buffer"
    if not radix:
        if strategy != "no_buffer" and not release.chooses_tracking:
            raise _tracked(
                f"states in extra slots ({strategy}) without a prefix cache", "no_buffer"
            )
        return strategy, overlap
    if strategy != "no_buffer":
        if not able:
            raise _tracked(
                f"states of {model.architecture or model.name} in extra slots", "no_buffer"
            )
        return strategy, overlap
    if proposes and not release.chooses_tracking:
        raise _tracked(
            f"speculation beside a prefix cache of {model.name} whose states are tracked by"
            " no_buffer",
            "extra_buffer (SGLANG_ENABLE_SPEC_V2=1)" if able else "",
        )
    if asked == "no_buffer" and overlap and release.chooses_tracking:
        raise _tracked("no_buffer where batches overlap", "auto, or disable_overlap_schedule")
    return strategy, False


def _tracked(what: str, instead: str) -> UnsupportedError:
    use = f"mamba_radix_cache_strategy {instead}" if instead else "disable_radix_cache"
    return UnsupportedError(
        f"SGLang does not start with {what}",
        hint=f"use {use}",
        code="state-tracking",
        setting="mamba_radix_cache_strategy",
    )


def _overlaps(release: Release, parallel: Parallel, speculation: Speculation | None) -> bool:
    """Whether batches may overlap: not over pipeline stages, nor older releases' drafts.

    overrides.py, _pipeline_parallel_overlap_disable; speculative_hook.py, _handle_eagle_family.
    """
    if parallel.pp > 1:
        return False
    if speculation is None or speculation.algorithm == "NGRAM":
        return True
    return release.overlaps_drafts and (speculation.topk == 1 or release.overlaps_trees)
