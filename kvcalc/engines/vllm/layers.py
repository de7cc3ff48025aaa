"""From a model's layers to vLLM's specs: how each is read, the block size, the pages.

The order is that of vLLM 0.33 v1/executor/uniproc_executor.py and v1/worker/gpu_model_runner.py
(get_kv_cache_spec): backends are chosen when layers are built (`attention`), they decide the block
size (`block_size`), and every layer then tells its spec (`placement`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.vllm.attention import (
    Attention,
    Used,
    attention_of,
    distinct_backends,
    entry_bytes,
    heeded_word,
)
from kvcalc.engines.vllm.backends import choose, preferred_block
from kvcalc.engines.vllm.kernels import BLACKWELL, FP8, HOPPER, PLAIN, Backend, Query
from kvcalc.engines.vllm.settings import DEFAULT_BLOCK_SIZE, Settings
from kvcalc.engines.vllm.specs import Placed, Spec
from kvcalc.engines.vllm.states import State, checkpoint_alignment, state_of

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


# Specs of a rank's layers: the page, block and blocks a request of each cache.
#
# In vLLM 0.33: get_kv_cache_spec of model_executor/layers/attention/attention.py and
# mla_attention.py, MambaSpec of v1/kv_cache_interface.py, get_boundary_skip_layers of
# layers/quantization/turboquant/config.py, and the indexed layers of models/minimax_m3.

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


# Tokens a block: what backends read, raised until a page covers a state or two dtypes fit.
#
# vLLM 0.33 platforms/interface.py (Platform.update_block_size_for_backend and what it calls);
# before 0.20 models/config.py (HybridAttentionMambaModelConfig), before 0.18 platforms/cuda.py for
# MLA.

_FLASHINFER_WIDE = 256
_FLASH_ATTENTION_BLOCK = 16


class StateNeeds(NamedTuple):
    """What states want of the block of the attention layers beside them.

    Attributes:
        page: bytes of the widest state.
        alignment: tokens between checkpoints inside a prefill; 1 where none are kept.
        chunk: tokens that a Mamba layer computes at once.
    """

    page: int
    alignment: int
    chunk: int


def unasked_block(used: Used, settings: Settings, word: str) -> int:
    """Return tokens a block where the user does not say.

    Raises:
        UnsupportedError: the backends share no block.
    """
    if not used:
        return DEFAULT_BLOCK_SIZE
    mla = [a for a in used.values() if a.query is not None and a.query.mla]
    if mla and settings.rules.mla_block != "kernels":
        return _older_mla_block(mla[0].query, settings, word)
    return preferred_block(distinct_backends(used, settings), DEFAULT_BLOCK_SIZE)


def _older_mla_block(query: Query | None, settings: Settings, word: str) -> int:
    """Return tokens a block of MLA before 0.18: platforms/cuda.py, check_and_update_config.

    On Blackwell FlashInfer's kernel (0.15 on) reads 64, CUTLASS's before it 128.
    """
    family, at = settings.card.family, settings.release.line
    sparse = query is not None and query.sparse
    if family == HOPPER or sparse or (family == BLACKWELL and word.startswith("fp8_ds_mla")):
        return 64
    if family == BLACKWELL and settings.rules.mla_block == "2025":
        return 64 if at >= (0, 15) else 128
    return DEFAULT_BLOCK_SIZE


def covering_state(block: int, needs: StateNeeds, used: Used, settings: Settings) -> int:
    """Return the block whose page of one attention layer covers one state.

    platforms/interface.py, Platform._align_hybrid_block_size; before 0.20 models/config.py,
    HybridAttentionMambaModelConfig.

    Args:
        block: tokens a block so far.
        needs: what the states want.
        used: the attention caches; there is at least one.
        settings: as resolved.

    Raises:
        UnsupportedError: the release does not look for one, or a backend cannot read it.
    """
    rules = settings.rules
    if rules.aligns == "no":
        raise UnsupportedError(
            "this release of vLLM does not find a block for models with states",
            hint="give a later version (0.10.0 or newer), or 0.9.2+v0",
        )
    first = next(iter(used.values()))
    backends = distinct_backends(used, settings)
    token = entry_bytes(first, settings)
    step = _step(first, backends, block, settings)
    if settings.state_mode == "all":
        step = lcm(step, needs.chunk)
        wanted = step * cdiv(cdiv(needs.page, token), step)
    else:
        step = lcm(step, needs.alignment)
        wanted = step * cdiv(needs.page, step * token)
    if rules.all_kernels_align:
        kernels = lcm(*(backend.smallest for backend in backends))
        wanted = kernels * cdiv(wanted, kernels)
    found = max(block, wanted)
    if found != block:
        _check_readable(found, backends)
    return found


def _check_readable(block: int, backends: list[Backend]) -> None:
    for backend in backends:
        if not backend.takes(block):
            raise UnsupportedError(
                f"vLLM raises the block to {format_count(block)} tokens, which {backend.name}"
                " cannot read",
                hint="choose another KV cache dtype",
            )


def _step(first: Attention, backends: list[Backend], block: int, settings: Settings) -> int:
    """Return the least tokens that a hybrid's block is a multiple of, chunks apart."""
    step = _kernel_step(first, backends, block, settings)
    return max(step, settings.rules.mla_alignment) if isinstance(first.cache, Mla) else step


def _kernel_step(first: Attention, backends: list[Backend], block: int, settings: Settings) -> int:
    """Return the tokens of which the kernels want a multiple, or are taken to want one."""
    if settings.rules.aligns == "kernels":
        return max(backends[0].smallest, block)
    blackwell = settings.card.family == BLACKWELL and settings.release.line < (0, 18)
    if settings.release.line < (0, 13):
        blackwell = settings.card.capability == (10, 0)
    if blackwell and settings.release.number >= (0, 11, 2):
        backend = (settings.attention_backend or "FLASHINFER").upper()
        if getattr(first.cache, "head_dim", 0) == _FLASHINFER_WIDE and backend == "FLASHINFER":
            return 2 * DEFAULT_BLOCK_SIZE
    return DEFAULT_BLOCK_SIZE


def covering_plain_layers(block: int, used: Used) -> int:
    """Raise the block as vLLM does where TurboQuant leaves the layers at either end plain.

    platforms/interface.py, _align_heterogeneous_kv_block_size: asks the first layer's backend,
    which packs nothing, so that quantised rows count one byte an element there.

    Raises:
        UnsupportedError: chunked layers, which TurboQuant does not read.
    """
    if any(isinstance(cache, ChunkedAttention) for cache in used):
        raise UnsupportedError(
            "TurboQuant does not read chunked layers", hint="choose another KV cache dtype"
        )
    sizes = [sum(row.count * row.width for row in a.cache.rows()) for a in used.values()]
    smallest = _FLASH_ATTENTION_BLOCK  # it reads the layers at the ends
    step = max(smallest, block)
    plain, packed = 2 * sizes[0], sizes[0]
    return max(block, step * cdiv(plain * smallest, step * packed))
