"""What a pipeline stage's layers keep, sorted by the window that they keep it for.

TensorRT-LLM _torch/pyexecutor/resource_manager.py: KV heads of a rank rounded up
(KVCacheManager.__init__), layers by window (_get_window_size_to_layers), stages by
mapping.pp_layers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.attention import ChunkedAttention, FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.dtypes import DTYPES, element_bytes
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.kind import CacheBase, Once
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv
from kvcalc.engines.tensorrt_llm.settings import Settings

__all__ = [
    "Kept",
    "States",
    "ceil_heads",
    "check_served",
    "sort_layers",
    "stages_of",
    "states_of",
]

_STATEFUL = frozenset({"NemotronHForCausalLM", "Qwen3NextForCausalLM"})
"""Models with states that the hybrid manager serves (_torch/pyexecutor/_util.py)."""


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


class States(NamedTuple):
    """States of a request, all layers of a stage together.

    Attributes:
        layers: layers with states.
        payload: bytes by role.
    """

    layers: int
    payload: dict[str, int]

    @property
    def slot(self) -> int:
        """Bytes of a request's states."""
        return sum(self.payload.values())


def ceil_heads(heads: int, ranks: int) -> int:
    """Return the KV heads of one rank: rounded up.

    >>> ceil_heads(8, 3), ceil_heads(2, 8)
    (3, 1)
    """
    return cdiv(heads, ranks)


def check_served(model: ModelSpec, settings: Settings) -> None:
    """Refuse what is not modelled here.

    Raises:
        UnsupportedError: naming the cache.
    """
    for _, cache in model.caches():
        kinds = ("compressed_attention", "sliding_mla")
        sparse = isinstance(cache, Indexer) and cache.index_dtype != "fp8_block128"
        odd = bool(cache.states()) and model.architecture not in _STATEFUL
        if odd or cache.kind in kinds or sparse or isinstance(cache.span, Once):
            raise UnsupportedError(
                f"TensorRT-LLM's cache of {model.name}'s {cache.kind} layers is not modelled",
                hint="use --engine none for the model's own arithmetic",
            )
    _check_windows(model, settings)
    if settings.v2:
        return
    shapes = {
        (cache.head_dim, cache.v_head_dim or cache.head_dim)
        for _, cache in model.caches()
        if isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention))
    }
    if len({k for k, _ in shapes}) > 1 or any(k != v for k, v in shapes):
        raise UnsupportedError(
            "TensorRT-LLM's first cache manager keeps K and V of all layers in one width",
            hint="set engine_args use_kv_cache_manager_v2",
        )


def _check_windows(model: ModelSpec, settings: Settings) -> None:
    stateful = any(cache.states() for _, cache in model.caches())
    if stateful and (settings.v2 or settings.windows is not None):
        what = "max_attention_window" if settings.windows is not None else "KVCacheManagerV2"
        raise UnsupportedError(
            f"TensorRT-LLM's {what} beside states is not modelled", hint="leave it out"
        )
    chunked = any(isinstance(cache, ChunkedAttention) for _, cache in model.caches())
    if chunked and settings.windows is not None:
        raise UnsupportedError(
            f"max_attention_window for {model.name}, which reads chunks, is not modelled",
            hint="leave it out: every layer keeps every token",
        )


def stages_of(model: ModelSpec, settings: Settings) -> list[ModelSpec]:
    """Return each stage's layers as one rank keeps them; the first stages have a layer more.

    Raises:
        UnsupportedError: more stages than layers.
    """
    count, pp = model.num_hidden_layers, settings.pp
    if pp > count:
        raise UnsupportedError(
            f"{count} layers cannot be split over {pp} pipeline stages",
            hint="choose at most as many stages as the model has layers",
        )
    base, more = divmod(count, pp)
    sizes = (base + 1,) * more + (base,) * (pp - more)
    stages = [part.on_rank(settings.tp, ceil_heads) for part in model.stages(pp, sizes)]
    if settings.proposed:
        stages[-1] = _with_proposing(stages[-1], settings)
    return stages


def _with_proposing(stage: ModelSpec, settings: Settings) -> ModelSpec:
    """Return the last stage with a layer for every token proposed (get_num_spec_layers)."""
    (first, *_) = stage.draft_layers
    run = msgspec.structs.replace(first, count=settings.proposed)
    layers = (*stage.layers, run)
    count = sum(part.count for part in layers)
    return msgspec.structs.replace(stage, layers=layers, num_hidden_layers=count)


def states_of(stage: ModelSpec, settings: Settings) -> States | None:
    """Return the states of a stage's layers; None where it has none.

    Convolution windows are in the model dtype (mamba_cache_manager.py, MambaCacheManager).
    """
    layers, payload = 0, dict[str, int]()
    for run in stage.layers:
        states = [state for cache in run.caches for state in cache.states()]
        layers += run.count if states else 0
        for state in states:
            dtype = settings.model_dtype if state.role == "conv" else settings.state_dtype
            size = run.count * state.elements * element_bytes(dtype)
            payload[state.role] = payload.get(state.role, 0) + size
    return States(layers, payload) if layers else None


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
            if isinstance(cache, SlidingWindow):
                widths.add(cache.num_kv_heads)
                if limit is None or cache.sliding_window < limit:
                    into = windows.setdefault((cache.sliding_window, False), {})
            elif isinstance(cache, ChunkedAttention):
                widths.add(cache.num_kv_heads)
                into = windows.setdefault((cache.attention_chunk_size, True), {})
            elif isinstance(cache, FullAttention):
                widths.add(cache.num_kv_heads)
            for row in cache.rows():
                size = settings.dtype.bytes_of(row)
                into[row.role] = into.get(row.role, 0) + size
            cell += _cell(cache, settings)
            priced += _priced(cache, settings)
    return Kept(limit, len(runs), payload, windows, cell, priced, frozenset(widths or {1}))


def _cell(cache: CacheBase, settings: Settings) -> int:
    """Bytes of a token of a layer's tensors; one vector that is K and V is kept twice."""
    size = sum(settings.dtype.bytes_of(row) for row in cache.rows())
    single = isinstance(cache, (FullAttention, SlidingWindow)) and cache.v_head_dim == 0
    return size * 2 if single else size


def _priced(cache: CacheBase, settings: Settings) -> int:
    """Bytes of a token as windows of several sizes are priced: 4-bit rows without their scales.

    calculate_max_num_blocks_for_vswa.
    """
    cell = _cell(cache, settings)
    if settings.dtype.k == DTYPES["nvfp4"] and not isinstance(cache, (Mla, Indexer)):
        return cell * 8 // 9
    return cell
