"""A model as llama.cpp keeps it: its windows, sharing and draft layers.

llama.cpp b11434 src/llama-model.cpp (load_hparams, create_memory) and src/models/*.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun, merge_runs
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
)
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.llamacpp.architectures import DRAFTS_IN_MAIN, SHARING, WINDOWED, architecture

__all__ = ["STATES", "Served", "serve"]

STATES = (Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention, LightningAttention, RgLru, Rwkv)
"""Kinds whose state dtype a config can fix; llama.cpp keeps all of them in 32 bits."""

_EXAONE4_SLIDING_LAYERS = 64
_LLAMA4_CHUNK = 8192
_DRAFTS_CONVERTED = {"MiMoV2FlashForCausalLM": 3}
"""Class -> its prediction layers for each one that vLLM has: conversion/mimo.py writes the three
that are trained (`_n_nextn`), and no config counts them."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What llama.cpp makes of a model.

    Attributes:
        arch: llama.cpp's name; None where the model has none.
        layers: every layer, draft layers last, as llama.cpp keeps them.
        main: layers of the main context before the draft layers.
        in_main: draft layers that the main context keeps as well.
        hybrid: layers with a state stand beside layers with K and V.
        model: the layers of the main context as a model.
    """

    arch: str | None
    layers: tuple[LayerRun, ...]
    main: int
    in_main: bool
    hybrid: bool
    model: ModelSpec

    @property
    def numbered(self) -> list[tuple[int, LayerRun]]:
        """The layers of the main context with their numbers."""
        kept = self.layers if self.in_main else self.layers[: self.main]
        return list(enumerate(kept))

    @property
    def drafts(self) -> list[tuple[int, LayerRun]]:
        """The draft layers with their numbers."""
        return list(enumerate(self.layers))[self.main :]

    @property
    def window(self) -> int:
        """Tokens of the sliding window or chunk; 0 without one."""
        return max((_limit(c) for run in self.layers for c in run.caches), default=0)


def serve(model: ModelSpec, index_type: str, build: str, notes: list[str]) -> Served:
    """Return a model as llama.cpp keeps it.

    Args:
        model: as published, or as read from a GGUF file.
        index_type: the cache type of K, which indexer keys are kept in.
        build: of llama.cpp, for refusals to name.
        notes: a line is added for what llama.cpp keeps otherwise than the model says.

    Raises:
        UnsupportedError: an architecture or a layer that llama.cpp has not.
    """
    arch = architecture(model.architecture, build)
    runs = list(_each(model.layers))
    # conversion/deepseek.py leaves DeepSeek-V4's prediction layers out unless it is told otherwise.
    dropped = model.architecture == "DeepseekV4ForCausalLM"
    drafts = [] if dropped else list(_each(model.draft_layers))
    drafts *= _DRAFTS_CONVERTED.get(model.architecture or "", 1)
    if arch == "t5":
        runs = [_without(run, CrossAttention) for run in runs]
    layers = [_own(i, runs + drafts, arch) for i in range(len(runs) + len(drafts))]
    layers = [_as_kept(run, model, arch, index_type) for run in layers]
    _check(layers, model)
    served = [run.caches for run in layers]
    in_main = bool(drafts) and arch in DRAFTS_IN_MAIN
    kept = layers if in_main else layers[: len(runs)]
    states = [bool(c.states()) for run in kept for c in run.caches]
    notes.extend(_notes(runs + drafts, served, in_main=in_main, drafts=len(drafts)))
    return Served(
        arch=arch,
        layers=tuple(layers),
        main=len(runs),
        in_main=in_main,
        hybrid=any(states) and not all(states),
        model=msgspec.structs.replace(
            model,
            num_hidden_layers=len(kept),
            dtype="float32",  # what is not K and V (states) is kept in 32 bits
            kv_cache_dtype=None,
            layers=merge_runs(kept),
            draft_layers=() if in_main else merge_runs(layers[len(runs) :]),
        ),
    )


def _each(runs: tuple[LayerRun, ...]) -> Iterator[LayerRun]:
    for run in runs:
        for _ in range(run.count):
            yield msgspec.structs.replace(run, count=1)


def _without(run: LayerRun, kind: type[Cache]) -> LayerRun:
    caches = tuple(c for c in run.caches if not isinstance(c, kind))
    return msgspec.structs.replace(run, caches=caches)


def _own(layer: int, runs: list[LayerRun], arch: str | None) -> LayerRun:
    """Return a layer with K and V of its own, where llama.cpp does not let it share."""
    run = runs[layer]
    shared = [c for c in run.caches if isinstance(c, SharedKv)]
    if not shared or arch is None or arch in SHARING:
        return run
    source = shared[0].source_layer
    if source is None:
        raise NotModelledError(
            f"layer {layer} reads the K and V of a layer that is not named, and llama.cpp's {arch}"
            " keeps them in every layer",
            hint="give the model's GGUF file",
        )
    return msgspec.structs.replace(runs[source], count=1)


def _as_kept(run: LayerRun, model: ModelSpec, arch: str | None, index_type: str) -> LayerRun:
    caches = tuple(_cache(c, model, arch, index_type) for c in run.caches)
    return LayerRun(count=1, caches=caches, note=run.note)


def _cache(cache: Cache, model: ModelSpec, arch: str | None, index_type: str) -> Cache:
    if isinstance(cache, Indexer):
        return msgspec.structs.replace(cache, index_dtype=index_type)
    if isinstance(cache, STATES):
        return msgspec.structs.replace(cache, state_dtype=None)
    if isinstance(cache, (SlidingWindow, ChunkedAttention)) and not _slides(model, arch):
        return FullAttention(
            num_kv_heads=cache.num_kv_heads, head_dim=cache.head_dim, v_head_dim=cache.v_head_dim
        )
    if isinstance(cache, ChunkedAttention) and arch == "llama4":
        return msgspec.structs.replace(cache, attention_chunk_size=_LLAMA4_CHUNK)
    return cache


def _slides(model: ModelSpec, arch: str | None) -> bool:
    """Whether llama.cpp keeps the sliding layers of a model apart."""
    if arch is None:
        return True
    if arch == "exaone4":
        return model.num_hidden_layers == _EXAONE4_SLIDING_LAYERS
    return arch in WINDOWED


def _limit(cache: Cache) -> int:
    if isinstance(cache, (SlidingWindow, SlidingMla)):
        return cache.sliding_window
    return cache.attention_chunk_size if isinstance(cache, ChunkedAttention) else 0


def _check(layers: list[LayerRun], model: ModelSpec) -> None:
    """Refuse what llama.cpp has no place for."""
    caches = [c for run in layers for c in run.caches]
    for cache in caches:
        if isinstance(cache, (CrossAttention, RgLru)):
            raise UnsupportedError(
                f"llama.cpp keeps no {cache.kind} layers ({model.name})",
                hint="use --engine none to see what the model's layers are",
            )
        if isinstance(cache, CompressedAttention) and cache.compress_ratio not in (4, 128):
            raise UnsupportedError(
                f"llama.cpp compresses 4 or 128 tokens into one, not {cache.compress_ratio}",
                hint="use --engine none to see what the model's layers are",
            )
    windows = sorted({_limit(c) for c in caches} - {0})
    if len(windows) > 1:
        raise UnsupportedError(
            f"llama.cpp has one window a model, not {' and '.join(map(format_count, windows))}",
            hint="use --engine none to see what the model's layers are",
        )


def _notes(
    before: list[LayerRun], after: list[tuple[Cache, ...]], *, in_main: bool, drafts: int
) -> Iterator[str]:
    def count(kinds: tuple[type[Cache], ...], layers: list[tuple[Cache, ...]]) -> int:
        return sum(any(isinstance(c, kinds) for c in caches) for caches in layers)

    slide: tuple[type[Cache], ...] = (SlidingWindow, ChunkedAttention)
    published = [run.caches for run in before]
    if lost := count(slide, published) - count(slide, after):
        yield (
            f"{format_number_of(lost, 'layer')} with a window in the model keep every token:"
            " llama.cpp has no window for this architecture"
        )
    if own := count((SharedKv,), published) - count((SharedKv,), after):
        yield (
            f"{format_number_of(own, 'layer')} that read another's K and V in the model keep their"
            " own: llama.cpp does not share them for this architecture"
        )
    if in_main:
        yield f"the main context keeps K and V of {format_number_of(drafts, 'draft layer')} too"
