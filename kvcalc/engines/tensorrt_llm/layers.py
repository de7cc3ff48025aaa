"""What a pipeline stage's layers keep, sorted by the window that they keep it for.

TensorRT-LLM _torch/pyexecutor/resource_manager.py: KV heads of a rank rounded up
(KVCacheManager.__init__), layers by window (_get_window_size_to_layers), stages by
mapping.pp_layers.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.dtypes import DTYPES
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import CacheBase, Once
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv
from kvcalc.engines.every_token import span_of
from kvcalc.engines.served import check_served, doubt_of
from kvcalc.engines.tensorrt_llm.settings import Settings
from kvcalc.engines.tensorrt_llm.states import check_states
from kvcalc.engines.tensorrt_llm.version import RELEASES

__all__ = ["PER_HEAD", "Kept", "ceil_heads", "check_model", "sort_layers", "stages_of"]


PER_HEAD = (FullAttention, SlidingWindow, ChunkedAttention)
"""Caches with K and V of KV heads."""


class Kept(NamedTuple):
    """Rows of the layers that keep tokens for one window.

    Attributes:
        limit: the window; None where every token is kept.
        layers: layers.
        payload: bytes by role of layers that read every token that they keep.
        windows: (window or chunk, whether it is a chunk) -> bytes by role of layers that read no
            more than that.
        cell: bytes of a token as the tensors have it.
        priced: bytes of a token as the start counts them.
        widths: distinct KV heads of the layers: a tensor each.
    """

    limit: int | None
    layers: int
    payload: dict[str, int]
    windows: dict[tuple[int, bool], dict[str, int]]
    cell: int
    priced: int
    widths: frozenset[int]


def ceil_heads(heads: int, ranks: int) -> int:
    """Return the KV heads of one rank: rounded up.

    >>> ceil_heads(8, 3), ceil_heads(2, 8)
    (3, 1)
    """
    return cdiv(heads, ranks)


def check_model(model: ModelSpec, settings: Settings, version: str | None, notes: list[str]) -> str:
    """Refuse what is not served or not modelled here; return what is in doubt.

    Args:
        model: as it is run.
        settings: as resolved.
        version: the release that is asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: naming the cache.
    """
    asked = RELEASES.read(version)
    span = check_served(model, __package__, "TensorRT-LLM", asked.number, notes, newer=asked.newer)
    doubt = doubt_of(span, model, "TensorRT-LLM's PyTorch backend")
    for _, cache in model.caches():
        kinds = ("compressed_attention", "sliding_mla")
        sparse = isinstance(cache, Indexer) and cache.index_dtype != "fp8_block128"
        if cache.kind in kinds or sparse or isinstance(cache.span, Once):
            raise NotModelledError(
                f"TensorRT-LLM's cache of {model.name}'s {cache.kind} layers is not modelled",
                hint="use --engine none for the model's own arithmetic",
            )
    if settings.windows is not None and any(
        isinstance(cache, ChunkedAttention) for _, cache in model.caches()
    ):
        raise NotModelledError(
            "max_attention_window beside chunked attention is not modelled for TensorRT-LLM",
            hint="leave it out: every layer then keeps every token",
        )
    check_states(model, settings)
    if settings.v2:
        return doubt
    shapes = {
        (cache.head_dim, cache.v_head_dim or cache.head_dim)
        for _, cache in model.caches()
        if isinstance(cache, PER_HEAD)
    }
    if len({k for k, _ in shapes}) > 1 or any(k != v for k, v in shapes):
        raise UnsupportedError(
            "TensorRT-LLM's first cache manager keeps K and V of all layers in one width",
            hint="set engine_args use_kv_cache_manager_v2",
        )
    return doubt


def stages_of(model: ModelSpec, settings: Settings) -> list[ModelSpec]:
    """Return each stage's layers as one rank keeps them; the first stages have a layer more.

    Raises:
        UnsupportedError: more stages than layers, or query heads that the ranks do not divide
            (_torch/modules/attention.py, Attention).
    """
    count, pp = model.num_hidden_layers, settings.pp
    queries = model.num_attention_heads
    if queries is not None and queries % settings.tp:
        raise UnsupportedError(
            f"TensorRT-LLM cannot split {queries} query heads over {settings.tp} ranks",
            hint=f"choose a tensor-parallel size that divides {queries}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    if pp > count:
        raise UnsupportedError(
            f"{count} layers cannot be split over {pp} pipeline stages",
            hint="choose at most as many stages as the model has layers",
        )
    base, more = divmod(count, pp)
    sizes = (base + 1,) * more + (base,) * (pp - more)
    return [part.on_rank(settings.tp, ceil_heads) for part in model.stages(pp, sizes)]


def sort_layers(stage: ModelSpec, settings: Settings) -> list[Kept]:
    """Sort a stage's layers by window, the widest first; None (every token) before all."""
    by_window: dict[int | None, list[LayerRun]] = {}
    single = (run for run in stage.layers for _ in range(run.count))
    for number, run in enumerate(single):
        if any(cache.rows() for cache in run.caches):
            by_window.setdefault(_window(number, run, settings), []).append(run)
    ordered = sorted(by_window, key=lambda limit: settings.length if limit is None else limit)
    return [_kept(limit, by_window[limit], settings) for limit in reversed(ordered)]


def _window(number: int, run: LayerRun, settings: Settings) -> int | None:
    """Return the tokens that a layer of the stage keeps; None for all."""
    windows = settings.windows
    if windows is None:
        return None
    if isinstance(windows, str):
        own = [c.sliding_window for c in run.caches if isinstance(c, SlidingWindow)]
        window = min(own, default=settings.length)
    else:
        window = windows[number % len(windows)]
    return None if window >= settings.length else window


def _kept(limit: int | None, runs: list[LayerRun], settings: Settings) -> Kept:
    payload: dict[str, int] = {}
    windows: dict[tuple[int, bool], dict[str, int]] = {}
    cell = priced = 0
    widths = set()
    for run in runs:
        for cache in run.caches:
            into = payload
            if isinstance(cache, PER_HEAD):
                widths.add(cache.num_kv_heads)
            _, read, restarts = span_of(1, cache)
            if read is not None and (limit is None or read < limit):
                into = windows.setdefault((read, restarts), {})
            for row in cache.rows():
                size = settings.dtype.bytes_of(row)
                into[row.role] = into.get(row.role, 0) + size
            cell += _cell(cache, settings)
            priced += _priced(cache, settings)
    return Kept(limit, len(runs), payload, windows, cell, priced, frozenset(widths or {1}))


def _cell(cache: CacheBase, settings: Settings) -> int:
    """Bytes of a token of a layer's tensors; one vector that is K and V is kept twice."""
    size = sum(settings.dtype.bytes_of(row) for row in cache.rows())
    single = isinstance(cache, PER_HEAD) and cache.v_head_dim == 0
    return size * 2 if single else size


def _priced(cache: CacheBase, settings: Settings) -> int:
    """Bytes of a token as windows of several sizes are priced: 4-bit rows without their scales.

    calculate_max_num_blocks_for_vswa.
    """
    cell = _cell(cache, settings)
    if settings.dtype.k == DTYPES["nvfp4"] and not isinstance(cache, (Mla, Indexer)):
        return cell * 8 // 9
    return cell
