"""Specs of a rank's layers: the page, block and blocks a request of each cache.

vLLM 0.33 model_executor/layers/attention/attention.py and mla_attention.py (get_kv_cache_spec),
v1/kv_cache_interface.py (MambaSpec), layers/quantization/turboquant/config.py
(get_boundary_skip_layers), models/minimax_m3 (indexed layers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.attention import Attention, Used, entry_bytes
from kvcalc.engines.vllm.kernels import BLACKWELL, FP8, PLAIN
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.states import State

__all__ = ["Placing", "place"]

_TURBOQUANT_BOUNDARY = 2
"""Layers at either end that TurboQuant leaves in the model dtype (quantization/turboquant)."""


class Placing(NamedTuple):
    """What the specs of a rank's layers are made with.

    Attributes:
        settings: as resolved.
        share: the layers as one tensor-parallel rank keeps them.
        used: the attention caches and how they are read.
        kept: the state caches and what is kept of them.
        block: tokens a block.
        word: the KV cache dtype after backends have had their say, in vLLM's words.
        boundary: TurboQuant leaves the layers at either end plain.
    """

    settings: Settings
    share: ModelSpec
    used: Used
    kept: dict[Cache, State]
    block: int
    word: str
    boundary: bool


def place(caches: dict[Cache, list[int]], made: Placing) -> list[Placed]:
    """Return the specs of a rank's layers, in the order of the layers that first have them.

    Args:
        caches: each distinct cache and the layers that keep it.
        made: what they are made with.

    Raises:
        UnsupportedError: a dtype that the kernels of indexed layers do not read.
    """
    indexed = {
        layer
        for cache, layers in caches.items()
        if isinstance(cache, Indexer) and cache.index_dtype == "bfloat16"
        for layer in layers
    }
    placed: list[Placed] = []
    for cache, layers in caches.items():
        if cache in made.kept:
            placed.append(_placed_state(cache, layers, made))
        elif cache in made.used:
            placed.extend(_placed_attention(cache, layers, indexed, made))
    return sorted(placed, key=lambda p: p.layers[0])


def _placed_state(cache: Cache, layers: list[int], made: Placing) -> Placed:
    settings, state = made.settings, made.kept[cache]
    slots, every = _slots(state, settings, made.block)
    page = state.content
    if made.used:  # a state lies in a page of the first attention layer, which is as wide or wider
        page = made.block * entry_bytes(next(iter(made.used.values())), settings)
    spec = Spec(
        kind="state",
        block=settings.max_model_len if settings.state_mode == "none" else made.block,
        entry=state.content,
        payload=state.payload,
        shape=(cache.kind, state.payload),
        page=page,
        slots=slots,
        every=every,
    )
    return Placed(spec, layers, state.proposed_bytes)


def _slots(state: State, settings: Settings, block: int) -> tuple[int, int]:
    """Blocks that a request has of a state, and after how many tokens one more (0: never).

    MambaSpec.max_memory_usage_bytes.
    """
    rules, mode = settings.rules, settings.state_mode
    proposed = settings.proposed if rules.state_blocks == "modes" else 0
    if mode == "align":
        return 2 + proposed + int(state.checkpoint), 0
    if mode == "all":
        # A rank counts its own tokens, and a state stands for those of all that share them.
        own = proposed if rules.counts_proposed_in_all else 0
        return 1 + own, max(1, block // settings.dcp)
    return 1 + proposed, 0


def _placed_attention(
    cache: Cache, layers: list[int], indexed: set[int], made: Placing
) -> Iterator[Placed]:
    """Yield the specs of one cache: layers at the ends and indexed ones have their own dtypes."""
    a, share = made.used[cache], made.share
    kinds = dict.fromkeys(layers, a)
    if made.boundary:
        count = share.num_hidden_layers
        n = min(_TURBOQUANT_BOUNDARY, count // 2)
        plain = a._replace(dtype=kv_dtype("auto", share.dtype))
        kinds |= {i: plain for i in layers if i < n or i >= count - n}
    if indexed and isinstance(cache, FullAttention) and _unpacked(made.word, made.settings):
        # models/minimax_m3: kernels for indexed layers pack nothing, a byte an element.
        byte = a._replace(dtype=kv_dtype("fp8_e4m3", share.dtype))
        kinds |= dict.fromkeys(set(layers) & indexed, byte)
    for kind in {id(kind): kind for kind in kinds.values()}.values():
        own = [i for i in layers if kinds[i] is kind]
        yield Placed(_attention_spec(kind, made.block, made.settings), own)


def _unpacked(word: str, settings: Settings) -> bool:
    """Whether MiniMax-M3's kernels for indexed layers keep a dtype as plain bytes.

    Raises:
        UnsupportedError: nvfp4, which they read on Blackwell alone.
    """
    if word in PLAIN or word in FP8:
        return False
    if word.startswith("nvfp4"):
        if settings.card.family != BLACKWELL or word != "nvfp4":
            raise UnsupportedError(
                f"vLLM's kernels for indexed layers read no {word} cache on {settings.card.name}",
                hint="choose --kv-cache-dtype fp8",
            )
        return False
    return True


def _attention_spec(a: Attention, block: int, settings: Settings) -> Spec:
    cache = a.cache
    payload = tuple((row.role, a.dtype.bytes_of(row)) for row in cache.rows())
    entry = entry_bytes(a, settings)
    shape = (cache.kind if isinstance(cache, (Mla, Indexer)) else "heads", payload, a.dtype.name)
    spec = Spec(
        kind="full", block=block, entry=entry, payload=payload, shape=shape, page=block * entry
    )
    match cache:
        case Mla() | Indexer():
            return spec._replace(kind="mla")
        case SlidingWindow(sliding_window=window):
            rule = settings.rules.window_block
            own = block
            if rule != "own":
                own = a.backend.smallest if rule == "smallest" else a.backend.block_within(block)
            return spec._replace(kind="window", limit=window).with_block(own)
        case ChunkedAttention(attention_chunk_size=chunk):
            return spec._replace(kind="chunk", limit=chunk)
        case CrossAttention(encoder_tokens=tokens):
            return spec._replace(kind="cross", encoder=tokens)
    return spec
