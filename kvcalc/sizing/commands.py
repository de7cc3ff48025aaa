"""The engine's own command for a deployment: what to type where the answer is yes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec

__all__ = ["command"]

_Word = str | int | float | bool | None
_VLLM = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "enable_prefix_caching": "--enable-prefix-caching",
    "async_scheduling": "--async-scheduling",
    "enforce_eager": "--enforce-eager",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
    "enable_expert_parallel": "--enable-expert-parallel",
    "attention_backend": "--attention-backend",
    "mamba_cache_dtype": "--mamba-cache-dtype",
    "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
}
_SGLANG = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp-size",
    "pipeline_parallel_size": "--pp-size",
    "data_parallel_size": "--dp-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--page-size",
    "max_model_len": "--context-length",
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
    "attention_backend": "--attention-backend",
}
_TENSORRT = {
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "max_model_len": "--max_seq_len",
    "max_num_seqs": "--max_batch_size",
}
_LMDEPLOY = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp",
    "data_parallel_size": "--dp",
    "block_size": "--cache-block-seq-len",
    "max_model_len": "--session-len",
    "max_num_seqs": "--max-batch-size",
}
_WORDS = {"sglang": {"fp8": "fp8_e4m3", "fp4": "fp4_e2m1"}}
"""Engine -> kvcalc's word for a cache dtype -> its own."""


def command(model: ModelSpec, deployment: Deployment) -> str | None:
    """Return what starts the engine like this; None for one that is a library, not a server."""
    build = _BUILDERS.get(deployment.engine)
    if build is None:
        return None
    return " ".join(shlex.quote(word) for word in build(model, deployment))


def _flags(deployment: Deployment, spelling: dict[str, str]) -> Iterator[str]:
    for name, value in deployment.changed().items():
        flag = spelling.get(name)
        if flag is None:
            continue
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            word = str(value)
            yield from (flag, _WORDS.get(deployment.engine, {}).get(word, word))


def _own(args: dict[str, _Word], sign: str = "-") -> Iterator[str]:
    """Yield engine_args as flags in dashes (or underscores)."""
    for name, value in args.items():
        flag = f"--{name.replace('_', sign)}"
        if value is True:
            yield flag
        elif value not in (None, False):
            yield from (flag, str(value))


def _vllm(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    yield from ("vllm", "serve", model.name)
    yield from _flags(deployment, _VLLM)
    if deployment.speculative_method is not None:
        tokens = deployment.num_speculative_tokens
        more = f', "num_speculative_tokens": {tokens}' if tokens else ""
        yield from (
            "--speculative-config",
            f'{{"method": "{deployment.speculative_method}"{more}}}',
        )


def _sglang(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    yield from ("python", "-m", "sglang.launch_server", "--model-path", model.name)
    yield from _flags(deployment, _SGLANG)
    if deployment.enable_prefix_caching is False:
        yield "--disable-radix-cache"
    yield from _own(deployment.engine_args)


def _llamacpp(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    yield from ("llama-server", "-m", f"{model.name}.gguf")
    args = dict(deployment.engine_args)
    kind = deployment.kv_cache_dtype
    if kind != "auto":
        key, _, value = kind.partition(":")
        yield from ("--cache-type-k", key, "--cache-type-v", value or key)
    if deployment.max_model_len is not None and "ctx_size" not in args:
        slots = args.get("parallel")
        each = deployment.max_model_len
        yield from ("--ctx-size", str(each * slots if isinstance(slots, int) else each))
    yield from _own(args)


def _tensorrt(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    yield from ("trtllm-serve", model.name)
    yield from _flags(deployment, _TENSORRT)
    args = dict(deployment.engine_args)
    share = args.pop("free_gpu_memory_fraction", None)
    if share is not None:
        yield from ("--kv_cache_free_gpu_memory_fraction", str(share))
    if deployment.kv_cache_dtype != "auto":
        yield from ("--kv_cache_dtype", deployment.kv_cache_dtype)
    yield from _own(args, "_")


def _lmdeploy(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    yield from ("lmdeploy", "serve", "api_server", model.name)
    yield from _flags(deployment, _LMDEPLOY)
    words = {"int4": "4", "int8": "8", "fp8": "fp8"}
    if deployment.kv_cache_dtype in words:
        yield from ("--quant-policy", words[deployment.kv_cache_dtype])
    yield from _own(deployment.engine_args)


_BUILDERS: dict[str, Callable[[ModelSpec, Deployment], Iterator[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
}
