"""A deployment as TensorRT-LLM's PyTorch backend resolves it.

TensorRT-LLM llmapi/llm_args.py (KvCacheConfig, TorchLlmArgs); its own settings come through
`engine_args` in its spelling.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import Mla
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import KvDtype, kv_dtype
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.tensorrt_llm.arguments import (
    Args,
    arguments,
    either,
    flag,
    fraction,
    harmless,
    whole,
    windows,
)
from kvcalc.engines.tensorrt_llm.version import release

__all__ = ["DEFAULT_BLOCK", "Settings", "resolve"]


DEFAULT_BLOCK = 32
_SPARSE_BLOCK = 64
_DEFAULT_LENGTH = 8192
_DEFAULT_BATCH = 2048
_FIELDS = {
    "engine", "engine_version", "gpu", "dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs",
    "enable_prefix_caching", "kv_cache_memory_bytes", "mamba_ssm_cache_dtype", "engine_args",
}  # fmt: skip
_KV_WORDS = ("auto", "bfloat16", "float16", "fp8_e4m3", "nvfp4")
_STATE_WORDS = ("float16", "bfloat16", "float32")
_SPELLINGS = {"fp8": "fp8_e4m3", "bf16": "bfloat16", "fp16": "float16"}


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        release: whose rules.
        rounds_up: the last block may be half paid for (releases before 1.0).
        tp: ranks that share the heads of a request; 1 under attention DP.
        pp: pipeline stages.
        dtype: what packs the rows.
        model_dtype: what the model is run in.
        block: tokens_per_block.
        length: max_seq_len.
        batch: max_batch_size.
        sequences: the most sequences at once, of all stages.
        max_tokens: the most tokens of the pool; None without a limit.
        windows: max_attention_window, a pattern over the layers; `model` for the model's own; None
            for none: every layer keeps every token.
        reuse: blocks are shared by requests with a common beginning.
        v2: KVCacheManagerV2 and not KVCacheManager.
        fraction: free_gpu_memory_fraction: the cache's part of what is free after the weights.
        fraction_asked: it was asked for, and is not the default.
        host_bytes: host_cache_size: what blocks that are out of use get on the host.
        state_dtype: mamba_ssm_cache_dtype; None for `auto`.
        shared_ranks: ranks of attention data parallelism, each with requests of its own; 1 without.
    """

    release: str
    rounds_up: bool
    tp: int
    pp: int
    dtype: KvDtype
    model_dtype: str
    block: int
    length: int
    batch: int
    sequences: int
    max_tokens: int | None
    windows: tuple[int, ...] | str | None
    reuse: bool
    v2: bool
    fraction: float
    fraction_asked: bool
    host_bytes: int
    state_dtype: str | None
    shared_ranks: int


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Raises:
        UnsupportedError: a setting that TensorRT-LLM has not, or that is not modelled.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    for name in deployment.changed():
        if name not in _FIELDS:
            raise NotModelledError(f"{name} is not modelled for TensorRT-LLM", hint="leave it out")
    args = arguments(deployment.engine_args)
    notes.extend(harmless(args))
    if (whole(args, "max_beam_width") or 1) > 1:
        raise NotModelledError(
            "beam search is not modelled in a plan for TensorRT-LLM",
            hint="blocks.sequence_blocks counts the blocks of one sequence",
        )
    length = either("max_seq_len", whole(args, "max_seq_len"), deployment.max_model_len)
    if length is None:
        length = model.max_position_embeddings
    if length is None:
        length = _DEFAULT_LENGTH
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    card = capability(deployment)
    v2 = bool(flag(args, "use_kv_cache_manager_v2"))
    if v2 and args.get("event_buffer_max_size"):
        raise UnsupportedError(
            "KVCacheManagerV2 keeps no events: event_buffer_max_size must be 0", hint="leave it out"
        )
    if "max_util_for_resume" in args and not v2:
        notes.append("max_util_for_resume plays no part: KVCacheManagerV2 alone reads it")
    wanted = release(deployment.engine_version)
    batch = either("max_batch_size", whole(args, "max_batch_size"), deployment.max_num_seqs)
    batch = batch or _DEFAULT_BATCH
    pp, tp = deployment.pipeline_parallel_size, deployment.tensor_parallel_size
    shared = tp if flag(args, "enable_attention_dp") else 1
    return Settings(
        release=wanted,
        rounds_up=wanted.startswith("0."),
        tp=tp // shared,
        pp=pp,
        dtype=_dtype(model, deployment, card, v2=v2),
        model_dtype=model.dtype if deployment.dtype == "auto" else deployment.dtype,
        block=_block(model, args, deployment.block_size, card, notes),
        length=length,
        batch=batch,
        sequences=batch if v2 else batch * pp,
        max_tokens=whole(args, "max_tokens"),
        windows=windows(args.get("max_attention_window"), length),
        reuse=_reuse(model, args, deployment, card, notes),
        v2=v2,
        fraction=fraction(args),
        fraction_asked="free_gpu_memory_fraction" in args,
        host_bytes=whole(args, "host_cache_size", least=0) or 0,
        state_dtype=_state_dtype(args, deployment),
        shared_ranks=shared,
    )


def _reuse(
    model: ModelSpec,
    args: Args,
    deployment: Deployment,
    card: tuple[int, int] | None,
    notes: list[str],
) -> bool:
    """Return whether requests share blocks: not latents on every card (py_executor_creator.py)."""
    asked = flag(args, "enable_block_reuse")
    if asked is None:
        asked = deployment.enable_prefix_caching
    if asked and model.has_state_layers:
        raise UnsupportedError(
            "TensorRT-LLM's manager of hybrids asserts that blocks are not reused",
            hint="set enable_block_reuse to false, or leave it out",
            code="prefixes-of-states",
            setting="enable_block_reuse",
        )
    if asked is False or model.has_state_layers:
        return False
    if any(cache.kind == "mla" for _, cache in model.caches()) and not reuses_latents(card):
        notes.append("blocks of latents are not shared on this card: enable_block_reuse is put off")
        return False
    return True


def _state_dtype(args: Args, deployment: Deployment) -> str | None:
    theirs = args.get("mamba_ssm_cache_dtype")
    ours = deployment.mamba_ssm_cache_dtype
    if theirs is not None and ours is not None and theirs != ours:
        raise InvalidValueError(
            f"mamba_ssm_cache_dtype {theirs} and {ours} contradict each other", hint="give one"
        )
    word = ours if theirs is None else theirs
    if word is None or word == "auto":
        return None
    if word not in _STATE_WORDS:
        raise UnknownNameError("TensorRT-LLM state dtype", str(word), ["auto", *_STATE_WORDS])
    return str(word)


def _block(
    model: ModelSpec,
    args: Args,
    ours: int | None,
    card: tuple[int, int] | None,
    notes: list[str],
) -> int:
    """Return tokens_per_block: a power of two, which FlashMLA and sparse attention set to 64.

    cpp/tensorrt_llm/kernels/kvCacheUtils.h, KVBlockArray.

    Raises:
        UnsupportedError: no power of two.
    """
    asked = either("tokens_per_block", whole(args, "tokens_per_block"), ours)
    if asked is not None and (asked == 1 or asked & (asked - 1)):
        raise UnsupportedError(
            f"tokens_per_block {asked} is no power of two above 1, as TensorRT-LLM asks for",
            hint="choose 32, 64 or 128",
            code="block-not-taken",
            setting="tokens_per_block",
        )
    if flash_mla(model, card):
        if asked != FLASH_MLA_BLOCK:
            notes.append(
                f"blocks of {FLASH_MLA_BLOCK} tokens, not of {asked or DEFAULT_BLOCK}: FlashMLA,"
                " which serves latents of 576 elements on Hopper, sets the size"
            )
        return FLASH_MLA_BLOCK
    if asked is not None:
        return asked
    if any(cache.kind == "indexer" for _, cache in model.caches()):
        notes.append(
            f"blocks of {_SPARSE_BLOCK} tokens, not of {DEFAULT_BLOCK}: the sparse indexer's"
            f" kernels read pages of {_SPARSE_BLOCK}"
        )
        return _SPARSE_BLOCK
    return DEFAULT_BLOCK


def _dtype(
    model: ModelSpec, deployment: Deployment, card: tuple[int, int] | None, *, v2: bool
) -> KvDtype:
    """Return what packs the rows: `auto` is what the checkpoint asks for, else the model dtype."""
    word = _SPELLINGS.get(deployment.kv_cache_dtype, deployment.kv_cache_dtype)
    if word not in _KV_WORDS:
        raise UnknownNameError(
            "TensorRT-LLM KV cache dtype", deployment.kv_cache_dtype, [*_KV_WORDS, *_SPELLINGS]
        )
    dtype = model.dtype if deployment.dtype == "auto" else deployment.dtype
    if word == "auto":
        word = model.kv_cache_dtype or dtype
    latent = any(cache.kind == "mla" for _, cache in model.caches())
    if word == "nvfp4" and latent:
        raise NotModelledError(
            "TensorRT-LLM's nvfp4 cache of latents is not modelled",
            hint="choose --kv-cache-dtype fp8",
        )
    if word == "nvfp4" and v2:
        raise UnsupportedError(
            "KVCacheManagerV2 has no nvfp4 cache",
            hint="leave use_kv_cache_manager_v2 out, or choose --kv-cache-dtype fp8",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    gpu = deployment.gpu
    check_dtype(word, card, gpu.name if isinstance(gpu, GpuSpec) else "this card")
    return kv_dtype(word, dtype)


# What the card decides: dtypes of the cache that it has kernels for, FlashMLA's blocks, reuse.
#
# TensorRT-LLM docs/source/features/quantization.md, Hardware Support Matrix (FP8 and NVFP4 KV
# cache); _torch/model_config.py, enable_flash_mla; _torch/pyexecutor/py_executor_creator.py.

FLASH_MLA_BLOCK = 64
_FLASH_MLA_WIDTH = 576
_HOPPER = (9, 0)
_AMPERE = (8, 0)
_NVFP4 = ((10, 0), (10, 3))
_LATENT_REUSE = ((9, 0), (10, 0), (10, 3), (12, 0))


def capability(deployment: Deployment) -> tuple[int, int] | None:
    """Return the compute capability of the card; None where none is named.

    Raises:
        UnsupportedError: a card that is none of NVIDIA's.
    """
    gpu = deployment.gpu
    if not isinstance(gpu, GpuSpec):
        return None
    if gpu.compute_capability is None:
        raise UnsupportedError(
            f"{gpu.name} is no CUDA card, and TensorRT-LLM runs on no other",
            hint="name an NVIDIA card (kvcalc gpus lists them)",
        )
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major), int(minor)


def check_dtype(word: str, card: tuple[int, int] | None, name: str) -> None:
    """Refuse a cache dtype that the support matrix does not give the card.

    Raises:
        UnsupportedError: fp8 on a card older than Ampere, or nvfp4 on another than sm100 and sm103.
    """
    if card is None:
        return
    of = f"{name} (compute capability {card[0]}.{card[1]})"
    if word == "nvfp4" and card not in _NVFP4:
        raise UnsupportedError(
            f"TensorRT-LLM has no nvfp4 KV cache on {of}: its support matrix lists"
            " Blackwell's 10.0 and 10.3 alone",
            hint="choose --kv-cache-dtype fp8",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if word.startswith("fp8") and card < _AMPERE:
        raise UnsupportedError(
            f"TensorRT-LLM has no fp8 KV cache on {of}: its support matrix begins with Ampere",
            hint="leave the dtype of the cache at auto",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )


def flash_mla(model: ModelSpec, card: tuple[int, int] | None) -> bool:
    """Return whether FlashMLA sets the block size: latents of 576 elements on Hopper."""
    return card == _HOPPER and any(
        isinstance(cache, Mla) and cache.kv_lora_rank + cache.qk_rope_head_dim == _FLASH_MLA_WIDTH
        for _, cache in model.caches()
    )


def reuses_latents(card: tuple[int, int] | None) -> bool:
    """Return whether blocks of latents are shared on the card; so where none is named."""
    return card is None or card in _LATENT_REUSE
