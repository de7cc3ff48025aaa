"""From a model's layers to vLLM's specs: backends, block size, pages."""

from __future__ import annotations

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
from kvcalc.core.dtypes import KvDtype, kv_dtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.vllm import deepseek_v4
from kvcalc.engines.vllm.backends import (
    choose,
    indexer_backend,
    kernels_of,
    preferred_block,
)
from kvcalc.engines.vllm.kernels import BLACKWELL, FP8, HOPPER, PLAIN, Backend, Query
from kvcalc.engines.vllm.settings import DEFAULT_BLOCK_SIZE, Settings
from kvcalc.engines.vllm.specs import Spec
from kvcalc.engines.vllm.states import State, checkpoint_alignment, state_of

__all__ = ["Layers", "Placed", "describe"]

_CHUNK = 2048
"""Tokens that a Mamba layer computes at once where its config does not say."""
_TURBOQUANT_BOUNDARY = 2
"""Layers at either end that TurboQuant leaves in the model dtype (quantization/turboquant)."""


class Placed(NamedTuple):
    """A spec and the layers that have it, draft layers counted on from the model's own."""

    spec: Spec
    layers: list[int]
    proposed_bytes: int = 0


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


class _Attention(NamedTuple):
    """An attention cache of the model, with the backend that reads it."""

    cache: Cache
    backend: Backend
    dtype: KvDtype
    query: Query | None


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
    caches = _layers_of(share)
    attention = [c for c in caches if c.rows()]
    states = [c for c in caches if c.states() and not c.rows()]
    if any(isinstance(c, CompressedAttention) for c in attention):
        return deepseek_v4_layers(caches, settings)
    word = _heeded(model, settings, notes)
    used: dict[Cache, _Attention] = {}
    for cache in attention:
        chosen = _attention(cache, model, share, settings, word)
        used[cache] = chosen
        if chosen.query is not None and chosen.query.mla:
            word = _canonical(chosen.backend.name, word)
    if word != settings.kv_dtype and used:
        used = {c: _attention(c, model, share, settings, word) for c in attention}
    distinct = _distinct(used, settings)
    block = settings.block_size or _unasked_block(distinct, used, settings, word)
    boundary = word.startswith("turboquant_") and not states and bool(used)
    if boundary and any(isinstance(c, ChunkedAttention) for c in used):
        raise UnsupportedError(
            "TurboQuant does not read chunked layers", hint="choose another KV cache dtype"
        )
    if boundary:
        block = _cover_plain_layers(block, used)
    kept = {c: state_of(c, settings, model.architecture) for c in states}
    page, mamba_block = None, settings.max_model_len
    widest = max((state.content for state in kept.values()), default=0)
    alignment = 1
    if attention and states and settings.rules.aligns == "no":
        raise UnsupportedError(
            "this release of vLLM does not find a block for models with states",
            hint="give a later version (0.10.0 or newer), or 0.9.2+v0",
        )
    if attention and states:
        alignment = checkpoint_alignment(states, settings) if settings.prefix_caching else 1
        chunk = model.mamba_chunk_size or _CHUNK
        block = _aligned(block, widest, distinct, used, settings, alignment, chunk)
        first = next(iter(used.values()))
        page = block * _entry(first, settings)
    if settings.state_mode != "none" and states:
        mamba_block = block
    placed = _place(caches, used, kept, settings, block, page, mamba_block, boundary, share, word)
    return Layers(
        placed=placed,
        block_size=block,
        kv_dtype=word,
        backends=tuple(dict.fromkeys(a.backend.name for a in used.values())),
        state_page=widest if states else None,
        state_alignment=alignment,
    )


def deepseek_v4_layers(caches: dict[Cache, list[int]], settings: Settings) -> Layers:
    """Return the specs of a DeepSeek-V4, which has a module of its own."""
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


def _heeded(model: ModelSpec, settings: Settings, notes: list[str]) -> str:
    """Return the KV cache dtype that the model's layers heed.

    vLLM 0.33 models/falcon.py (and mimo_v2.py before 0.32) hands its attention layers no cache
    settings.
    """
    name = model.architecture or ""
    deaf = name == "FalconForCausalLM" or (
        name.startswith("MiMoV2") and not settings.rules.heeds_mimo_dtype
    )
    if deaf and settings.kv_dtype != "auto":
        notes.append(f"vLLM's {name} keeps its cache in {settings.dtype}, whatever is asked for")
        return "auto"
    return settings.kv_dtype


def _layers_of(share: ModelSpec) -> dict[Cache, list[int]]:
    """Return each distinct cache and the layers that keep it (one that keeps it twice, twice)."""
    found: dict[Cache, list[int]] = {}
    first = 0
    for run in share.layers:
        for cache in run.caches:
            if not isinstance(cache, SharedKv):
                found.setdefault(cache, []).extend(range(first, first + run.count))
        first += run.count
    return {cache: sorted(layers) for cache, layers in found.items()}


def _canonical(backend: str, word: str) -> str:
    """Sparse MLA backends keep fp8 in a layout of their own: _canonicalize_sparse_mla_kv_cache."""
    if backend == "FLASHMLA_SPARSE" and word.startswith("fp8"):
        return "fp8_ds_mla"
    if backend == "FLASHINFER_MLA_SPARSE_SM120" and word in ("auto", "fp8", "fp8_e4m3"):
        return "fp8_ds_mla"
    return word


def _attention(
    cache: Cache, model: ModelSpec, share: ModelSpec, settings: Settings, word: str
) -> _Attention:
    dtype = kv_dtype(_PLAIN_WORDS.get(word, word), share.dtype)
    if getattr(cache, "v_head_dim", None) and word not in ("auto", "bfloat16", "float16"):
        # Kernels for K and V of different sizes pack nothing: a byte an element, no scales.
        dtype = kv_dtype("fp8_e4m3", share.dtype)
    if isinstance(cache, Indexer):
        backend = indexer_backend(cache.compress_ratio, cache.index_dtype)
        return _Attention(cache, backend, dtype, None)
    query = _query(cache, model, settings, word)
    if word.startswith("fp8_ds_mla") and not query.sparse:
        raise UnsupportedError(
            "fp8_ds_mla is a layout of sparse MLA caches", hint="choose --kv-cache-dtype fp8"
        )
    return _Attention(cache, choose(query, settings.card, settings.attention_backend), dtype, query)


_PLAIN_WORDS = {"nvfp4_4over6": "nvfp4", "fp8_inc": "fp8_e4m3"}
"""vLLM's words for formats that are packed as another is."""


def _query(cache: Cache, model: ModelSpec, settings: Settings, word: str) -> Query:
    heads = model.num_attention_heads
    base = Query(
        head_size=1,
        head_size_v=1,
        dtype=settings.dtype,
        kv_dtype=word,
        block_size=settings.block_size,
        sinks="attention_sinks" in model.traits,
        image_prefix="image_prefix" in model.traits,
        alibi="alibi" in model.traits,
        context_parallel=settings.dcp > 1,
        query_heads=None if heads is None else heads // settings.tp,
        rules=settings.rules,
    )
    if isinstance(cache, Mla):
        size = cache.kv_lora_rank + cache.qk_rope_head_dim
        sparse = any(isinstance(c, Indexer) for _, c in model.caches())
        return base._replace(
            head_size=size,
            head_size_v=size,
            mla=True,
            sparse=sparse,
            sinks=False,
            image_prefix=False,
        )
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention, CrossAttention)):
        raise UnsupportedError(
            f"vLLM's rules for {cache.kind} caches are not known",
            hint="use --engine none for the model's own arithmetic",
        )
    v = cache.head_dim if cache.v_head_dim is None else cache.v_head_dim
    return base._replace(
        head_size=cache.head_dim,
        head_size_v=v,
        window=isinstance(cache, SlidingWindow),
        cross=isinstance(cache, CrossAttention),
        kv_heads=cache.num_kv_heads,
    )


def _distinct(used: dict[Cache, _Attention], settings: Settings) -> list[tuple[str, Backend]]:
    """Return each backend once, with the blocks that it reads for the model's largest head.

    Block sizes are asked for by the model's head size, whatever a layer's own is.
    """
    largest = max(
        (a.query.head_size for a in used.values() if a.query is not None and not a.query.mla),
        default=0,
    )
    found: dict[str, Backend] = {}
    for a in used.values():
        name = a.backend.name
        if name in found:
            continue
        backend = a.backend
        if a.query is not None and not a.query.mla:
            query = a.query._replace(head_size=largest, head_size_v=largest)
            backend = backend._replace(kernels=kernels_of(name, query, settings.card))
        found[name] = backend
    return list(found.items())


def _unasked_block(
    distinct: list[tuple[str, Backend]],
    used: dict[Cache, _Attention],
    settings: Settings,
    word: str,
) -> int:
    """Return tokens a block where the user does not say."""
    if not distinct:
        return DEFAULT_BLOCK_SIZE
    mla = [a for a in used.values() if a.query is not None and a.query.mla]
    age = settings.rules.mla_block
    if mla and age != "kernels":
        return _older_mla_block(mla[0].query, settings.card.family, age, word)
    return preferred_block([kernel for _, kernel in distinct], DEFAULT_BLOCK_SIZE)


def _older_mla_block(query: Query | None, family: int, age: str, word: str) -> int:
    """Return tokens a block of MLA before 0.18: platforms/cuda.py, check_and_update_config."""
    sparse = query is not None and query.sparse
    if family == HOPPER or sparse or (family == BLACKWELL and word.startswith("fp8_ds_mla")):
        return 64
    if family == BLACKWELL and age == "2025":
        return 128
    return DEFAULT_BLOCK_SIZE


def _entry(a: _Attention, settings: Settings) -> int:
    """Bytes of one token of one layer."""
    rows = a.cache.rows()
    if settings.rules.pads_v and getattr(a.cache, "v_head_dim", None) is not None:
        return 2 * max(a.dtype.bytes_of(row) for row in rows)  # V is widened to K
    return sum(a.dtype.bytes_of(row) for row in rows)


def _aligned(
    block: int,
    state: int,
    distinct: list[tuple[str, Backend]],
    used: dict[Cache, _Attention],
    settings: Settings,
    alignment: int,
    chunk: int,
) -> int:
    """Return the block whose page of one attention layer covers one state.

    platforms/interface.py, Platform._align_hybrid_block_size; before 0.20 models/config.py,
    HybridAttentionMambaModelConfig.
    """
    first = next(iter(used.values()))
    rules = settings.rules
    token = _entry(first, settings)
    step = _step(first, distinct, block, settings)
    if isinstance(first.cache, Mla):
        step = max(step, rules.mla_alignment)
    if settings.state_mode == "all":
        step = lcm(step, chunk)
        wanted = step * cdiv(cdiv(state, token), step)
    else:
        step = lcm(step, alignment)
        wanted = step * cdiv(state, step * token)
    if rules.all_kernels_align:
        kernels = lcm(*(backend.smallest for _, backend in distinct))
        wanted = kernels * cdiv(wanted, kernels)
    found = max(block, wanted)
    if found != block:
        for name, backend in distinct:
            if not backend.takes(found):
                raise UnsupportedError(
                    f"vLLM raises the block to {format_count(found)} tokens, which {name} cannot"
                    " read",
                    hint="choose another KV cache dtype",
                )
    return found


def _step(
    first: _Attention, distinct: list[tuple[str, Backend]], block: int, settings: Settings
) -> int:
    """Return the least tokens that a hybrid's block is a multiple of, MLA and chunks apart."""
    if settings.rules.aligns == "kernels":
        return max(distinct[0][1].smallest, block)
    blackwell = settings.card.family == BLACKWELL and settings.release.line < (0, 18)
    if blackwell and settings.release.number >= (0, 11, 2):
        backend = (settings.attention_backend or "FLASHINFER").upper()
        if getattr(first.cache, "head_dim", 0) == _FLASHINFER_WIDE and backend == "FLASHINFER":
            return 2 * DEFAULT_BLOCK_SIZE
    return DEFAULT_BLOCK_SIZE


_FLASHINFER_WIDE = 256


def _cover_plain_layers(block: int, used: dict[Cache, _Attention]) -> int:
    """Raise the block as vLLM does where layers of two KV dtypes share it.

    platforms/interface.py, _align_heterogeneous_kv_block_size: asks the first layer's backend,
    which packs nothing, so that quantised rows count one byte an element there.
    """
    sizes = [sum(row.count * row.width for row in a.cache.rows()) for a in used.values()]
    smallest = 16  # FlashAttention, which reads the layers at the ends
    step = max(smallest, block)
    plain, packed = 2 * sizes[0], sizes[0]
    return max(block, step * cdiv(plain * smallest, step * packed))


def _place(
    caches: dict[Cache, list[int]],
    used: dict[Cache, _Attention],
    kept: dict[Cache, State],
    settings: Settings,
    block: int,
    page: int | None,
    mamba_block: int,
    boundary: bool,
    share: ModelSpec,
    word: str,
) -> list[Placed]:
    placed = []
    indexed = {
        layer
        for cache, layers in caches.items()
        if isinstance(cache, Indexer) and cache.index_dtype == "bfloat16"
        for layer in layers
    }
    for cache, layers in caches.items():
        state = kept.get(cache)
        if state is not None:
            slots, every = _slots(state, settings, block)
            spec = Spec(
                kind="state",
                block=mamba_block,
                entry=state.content,
                payload=state.payload,
                shape=(cache.kind, state.payload),
                page=state.content if page is None else page,
                slots=slots,
                every=every,
            )
            placed.append(Placed(spec, layers, state.proposed_bytes))
            continue
        if cache not in used:
            continue
        a = used[cache]
        kinds = dict.fromkeys(layers, a)
        if boundary:
            count = share.num_hidden_layers
            n = min(_TURBOQUANT_BOUNDARY, count // 2)
            plain = a._replace(dtype=kv_dtype("auto", share.dtype))
            kinds |= {i: plain for i in layers if i < n or i >= count - n}
        if indexed and isinstance(cache, FullAttention) and _unpacked(word, settings):
            # models/minimax_m3: kernels for indexed layers pack nothing, a byte an element.
            byte = a._replace(dtype=kv_dtype("fp8_e4m3", share.dtype))
            kinds |= dict.fromkeys(set(layers) & indexed, byte)
        for kind in {id(kind): kind for kind in kinds.values()}.values():
            own = [i for i in layers if kinds[i] is kind]
            placed.append(Placed(_attention_spec(kind, block, settings), own))
    return sorted(placed, key=lambda p: p.layers[0])


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


def _attention_spec(a: _Attention, block: int, settings: Settings) -> Spec:
    cache = a.cache
    payload = tuple((row.role, a.dtype.bytes_of(row)) for row in cache.rows())
    entry = _entry(a, settings)
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
