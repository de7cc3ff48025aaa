"""The engine's own command for a question: what to type where the answer is yes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.sizing.question import Question

__all__ = ["command", "spelled"]

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
_SPELLING = {"vllm": _VLLM, "sglang": _SGLANG, "tensorrt-llm": _TENSORRT, "lmdeploy": _LMDEPLOY}
_WORDS = {"sglang": {"fp8": "fp8_e4m3", "fp4": "fp4_e2m1"}}
"""Engine -> kvcalc's word for a cache dtype -> its own."""


def command(question: Question) -> tuple[str | None, tuple[str, ...]]:
    """Return what starts the engine like this, and what to know of it.

    None for an engine that is a library and no server. The model is what the engine is given to
    load: the repository that a preset was read from, a folder, or a GGUF file.
    """
    deployment = question.deployment
    build = _BUILDERS.get(deployment.engine)
    if build is None:
        return None, ()
    words = [*build(_source(question), deployment), *_quantized(question)]
    return " ".join(shlex.quote(word) for word in words), tuple(_caveats(question))


def spelled(engine: str, name: str, value: object) -> str | None:
    """Return a setting as an engine's own flag; None where that is not known."""
    flag = _SPELLING.get(engine, {}).get(name)
    if flag is None:
        return None
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {_WORDS.get(engine, {}).get(str(value), value)}"


def _source(question: Question) -> str:
    model = question.model
    if question.deployment.engine != "llama.cpp":
        return model.origin or model.name
    named = model.origin or model.name
    if named.lower().endswith(".gguf"):
        return named
    kind = (question.quantization or "f16").upper()
    return f"{named.rsplit('/', 1)[-1]}-{kind}.gguf"


_ON_LOADING = {
    ("vllm", "fp8"): ("--quantization", "fp8"),
    ("vllm", "bnb-4bit"): ("--quantization", "bitsandbytes"),
    ("sglang", "fp8"): ("--quantization", "fp8"),
}
"""(engine, format) -> its flags, where it brings a checkpoint into that format as it loads it."""

_FOLDED = {"fp8_e4m3": "fp8", "bitsandbytes": "bnb-4bit"}


def _quantized(question: Question) -> tuple[str, ...]:
    wanted = (question.quantization or "").strip().lower()
    if wanted == _stored(question):
        return ()
    return _ON_LOADING.get((question.deployment.engine, _FOLDED.get(wanted, wanted)), ())


def _stored(question: Question) -> str:
    size = question.model.size
    return ((size.weights_dtype if size is not None else None) or question.model.dtype).lower()


def _caveats(question: Question) -> Iterator[str]:
    """Yield what to put in, and in place of what."""
    model, engine = question.model, question.deployment.engine
    wanted = question.quantization
    file = (model.origin or "").lower().endswith(".gguf")
    if engine == "llama.cpp" and not file:
        yield f"the command's GGUF file is to be made of {model.origin or model.name}, or found"
    elif model.origin is None:
        yield f"the command says {model.name}, for nothing tells what {engine} is to load"
    if wanted is not None and wanted != _stored(question) and not _quantized(question):
        if engine == "llama.cpp" and not file:
            return
        yield (
            f"weights in {wanted} are another checkpoint: put its name in place of"
            f" {_source(question)}"
        )


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
        elif value is not None and value is not False:  # 0 is a value: -ngl 0
            yield from (flag, str(value))


def _vllm(source: str, deployment: Deployment) -> Iterator[str]:
    yield from ("vllm", "serve", source)
    yield from _flags(deployment, _VLLM)
    if deployment.speculative_method is not None:
        tokens = deployment.num_speculative_tokens
        more = f', "num_speculative_tokens": {tokens}' if tokens else ""
        yield from (
            "--speculative-config",
            f'{{"method": "{deployment.speculative_method}"{more}}}',
        )


def _sglang(source: str, deployment: Deployment) -> Iterator[str]:
    yield from ("python", "-m", "sglang.launch_server", "--model-path", source)
    yield from _flags(deployment, _SGLANG)
    if deployment.enable_prefix_caching is False:
        yield "--disable-radix-cache"
    yield from _own(deployment.engine_args)


def _llamacpp(source: str, deployment: Deployment) -> Iterator[str]:
    yield from ("llama-server", "-m", source)
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


def _tensorrt(source: str, deployment: Deployment) -> Iterator[str]:
    yield from ("trtllm-serve", source)
    yield from _flags(deployment, _TENSORRT)
    args = dict(deployment.engine_args)
    share = args.pop("free_gpu_memory_fraction", None)
    if share is not None:
        yield from ("--kv_cache_free_gpu_memory_fraction", str(share))
    if deployment.kv_cache_dtype != "auto":
        yield from ("--kv_cache_dtype", deployment.kv_cache_dtype)
    yield from _own(args, "_")


def _lmdeploy(source: str, deployment: Deployment) -> Iterator[str]:
    yield from ("lmdeploy", "serve", "api_server", source)
    yield from _flags(deployment, _LMDEPLOY)
    words = {"int4": "4", "int8": "8", "fp8": "fp8"}
    if deployment.kv_cache_dtype in words:
        yield from ("--quant-policy", words[deployment.kv_cache_dtype])
    yield from _own(deployment.engine_args)


_BUILDERS: dict[str, Callable[[str, Deployment], Iterator[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
}
