"""Which attention kernels vLLM picks for a layer, and which block sizes they can read.

The rules are those of vLLM 0.33: platforms/cuda.py (_get_backend_priorities: the order in which
backends are tried) and v1/attention/backends/* (validate_configuration: what each of them takes).
Only what the answer depends on is kept: head sizes, cache dtypes, sinks, image prefixes, the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.vllm.card import Card

__all__ = [
    "BACKENDS",
    "Backend",
    "Kernel",
    "Query",
    "choose",
    "indexer_backend",
    "kernels_of",
    "preferred_block",
]

_HOPPER, _BLACKWELL, _BLACKWELL_CONSUMER = 9, 10, 12
_FP8 = ("fp8", "fp8_e4m3")
_PLAIN = ("auto", "float16", "bfloat16")
_PER_TOKEN_HEAD = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
_FA4_PAGE = 128


class Query(NamedTuple):
    """What vLLM asks its backends for one kind of layer.

    Attributes:
        head_size: of K; of the latent and its rotary part with MLA.
        dtype: model dtype.
        kv_dtype: KV cache dtype in vLLM's words.
        block_size: as the user asked for; None where he did not.
        model_head_size: head size of the model as a whole, which block sizes are asked for by.
    """

    head_size: int
    head_size_v: int
    dtype: str
    kv_dtype: str
    block_size: int | None
    mla: bool = False
    sparse: bool = False
    sinks: bool = False
    image_prefix: bool = False
    alibi: bool = False
    window: bool = False
    cross: bool = False
    context_parallel: bool = False
    query_heads: int | None = None
    kv_heads: int = 1
    model_head_size: int = 0
    index_topk: bool = True

    @property
    def quantized(self) -> bool:
        """Whether rows are kept in a format of their own."""
        return self.kv_dtype not in _PLAIN


class Kernel(NamedTuple):
    """A block size that kernels read; a `multiple` of it is read as well."""

    size: int
    multiple: bool = False


class Backend(NamedTuple):
    """A chosen backend: its name and the block sizes that its kernels read."""

    name: str
    kernels: tuple[Kernel, ...]
    preferred: int | None = None
    quantized_layout: str | None = None

    @property
    def smallest(self) -> int:
        """The smallest block that a kernel reads."""
        return min(kernel.size for kernel in self.kernels)

    def takes(self, block_size: int) -> bool:
        """Whether blocks of that size can be cut into blocks that a kernel reads."""
        return any(block_size % kernel.size == 0 for kernel in self.kernels)

    def block_within(self, tokens: int) -> int:
        """Return the largest kernel block of at most `tokens` tokens, else the smallest.

        vLLM 0.33 model_executor/layers/attention/attention.py, _largest_kernel_block_within.
        """
        sizes = [
            max(k.size, tokens // k.size * k.size) if k.multiple else k.size for k in self.kernels
        ]
        fitting = [size for size in sizes if size <= tokens]
        return max(fitting) if fitting else min(sizes)


_Rule = Callable[[Query, Card], str | None]
"""Why a backend cannot serve a query; None where it can."""


class _Known(NamedTuple):
    refuses: _Rule
    kernels: Callable[[Query, Card], tuple[Kernel, ...]]


# ------------------------------------------------------------------ FlashAttention


def flash_version(query: Query, card: Card, *, diff_kv: bool = False) -> int | None:
    """Return the FlashAttention version that a head gets; None where there is none.

    v1/attention/backends/fa_utils.py, get_flash_attn_version.
    """
    head = query.head_size
    if card.capability < (8, 0):
        return None
    if card.family == _HOPPER:
        if query.alibi:
            return 2
        return 4 if head > 256 or (diff_kv and query.sinks) else 3
    if card.family == _BLACKWELL:
        if query.alibi:
            return 2
        if head == 256 and not diff_kv:
            plain = not (query.sinks or query.quantized or query.image_prefix)
            whole = query.block_size is None or query.block_size % _FA4_PAGE == 0
            return 4 if plain and whole and not query.context_parallel else 2
        if head > 128 and not (head == 192 and query.head_size_v == 128):
            return 2
        return 4
    return 2


def _flash_reads_fp8(query: Query, card: Card) -> bool:
    version = flash_version(query._replace(head_size_v=query.head_size), card)
    if card.family == _HOPPER:
        return version == 3 or (version == 4 and query.head_size == 512)
    return card.family == _BLACKWELL and version == 4


def _flash_refuses(query: Query, card: Card) -> str | None:
    has_fa4 = card.family in (_HOPPER, _BLACKWELL)
    if card.capability < (8, 0):
        return "compute capability not supported"
    if query.head_size % 8 or query.head_size > (512 if has_fa4 else 256):
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.quantized and query.kv_dtype not in _FP8:
        return "kv_cache_dtype not supported"
    if query.sinks and card.family < _HOPPER:
        return "sink not supported on compute capability < 9.0"
    if query.sinks and card.family not in (_HOPPER, _BLACKWELL):
        return "attention sinks not supported"
    if query.image_prefix:
        if not has_fa4:
            return "partial multimodal token full attention not supported"
        if query.quantized and card.family == _HOPPER:
            return "SM90 FP8 KV with mm_prefix requires Triton"
        if flash_version(query, card) != 4:
            return "mm_prefix requires FlashAttention v4"
    # The choice is made before the biases are known; see `choose`.
    if query.quantized and not _flash_reads_fp8(query._replace(alibi=False), card):
        return "FP8 KV cache is not supported"
    return None


def _flash_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    if card.family == _HOPPER and query.kv_dtype in _FP8 and query.head_size == 512:
        return (Kernel(64),)
    if card.family == _BLACKWELL and query.head_size == 256 and flash_version(query, card) == 4:
        return (Kernel(_FA4_PAGE),)
    return (Kernel(16, multiple=True),)


# ------------------------------------------------------------------ others, one head a row


def _flashinfer_refuses(query: Query, card: Card) -> str | None:
    if not (8, 0) <= card.capability <= (12, 1):
        return "compute capability not supported"
    if query.head_size not in (64, 128, 256, 512):
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.kv_dtype.startswith("nvfp4"):
        if card.family in (8, _HOPPER, _BLACKWELL_CONSUMER):
            if query.kv_dtype != "nvfp4" or query.head_size == 64 or query.sinks:
                return "kv_cache_dtype not supported"
        elif card.family != _BLACKWELL:
            return "kv_cache_dtype not supported"
    elif query.quantized and query.kv_dtype not in (*_FP8, "fp8_e5m2"):
        return "kv_cache_dtype not supported"
    if query.image_prefix:
        return "partial multimodal token full attention not supported"
    if query.cross:
        return "attention type not supported"
    if query.sinks and card.family not in (_HOPPER, _BLACKWELL, _BLACKWELL_CONSUMER):
        return "attention sinks not supported"
    return None


def _flashinfer_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    sizes: tuple[int, ...] = (16, 32, 64)
    grouped = query.query_heads is not None and query.query_heads // query.kv_heads > 1
    if card.family == _BLACKWELL and grouped and query.query_heads % query.kv_heads == 0:  # type: ignore[operator]  # not None
        sizes = (16, 32, 64, 128, 256, 512, 1024)
    return tuple(Kernel(size) for size in sizes)


def _triton_refuses(query: Query, card: Card) -> str | None:
    del card  # every card; fp8 on old ones fails later, see `choose`
    known = (*_PLAIN, *_FP8, "fp8_e5m2", *_PER_TOKEN_HEAD)
    if query.kv_dtype not in known:
        return "kv_cache_dtype not supported"
    return "head_size not supported" if query.head_size < 32 else None


def _sixteens(query: Query, card: Card) -> tuple[Kernel, ...]:
    del query, card
    return (Kernel(16, multiple=True),)


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


def _sizes(*sizes: int) -> Callable[[Query, Card], tuple[Kernel, ...]]:
    kernels = tuple(Kernel(size) for size in sizes)
    return lambda query, card: kernels


def _triton_flash_refuses(query: Query, card: Card) -> str | None:
    if card.family != _HOPPER or query.head_size not in (256, 512) or query.context_parallel:
        return "not supported"
    causal = _flash_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


def _triton_flashinfer_refuses(query: Query, card: Card) -> str | None:
    if card.family != _BLACKWELL or query.head_size not in (256, 512) or query.context_parallel:
        return "not supported"
    causal = _flashinfer_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


# ------------------------------------------------------------------ MLA


def _dense_mla(families: tuple[int, ...], dtypes: tuple[str, ...]) -> _Rule:
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
    more: _Rule | None = None,
) -> _Rule:
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
    if query.head_size not in (512, 576):
        return "head_size not supported"
    if query.kv_dtype == "nvfp4_ds_mla" and card.family != _BLACKWELL:
        return "nvfp4_ds_mla needs Blackwell"
    return None


def _few_heads(query: Query, card: Card) -> str | None:
    del card
    if query.query_heads not in (8, 16, 32, 64, 128) or query.head_size != 576:
        return "head count not supported"
    return None


def _latent_576(query: Query, card: Card) -> str | None:
    del card
    return None if query.head_size in (512, 576) else "head_size not supported"


def _multiple_of(size: int) -> Callable[[Query, Card], tuple[Kernel, ...]]:
    kernels = (Kernel(size, multiple=True),)
    return lambda query, card: kernels


_MLA_FP8 = (*_PLAIN, *_FP8)

BACKENDS: dict[str, _Known] = {
    "FLASH_ATTN": _Known(_flash_refuses, _flash_kernels),
    "FLASHINFER": _Known(_flashinfer_refuses, _flashinfer_kernels),
    "TRITON_ATTN": _Known(_triton_refuses, _sixteens),
    "FLEX_ATTENTION": _Known(_flex_refuses, _sixteens),
    "TURBOQUANT": _Known(_turboquant_refuses, _sizes(16, 32, 64, 128)),
    "TRITON_FLASH_ATTN": _Known(_triton_flash_refuses, _flash_kernels),
    "TRITON_FLASHINFER": _Known(_triton_flashinfer_refuses, _sizes(64)),
    "FLASH_ATTN_MLA": _Known(_dense_mla((_HOPPER,), _PLAIN), _sixteens),
    "FLASHMLA": _Known(_dense_mla((_HOPPER,), _MLA_FP8), _sizes(64)),
    "FLASHINFER_MLA": _Known(_dense_mla((_BLACKWELL,), _MLA_FP8), _sizes(32, 64)),
    "CUTLASS_MLA": _Known(_dense_mla((_BLACKWELL,), _MLA_FP8), _sizes(128)),
    "TRITON_MLA": _Known(_dense_mla((), _MLA_FP8), _sixteens),
    "FLASH_ATTN_MLA_SPARSE": _Known(
        _sparse_mla((_HOPPER,), _PLAIN, _no_context_parallel), _multiple_of(64)
    ),
    "FLASHMLA_SPARSE": _Known(
        _sparse_mla(
            (_HOPPER, _BLACKWELL),
            ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
            _flashmla_sparse,
        ),
        _multiple_of(64),
    ),
    "FLASHINFER_MLA_SPARSE_SM90": _Known(
        _sparse_mla((_HOPPER,), ("auto", "bfloat16", *_FP8), _latent_576), _multiple_of(64)
    ),
    "FLASHINFER_MLA_SPARSE": _Known(
        _sparse_mla((_BLACKWELL,), _MLA_FP8, _latent_576), _multiple_of(32)
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": _Known(
        _sparse_mla((_BLACKWELL,), ("auto", "bfloat16"), _few_heads), _multiple_of(64)
    ),
    "FLASHINFER_MLA_SPARSE_SM120": _Known(
        _sparse_mla((_BLACKWELL_CONSUMER,), ("auto", *_FP8, "fp8_ds_mla"), _latent_576),
        _multiple_of(64),
    ),
    "FLASH_ATTN_DIFFKV": _Known(_flash_refuses, _sixteens),
    "TRITON_ATTN_DIFFKV": _Known(_triton_refuses, _sixteens),
}
"""Every backend by vLLM's name for it."""

_FEW_QUERY_HEADS = 16


def _in_order(query: Query, card: Card) -> Iterator[str]:
    """Yield backends in the order in which vLLM tries them (_get_backend_priorities)."""
    if query.mla:
        yield from _mla_in_order(query, card)
        return
    if card.family == _BLACKWELL:
        if query.image_prefix:
            yield "TRITON_FLASHINFER"
        yield from ("FLASHINFER", "FLASH_ATTN")
    else:
        if card.family == _HOPPER and query.image_prefix:
            yield "TRITON_FLASH_ATTN"
        yield from ("FLASH_ATTN", "FLASHINFER")
    yield from ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")


def _mla_in_order(query: Query, card: Card) -> Iterator[str]:
    if card.family == _BLACKWELL:
        yield from ("FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA")
        if query.quantized:
            yield from ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        elif query.query_heads is not None and query.query_heads <= _FEW_QUERY_HEADS:
            yield from ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        else:
            yield from ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
        return
    if card.family == _BLACKWELL_CONSUMER:
        yield from ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
        return
    yield from ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
    sparse = ["FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE"]
    sparse.insert(0 if query.head_size == 512 else 2, "FLASHINFER_MLA_SPARSE_SM90")
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
    known = ("auto", "bfloat16", *_FP8)
    if name == "TRITON_ATTN_DIFFKV" and query.kv_dtype not in known:
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
    reads = _flash_reads_fp8(query, card) and query.kv_dtype != "fp8_e5m2"
    if fp8 and not scaled and name in ("FLASH_ATTN", "FLASH_ATTN_DIFFKV") and not reads:
        raise UnsupportedError(
            f"{name}, which vLLM picks here, does not read an fp8 cache of this model on"
            f" {card.name}",
            hint="choose --kv-cache-dtype auto",
        )
    if name == "FLASHMLA_SPARSE" and query.context_parallel and not query.quantized:
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
    from itertools import product
    from math import lcm

    if all(backend.takes(default) for backend in backends):
        return default
    if len(backends) == 1:
        return backends[0].smallest
    each = [[kernel.size for kernel in backend.kernels] for backend in backends]
    for candidate in sorted({lcm(*sizes) for sizes in product(*each)}):
        if all(backend.takes(candidate) for backend in backends):
            return candidate
    raise UnsupportedError(
        "the attention backends share no block size:"
        f" {', '.join(backend.name for backend in backends)}",
        hint="choose another KV cache dtype",
    )
