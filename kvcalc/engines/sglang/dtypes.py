"""Dtypes as SGLang resolves them: of the model, of its KV cache, of its states.

SGLang 0.5.23 configs/model_config.py (_get_and_verify_dtype), mem_cache/kv_cache_dtype.py
(configure_kv_cache_dtype), arg_groups/overrides.py (_dsa_kv_cache_dtype_default),
mem_cache/kv_cache_configurator.py (calculate_mla_kv_cache_dim), configs/mamba_utils.py
(mamba2_state_dtype).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.dtypes import KvDtype, element_bytes, kv_dtype
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.kind import StateTensor
from kvcalc.core.model import ModelSpec
from kvcalc.engines.sglang.backends import Backends
from kvcalc.engines.sglang.card import Card
from kvcalc.engines.sglang.families import (
    CONFIGURED_STATE_DTYPE,
    is_compressed,
    is_latent,
    is_minimax_sparse,
)
from kvcalc.engines.sglang.version import Release

__all__ = [
    "KV_WORDS",
    "Layout",
    "StateDtypes",
    "in_dtype",
    "index_dtype",
    "kv_word",
    "layout_of",
    "state_dtypes",
]

KV_WORDS = (
    "auto",
    "bfloat16",
    "fp8_e4m3",
    "fp8_e5m2",
    "mxfp8",
    "nvfp4",
    "fp4_mx_block16",
)
"""Choices of --kv-cache-dtype."""

_SPELLINGS = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "fp8_e4m3fn": "fp8_e4m3"}
_FP4 = ("nvfp4", "fp4_mx_block16")
_DTYPE_SPELLINGS = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Layout(NamedTuple):
    """How a token's rows are kept.

    Attributes:
        dtype: what packs them.
        extra_scales: further copies of the rows' scales (two layouts side by side).
        workspace: one layer's rows in fp8 beside them, for prefill to read.
    """

    dtype: KvDtype
    extra_scales: int = 0
    workspace: bool = False


class StateDtypes(NamedTuple):
    """Dtypes of convolution windows and of recurrent states; None for the config's own."""

    conv: str
    recurrent: str | None

    def bytes_of(self, state: StateTensor) -> int:
        """Return the bytes of one state tensor of one layer and slot."""
        if state.role == "conv":
            return state.elements * element_bytes(self.conv)
        return state.elements * element_bytes(self.recurrent or state.dtype or "float32")


def in_dtype(model: ModelSpec, asked: str, notes: list[str]) -> ModelSpec:
    """Return a model in the dtype that SGLang runs it in: float32 becomes 16 bits.

    Raises:
        UnsupportedError: no dtype that models run in.
    """
    dtype = _DTYPE_SPELLINGS.get(asked, asked)
    if dtype == "auto":
        dtype = model.dtype
        if dtype == "float32":
            gemma = (model.architecture or "").startswith("Gemma")
            dtype = "bfloat16" if gemma else "float16"
            notes.append(
                f"published in float32, which SGLang runs in {dtype} unless told otherwise"
            )
    element_bytes(dtype)
    return msgspec.structs.replace(model, dtype=dtype)


def kv_word(model: ModelSpec, asked: str, card: Card, wanted: Release, notes: list[str]) -> str:
    """Return the KV cache dtype in SGLang's words; `auto` for the model dtype.

    Raises:
        UnknownNameError: no KV cache dtype of SGLang.
        UnsupportedError: a dtype that the model or the card has not.
    """
    word = _SPELLINGS.get(asked, asked)
    if word == model.dtype and word == "float16":
        word = "auto"
    word = _four_bits(word, wanted)
    if word not in KV_WORDS:
        raise UnknownNameError("SGLang KV cache dtype", asked, [*KV_WORDS, *_SPELLINGS])
    if word == "auto":
        word = _auto(model, card, notes)
    _check(model, word, card)
    return word


def _four_bits(word: str, wanted: Release) -> str:
    """Return four bits as 0.5.23 calls them: until 0.5.15 there was one kind, fp4_e2m1."""
    if word == "fp4_e2m1":
        if wanted.many_four_bits:
            raise UnsupportedError(
                f"SGLang {wanted} has no KV cache dtype fp4_e2m1",
                hint="it is called fp4_mx_block16 now; nvfp4 is another",
                code="cache-dtype-refused",
                setting="kv_cache_dtype",
            )
        return "fp4_mx_block16"
    if word in (*_FP4, "mxfp8") and not wanted.many_four_bits:
        raise UnsupportedError(
            f"SGLang {wanted} has no KV cache dtype {word}",
            hint="its only one of four bits is fp4_e2m1",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    return word


def _sparse(model: ModelSpec) -> bool:
    return is_latent(model) and any(cache.kind == "indexer" for _, cache in model.caches())


def index_dtype(model: ModelSpec, word: str, card: Card, backend: str) -> str | None:
    """Return the dtype of MiniMax-M3's index keys; None where the model's indexer has its own.

    mem_cache/memory_pool.py, get_minimax_sparse_index_dtype; server_args.py,
    m3_fp8_attn_gemm_enabled.
    """
    if not is_minimax_sparse(model):
        return None
    kernels = card.hopper or (card.sm100 and backend == "trtllm_mha")
    return "fp8_e4m3" if word == "fp8_e4m3" and kernels else model.dtype


def _auto(model: ModelSpec, card: Card, notes: list[str]) -> str:
    if is_compressed(model):
        return "fp8_e4m3"
    if _sparse(model):
        word = "fp8_e4m3" if card.since_blackwell else "bfloat16"
        notes.append(f"auto is {word} for sparse attention on {card.name}")
        return word
    if (model.kv_cache_dtype or "").startswith("fp8"):
        if model.kv_cache_method == "compressed-tensors":
            # mem_cache/kv_cache_dtype.py looks at kv_cache_quant_algo alone, ModelOpt's.
            notes.append("the checkpoint asks for an fp8 cache, which SGLang follows of ModelOpt's")
            return "auto"
        notes.append("auto is fp8_e4m3: the checkpoint asks for an fp8 cache")
        return "fp8_e4m3"
    return "auto"


def _check(model: ModelSpec, word: str, card: Card) -> None:
    if is_compressed(model) and word != "fp8_e4m3":
        raise UnsupportedError(
            f"SGLang keeps no {word} cache of compressed attention",
            hint="choose --kv-cache-dtype auto or fp8_e4m3",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if _sparse(model) and word not in ("bfloat16", "fp8_e4m3"):
        raise UnsupportedError(
            f"SGLang keeps no {word} cache for sparse attention",
            hint="choose --kv-cache-dtype bfloat16 or fp8_e4m3",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if word == "nvfp4" and not card.blackwell:
        raise UnsupportedError(
            f"SGLang reads no nvfp4 cache on {card.name}",
            hint="fp4_mx_block16 is read everywhere",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if is_minimax_sparse(model) and word in ("mxfp8", *_FP4):
        raise UnsupportedError(
            f"SGLang keeps no {word} cache of MiniMax's sparse attention",
            hint="choose --kv-cache-dtype fp8_e4m3",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if word == "mxfp8":
        if is_latent(model):
            raise UnsupportedError(
                "SGLang keeps no mxfp8 cache for MLA",
                hint="choose --kv-cache-dtype fp8_e4m3",
                code="cache-dtype-refused",
                setting="kv_cache_dtype",
            )
        if not card.blackwell:
            raise UnsupportedError(
                f"SGLang reads an mxfp8 cache on Blackwell alone, not on {card.name}",
                hint="choose --kv-cache-dtype fp8_e4m3",
                code="cache-dtype-refused",
                setting="kv_cache_dtype",
            )


def layout_of(
    model: ModelSpec,
    word: str,
    card: Card,
    backends: Backends,
    prefill: str | None,
    compressed: str | None,
) -> Layout:
    """Return how rows are kept.

    The rows of DSA models in fp8 have scales of their own (656 B) unless TensorRT-LLM's or
    TileLang's kernels read them. NVFP4 has the scales in the order of TensorRT-LLM's kernels on
    B200, in rows on other Blackwell cards, and in both where prefill reads an fp8 copy on B200
    (layers/quantization/fp4_kv_cache_quant_method.py).

    Args:
        model: as SGLang runs it.
        word: as `kv_word` returns it.
        card: what it runs on.
        backends: the kernels in use.
        prefill: prefill_kv_cache_dequant_dtype; None or `auto` for the card's own.
        compressed: dsv4_attn_backend, DeepSeek-V4's kernels; TensorRT-LLM's read rows all in fp8.

    Raises:
        UnsupportedError: kernels that the card has not.
    """
    if is_compressed(model):
        if compressed == "trtllm" and not card.sm100:
            raise UnsupportedError(
                f"dsv4_attn_backend trtllm does not run on {card.name}",
                hint="leave it out",
                code="no-attention-backend",
                setting="attention_backend",
            )
        rows = "fp8_e4m3" if compressed == "trtllm" else "fp8_ds_mla"
        return Layout(kv_dtype(rows, model.dtype))
    name = {"auto": model.dtype, "fp4_mx_block16": "nvfp4"}.get(word, word)
    if _sparse(model) and word == "fp8_e4m3":
        both = (backends.dsa_prefill, backends.dsa_decode)
        raw = "trtllm" in both or both == ("tilelang", "tilelang")
        name = "fp8_e4m3" if raw else "fp8_ds_mla"
    if word != "nvfp4" or is_latent(model):
        return Layout(kv_dtype(name, model.dtype))
    copied = prefill == "fp8_e4m3" or (prefill in (None, "auto") and not card.sm100)
    return Layout(kv_dtype(name, model.dtype), int(copied and card.sm100), copied)


def state_dtypes(
    model: ModelSpec, ssm: str | None, conv: str | None, environment: str | None
) -> StateDtypes:
    """Return the dtypes of states; the convolution is in bfloat16 whatever the model dtype."""
    asked = ssm or environment
    reads = model.architecture in CONFIGURED_STATE_DTYPE
    return StateDtypes(conv or "bfloat16", asked or (None if reads else "float32"))
