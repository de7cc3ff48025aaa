"""What the other rooms ask of vLLM, and of its plugins: see `engines.engine`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import Term
from kvcalc.core.model import PARTITION, ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines.changes import Change
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine, Sizes

if TYPE_CHECKING:
    from kvcalc.weights.loading import Loading

__all__ = ["ASCEND", "ENGINE", "TPU"]

_BLOCKS = (16, 32, 64, 128)
_FEWER_TOKENS = 2048

_FLAGS = {
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


class _Plugin(Engine):
    """vLLM's settings, as its plugins have them."""

    share = "gpu_memory_utilization"
    divides_gpu = True
    longer = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    flags = _FLAGS
    prints_as: str | None = "vllm"

    def default_share(self, version: str | None) -> float:
        """Return gpu_memory_utilization as a release has it unasked."""
        from kvcalc.engines.vllm.rules import rules_of
        from kvcalc.engines.vllm.version import release

        return rules_of(release(self._release(version))).gpu_memory_utilization

    def left_on_gpu(
        self, term: Term, model: ModelSpec, deployment: Deployment, plan: CachePlan, **asked: Any
    ) -> Term:
        """Return the weights that cpu_offload_gb leaves on a GPU."""
        if "cpu_offload_gb" not in deployment.engine_args:
            return term
        from kvcalc.engines.vllm.offload import left_on_gpu

        return left_on_gpu(
            term,
            model,
            deployment,
            layers=asked["layers"],
            version=plan.engine_version or "",
            asked=asked["quantization"],
        )

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        """Put `vllm serve` together."""
        from kvcalc.engines.vllm.options import BACKEND_OPTION_SINCE, older_than
        from kvcalc.engines.vllm.version import release

        at = release(self._release(words.deployment.engine_version))
        words.start("vllm", "serve", source)
        if "kv_cache_memory_bytes" in words.fields and older_than(at, "kv_cache_memory_bytes"):
            _as_blocks(words, model, str(at))
        if "attention_backend" in words.fields and at.line < BACKEND_OPTION_SINCE:
            words.variables["VLLM_ATTENTION_BACKEND"] = str(words.fields.pop("attention_backend"))
        newer = [name for name in words.fields if older_than(at, name)]
        words.say_fields(without=tuple(newer))
        words.say_variables()
        _adapters(words)
        if "limit_mm_per_prompt" in words.args:
            words.start("--limit-mm-per-prompt", str(words.args.pop("limit_mm_per_prompt")))
        if "cudagraph_mode" in words.args:
            mode = str(words.args.pop("cudagraph_mode")).upper()
            words.start("--compilation-config", json.dumps({"cudagraph_mode": mode}))
        words.say_args()
        _vllm_speculation(words)
        return True

    @staticmethod
    def _release(version: str | None) -> str | None:
        """Return which release of vLLM a plugin's counts as: the newest known one."""
        del version
        return None


def _as_blocks(words: Words, model: ModelSpec, at: str) -> None:
    """Say a cache's bytes as the blocks that they come to: the release has no flag for bytes."""
    from kvcalc.core.capacity import capacity
    from kvcalc.engines import plan

    found = capacity(plan(model, words.deployment), words.deployment.kv_cache_memory_bytes)
    if found.num_blocks is None or "num_gpu_blocks_override" in words.fields:
        return
    size = words.fields.pop("kv_cache_memory_bytes")
    words.start("--num-gpu-blocks-override", str(found.num_blocks))
    words.told.append(
        f"vLLM {at} takes no bytes of a cache: {size} B are {found.num_blocks} blocks"
    )


def _adapters(words: Words) -> None:
    """Say the slots of adapters, which nothing makes without --enable-lora."""
    slots = {"max_loras", "max_lora_rank", "fully_sharded_loras"} & words.args.keys()
    if slots and "enable_lora" not in words.args:
        words.start("--enable-lora")


def _vllm_speculation(words: Words) -> None:
    method = words.fields.pop("speculative_method", None)
    tokens = words.fields.pop("num_speculative_tokens", None)
    drafted = "draft_model" in words.fields
    draft = words.draft()
    if method is None and tokens is None and not drafted:
        return
    method = method or ("draft_model" if drafted else "mtp")
    config = {"method": method, "model": draft, "num_speculative_tokens": tokens}
    config = {key: value for key, value in config.items() if value is not None}
    words.start("--speculative-config", json.dumps(config))
    if draft is None and method in ("eagle", "eagle3", "draft_model"):
        words.told.append(f'{method} needs a head: add "model": "..." to --speculative-config')


class _Vllm(_Plugin):
    prints_as = None
    logs_memory = True
    layer_partition = PARTITION
    unnamed_drafts = True
    share_to_try = 0.95
    steps_in_share = True
    may_drop_speculation = True
    assumes_draft = True
    runs_replicas = True
    queues_for_cache = True
    variables = {name: name for name in (PARTITION, "VLLM_ALLOW_LONG_MAX_MODEL_LEN")}
    on_loading = {
        "fp8": ("--quantization", "fp8"),
        "bnb-4bit": ("--quantization", "bitsandbytes"),
    }

    def levers(self, deployment: Deployment, plan: CachePlan, *, on_gpu: bool) -> Iterator[Change]:
        for size in range(2, deployment.tensor_parallel_size + 1):
            if deployment.tensor_parallel_size % size == 0:
                yield Change(
                    f"decode context parallel {size}",
                    {"decode_context_parallel_size": size},
                    caution="the same GPUs; ranks share a sequence's tokens",
                )
        if plan.reuse_tokens is not None:
            yield Change(
                "no prefix caching",
                {"enable_prefix_caching": False},
                caution="prompts are recomputed",
            )
        if deployment.disable_hybrid_kv_cache_manager:
            yield Change(
                "windows alone (hybrid manager)", {"disable_hybrid_kv_cache_manager": False}
            )
        for block in _BLOCKS:
            yield Change(f"blocks of {block}", {"block_size": block})
        yield Change(
            f"steps of {format_count(_FEWER_TOKENS)} tokens",
            {"max_num_batched_tokens": _FEWER_TOKENS},
            caution="slower prefill",
        )
        if on_gpu:
            yield Change("no CUDA graphs", {"enforce_eager": True}, caution="slower decoding")

    def keeping_once(self, times: int) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        return (({"decode_context_parallel_size": times}, {}),)

    def loading(self, model: ModelSpec, deployment: Deployment, plan: CachePlan) -> Loading:
        from kvcalc.engines.vllm.loading import loading

        return loading(model, deployment, plan)

    def layouts(self, layout: Change, sizes: Sizes) -> Iterator[Change]:
        if sizes.pp > 1:
            return
        for dcp in range(2, sizes.tp + 1):
            if sizes.tp % dcp == 0:
                own = {**layout.settings, "decode_context_parallel_size": dcp}
                yield Change(f"{layout.name}, DCP{dcp}", own)

    @staticmethod
    def _release(version: str | None) -> str | None:
        return version


class _Tpu(_Plugin):
    divides_gpu = False  # a chip is one server's


ENGINE = _Vllm("vllm")
ASCEND = _Plugin("vllm-ascend")
TPU = _Tpu("vllm-tpu")
