"""Engine `vllm-ascend`: vLLM on Ascend NPUs, by the plugin vllm-ascend.

Read from source: vllm-ascend at 182b75e (2026-08-22), which runs on vLLM 0.27.1; vLLM's planner is
the one of engine `vllm` at that release. Nothing was run.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.releases import Releases
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.checks import check_split
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers, layers_of
from kvcalc.engines.vllm.planning import plan_on
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.start_up import start_up_log as vllm_log
from kvcalc.engines.vllm.states import State, state_of

__all__ = ["RELEASES", "plan", "start_up_log"]


# A rank's layers as vllm-ascend describes them to vLLM: worker/model_runner_v1.py at 182b75e.
#
# Attention is described by get_kv_cache_spec and core/kv_cache_interface.py, blocks by utils.py
# (refresh_block_size), states by patch/platform/patch_mamba_config.py.

BLOCK = 128
"""The one block that Ascend's attention kernels read."""


def describe(model: ModelSpec, settings: Settings, share: ModelSpec, notes: list[str]) -> Layers:
    """Return the specs of what one rank keeps.

    Args:
        model: the whole model.
        settings: as resolved.
        share: the same layers as one tensor-parallel rank keeps them.
        notes: a line is added for every rule that moved a number.

    Raises:
        UnsupportedError: layers or a dtype that are not modelled, or a state that no whole number
            of blocks' K rows fills.
    """
    if settings.kv_dtype not in ("auto", settings.dtype):
        raise NotModelledError(
            f"vllm-ascend's {settings.kv_dtype} cache is not modelled",
            hint="kv_cache_dtype auto; quantised caches (C8) come with the checkpoint",
        )
    size = element_bytes(settings.dtype)
    caches = layers_of(share)
    kept: dict[Cache, State] = {}
    for cache in caches:
        _check(cache, model)
        if isinstance(cache, (GatedDeltaNet, Mamba2)):
            kept[cache] = state_of(cache, settings, model.architecture)
    rows = [cache for cache in caches if cache.rows()]
    block, padded = BLOCK, 0
    if kept and rows:
        block, padded = _covering(rows[0], kept, settings, size, notes)
    else:
        asked = settings.block_size or BLOCK
        become = "" if asked == BLOCK else f", not of {asked}"
        notes.append(f"blocks of {BLOCK} tokens{become}: Ascend's kernels read those")
    placed = []
    for cache, layers in caches.items():
        if cache in kept:
            spec, proposed = _state_spec(cache, kept[cache], settings, block, padded)
            placed.append(Placed(spec, layers, proposed))
        else:
            spec = _row_spec(cache, block, size)
            placed.append(Placed(spec._replace(page=max(spec.page, padded)), layers))
    notes.extend(_told(rows))
    return Layers(
        placed=sorted(placed, key=lambda p: p.layers[0]),
        block_size=block,
        kv_dtype=settings.kv_dtype,
        backends=(),
    )


def _check(cache: Cache, model: ModelSpec) -> None:
    """Refuse what was not read, or not found out, of vllm-ascend."""
    known = (FullAttention, SlidingWindow, ChunkedAttention, Mla, GatedDeltaNet, Mamba2)
    keys = isinstance(cache, Indexer) and cache == Indexer(index_head_dim=cache.index_head_dim)
    if keys or isinstance(cache, known):
        return
    raise NotModelledError(
        f"how vllm-ascend keeps the {cache.kind} caches of {model.name} is not modelled",
        hint="use --engine vllm for NVIDIA cards, or --engine none",
    )


def _covering(
    first: Cache, kept: dict[Cache, State], settings: Settings, size: int, notes: list[str]
) -> tuple[int, int]:
    """Return the block whose K rows are as large as a state, and the page of all layers.

    patch_mamba_config.py: K alone decides the block, K and V the page, and the convolution's window
    comes on top.

    Raises:
        UnsupportedError: K rows of no whole number of kernels' blocks are as large as the state.
    """
    if not isinstance(first, FullAttention):
        raise NotModelledError(
            f"how vllm-ascend keeps {first.kind} layers beside states is not modelled",
            hint="use --engine none for this model",
        )
    if settings.state_mode == "all":
        raise NotModelledError(
            "how vllm-ascend keeps a state at every block is not modelled",
            hint="leave prefix caching off for this model",
        )
    k_token = first.num_kv_heads * first.head_dim * size
    # Room for tokens being proposed is in the convolution's window.
    sizes = [
        bytes_ + (state.proposed_bytes if role == "conv" else 0)
        for state in kept.values()
        for role, bytes_ in state.payload
    ]
    state, window = max(sizes), min(sizes)
    block = BLOCK * cdiv(state, BLOCK * k_token)
    if block * k_token != state:
        raise UnsupportedError(
            "Cannot align ssm_page_size and attn_page_size: vllm-ascend wants K rows of whole"
            f" blocks as large as a state of {format_count(state)} B, and {format_count(block)}"
            f" tokens have {format_count(block * k_token)} B",
            hint="choose another tensor parallel size, or another dtype of the state",
        )
    found = max(block, settings.block_size or 0)
    padded = found * 2 * k_token + window
    notes.append(
        f"blocks of {format_count(found)} tokens: their K rows alone"
        f" ({format_count(found * k_token)} B) cover one state ({format_count(state)} B)"
    )
    notes.append(
        f"pages of every layer are widened to {format_count(padded)} B: K and V of a block and the"
        f" convolution's window ({format_count(window)} B)"
    )
    return found, padded


def _state_spec(
    cache: Cache, state: State, settings: Settings, block: int, padded: int
) -> tuple[Spec, int]:
    """Return a state's spec and its room for proposed tokens: vLLM's MambaSpec."""
    cached = settings.state_mode == "align"
    spec = Spec(
        kind="state",
        block=block if cached else settings.max_model_len,
        entry=state.content,
        payload=state.payload,
        shape=(cache.kind, state.payload),
        page=max(state.content, padded),
        slots=(2 if cached else 1) + settings.proposed,
    )
    return spec, state.proposed_bytes


def _row_spec(cache: Cache, block: int, size: int) -> Spec:
    """Return a spec of rows: AscendMLAAttentionSpec, AscendSFAIndexerCacheSpec and vLLM's own.

    An indexer's keys are kept in the dtype of the cache, without scales.
    """
    payload = tuple((row.role, row.count * row.width * size) for row in cache.rows())
    entry = sum(bytes_ for _, bytes_ in payload)
    kind = cache.kind if isinstance(cache, (Mla, Indexer)) else "heads"
    spec = Spec(
        kind="full",
        block=block,
        entry=entry,
        payload=payload,
        shape=(kind, payload),
        page=block * entry,
    )
    match cache:
        case Mla() | Indexer():
            return spec._replace(kind="mla")
        case SlidingWindow(sliding_window=window):
            return spec._replace(kind="window", limit=window)
        case ChunkedAttention(attention_chunk_size=chunk):
            return spec._replace(kind="chunk", limit=chunk)
    return spec


def _told(rows: list[Cache]) -> list[str]:
    lines = []
    if any(isinstance(cache, Mla) for cache in rows):
        lines.append("MLA rows lie in two tensors, the latent and its rotary part: no byte more")
    if any(isinstance(cache, Indexer) for cache in rows):
        lines.append("an indexer's keys are kept in the cache's dtype, without scales")
    return lines


_COMMIT = "182b75e"
_VLLM = "0.27.1"
RELEASES = Releases("vllm-ascend", (0, 27, 1), (0, 27, 1), commits=(_COMMIT,))
"""They are numbered as those of vLLM that they are for."""
_GIB = 2**30
_KNOWN = {
    "engine",
    "engine_version",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "enable_expert_parallel",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "num_speculative_tokens",
    "speculative_method",
}
_NPU = Card("ascend", 64 * _GIB, (8, 0))
"""A die of 64 GiB, as A2 and A3 have; above 70 vLLM would take larger steps."""


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on Ascend NPUs.

    Raises:
        UnsupportedError: what the plugin refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "vLLM on Ascend", "leave it out, or use --engine none")
    RELEASES.read(deployment.engine_version)
    return plan_on(_ASCEND, model, msgspec.structs.replace(deployment, engine_version=_VLLM))


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return vLLM's lines about the cache, after the plugin's own of the memory (two decimals).

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: of one NPU; None where num_gpu_blocks_override fixes the blocks.
    """
    vllms = msgspec.structs.replace(plan, engine_version=_VLLM)
    told = [line for line in vllm_log(vllms, kv_cache_bytes) if "Available KV" not in line]
    if kv_cache_bytes is not None:
        told.insert(0, f"Available KV cache memory: {kv_cache_bytes / _GIB:.2f} GiB")
    return tuple(told)


def _convention(settings: Settings) -> tuple[str, ...]:
    step = (
        f"A step has {settings.max_num_batched_tokens:,} tokens and {settings.max_num_seqs:,}"
        " sequences (vLLM's defaults below 70 GiB), unless given."
    )
    memory = (
        "Unless its bytes are given, the cache gets what is left of"
        f" {settings.memory_share} of the NPU."
    )
    null = "Block 0 is the null block: it is logged and allocated, and never handed out."
    return (step, memory, null)


_READ = (
    f"vllm-ascend's rules were read in its source ({_COMMIT}), not compared with a running server,"
    " apart from one page that was logged"
)
_APART = (
    "quantised caches of a checkpoint (C8, sparse C8), the sparse KV offload, and the 2 MiB to"
    " which tensors are aligned under a KV connector"
)


def _not_modelled(_layers: Layers, _grouping: Grouping, _settings: Settings) -> tuple[str, ...]:
    return (_READ, _APART)


def _source(settings: Settings) -> str:
    return (
        f"vllm-ascend {_COMMIT}: worker/model_runner_v1.py, get_kv_cache_spec;"
        f" patch/platform/patch_mamba_config.py; vLLM {settings.release}"
    )


_ASCEND = Platform(
    engine="vllm-ascend",
    version=_COMMIT,
    card=_NPU,
    describe=describe,
    check=check_split,
    convention=_convention,
    unsupported=_not_modelled,
    source=_source,
)
