"""What the other rooms ask of TGI: see `engines.engine`."""

from __future__ import annotations

from kvcalc.core.model import ModelSpec
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]

_FLAGS = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--num-shard",
    "kv_cache_dtype": "--kv-cache-dtype",
    "max_model_len": "--max-total-tokens",
    "max_num_seqs": "--max-batch-size",
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
}


class _Tgi(Engine):
    running = "max_batch_size"
    cache_in_bytes = False
    takes_all_gpus = True
    own_flags = True
    counts_tokens = True
    kernels_set_blocks = True
    flags = _FLAGS
    values = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn"}
    variables = {
        "attention_backend": "ATTENTION",
        "enable_prefix_caching": "PREFIX_CACHING",
        "wiggle_room": "TGI_WIGGLE_ROOM",
    }
    machine = ("free_memory", "total_memory")

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        del model
        words.start("text-generation-launcher", "--model-id", source)
        words.fields.pop("block_size", None)  # its kernels decide
        words.say_variables()
        words.say_fields()
        words.say_args()
        return True


ENGINE = _Tgi("tgi")
