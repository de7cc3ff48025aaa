"""A deployment as TensorRT-LLM's PyTorch backend resolves it.

TensorRT-LLM llmapi/llm_args.py (KvCacheConfig, TorchLlmArgs); its own settings come through
`engine_args` in its spelling.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import KvDtype, element_bytes, kv_dtype
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.tensorrt_llm.options import HARMLESS, NOT_MODELLED
from kvcalc.engines.tensorrt_llm.version import release

__all__ = ["DEFAULT_BLOCK", "KNOWN_ARGUMENTS", "Settings", "resolve"]

DEFAULT_BLOCK = 32
_SPARSE_BLOCK = 64
_DEFAULT_LENGTH = 8192
_DEFAULT_BATCH = 2048

KNOWN_ARGUMENTS = (
    "enable_attention_dp",
    "enable_block_reuse",
    "free_gpu_memory_fraction",
    "host_cache_size",
    "mamba_ssm_cache_dtype",
    "max_attention_window",
    "max_batch_size",
    "max_beam_width",
    "max_seq_len",
    "max_tokens",
    "tokens_per_block",
    "use_kv_cache_manager_v2",
)
"""What `engine_args` may hold that counts; what is neither known nor harmless is refused."""

_FIELDS = {
    "engine", "engine_version", "gpu", "dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs",
    "enable_prefix_caching", "kv_cache_memory_bytes", "engine_args", "mamba_ssm_cache_dtype",
    "num_speculative_tokens", "speculative_method",
}  # fmt: skip

_KV_WORDS = ("auto", "bfloat16", "float16", "fp8_e4m3", "nvfp4")
_SPELLINGS = {"fp8": "fp8_e4m3", "bf16": "bfloat16", "fp16": "float16"}


class Settings(NamedTuple):
    """What the rules read.

    Attributes:
        release: whose rules.
        rounds_up: the last block may be half paid for (releases before 1.0).
        tp: ranks that share the heads of a request; 1 under attention DP.
        pp: pipeline stages.
        dtype: what packs the rows.
        block: tokens_per_block.
        length: max_seq_len.
        batch: max_batch_size.
        max_tokens: the most tokens of the pool; None without a limit.
        windows: max_attention_window, a pattern over the layers; `model` for the model's own; None
            for none: every layer keeps every token.
        reuse: blocks are shared by requests with a common beginning.
        v2: KVCacheManagerV2 and not KVCacheManager.
        fraction: free_gpu_memory_fraction: the cache's part of what is free after the weights.
        host_bytes: host_cache_size: blocks in host memory, beside the GPU's; 0 for none.
        model_dtype: dtype of the model and of its convolution states.
        state_dtype: dtype of recurrent states.
        stateful: the model keeps states.
        proposed: tokens proposed ahead by the model's own layers (MTP); 0 without speculation.
    """

    release: str
    rounds_up: bool
    tp: int
    pp: int
    dtype: KvDtype
    block: int
    length: int
    batch: int
    max_tokens: int | None
    windows: tuple[int, ...] | str | None
    reuse: bool
    v2: bool
    fraction: float
    host_bytes: int
    model_dtype: str
    state_dtype: str
    stateful: bool
    proposed: int


def resolve(model: ModelSpec, deployment: Deployment, notes: list[str]) -> Settings:
    """Return the settings.

    Raises:
        UnsupportedError: a setting that TensorRT-LLM has not, or that is not modelled.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    for name in deployment.changed():
        if name not in _FIELDS:
            raise UnsupportedError(f"{name} is not modelled for TensorRT-LLM", hint="leave it out")
    args = deployment.engine_args
    for name in args:
        if name in NOT_MODELLED:
            raise UnsupportedError(
                f"{name} is not modelled for TensorRT-LLM ({NOT_MODELLED[name]})",
                hint="leave it out",
            )
        if name not in KNOWN_ARGUMENTS and name not in HARMLESS:
            raise UnknownNameError("TensorRT-LLM setting", name, KNOWN_ARGUMENTS)
    if (_whole(args, "max_beam_width") or 1) > 1:
        raise UnsupportedError(
            "beam search is not modelled in a plan for TensorRT-LLM",
            hint="blocks.sequence_blocks counts the blocks of one sequence",
        )
    length = _one("max_seq_len", _whole(args, "max_seq_len"), deployment.max_model_len)
    if length is None:
        length = model.max_position_embeddings
    if length is None:
        length = _DEFAULT_LENGTH
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    reuse = _flag(args, "enable_block_reuse")
    if reuse is None:
        reuse = deployment.enable_prefix_caching
    wanted = release(deployment.engine_version)
    return Settings(
        release=wanted,
        rounds_up=wanted.startswith("0."),
        tp=1 if _flag(args, "enable_attention_dp") else deployment.tensor_parallel_size,
        pp=deployment.pipeline_parallel_size,
        dtype=_dtype(model, deployment),
        block=_block(model, deployment),
        length=length,
        batch=_one("max_batch_size", _whole(args, "max_batch_size"), deployment.max_num_seqs)
        or _DEFAULT_BATCH,
        max_tokens=_whole(args, "max_tokens"),
        windows=_windows(args.get("max_attention_window"), length),
        reuse=_reuse(model, reuse, notes),
        v2=bool(_flag(args, "use_kv_cache_manager_v2")),
        fraction=_fraction(args),
        host_bytes=_whole(args, "host_cache_size") or 0,
        model_dtype=_model_dtype(model, deployment),
        state_dtype=_state_dtype(model, deployment),
        stateful=any(cache.states() for _, cache in model.caches()),
        proposed=_proposed(model, deployment),
    )


_Args = dict[str, str | int | float | bool | None]


def _whole(args: _Args, name: str) -> int | None:
    value = args.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InvalidValueError(f"{name} is {value!r:.40}, not a whole number of at least 1")
    return value


def _flag(args: _Args, name: str) -> bool | None:
    value = args.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidValueError(f"{name} is {value!r:.40}, neither true nor false")
    return value


def _one(name: str, theirs: int | None, ours: int | None) -> int | None:
    if theirs is not None and ours is not None and theirs != ours:
        raise InvalidValueError(
            f"{name} {theirs} and {ours} contradict each other", hint="give one"
        )
    return ours if theirs is None else theirs


def _block(model: ModelSpec, deployment: Deployment) -> int:
    """Return tokens_per_block; the kernels of sparse attention read pages of 64."""
    asked = _whole(deployment.engine_args, "tokens_per_block")
    block = _one("tokens_per_block", asked, deployment.block_size)
    if block is not None:
        return block
    sparse = any(cache.kind == "indexer" for _, cache in model.caches())
    return _SPARSE_BLOCK if sparse else DEFAULT_BLOCK


def _fraction(args: _Args) -> float:
    fraction = args.get("free_gpu_memory_fraction", 0.9)
    if not isinstance(fraction, float) or not 0 < fraction < 1:
        raise InvalidValueError(
            f"free_gpu_memory_fraction is {fraction!r:.40}, not a fraction between 0 and 1"
        )
    return fraction


def _dtype(model: ModelSpec, deployment: Deployment) -> KvDtype:
    """Return what packs the rows: `auto` is what the checkpoint asks for, else the model dtype."""
    word = _SPELLINGS.get(deployment.kv_cache_dtype, deployment.kv_cache_dtype)
    if word not in _KV_WORDS:
        raise UnknownNameError(
            "TensorRT-LLM KV cache dtype", deployment.kv_cache_dtype, [*_KV_WORDS, *_SPELLINGS]
        )
    dtype = _model_dtype(model, deployment)
    if word == "auto":
        word = model.kv_cache_dtype or dtype
    latent = any(cache.kind == "mla" for _, cache in model.caches())
    if word == "nvfp4" and latent:
        raise UnsupportedError(
            "TensorRT-LLM's nvfp4 cache of latents is not modelled",
            hint="choose --kv-cache-dtype fp8",
        )
    return kv_dtype(word, dtype)


def _model_dtype(model: ModelSpec, deployment: Deployment) -> str:
    return model.dtype if deployment.dtype == "auto" else deployment.dtype


def _state_dtype(model: ModelSpec, deployment: Deployment) -> str:
    """Return the dtype of recurrent states: `auto` is the model dtype, whatever its config says.

    _torch/pyexecutor/model_loader.py, validate_and_set_mamba_ssm_cache_dtype.
    """
    asked = deployment.engine_args.get("mamba_ssm_cache_dtype")
    if asked is not None and not isinstance(asked, str):
        raise InvalidValueError(f"mamba_ssm_cache_dtype is {asked!r:.40}, not a name")
    ours = deployment.mamba_ssm_cache_dtype
    word = asked or (None if ours in (None, "auto") else ours)
    dtype = _model_dtype(model, deployment) if word in (None, "auto") else str(word)
    element_bytes(dtype)
    return dtype


def _reuse(model: ModelSpec, asked: bool | None, notes: list[str]) -> bool:
    """Return whether blocks are shared; not beside states, which the manager asserts."""
    if not any(cache.states() for _, cache in model.caches()):
        return asked is not False
    if asked:
        raise UnsupportedError(
            f"TensorRT-LLM keeps no prefixes of {model.name}, which has states",
            hint="set enable_block_reuse to false",
        )
    if asked is None:
        notes.append("no prefix is kept beside states (enable_block_reuse has to be false)")
    return False


def _proposed(model: ModelSpec, deployment: Deployment) -> int:
    """Return the tokens proposed ahead by the model's own layers (MTPDecodingConfig)."""
    count, method = deployment.num_speculative_tokens, deployment.speculative_method
    if count is None and method is None:
        return 0
    if method not in (None, "mtp"):
        raise UnsupportedError(
            f"speculation by {method} is not modelled for TensorRT-LLM",
            hint="known: mtp, the model's own layers",
        )
    if count is None:
        raise InvalidValueError(
            "speculation without a number of tokens", hint="give num_speculative_tokens"
        )
    if not model.draft_layers:
        raise UnsupportedError(
            f"{model.name} has no layers that propose tokens",
            hint="leave num_speculative_tokens out",
        )
    return count


def _windows(value: str | float | bool | None, length: int) -> tuple[int, ...] | str | None:
    """Read max_attention_window: `model`, a number, or numbers with commas between.

    Windows longer than the sequence are cut to it.
    """
    if value is None or value == "model":
        return value if isinstance(value, str) else None
    parts = str(value).split(",")
    if isinstance(value, (bool, float)) or not all(p.strip().isdecimal() for p in parts):
        raise InvalidValueError(
            f"max_attention_window is {value!r:.40}, no pattern of windows",
            hint='write "4096,4096,131072", or "model" for the model\'s own windows',
        )
    sizes = tuple(min(length, int(part)) for part in parts)
    if min(sizes) < 1:
        raise InvalidValueError("max_attention_window has a window of no token")
    return sizes
