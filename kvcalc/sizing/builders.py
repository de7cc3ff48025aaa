"""Each engine's command: which program, and what needs more than a flag of its name."""

from __future__ import annotations

import json
from collections.abc import Callable

from kvcalc.core.capacity import capacity, logged_figures
from kvcalc.core.model import ModelSpec
from kvcalc.engines import plan
from kvcalc.sizing.words import Words

__all__ = ["BUILDERS", "Builder"]

Builder = Callable[[Words, ModelSpec, str], None]
"""Puts the words together for a model, and what the engine is to load it from."""

_CONFIG = "kvcalc-trtllm.yaml"


def _vllm(said: Words, model: ModelSpec, source: str) -> None:
    from kvcalc.engines.vllm.options import BACKEND_OPTION_SINCE, older_than
    from kvcalc.engines.vllm.version import release

    deployment = said.deployment
    at = release(deployment.engine_version if deployment.engine == "vllm" else None)
    said.start("vllm", "serve", source)
    if "kv_cache_memory_bytes" in said.fields and older_than(at, "kv_cache_memory_bytes"):
        _as_blocks(said, model, str(at))
    if "attention_backend" in said.fields and at.line < BACKEND_OPTION_SINCE:
        said.variables["VLLM_ATTENTION_BACKEND"] = str(said.fields.pop("attention_backend"))
    newer = [name for name in said.fields if older_than(at, name)]
    said.say_fields(without=tuple(newer))
    said.say_variables()
    _adapters(said)
    if "limit_mm_per_prompt" in said.args:
        said.start("--limit-mm-per-prompt", str(said.args.pop("limit_mm_per_prompt")))
    if "cudagraph_mode" in said.args:
        mode = str(said.args.pop("cudagraph_mode")).upper()
        said.start("--compilation-config", json.dumps({"cudagraph_mode": mode}))
    said.say_args()
    _vllm_speculation(said)


def _as_blocks(said: Words, model: ModelSpec, at: str) -> None:
    """Say a cache's bytes as the blocks that they come to: the release has no flag for bytes."""
    found = capacity(plan(model, said.deployment), said.deployment.kv_cache_memory_bytes)
    if found.num_blocks is None or "num_gpu_blocks_override" in said.fields:
        return
    size = said.fields.pop("kv_cache_memory_bytes")
    said.start("--num-gpu-blocks-override", str(found.num_blocks))
    said.told.append(f"vLLM {at} takes no bytes of a cache: {size} B are {found.num_blocks} blocks")


def _adapters(said: Words) -> None:
    """Say the slots of adapters, which nothing makes without --enable-lora."""
    slots = {"max_loras", "max_lora_rank", "fully_sharded_loras"} & said.args.keys()
    if slots and "enable_lora" not in said.args:
        said.start("--enable-lora")


def _vllm_speculation(said: Words) -> None:
    method = said.fields.pop("speculative_method", None)
    tokens = said.fields.pop("num_speculative_tokens", None)
    drafted = "draft_model" in said.fields
    draft = said.draft()
    if method is None and tokens is None and not drafted:
        return
    method = method or ("draft_model" if drafted else "mtp")
    config = {"method": method, "model": draft, "num_speculative_tokens": tokens}
    config = {key: value for key, value in config.items() if value is not None}
    said.start("--speculative-config", json.dumps(config))
    if draft is None and method in ("eagle", "eagle3", "draft_model"):
        said.told.append(f'{method} needs a head: add "model": "..." to --speculative-config')


def _sglang(said: Words, model: ModelSpec, source: str) -> None:
    said.start("python", "-m", "sglang.launch_server", "--model-path", source)
    size = said.fields.get("kv_cache_memory_bytes")
    if size is not None and "max_total_tokens" not in said.args:
        tokens = logged_figures(plan(model, said.deployment), said.deployment.kv_cache_memory_bytes)
        said.fields.pop("kv_cache_memory_bytes")
        said.args["max_total_tokens"] = tokens.kv_cache_tokens
        said.told.append(f"SGLang takes no bytes of a cache: {size} B are so many tokens")
    said.say_fields()
    off = {"enable_prefix_caching": "--disable-radix-cache"}
    off["async_scheduling"] = "--disable-overlap-schedule"
    for name, flag in off.items():
        if said.fields.pop(name, None) is False:
            said.start(flag)
    on = {"enforce_eager": "--disable-cuda-graph"}
    on["disable_hybrid_kv_cache_manager"] = "--disable-hybrid-swa-memory"
    for name, flag in on.items():
        if said.fields.pop(name, None):
            said.start(flag)
    if said.fields.pop("enable_expert_parallel", None):
        said.start("--ep-size", str(said.deployment.tensor_parallel_size))
    _sglang_speculation(said)
    said.say_variables()
    for name in [name for name, value in said.args.items() if value is False]:
        del said.args[name]  # its switches are off unless they are named
    said.say_args()


def _sglang_speculation(said: Words) -> None:
    from kvcalc.engines.sglang.speculation import ALGORITHMS

    method = said.fields.pop("speculative_method", None)
    tokens = said.fields.pop("num_speculative_tokens", None)
    drafted = "draft_model" in said.fields
    draft = said.draft()
    if method is None and (tokens is not None or drafted):
        method = "draft_model" if drafted else "mtp"
    if method is not None and "speculative_algorithm" not in said.args:
        said.start("--speculative-algorithm", ALGORITHMS[str(method)])
    if isinstance(tokens, int):
        said.start("--speculative-num-steps", str(tokens))
        if method != "ngram" and "speculative_eagle_topk" not in said.args:
            # SGLang takes all three numbers or none.
            said.start("--speculative-eagle-topk", "1")
            if "speculative_num_draft_tokens" not in said.args:
                said.start("--speculative-num-draft-tokens", str(tokens + 1))
    if draft is not None:
        said.start("--speculative-draft-model-path", draft)
    elif method in ("eagle", "eagle3", "draft_model"):
        said.told.append(f"{method} needs a head: add --speculative-draft-model-path")


def _llamacpp(said: Words, model: ModelSpec, source: str) -> None:
    from kvcalc.engines.llamacpp.args import OLLAMA
    from kvcalc.engines.llamacpp.settings import resolve

    deployment = said.deployment
    said.start("llama-server", "-m", source)
    kind = said.fields.pop("kv_cache_dtype", None)
    if kind is not None:
        key, _, value = str(kind).partition(":")
        said.start("--cache-type-k", key, "--cache-type-v", value or key)
    longest = said.fields.pop("max_model_len", None)
    if isinstance(longest, int) and "ctx_size" not in said.args:
        cells = resolve(model, deployment, []).cells
        streams = 1 if cells.unified else cells.sequences
        said.start("--ctx-size", str(longest * streams))
    if said.fields.pop("draft_model", None) is not None:
        draft = deployment.draft_model
        found = draft if isinstance(draft, str) or draft is None else draft.origin or draft.name
        said.start("--model-draft", _gguf(str(found)))
        said.fields.setdefault("speculative_method", "draft")
    said.say_fields()
    pages = said.fields.pop("pipeline_parallel_size", None)
    if isinstance(pages, int):
        said.variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(pages)))
    for name in [name for name in said.args if name in OLLAMA or name == "rs_seq"]:
        said.told.append(f"{name} {said.args.pop(name)} is no flag of llama-server")
    said.say_args()


def _gguf(name: str) -> str:
    return name if name.lower().endswith(".gguf") else f"{name.rsplit('/', 1)[-1]}.gguf"


def _tensorrt(said: Words, model: ModelSpec, source: str) -> None:
    said.start("trtllm-serve", source)
    said.say_fields()
    share = said.args.pop("free_gpu_memory_fraction", None)
    if share is not None:
        said.start("--kv_cache_free_gpu_memory_fraction", str(share))
    said.say_args(sign="_", known=("max_seq_len", "max_batch_size", "max_beam_width"))
    cache: dict[str, object] = {}
    size = said.fields.pop("kv_cache_memory_bytes", None)
    if size is not None:
        found = logged_figures(plan(model, said.deployment), said.deployment.kv_cache_memory_bytes)
        cache["max_tokens"] = found.kv_cache_tokens
        said.told.append(f"trtllm-serve takes no bytes of a cache: {size} B are so many tokens")
    names = {"block_size": "tokens_per_block", "enable_prefix_caching": "enable_block_reuse"}
    names["mamba_ssm_cache_dtype"] = "mamba_ssm_cache_dtype"
    for name, theirs in names.items():
        if name in said.fields:
            cache[theirs] = said.fields.pop(name)
    config: dict[str, object] = {}
    for name in [*said.args]:
        value = said.args.pop(name)
        if name == "enable_attention_dp":
            config[name] = value
        elif name == "max_attention_window" and isinstance(value, str):
            cache[name] = [int(part) for part in value.split(",")]
        else:
            cache[name.removeprefix("kv_cache_config.")] = value
    if cache:
        config["kv_cache_config"] = cache
    if config:
        said.start("--config", _CONFIG)
        said.told.append(f"what has no flag goes into {_CONFIG}: {json.dumps(config)}")


def _lmdeploy(said: Words, model: ModelSpec, source: str) -> None:
    del model
    said.start("lmdeploy", "serve", "api_server", source)
    turbomind = said.deployment.engine_args.get("backend") == "turbomind"
    if turbomind and "num_gpu_blocks_override" in said.fields:
        blocks = said.fields.pop("num_gpu_blocks_override")
        said.start("--cache-max-entry-count", str(blocks))
    if said.fields.get("enable_prefix_caching") is False:
        del said.fields["enable_prefix_caching"]  # it is off unless it is named
    said.say_fields()
    off = said.args.get("enable_prefix_caching") is False
    if off:
        del said.args["enable_prefix_caching"]
    block = said.args.pop("block_size", None)
    if block is not None:
        said.start("--cache-block-seq-len", str(block))
    blocks = said.args.pop("num_gpu_blocks", None)
    if blocks is not None:
        said.fields["num_gpu_blocks"] = blocks
    said.say_args()


def _tgi(said: Words, model: ModelSpec, source: str) -> None:
    del model
    said.start("text-generation-launcher", "--model-id", source)
    said.fields.pop("block_size", None)  # its kernels decide
    said.say_variables()
    said.say_fields()
    said.say_args()


BUILDERS: dict[str, Builder] = {
    "vllm": _vllm,
    "vllm-ascend": _vllm,
    "vllm-tpu": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
    "tgi": _tgi,
}
"""Engine -> what puts its command together; the others are libraries."""
