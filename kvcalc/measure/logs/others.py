"""Lines of TensorRT-LLM, LMDeploy, TGI, MLC-LLM, ExLlama and transformers' batching."""

from __future__ import annotations

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["EXLLAMA", "LMDEPLOY", "MLC", "TENSORRT_LLM", "TGI"]

TENSORRT_LLM: tuple[Shape, ...] = (
    shape("TensorRT", "TensorRT[-][ ]LLM version: <engine_version:word>", opens=True),
    shape("bytes for k/v cache", "Allocate <pool_memory:bytes> bytes for k/v cache", ends=True),
    shape("tokens in paged KV cache", "Using <kv_cache_tokens:tokens> tokens in paged KV cache",
          ends=True),
    shape("calculating max tokens in paged kv cache",
          "calculating max tokens in paged kv cache: total: <total_memory:GiB> GiB, available:"
          " <free_memory:GiB> GiB"),
    shape("KV cache primary pool", "Number of blocks in KV cache primary pool:"
          " <num_gpu_blocks:blocks>"),
    shape("KV cache secondary pool", "KV cache secondary pool: <num_cpu_blocks:blocks>"),
    shape("secondary pool:", "secondary pool: <num_cpu_blocks:blocks>"),
    shape("tokens per block", "Number of tokens per block: <block_size:tokens>"),
    shape("for max tokens in paged KV cache",
          "Allocated <pool_memory:GiB> GiB for max tokens in paged KV cache"
          " (<kv_cache_tokens:some>)", ends=True),
    shape("KV cache pages per sequence", "Max KV cache pages per sequence:"
          " <blocks_per_sequence:blocks>"),
    shape("KV cache blocks per sequence", "Max KV cache blocks per sequence:"
          " <blocks_per_sequence:blocks>[ [window size=<window:tokens>]]"),
    shape("max_seq_len=", "max_seq_len=<max_model_len:tokens>, max_num_requests="
          "<max_num_seqs:count>, max_num_tokens=<max_num_batched_tokens:tokens>"),
    shape("exceeds the KV cache manager's maximum", "max KV cache length of input sequences"
          " (<asked_tokens:tokens>) exceeds the KV cache manager's maximum supported length"
          " (<max_model_len_that_fits:tokens>)", says="request_refused"),
    shape("device quota set to", "KV cache manager v2 device quota set to <pool_memory:GiB>~GiB",
          ends=True),
)  # fmt: skip
"""cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, trtGptModelInflightBatching.cpp, and the
PyTorch backend's; the estimating pass prints them before the final one, so that the last count."""

LMDEPLOY: tuple[Shape, ...] = (
    shape("[BlockManager] block_size", "block_size = <block_memory:MiB-floor> MB", opens=True),
    shape("[BlockManager] max_block_count", "max_block_count = <num_gpu_blocks:blocks>", ends=True),
    shape("[BlockManager] chunk_size", "chunk_size = <chunk_size:count>"),
    shape("cache_block_seq_len", "cache_block_seq_len[=][: ]<block_size:tokens>"),
    shape("bject cache budget", "Object cache budget: <pool_memory:MiB-own> MB from free"
          " <free_memory:MiB-own> MB and ratio <cache_max_entry_count:share>", ends=True),
    shape("`session_len`", "`session_len` truncated to <kv_cache_tokens:tokens> due to limited KV"
          " cache memory", ends=True),
    shape("`max_context_token_num`", "`max_context_token_num` is not set, default to"
          " <max_model_len:tokens>"),
    shape("Warm-up for", "Warm-up for <asked_tokens:tokens> tokens failed", ends=True, fails=True,
          says="warm_up"),
)  # fmt: skip
"""TurboMind: src/turbomind/models/llama/BlockManager.cc, engine/engine.cc."""

TGI: tuple[Shape, ...] = (
    shape("text_generation_launcher: Args", "Args", opens=True, says="starting"),
    shape("KV-cache blocks", "KV-cache blocks: <num_gpu_blocks:blocks>, size: <block_size:tokens>",
          ends=True, keep="least"),
    shape("max batch total tokens to", "Setting max batch total tokens to <kv_cache_tokens:tokens>",
          ends=True),
    shape("Not enough memory to handle", "Not enough memory to handle"
          " `max_total_tokens=<max_model_len:tokens>`", ends=True, fails=True, says="too_long"),
    shape("Not enough memory to handle", "Not enough memory to handle <asked_tokens:tokens> prefill"
          " tokens", ends=True, fails=True, says="prefill"),
)  # fmt: skip
"""text-generation-inference 2 and 3: server models/flash_causal_lm.py, backends/v3."""

MLC: tuple[Shape, ...] = (
    shape("actual engine mode is", 'The actual engine mode is "<mode:quoted>". So max batch size is'
          " <max_num_seqs:count>, max KV cache token capacity is <kv_cache_tokens:tokens>, prefill"
          " chunk size is <prefill_chunk_size:tokens>", ends=True, opens=True),
    shape("max_total_sequence_length", 'Estimated KVCacheConfig "max_total_sequence_length":'
          " <kv_cache_tokens:tokens>", ends=True),
    shape("single GPU memory usage", "Estimated total single GPU memory usage:"
          " <used_memory:MiB> MB (Parameters: <weights_memory:MiB> MB. KVCache:"
          " <pool_memory:MiB> MB. Temporary buffer: <activation_memory:MiB> MB", ends=True),
    shape("available single GPU memory is", "The available single GPU memory is <free_memory:MiB>"
          " MB, which is less than the sum of model weight size (<weights_memory:MiB> MB) and"
          " temporary buffer size (<activation_memory:MiB> MB)",
          ends=True, fails=True, says="nothing_left"),
)  # fmt: skip
"""cpp/serve/config.cc, InferForKVCache; MB is 2^20."""

EXLLAMA: tuple[Shape, ...] = (
    shape("nsufficient VRAM", "Insufficient VRAM {for|in split for} model and cache",
          ends=True, fails=True, says="allocation"),
)  # fmt: skip
"""ExLlamaV2, ExLlamaV3, TabbyAPI: no line about the cache, only the refusal."""
