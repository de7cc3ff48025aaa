"""What a pipeline stage's layers keep, sorted into SGLang's pools.

SGLang 0.5.23 mem_cache/kv_cache_configurator.py (_build_*_kv_pool) and mem_cache/memory_pool.py:
one tensor a layer, all layers of a pool of one shape, and a tensor even for layers that keep
nothing of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import CacheBase
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.engines.served import check_served, doubt_of
from kvcalc.engines.sglang.dtypes import Layout
from kvcalc.engines.sglang.families import (
    STATEFUL,
    is_minimax_sparse,
    keeps_states,
)
from kvcalc.engines.sglang.settings import Settings
from kvcalc.engines.sglang.version import RELEASES

__all__ = [
    "Kept",
    "Rows",
    "States",
    "check_host",
    "check_model",
    "check_settings",
    "floor_heads",
    "on_rank",
    "sort_layers",
]

_STATES = (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConv,
)


class Rows(NamedTuple):
    """Rows of a token in one pool, all layers together.

    Attributes:
        layers: layers that keep rows of their own.
        tensors: layers with tensors.
        payload: bytes by role of the layers that keep every token.
        windows: bytes by role of the layers that read no more than a window or chunk: its
            tokens, and whether it is a chunk.
        cell: bytes of a token as the tensors have it, layers without rows included.
        latent: the rows are latents.
        index_cell: part of `cell` that is indexer keys.
    """

    layers: int
    tensors: int
    payload: dict[str, int]
    windows: dict[tuple[int, bool], dict[str, int]]
    cell: int
    latent: bool = False
    index_cell: int = 0


class States(NamedTuple):
    """States of a slot, all layers together.

    Attributes:
        layers: layers that keep a state.
        payload: bytes by role.
        proposed: bytes of the states of all proposed tokens of a request, in a pool of their own.
    """

    layers: int
    payload: dict[str, int]
    proposed: int

    @property
    def slot(self) -> int:
        """Bytes of a slot."""
        return sum(self.payload.values())


class Kept(NamedTuple):
    """What a stage keeps: None where it keeps nothing of the kind."""

    full: Rows | None
    window: Rows | None
    states: States | None


def check_model(model: ModelSpec, version: str | None, notes: list[str]) -> str:
    """Refuse what SGLang does not serve, or is not modelled here; return what is in doubt.

    Args:
        model: as published.
        version: the release that is asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: naming the cache or the architecture.
    """
    asked = RELEASES.read(version)
    span = check_served(model, __package__, "SGLang", asked.number, notes, newer=asked.newer)
    doubt = doubt_of(span, model, f"SGLang {RELEASES.spelled(asked.number)}")
    stateful = any(isinstance(cache, _STATES) for _, cache in model.caches())
    if stateful and model.architecture is not None and model.architecture not in STATEFUL:
        raise UnsupportedError(
            f"SGLang keeps no states of {model.architecture}",
            hint="use --engine none for the model's own arithmetic",
        )
    for _, cache in model.caches():
        if (
            isinstance(cache, Indexer)
            and cache.index_dtype != "fp8_block128"
            and not is_minimax_sparse(model)
        ):
            raise NotModelledError(
                f"SGLang's pools of {model.name}'s sparse attention are not modelled",
                hint="use --engine none for the model's own arithmetic, or --engine vllm",
            )
        if isinstance(cache, (Rwkv, RgLru)):
            raise UnsupportedError(
                f"SGLang does not serve models with {cache.kind} layers",
                hint="use --engine none for the model's own arithmetic",
            )
        if isinstance(cache, CrossAttention):
            raise NotModelledError(
                f"SGLang's cross-attention cache ({model.name}) is not modelled",
                hint="use --engine none for the model's own arithmetic",
            )
    return doubt


def check_settings(model: ModelSpec, settings: Settings) -> None:
    """Refuse what SGLang does not do for a model, or what is not modelled here.

    Raises:
        UnsupportedError: naming the setting.
    """
    kinds = {cache.kind for _, cache in model.caches()}
    stateful = keeps_states(model)
    if settings.dcp > 1 and (stateful or "sliding_window" in kinds or "chunked_attention" in kinds):
        raise NotModelledError(
            "decode context parallelism of windows and states is not modelled for SGLang",
            hint="use a decode context parallel size of 1 for this model",
        )
    if is_minimax_sparse(model):
        told = {
            "decode context parallelism": settings.dcp > 1,
            "speculation": settings.speculation is not None,
            f"release {settings.release}": not settings.release.newest,
        }
        for what in (name for name, asked in told.items() if asked):
            raise NotModelledError(
                f"{what} is not modelled for MiniMax's sparse attention in SGLang",
                hint="leave it out",
            )
    if settings.release.first_read and stateful and settings.proposed:
        raise NotModelledError(
            f"how SGLang {settings.release} kept the states of proposed tokens is not modelled",
            hint="name a later release",
        )
    four_bit = settings.word in ("nvfp4", "fp4_mx_block16")
    if four_bit and (stateful or settings.own_windows):
        raise UnsupportedError(
            f"SGLang keeps no {settings.word} cache beside states or windows of their own",
            hint="choose --kv-cache-dtype fp8_e4m3",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )


def check_host(model: ModelSpec, settings: Settings) -> None:
    """Refuse a pool in host memory beside what has no plain rows.

    Raises:
        UnsupportedError: naming it.
    """
    plain = {"full_attention", "mla"}
    kinds = {cache.kind for _, cache in model.caches()}
    four_bit = settings.word not in ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2")
    if settings.host is not None and (
        not kinds <= plain or four_bit or settings.pp > 1 or settings.speculation is not None
    ):
        raise NotModelledError(
            "SGLang's enable_hierarchical_cache is modelled for full attention and MLA alone,"
            " on one pipeline stage, without speculation",
            hint="leave it out: the pool of the GPU stays as it is",
        )


def floor_heads(heads: int, ranks: int) -> int:
    """Return the KV heads of one rank: rounded down, and one at least.

    configs/model_config.py, get_num_kv_heads.

    >>> floor_heads(8, 3), floor_heads(2, 8)
    (2, 1)
    """
    return max(1, heads // ranks)


def on_rank(model: ModelSpec, settings: Settings) -> ModelSpec:
    """Return what one rank keeps of every layer.

    Ranks of decode context parallelism keep the same heads, so that heads are split among the
    groups of them.
    """
    shards = settings.attn_tp // settings.dcp

    def share(cache: Cache) -> Cache:
        if cache.states():
            return cache.on_rank(settings.attn_tp)
        return cache.on_rank(shards, floor_heads)

    def shared(runs: tuple[LayerRun, ...]) -> tuple[LayerRun, ...]:
        return tuple(
            msgspec.structs.replace(run, caches=tuple(share(c) for c in run.caches)) for run in runs
        )

    return msgspec.structs.replace(
        model, layers=shared(model.layers), draft_layers=shared(model.draft_layers)
    )


def sort_layers(
    runs: tuple[LayerRun, ...], whole: ModelSpec, settings: Settings, *, draft: bool = False
) -> Kept:
    """Sort the layers of a stage into pools.

    Args:
        runs: the stage's layers, as one rank keeps them.
        whole: the model on one rank, for layers that read another's rows.
        settings: as resolved.
        draft: the layers propose tokens, with pools of their own.

    Raises:
        UnsupportedError: layers of more than one shape in one pool.
    """
    stateful = any(cache.states() for _, cache in whole.caches())
    apart = settings.own_windows
    full, window = _Pool(settings), _Pool(settings)
    payload: dict[str, int] = {}
    proposed = state_layers = 0
    for run in runs:
        rows = [cache for cache in run.caches if cache.rows()]
        for cache in rows:
            if apart and isinstance(cache, (SlidingWindow, ChunkedAttention)):
                window.add(cache, run.count)
            else:
                full.add(cache, run.count)
        states = [state for cache in run.caches for state in cache.states()]
        if states:
            state_layers += run.count
            for state in states:
                size = run.count * settings.states.bytes_of(state)
                payload[state.role] = payload.get(state.role, 0) + size
                if state.role == "conv":
                    kda = any(cache.kind == "kimi_delta_attention" for cache in run.caches)
                    proposed += _proposed_window(size, state.shape[0], settings.proposed, kda)
                else:
                    proposed += size * settings.proposed
        if not rows and not stateful:
            # A layer that keeps nothing has its tensor all the same.
            (window if apart and _reads_window(run, whole) else full).reserve(run.count)
    kept = States(state_layers, payload, proposed) if state_layers and not draft else None
    return Kept(full.rows(), window.rows(), kept)


def _proposed_window(size: int, rows: int, tokens: int, kda: bool) -> int:
    """Bytes of the convolution windows of all proposed tokens, which overlap but for KDA's.

    MambaPool._allocate_deduplicated_conv_window.
    """
    return size * tokens if kda else size // rows * (tokens + rows - 1)


def _reads_window(run: LayerRun, whole: ModelSpec) -> bool:
    """Whether a layer reads the rows of a window's layer."""
    for cache in run.caches:
        if isinstance(cache, SharedKv) and cache.source_layer is not None:
            before = 0
            for other in whole.layers:
                if cache.source_layer < before + other.count:
                    return any(
                        isinstance(c, (SlidingWindow, ChunkedAttention)) for c in other.caches
                    )
                before += other.count
    raise NotModelledError(
        f"which rows a layer of {whole.name} reads is not known, and with them its pool",
        hint="use --engine none for the model's own arithmetic",
    )


class _Pool:
    """Adds up the layers of one pool and sees that they are of one shape."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shape: tuple[int, ...] = ()
        self._layers = self._tensors = self._index = 0
        self._payload: dict[str, int] = {}
        self._windows: dict[tuple[int, bool], dict[str, int]] = {}
        self._each = 0
        self._latent = False

    def add(self, cache: CacheBase, count: int) -> None:
        """Add layers that keep rows."""
        layout = self._settings.layout
        into = self._payload
        if isinstance(cache, Indexer):
            # Every rank of decode context parallelism keeps the keys of all tokens.
            if self._settings.index_dtype is not None:
                cache = msgspec.structs.replace(cache, index_dtype=self._settings.index_dtype)
            for row in cache.rows():
                size = count * layout.dtype.bytes_of(row) * self._settings.dcp
                into[row.role] = into.get(row.role, 0) + size
                self._index += size
            return
        shape, each = _tensor(cache, layout)
        if self._shape and shape != self._shape:
            raise UnsupportedError(
                "SGLang keeps the layers of a pool in one shape, and these differ:"
                f" {_told(self._shape)} and {_told(shape)}",
                hint="use --engine none for the model's own arithmetic",
            )
        self._shape, self._each = shape, each
        self._latent = isinstance(cache, Mla)
        self._layers += count
        self._tensors += count
        if isinstance(cache, (SlidingWindow, ChunkedAttention)):
            into = self._windows.setdefault(_limit(cache), {})
        for row in cache.rows():
            into[row.role] = into.get(row.role, 0) + count * layout.dtype.bytes_of(row)

    def reserve(self, count: int) -> None:
        """Add layers that keep nothing and have a tensor all the same."""
        self._tensors += count

    def rows(self) -> Rows | None:
        """Return what was added up; None for nothing."""
        if not self._layers:
            return None
        cell = self._tensors * self._each + self._index
        if self._settings.layout.workspace:
            cell += 2 * self._shape[0] * self._shape[1]
        return Rows(
            self._layers,
            self._tensors,
            self._payload,
            self._windows,
            cell,
            self._latent,
            self._index,
        )


def _tensor(cache: CacheBase, layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return the shape of a layer's tensors and their bytes a token."""
    if isinstance(cache, Mla):
        size = sum(layout.dtype.bytes_of(row) for row in cache.rows())
        return (cache.kv_lora_rank, cache.qk_rope_head_dim), size
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention)):
        raise NotModelledError(
            f"SGLang's pools of {cache.kind} are not modelled",
            hint="use --engine none for the model's own arithmetic",
        )
    # Where one vector is K and V at once, the engine keeps two.
    v = cache.v_head_dim or cache.head_dim
    both = FullAttention(num_kv_heads=cache.num_kv_heads, head_dim=cache.head_dim, v_head_dim=v)
    size = sum(layout.dtype.bytes_of(row) for row in both.rows())
    scales = cache.num_kv_heads * 2 * (cache.head_dim // 16)
    return (cache.num_kv_heads, cache.head_dim, v), size + layout.extra_scales * scales


def _limit(cache: SlidingWindow | ChunkedAttention) -> tuple[int, bool]:
    """Return the tokens that a layer reads at most, and whether they are a chunk's."""
    if isinstance(cache, ChunkedAttention):
        return cache.attention_chunk_size, True
    return cache.sliding_window, False


def _told(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
