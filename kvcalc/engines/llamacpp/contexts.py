"""The contexts of one server: the model's own, and that of what proposes tokens.

llama.cpp b11434 tools/server/server-context.cpp: a draft has a context of its own, with as many
cells and sequences as the target's, its own cache types (f16 unless told), and no snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.architectures import (
    INDEXED_MTP,
    MTP,
    ROLLBACK,
    WITHOUT_FLASH,
)
from kvcalc.engines.llamacpp.pools import Sizes
from kvcalc.engines.llamacpp.served import Served, serve
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.tensors import Kept, tensors_of
from kvcalc.engines.llamacpp.types import CacheTypes, quantized
from kvcalc.engines.llamacpp.version import NEWEST

__all__ = ["Context", "contexts_of", "draft_context"]


_VOCABULARIES_DIFFER = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE


class Context(NamedTuple):
    """One context.

    Attributes:
        served: the model that it runs.
        kept: what its layers keep.
        sizes: its cells.
        n_gpu_layers: layers that leave the host; None for all.
        flash: flash attention is on.
        rs_seq: snapshots of a state that are kept.
    """

    served: Served
    kept: list[Kept]
    sizes: Sizes
    n_gpu_layers: int | None
    flash: bool
    rs_seq: int


def contexts_of(model: ModelSpec, settings: Settings, notes: list[str]) -> list[Context]:
    """Return the contexts: the model's own first.

    Raises:
        UnsupportedError: what llama.cpp refuses, or kvcalc does not model.
    """
    served = serve(model, settings.types.k.name, settings.build.text, notes)
    found = [_context(served, served.numbered, settings.types, settings, notes)]
    if settings.method == "mtp":
        found.append(_mtp(served, settings, notes))
    return found


def draft_context(
    draft: ModelSpec, model: ModelSpec, settings: Settings, notes: list[str]
) -> Context:
    """Return the context of a draft model.

    Args:
        draft: as published.
        model: whose tokens it proposes.
        settings: as resolved.
        notes: lines about the draft are added.

    Raises:
        UnsupportedError: what llama.cpp refuses, or kvcalc does not model.
    """
    told = list(_dropped(draft, model, settings))
    served = serve(draft, settings.draft_types.k.name, settings.build.text, told)
    notes.extend(f"draft: {line}" for line in told)
    return _context(served, served.numbered, settings.draft_types, settings, notes, names="draft ")


def _dropped(draft: ModelSpec, model: ModelSpec, settings: Settings) -> Iterator[str]:
    """Say so where llama-server makes a draft's context and then lets it go.

    common/speculative.cpp, common_speculative_are_compatible: vocabularies may differ by 128
    tokens (SPEC_VOCAB_MAX_SIZE_DIFFERENCE); tools/server/server-context.cpp logs the error, drops
    the draft and serves on.
    """
    sizes = [None if m.size is None else m.size.vocab_size for m in (draft, model)]
    ours, theirs = sizes
    if settings.method != "draft" or ours is None or theirs is None:
        return
    if abs(ours - theirs) > _VOCABULARIES_DIFFER:
        yield (
            f"a vocabulary of {format_count(ours)} tokens does not go with the model's of"
            f" {format_count(theirs)}: llama-server makes this context at start, drops it and"
            " serves without a draft"
        )


def _mtp(served: Served, settings: Settings, notes: list[str]) -> Context:
    """Return the context of the layers that predict further tokens (context type MTP)."""
    if not served.drafts:
        raise UnsupportedError(
            f"{served.model.name} has no multi-token-prediction layers",
            hint="choose another draft",
            code="mtp-without-layers",
            setting="speculative_method",
        )
    if served.arch is not None and served.arch not in MTP:
        raise UnsupportedError(
            f"llama.cpp has no MTP context for {served.arch}",
            hint="choose another draft",
            code="mtp-without-layers",
            setting="speculative_method",
        )
    return _context(
        served,
        served.drafts,
        settings.draft_types,
        settings,
        notes,
        names="mtp ",
        indexers=served.arch in INDEXED_MTP,
    )


def _context(
    served: Served,
    layers: list[tuple[int, LayerRun]],
    types: CacheTypes,
    settings: Settings,
    notes: list[str],
    *,
    names: str = "",
    indexers: bool = True,
) -> Context:
    flash = settings.flash and served.arch not in WITHOUT_FLASH
    if settings.flash and not flash:
        notes.append(f"llama.cpp switches flash attention off for {served.arch}")
    check_types((run for _, run in layers), types, settings.build.number, flash=flash)
    _check_build(layers, settings)
    kept = tensors_of(
        served,
        layers,
        types,
        flash=flash,
        latent_v=settings.rules.latent_v,
        indexers=indexers,
    )
    rs_seq = 0
    if not names and served.arch in ROLLBACK:
        rs_seq = settings.rs_seq
    elif not names and settings.rs_seq and any(k.cache == "state" for k in kept):
        notes.append(f"{served.arch} cannot roll its state back: no snapshot is kept")
    sizes = Sizes(
        cells=settings.cells,
        window=served.window,
        window_pad=settings.rules.window_pad or (settings.rules.pad if flash else 0) or 1,
        swa_full=settings.swa_full or not settings.rules.windows,
        states=1 + rs_seq,
        per_sequence=any(k.cache in ("csa", "hca", "lid") for k in kept),
        names=names,
        dtype=types.name if names else "",
    )
    n_gpu = settings.draft_gpu_layers if names == "draft " else settings.placing.n_gpu_layers
    return Context(served, kept, sizes, n_gpu, flash, rs_seq)


def _check_build(layers: list[tuple[int, LayerRun]], settings: Settings) -> None:
    """Refuse builds that kvcalc knows too little of for such layers."""
    caches = [cache for _, run in layers for cache in run.caches]
    if not settings.rules.states and any(cache.states() for cache in caches):
        raise NotModelledError(
            f"kvcalc does not model the states of llama.cpp {settings.build.text}",
            hint=f"give a build from b6465 (2025-09-13) on, such as {NEWEST.text}",
        )


# What llama.cpp refuses when a context is made.
#
# llama.cpp b11434 src/llama-context.cpp, llama_init_from_model.

_ONE_VECTOR = ("mla", "sliding_mla", "compressed_attention")
_ONE_TYPE_SINCE = 10104
"""The first build that may refuse two types for a latent: b10103 was read without, b10488 with."""


def check_types(layers: Iterable[LayerRun], types: CacheTypes, build: int, *, flash: bool) -> None:
    """Refuse cache types that the layers or the attention cannot have.

    Args:
        layers: of the context.
        types: of K and V.
        build: of llama.cpp.
        flash: flash attention is on.

    Raises:
        UnsupportedError: llama.cpp refuses the context.
    """
    caches = [cache for run in layers for cache in run.caches if cache.rows()]
    latents = build >= _ONE_TYPE_SINCE and any(cache.kind in _ONE_VECTOR for cache in caches)
    if types.k != types.v and latents:
        raise UnsupportedError(
            f"K in {types.k.name} and V in {types.v.name}: llama.cpp keeps an MLA row in one type",
            hint="give one cache type for this model",
            code="latent-cache-types",
            setting="cache_type_v",
        )
    if quantized(types.v) and not flash:
        raise UnsupportedError(
            f"a V cache in {types.v.name} needs flash attention",
            hint="leave flash_attn on, or keep V in f16",
            code="quantised-v-needs-flash",
            setting="flash_attn",
        )
    if not flash:
        return
    for cache in caches:
        keys = [row for row in cache.rows() if row.role not in ("v", "index")]
        values = [row for row in cache.rows() if row.role == "v"]
        for name, rows, type_ in (("K", keys, types.k), ("V", values, types.v)):
            width = sum(row.width for row in rows)
            packing = type_.packing
            if packing is not None and width % packing.elements:
                raise UnsupportedError(
                    f"a {name} head of {width} elements is no multiple of {packing.elements}, which"
                    f" {type_.name} packs at a time",
                    hint=_unpacked(name, types),
                    code="cache-type-over-head",
                    setting=f"cache_type_{name.lower()}",
                )


def _unpacked(name: str, types: CacheTypes) -> str:
    """Return what helps where a head does not fill the blocks of a cache type.

    Without flash attention K may be packed all the same, as whole rows of it are, but no V.
    """
    kept = f"keep {name} in f16"
    if name == "V":
        return f"{kept}: V is packed with flash attention alone, which packs whole heads"
    if quantized(types.v):
        return f"{kept}, and V too where its heads are as wide"
    return f"{kept}, or switch flash attention off (flash_attn=off)"
