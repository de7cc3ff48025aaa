"""What the other rooms ask of SGLang: see `engines.engine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.size import ModelSize
from kvcalc.engines.changes import Change
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine, Sizes

if TYPE_CHECKING:
    from kvcalc.weights.loading import Loading, Tile

__all__ = ["ENGINE"]

_FLAGS = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp-size",
    "pipeline_parallel_size": "--pp-size",
    "data_parallel_size": "--dp-size",
    "decode_context_parallel_size": "--dcp-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--page-size",
    "max_model_len": "--context-length",
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
    "attention_backend": "--attention-backend",
    "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
}

_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TABLE_BYTES = 4
"""Tables of rotary positions stay in float32 on NVIDIA GPUs (layers/rotary_embedding/base.py)."""
_VARIABLES = (
    *("SGLANG_MAMBA_CONV_DTYPE", "SGLANG_MAMBA_SSM_DTYPE", "SGLANG_SWA_EVICTION_INTERVAL"),
    *("SGLANG_DSV4_COMPRESS_STATE_DTYPE", _LONGER),
)
_OFF = {
    "enable_prefix_caching": "--disable-radix-cache",
    "async_scheduling": "--disable-overlap-schedule",
}
_ON = {
    "enforce_eager": "--disable-cuda-graph",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-swa-memory",
}


class _Sglang(Engine):
    share = "mem_fraction_static"
    running = "max_running_requests"
    sequences = "max_running_requests"
    longer = _LONGER
    counts_stretched = False  # it takes max_position_embeddings as it stands
    two_nodes_of_ranks = True
    queues_for_cache = True
    own_flags = True
    logs_parts = True
    page_block_size = True
    flags = _FLAGS
    values = {"fp8": "fp8_e4m3", "fp4": "fp4_e2m1"}
    variables = {name: name for name in _VARIABLES}
    on_loading = {"fp8": ("--quantization", "fp8")}

    def sizes(self, deployment: Deployment) -> Sizes:
        from kvcalc.engines.sglang.arguments import Arguments, full_name
        from kvcalc.engines.sglang.flags import REFUSED
        from kvcalc.engines.sglang.parallel import parallel_of

        # What is not modelled says nothing about sizes: the plan tells of it.
        args = {k: v for k, v in deployment.engine_args.items() if full_name(k) not in REFUSED}
        known = msgspec.structs.replace(deployment, engine_args=args)
        found = parallel_of(known, Arguments(known), [])
        return Sizes(found.tp, found.pp, found.replicas, found.attn_dp)

    def levers(self, deployment: Deployment, plan: CachePlan, *, on_gpu: bool) -> Iterator[Change]:
        del deployment, plan
        yield Change(
            "no shared prefixes",
            {},
            {"disable_radix_cache": True},
            caution="prompts are recomputed",
        )
        if on_gpu:
            yield Change(
                "no CUDA graphs", {}, {"disable_cuda_graph": True}, caution="slower decoding"
            )
            yield Change(
                "chunks of 2,048 tokens",
                {},
                {"chunked_prefill_size": 2048},
                caution="slower prefill",
            )

    def loading(self, model: ModelSpec, deployment: Deployment, plan: CachePlan) -> Loading:
        """Return what SGLang makes of a checkpoint as it loads it.

        Experts in mxfp4 are rounded up to what their kernel reads (layers/quantization/mxfp4.py,
        create_weights): FlashInfer's on B200 and Marlin's to 128 and 256, until 0.5.10 to 256 both;
        Triton's to 64. With pipeline stages some models have their encoders on every stage
        (models/gemma3_mm.py), others on the first (models/qwen3_vl.py).
        """
        from kvcalc.weights.loading import Loading, padding

        size, gpu = model.size or ModelSize(), deployment.gpu
        made = Loading(dtype=plan.model_dtype, table_bytes=_TABLE_BYTES)
        if len(plan.ranks) > 1:
            made = made._replace(towers=("first", "every"))
        if "mxfp4" not in (size.expert_dtype, size.weights_dtype) or not size.num_experts:
            return made
        tiles: tuple[Tile, ...] = ((64, 1), (128, 256), (256, 256))
        capability = gpu.compute_capability if isinstance(gpu, GpuSpec) else None
        if capability is not None and not capability.startswith("10"):
            tiles = tiles[:-1]
        tp = deployment.tensor_parallel_size
        return made._replace(
            experts=padding(model, tp, tiles),
            note="experts in mxfp4 are padded to a kernel's tiles",
        )

    def keeping_once(self, times: int) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        """Return attention over groups of ranks that hold requests of their own."""
        return (({}, {"dp_size": times, "enable_dp_attention": True}),)

    def layouts(self, layout: Change, sizes: Sizes) -> Iterator[Change]:
        if sizes.pp == 1 and sizes.replicas == 1 and sizes.tp > 1:
            # Each rank is a group that holds requests of its own: their figures add up.
            yield Change(
                f"{layout.name}, DP attention",
                {**layout.settings, "data_parallel_size": sizes.tp},
                {"enable_dp_attention": True},
            )

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        words.start("python", "-m", "sglang.launch_server", "--model-path", source)
        size = words.fields.get("kv_cache_memory_bytes")
        if size is not None and "max_total_tokens" not in words.args:
            from kvcalc.core.capacity import logged_figures
            from kvcalc.engines import plan

            tokens = logged_figures(
                plan(model, words.deployment), words.deployment.kv_cache_memory_bytes
            )
            words.fields.pop("kv_cache_memory_bytes")
            words.args["max_total_tokens"] = tokens.kv_cache_tokens
            words.told.append(f"SGLang takes no bytes of a cache: {size} B are so many tokens")
        words.say_fields()
        for name, flag in _OFF.items():
            if words.fields.pop(name, None) is False:
                words.start(flag)
        for name, flag in _ON.items():
            if words.fields.pop(name, None):
                words.start(flag)
        if words.fields.pop("enable_expert_parallel", None):
            words.start("--ep-size", str(words.deployment.tensor_parallel_size))
        _sglang_speculation(words)
        words.say_variables()
        for name in [name for name, value in words.args.items() if value is False]:
            del words.args[name]  # its switches are off unless they are named
        words.say_args()
        return True


def _sglang_speculation(words: Words) -> None:
    from kvcalc.engines.sglang.speculation import ALGORITHMS

    method = words.fields.pop("speculative_method", None)
    tokens = words.fields.pop("num_speculative_tokens", None)
    drafted = "draft_model" in words.fields
    draft = words.draft()
    if method is None and (tokens is not None or drafted):
        method = "draft_model" if drafted else "mtp"
    if method is not None and "speculative_algorithm" not in words.args:
        words.start("--speculative-algorithm", ALGORITHMS[str(method)])
    if isinstance(tokens, int):
        words.start("--speculative-num-steps", str(tokens))
        if method != "ngram" and "speculative_eagle_topk" not in words.args:
            # SGLang takes all three numbers or none.
            words.start("--speculative-eagle-topk", "1")
            if "speculative_num_draft_tokens" not in words.args:
                words.start("--speculative-num-draft-tokens", str(tokens + 1))
    if draft is not None:
        words.start("--speculative-draft-model-path", draft)
    elif method in ("eagle", "eagle3", "draft_model"):
        words.told.append(f"{method} needs a head: add --speculative-draft-model-path")


ENGINE = _Sglang("sglang")
