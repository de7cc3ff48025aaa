"""What the other rooms ask of LMDeploy: see `engines.engine`."""

from __future__ import annotations

from kvcalc.core.model import ModelSpec
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]

_FLAGS = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp",
    "data_parallel_size": "--dp",
    "kv_cache_dtype": "--quant-policy",
    "block_size": "--cache-block-seq-len",
    "max_model_len": "--session-len",
    "max_num_seqs": "--max-batch-size",
    "enable_prefix_caching": "--enable-prefix-caching",
}


class _Lmdeploy(Engine):
    share = "cache_max_entry_count"
    running = "max_batch_size"
    runs_replicas = True
    queues_for_cache = True
    own_flags = True
    flags = _FLAGS
    values = {"int4": "4", "int8": "8", "fp8": "fp8", "fp8_e4m3": "fp8"}
    machine = ("free_memory", "vocab_size", "flash_mla")

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        del model
        words.start("lmdeploy", "serve", "api_server", source)
        turbomind = words.deployment.engine_args.get("backend") == "turbomind"
        if turbomind and "num_gpu_blocks_override" in words.fields:
            blocks = words.fields.pop("num_gpu_blocks_override")
            words.start("--cache-max-entry-count", str(blocks))
        if words.fields.get("enable_prefix_caching") is False:
            del words.fields["enable_prefix_caching"]  # it is off unless it is named
        words.say_fields()
        off = words.args.get("enable_prefix_caching") is False
        if off:
            del words.args["enable_prefix_caching"]
        block = words.args.pop("block_size", None)
        if block is not None:
            words.start("--cache-block-seq-len", str(block))
        blocks = words.args.pop("num_gpu_blocks", None)
        if blocks is not None:
            words.fields["num_gpu_blocks"] = blocks
        words.say_args()
        return True


ENGINE = _Lmdeploy("lmdeploy")
