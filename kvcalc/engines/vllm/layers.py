"""From a model's layers to vLLM's specs: how each is read, the block size, the pages.

The order is that of vLLM 0.33 v1/executor/uniproc_executor.py and v1/worker/gpu_model_runner.py
(get_kv_cache_spec): backends are chosen when layers are built (`attention`), they decide the block
size (`block_size`), and every layer then tells its spec (`placement`).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import CompressedAttention, SharedKv
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.attention import Used, attention_of, heeded_word
from kvcalc.engines.vllm.backends import choose
from kvcalc.engines.vllm.block_size import (
    StateNeeds,
    covering_plain_layers,
    covering_state,
    unasked_block,
)
from kvcalc.engines.vllm.placement import Placing, place
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed
from kvcalc.engines.vllm.states import checkpoint_alignment, state_of

__all__ = ["Layers", "Placed", "describe", "layers_of"]

_CHUNK = 2048
"""Tokens that a Mamba layer computes at once where its config does not say."""


class Layers(NamedTuple):
    """The specs of a rank's share of a model, and what they were made with.

    Attributes:
        placed: specs in the order of the layers that first have them.
        block_size: vLLM's cache_config.block_size after backends and alignment.
        kv_dtype: vLLM's word for the KV cache dtype, after backends have had their say.
        backends: names of the attention backends.
        packed: blocks hold pages of several sizes side by side (DeepSeek-V4).
        state_page: bytes of a state before its page was widened; None without states.
    """

    placed: list[Placed]
    block_size: int
    kv_dtype: str
    backends: tuple[str, ...]
    packed: bool = False
    state_page: int | None = None
    state_alignment: int = 1


def describe(model: ModelSpec, settings: Settings, share: ModelSpec, notes: list[str]) -> Layers:
    """Return vLLM's specs for what one rank keeps.

    Args:
        model: the whole model, draft layers put behind its own.
        settings: as resolved.
        share: the same layers as one tensor-parallel rank keeps them.
        notes: a line is added for every rule that moved a number.

    Raises:
        UnsupportedError: no backend, block size or state fits.
    """
    caches = layers_of(share)
    attention = [c for c in caches if c.rows()]
    states = [c for c in caches if c.states() and not c.rows()]
    if any(isinstance(c, CompressedAttention) for c in attention):
        return deepseek_v4_layers(caches, settings)
    heeded = heeded_word(model, settings, notes)
    used, word = attention_of(attention, model, share, settings, heeded)
    block = settings.block_size or unasked_block(used, settings, word)
    boundary = word.startswith("turboquant_") and not states and bool(used)
    if settings.kv_dtype.startswith("turboquant_") and not states and used:
        block = covering_plain_layers(block, used)  # whether or not the layers heed the dtype
    if word.startswith("turboquant_"):
        _check_own_layers(share)
    if boundary:
        _check_plain_layers(used, settings)
    kept = {c: state_of(c, settings, model.architecture) for c in states}
    widest = max((state.content for state in kept.values()), default=0)
    alignment = 1
    if used and kept:
        alignment = checkpoint_alignment(states, settings) if settings.prefix_caching else 1
        needs = StateNeeds(widest, alignment, model.mamba_chunk_size or _CHUNK)
        block = covering_state(block, needs, used, settings)
    return Layers(
        placed=place(caches, Placing(settings, share, used, kept, block, word, boundary)),
        block_size=block,
        kv_dtype=word,
        backends=tuple(dict.fromkeys(a.backend.name for a in used.values())),
        state_page=widest if states else None,
        state_alignment=alignment,
    )


def _check_plain_layers(used: Used, settings: Settings) -> None:
    """Refuse TurboQuant where the layers that it leaves plain go to FlashInfer (Blackwell).

    v1/attention/backends/utils.py: no KV cache layout suits both.
    """
    for a in used.values():
        if a.query is not None:
            plain = choose(a.query._replace(kv_dtype="auto"), settings.card)
            if plain.name == "FLASHINFER":
                raise UnsupportedError(
                    f"on {settings.card.name} the layers that TurboQuant leaves plain go to"
                    " FlashInfer, and vLLM finds no layout for both",
                    hint="choose --kv-cache-dtype fp8",
                )


def _check_own_layers(share: ModelSpec) -> None:
    """Refuse TurboQuant for layers that keep rows and a state at once (quantization/turboquant)."""
    for run in share.layers:
        if {True, False} <= {bool(cache.rows()) for cache in run.caches}:
            raise UnsupportedError(
                "TurboQuant finds no attention layers in a model whose layers keep a state too",
                hint="choose another KV cache dtype",
            )


def deepseek_v4_layers(caches: dict[Cache, list[int]], settings: Settings) -> Layers:
    """Return the specs of a DeepSeek-V4, which has a module of its own.

    Raises:
        UnsupportedError: a block, dtype or cache that it does not have.
    """
    from kvcalc.engines.vllm import deepseek_v4

    block = deepseek_v4.block_size(settings)
    word = deepseek_v4.cache_word(settings)
    placed = [
        Placed(spec, layers)
        for cache, layers in caches.items()
        for spec in deepseek_v4.specs(cache, block)
    ]
    return Layers(
        placed=sorted(placed, key=lambda p: p.layers[0]),
        block_size=block,
        kv_dtype=word,
        backends=("FLASHMLA_SPARSE_DSV4",),
        packed=True,
    )


def layers_of(share: ModelSpec) -> dict[Cache, list[int]]:
    """Return each distinct cache and the layers that keep it (one that keeps it twice, twice)."""
    found: dict[Cache, list[int]] = {}
    first = 0
    for run in share.layers:
        for cache in run.caches:
            if not isinstance(cache, SharedKv):
                found.setdefault(cache, []).extend(range(first, first + run.count))
        first += run.count
    return {cache: sorted(layers) for cache, layers in found.items()}
