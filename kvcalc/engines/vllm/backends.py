"""Which attention kernels vLLM picks for a layer.

The order is that of vLLM 0.33 platforms/cuda.py, _get_backend_priorities; the first backend that
takes a query serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import lcm

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.kernels import (
    BLACKWELL,
    BLACKWELL_CONSUMER,
    FP8,
    HOPPER,
    PLAIN,
    Backend,
    Kernel,
    Known,
    Query,
    Refusal,
    multiples_of,
    sizes,
)

__all__ = ["BACKENDS", "choose", "indexer_backend", "kernels_of", "preferred_block"]


# FlashAttention: which of its versions serves a head, and what that version can read.
#
# vLLM 0.33 v1/attention/backends/flash_attn.py (FlashAttentionBackend) and fa_utils.py
# (get_flash_attn_version): version 3 on Hopper, 4 on Blackwell, 2 elsewhere, with exceptions by
# head.

_FA4_PAGE = 128  # tokens of a page that version 4's kernel for heads of 256 reads
_HOPPER_FP8_PAGE = 64
_V2, _V3, _V4 = 2, 3, 4
_WIDE_HEAD = 128  # above it Blackwell's tensor memory is short, but for the sizes below
_HEAD_256 = 256
_HEAD_512 = 512
_MLA_PREFILL = (192, 128)  # sizes of K and V


def flash_version(query: Query, card: Card, *, diff_kv: bool = False) -> int | None:
    """Return the FlashAttention version that a head gets; None where there is none.

    v1/attention/backends/fa_utils.py, get_flash_attn_version.
    """
    head = query.head_size
    if card.capability < (8, 0):
        return None
    if card.family == HOPPER:
        if query.alibi:
            return _V2
        return _V4 if head > _HEAD_256 or (diff_kv and query.sinks) else _V3
    if card.family == BLACKWELL:
        if query.alibi:
            return _V2
        if head == _HEAD_256 and not diff_kv:
            plain = not (query.sinks or query.quantized or query.image_prefix)
            whole = query.block_size is None or query.block_size % _FA4_PAGE == 0
            return _V4 if plain and whole and not query.context_parallel else _V2
        if head > _WIDE_HEAD and (head, query.head_size_v) != _MLA_PREFILL:
            return _V2
        return _V4
    return _V2


def flash_reads_fp8(query: Query, card: Card) -> bool:
    """Whether the version that a head gets reads fp8 rows (flash_attn_supports_kv_cache_dtype)."""
    version = flash_version(query._replace(head_size_v=query.head_size), card)
    if card.family == HOPPER:
        return version == _V3 or (version == _V4 and query.head_size == _HEAD_512)
    return card.family == BLACKWELL and version == _V4


def flash_refuses(query: Query, card: Card) -> str | None:
    """Say why FlashAttention cannot serve a query (validate_configuration)."""
    has_fa4 = card.family in (HOPPER, BLACKWELL)
    if card.capability < (8, 0):
        return "compute capability not supported"
    if query.head_size % 8 or query.head_size > (_HEAD_512 if has_fa4 else _HEAD_256):
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.sinks and not has_fa4:
        return "attention sinks not supported"
    if query.image_prefix:
        reason = _refuses_image_prefix(query, card)
        if reason is not None:
            return reason
    if not query.quantized:
        return None
    # The choice is made before the biases are known; see `backends.choose`.
    if query.kv_dtype not in FP8 or not flash_reads_fp8(query._replace(alibi=False), card):
        return "kv_cache_dtype not supported"
    return None


def _refuses_image_prefix(query: Query, card: Card) -> str | None:
    if query.quantized and card.family == HOPPER:
        return "SM90 FP8 KV with mm_prefix requires Triton"
    if flash_version(query, card) != _V4:
        return "mm_prefix requires FlashAttention v4"
    return None


def flash_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    """Return the blocks that the version's kernels read (get_supported_kernel_block_sizes)."""
    hopper_512 = card.family == HOPPER and query.head_size == _HEAD_512
    if hopper_512 and query.kv_dtype in FP8 and query.rules.hopper_fp8_page:
        return (Kernel(_HOPPER_FP8_PAGE),)
    blackwell_256 = card.family == BLACKWELL and query.head_size == _HEAD_256
    if blackwell_256 and query.rules.wide_pages and flash_version(query, card) == _V4:
        return (Kernel(_FA4_PAGE),)
    return (Kernel(16, multiple=True),)


_WITH_FP8 = (*PLAIN, *FP8)
_LATENTS = (512, 576)  # without and with a rotary part of 64
_FA4_HEADS = (8, 16, 32, 64, 128)


def _dense_mla(families: tuple[int, ...], dtypes: tuple[str, ...]) -> Refusal:
    def refuses(query: Query, card: Card) -> str | None:
        if query.sparse:
            return "sparse not supported"
        if families and card.family not in families:
            return "compute capability not supported"
        if query.dtype == "float32":
            return "dtype not supported"
        return None if query.kv_dtype in dtypes else "kv_cache_dtype not supported"

    return refuses


def _sparse_mla(
    families: tuple[int, ...],
    dtypes: tuple[str, ...],
    more: Refusal | None = None,
) -> Refusal:
    def refuses(query: Query, card: Card) -> str | None:
        if not query.sparse:
            return "non-sparse not supported"
        if card.family not in families:
            return "compute capability not supported"
        if query.dtype != "bfloat16" and "float16" not in dtypes:
            return "dtype not supported"
        if query.kv_dtype not in dtypes:
            return "kv_cache_dtype not supported"
        return more(query, card) if more else None

    return refuses


def _no_context_parallel(query: Query, card: Card) -> str | None:
    del card
    return "DCP not supported" if query.context_parallel else None


def _flashmla_sparse(query: Query, card: Card) -> str | None:
    if query.head_size not in _LATENTS:
        return "head_size not supported"
    if query.kv_dtype == "nvfp4_ds_mla" and card.family != BLACKWELL:
        return "nvfp4_ds_mla needs Blackwell"
    return None


def _few_heads(query: Query, card: Card) -> str | None:
    del card
    if query.query_heads not in _FA4_HEADS or query.head_size != _LATENTS[1]:
        return "head count not supported"
    return None


def _latent_576(query: Query, card: Card) -> str | None:
    del card
    return None if query.head_size in _LATENTS else "head_size not supported"


LATENT_BACKENDS: dict[str, Known] = {
    "FLASH_ATTN_MLA": Known(_dense_mla((HOPPER,), PLAIN), multiples_of(16)),
    "FLASHMLA": Known(_dense_mla((HOPPER,), _WITH_FP8), sizes(64)),
    "FLASHINFER_MLA": Known(_dense_mla((BLACKWELL,), _WITH_FP8), sizes(32, 64)),
    "CUTLASS_MLA": Known(_dense_mla((BLACKWELL,), _WITH_FP8), sizes(128)),
    "TRITON_MLA": Known(_dense_mla((), _WITH_FP8), multiples_of(16)),
    "FLASH_ATTN_MLA_SPARSE": Known(
        _sparse_mla((HOPPER,), PLAIN, _no_context_parallel), multiples_of(64)
    ),
    "FLASHMLA_SPARSE": Known(
        _sparse_mla(
            (HOPPER, BLACKWELL),
            ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
            _flashmla_sparse,
        ),
        multiples_of(64),
    ),
    "FLASHINFER_MLA_SPARSE_SM90": Known(
        _sparse_mla((HOPPER,), ("auto", "bfloat16", *FP8), _latent_576), multiples_of(64)
    ),
    "FLASHINFER_MLA_SPARSE": Known(
        _sparse_mla((BLACKWELL,), _WITH_FP8, _latent_576), multiples_of(32)
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": Known(
        _sparse_mla((BLACKWELL,), ("auto", "bfloat16"), _few_heads), multiples_of(64)
    ),
    "FLASHINFER_MLA_SPARSE_SM120": Known(
        _sparse_mla((BLACKWELL_CONSUMER,), ("auto", *FP8, "fp8_ds_mla"), _latent_576),
        multiples_of(64),
    ),
}
"""By vLLM's name."""
_PER_TOKEN_HEAD = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
_AMPERE = 8
_FLASHINFER_HEADS = (64, 128, 256, 512)
_SMALL_HEAD = 64  # whose NVFP4 rows FlashInfer's older kernels misread
_COMPOSITE_HEADS = (256, 512)
_TRITON_LEAST_HEAD = 32


def _flashinfer_refuses(query: Query, card: Card) -> str | None:
    if not (8, 0) <= card.capability <= (12, 1):
        return "compute capability not supported"
    if query.head_size not in _FLASHINFER_HEADS:
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.quantized and not _flashinfer_reads(query, card):
        return "kv_cache_dtype not supported"
    if query.image_prefix:
        return "partial multimodal token full attention not supported"
    if query.cross:
        return "attention type not supported"
    if query.sinks and card.family not in (HOPPER, BLACKWELL, BLACKWELL_CONSUMER):
        return "attention sinks not supported"
    return None


def _flashinfer_reads(query: Query, card: Card) -> bool:
    if not query.kv_dtype.startswith("nvfp4"):
        return query.kv_dtype in (*FP8, "fp8_e5m2")
    if card.family == BLACKWELL:
        return True
    older = card.family in (_AMPERE, HOPPER, BLACKWELL_CONSUMER)
    plain = query.kv_dtype == "nvfp4" and query.head_size != _SMALL_HEAD and not query.sinks
    return older and plain


def _flashinfer_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    read: tuple[int, ...] = (16, 32, 64)
    heads, kv_heads = query.query_heads, query.kv_heads
    grouped = heads is not None and heads // kv_heads > 1 and heads % kv_heads == 0
    if card.family == BLACKWELL and grouped:
        read = (16, 32, 64, 128, 256, 512, 1024)
    return tuple(Kernel(size) for size in read)


def _triton_refuses(query: Query, card: Card) -> str | None:
    del card  # every card; fp8 on old ones fails later, see `choose`
    known = (*PLAIN, *FP8, "fp8_e5m2", *_PER_TOKEN_HEAD)
    if query.kv_dtype not in known:
        return "kv_cache_dtype not supported"
    return "head_size not supported" if query.head_size < _TRITON_LEAST_HEAD else None


def _flex_refuses(query: Query, card: Card) -> str | None:
    del card
    if query.quantized:
        return "kv_cache_dtype not supported"
    if query.sinks:
        return "attention sinks not supported"
    return "attention type not supported" if query.cross else None


def _turboquant_refuses(query: Query, card: Card) -> str | None:
    del card
    if not query.kv_dtype.startswith("turboquant_"):
        return "kv_cache_dtype not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.window or query.sinks or query.image_prefix or query.cross:
        return "sliding window, sinks and image prefixes not supported"
    return None


def _triton_flash_refuses(query: Query, card: Card) -> str | None:
    composed = query.head_size in _COMPOSITE_HEADS and not query.context_parallel
    if card.family != HOPPER or not composed:
        return "not supported"
    causal = flash_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


def _triton_flashinfer_refuses(query: Query, card: Card) -> str | None:
    if (
        card.family != BLACKWELL
        or query.head_size not in _COMPOSITE_HEADS
        or query.context_parallel
    ):
        return "not supported"
    causal = _flashinfer_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


HEAD_BACKENDS: dict[str, Known] = {
    "FLASH_ATTN": Known(flash_refuses, flash_kernels),
    "FLASHINFER": Known(_flashinfer_refuses, _flashinfer_kernels),
    "TRITON_ATTN": Known(_triton_refuses, multiples_of(16)),
    "FLEX_ATTENTION": Known(_flex_refuses, multiples_of(16)),
    "TURBOQUANT": Known(_turboquant_refuses, sizes(16, 32, 64, 128)),
    "TRITON_FLASH_ATTN": Known(_triton_flash_refuses, flash_kernels),
    "TRITON_FLASHINFER": Known(_triton_flashinfer_refuses, sizes(64)),
    "FLASH_ATTN_DIFFKV": Known(flash_refuses, multiples_of(16)),
    "TRITON_ATTN_DIFFKV": Known(_triton_refuses, multiples_of(16)),
}
"""By vLLM's name."""
BACKENDS = {**HEAD_BACKENDS, **LATENT_BACKENDS}
"""Every backend by vLLM's name for it."""
_FEW_QUERY_HEADS = 16
_NO_ROPE = 512  # a latent without a rotary part


def _in_order(query: Query, card: Card) -> Iterator[str]:
    """Yield backends in the order in which vLLM tries them (_get_backend_priorities)."""
    if query.mla:
        yield from _mla_in_order(query, card)
        return
    if card.family == BLACKWELL:
        if query.image_prefix:
            yield "TRITON_FLASHINFER"
        yield from ("FLASHINFER", "FLASH_ATTN")
    else:
        if card.family == HOPPER and query.image_prefix:
            yield "TRITON_FLASH_ATTN"
        yield from ("FLASH_ATTN", "FLASHINFER")
    yield from ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")


def _mla_in_order(query: Query, card: Card) -> Iterator[str]:
    if card.family == BLACKWELL:
        yield from ("FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA")
        if query.quantized:
            yield from ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        elif query.query_heads is not None and query.query_heads <= _FEW_QUERY_HEADS:
            yield from ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        else:
            yield from ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
        return
    if card.family == BLACKWELL_CONSUMER:
        yield from ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
        return
    yield from ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
    sparse = ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
    sparse.insert(0 if query.head_size == _NO_ROPE else 2, "FLASHINFER_MLA_SPARSE_SM90")
    yield from sparse


def choose(query: Query, card: Card, asked: str | None = None) -> Backend:
    """Return the backend that serves a query.

    Args:
        query: the layer and its settings.
        card: the card.
        asked: the backend that the user names; None for vLLM's choice.

    Raises:
        UnsupportedError: none does, or the one that is asked for does not.
    """
    if not query.mla and query.head_size_v != query.head_size:
        return _diff_kv(query, card, asked)
    if asked is not None:
        return _asked(query, card, asked)
    reasons = []
    for name in _in_order(query, card):
        backend, reason = _tried(name, query, card)
        if backend is not None:
            _fails_when_built(name, query, card)
            return backend
        reasons.append(f"{name}: {reason}")
    raise UnsupportedError(
        f"vLLM has no attention backend for {_described(query)} on {card.name}"
        f" ({'; '.join(reasons)})",
        hint=_cure(query),
        code="no-attention-backend",
    )


def kernels_of(name: str, query: Query, card: Card) -> tuple[Kernel, ...]:
    """Return the blocks that a backend's kernels read."""
    return BACKENDS[name].kernels(query, card)


def _cure(query: Query) -> str:
    if query.block_size is not None:
        return "leave out the block size, or choose another KV cache dtype"
    return "choose another KV cache dtype, or another card"


def _described(query: Query) -> str:
    what = "sparse MLA" if query.sparse else "MLA" if query.mla else f"head size {query.head_size}"
    block = f", blocks of {query.block_size}" if query.block_size else ""
    return f"{what} in {query.kv_dtype} ({query.dtype}{block})"


def _tried(name: str, query: Query, card: Card) -> tuple[Backend | None, str]:
    known = BACKENDS[name]
    reason = known.refuses(query, card)
    if reason is not None:
        return None, reason
    backend = Backend(name, known.kernels(query, card))
    if query.block_size is not None and not backend.takes(query.block_size):
        return None, "block_size not supported"
    return backend, ""


def _asked(query: Query, card: Card, asked: str) -> Backend:
    name = asked.upper()
    if name not in BACKENDS:
        raise UnsupportedError(
            f"attention backend {asked!r:.40} is not known",
            hint=f"known: {', '.join(BACKENDS)}",
        )
    mla = "MLA" in name
    if mla != query.mla:
        raise UnsupportedError(
            f"attention backend {name} is {'' if mla else 'not '}for MLA",
            hint="leave the backend to vLLM",
        )
    backend, reason = _tried(name, query, card)
    if backend is None:
        raise UnsupportedError(
            f"attention backend {name} cannot serve {_described(query)} on {card.name}: {reason}",
            hint="leave the backend to vLLM",
            code="no-attention-backend",
            setting="attention_backend",
        )
    _fails_when_built(name, query, card)
    return backend


def _diff_kv(query: Query, card: Card, asked: str | None) -> Backend:
    """K and V of different sizes: model_executor/models/mimo_v2.py chooses by itself."""
    name = "TRITON_ATTN_DIFFKV"
    if flash_version(query, card, diff_kv=True) in (3, 4):
        name = "FLASH_ATTN_DIFFKV"
    if asked is not None and asked.upper().endswith("_DIFFKV"):
        name = asked.upper()
    if query.kv_dtype.startswith("turboquant_"):
        raise UnsupportedError(
            "TurboQuant does not read K and V of different sizes",
            hint="choose another KV cache dtype",
        )
    known = ("auto", "bfloat16", *FP8)
    strict = name == "TRITON_ATTN_DIFFKV" or card.family == BLACKWELL
    if strict and query.kv_dtype not in known:
        raise UnsupportedError(
            f"{name} keeps no {query.kv_dtype} cache", hint="choose another KV cache dtype"
        )
    _fails_when_built(name, query, card)
    return Backend(name, (Kernel(16, multiple=True),))


def _fails_when_built(name: str, query: Query, card: Card) -> None:
    """Refuse what a chosen backend refuses only when its layer is built."""
    fp8 = query.kv_dtype.startswith("fp8")
    if fp8 and name.startswith("TRITON") and not card.has_fp8:
        raise UnsupportedError(
            f"{name}, which vLLM picks here, reads fp8 caches from compute capability 8.9 on;"
            f" {card.name} has {card.capability[0]}.{card.capability[1]}",
            hint="choose --kv-cache-dtype auto, or another card",
        )
    scaled = query.kv_dtype == "fp8_per_token_head"
    biased = query if query.rules.checks_alibi else query._replace(alibi=False)
    reads = flash_reads_fp8(biased, card) and query.kv_dtype != "fp8_e5m2"
    if fp8 and not scaled and name in ("FLASH_ATTN", "FLASH_ATTN_DIFFKV") and not reads:
        raise UnsupportedError(
            f"{name}, which vLLM picks here, does not read an fp8 cache of this model on"
            f" {card.name}",
            hint="choose --kv-cache-dtype auto",
        )
    splits_fp8_only = name == "FLASHMLA_SPARSE" and query.rules.sparse_splits_fp8_only
    if splits_fp8_only and query.context_parallel and not query.quantized:
        raise UnsupportedError(
            "FLASHMLA_SPARSE splits a sequence over ranks in fp8_ds_mla only",
            hint="choose --kv-cache-dtype fp8, or a decode context parallel size of 1",
        )


def indexer_backend(ratio: int, index_dtype: str) -> Backend:
    """Return the backend of an indexer's keys: they are read in blocks of one size."""
    if index_dtype == "bfloat16":  # MiniMax-M3: one sparse block a page
        return Backend("MINIMAX_M3_SPARSE_INDEXER", (Kernel(128),))
    if ratio > 1:
        return Backend("DEEPSEEK_V4_INDEXER", (Kernel(256),))
    return Backend("DEEPSEEK_V32_INDEXER", (Kernel(64),))


def preferred_block(backends: list[Backend], default: int) -> int:
    """Return the block size that vLLM takes unasked: the default where all backends take it.

    platforms/interface.py, Platform._preferred_block_size_for_backends.

    Raises:
        UnsupportedError: the backends share none.
    """
    if all(backend.takes(default) for backend in backends):
        return default
    if len(backends) == 1:
        return backends[0].smallest
    each = [[kernel.size for kernel in backend.kernels] for backend in backends]
    for candidate in sorted({lcm(*chosen) for chosen in product(*each)}):
        if all(backend.takes(candidate) for backend in backends):
            return candidate
    raise UnsupportedError(
        "the attention backends share no block size:"
        f" {', '.join(backend.name for backend in backends)}",
        hint="choose another KV cache dtype",
    )
