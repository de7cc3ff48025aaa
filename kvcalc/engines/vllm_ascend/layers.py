"""A rank's layers as vllm-ascend describes them to vLLM: worker/model_runner_v1.py at 182b75e.

get_kv_cache_spec and core/kv_cache_interface.py (attention), utils.py, refresh_block_size (blocks),
patch/platform/patch_mamba_config.py (states).
"""

from __future__ import annotations

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.vllm.layers import Layers, layers_of
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.states import State, state_of

__all__ = ["BLOCK", "describe"]

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
