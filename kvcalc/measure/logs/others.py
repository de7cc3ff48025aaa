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
          " <blocks_per_sequence:blocks>"),
    shape("blocks per sequence", "window size=<window:tokens>"),
    shape("primary blocks=", "tokens per block=<block_size:tokens>, primary blocks="
          "<num_gpu_blocks:blocks>"),
    shape("primary blocks=", "secondary blocks=<num_cpu_blocks:blocks>"),
    shape("primary blocks=", "max sequence length=<max_model_len:tokens>"),
    shape("max_seq_len=", "max_seq_len=<max_model_len:tokens>, max_num_requests="
          "<max_num_seqs:count>, max_num_tokens=<max_num_batched_tokens:tokens>"),
    shape("Adjusted max_seq_len to", "Adjusted max_seq_len to <max_model_len:tokens>"),
    shape("in memory usage profiling:", "after loading model weights (inside torch) in memory usage"
          " profiling: <torch_after_weights:GiB> GiB", keep="most"),
    shape("in memory usage profiling:", "after loading model weights (outside torch) in memory"
          " usage profiling: <other_after_weights:GiB> GiB", keep="most"),
    shape("in memory usage profiling:", "during inference (inside torch) in memory usage profiling:"
          " <activation_memory:GiB> GiB", keep="most"),
    shape("in memory usage profiling:", "outside torch (e.g., NCCL and CUDA graphs) in memory usage"
          " profiling: <outside_torch_memory:GiB> GiB", keep="most"),
    *(
        shape("during memory usage profiling", template)
        for template in (
            "(torch + non-torch): <peak_memory:GiB> GiB",
            "when calculating max tokens: <available_kv_cache:GiB> GiB",
            "fraction is set <free_gpu_memory_fraction:fraction>",
            "kv size [per token ]is <bytes_per_token:bytes-2>",
            "device total memory <total_memory:GiB> GiB",
            "{tmp kv_mem|temporary kv cache memory during profiling} <profiled_cache:GiB> GiB",
        )
    ),
    shape("max memory in KV cache", "Estimated max memory in KV cache : <estimated_cache:GiB> GiB",
          keep="least"),
    shape("max tokens in KV cache", "Estimated max tokens in KV cache : <kv_cache_tokens:tokens>",
          keep="least"),
    shape("for model weights.", "Use <model_storage:GiB> GB for model weights", keep="most"),
    shape("ttention window size", "Attention window size <asked_window:tokens> exceeds upper bound"
          " <largest_window:tokens>"),
    shape("GPU memory for runtime buffers", "Allocated <runtime_buffers:size> GPU memory for"
          " runtime buffers"),
    shape("GPU memory for decoder", "Allocated <decoder_buffers:size> GPU memory for decoder"),
    shape("ttention workspace size", "increase the size from … bytes to"
          " <attention_workspace:bytes> bytes", keep="most"),
    shape("due to insufficient GPU memory", "Executor creation failed due to insufficient GPU"
          " memory", ends=True, fails=True, says="component-without-memory"),
    shape("component could not be created", "component could not be created:"
          " <component:card>"),
    shape("Total GPU memory (GiB)", "Total GPU memory (GiB): <total_memory:GiB>"),
    shape("before component creation attempt", "before component creation attempt (GiB):"
          " <free_before_component:GiB>"),
    shape("Impossible to fit in any sequence", "Impossible to fit in any sequence in kvCache",
          ends=True, fails=True, says="no-memory-for-blocks"),
    shape("mamba hybrid cache requires block reuse", "mamba hybrid cache requires block reuse to be"
          " disabled", ends=True, fails=True, says="prefixes-of-states"),
    shape("maxTokensInPagedKvCache must be large", "maxTokensInPagedKvCache must be large enough to"
          " process at least 1 sequence", ends=True, fails=True, says="length-over-cache"),
    shape("% tokensPerBlock == 0", "maxNumTokens.value() % tokensPerBlock == 0", ends=True,
          fails=True, says="chunk-not-whole-pages"),
    shape("tp_size must equal to moe_tp_size", "tp_size must equal to moe_tp_size * moe_ep_size",
          ends=True, fails=True, says="experts-over-ranks"),
    shape("TRTGptModel max", "TRTGptModel maxBatchSize: <max_num_seqs:count>"),
    shape("TRTGptModel max", "TRTGptModel maxSequenceLen: <max_model_len:tokens>"),
    shape("TRTGptModel max", "TRTGptModel maxNumTokens: <max_num_batched_tokens:tokens>"),
    shape("exceeds the KV cache manager's maximum", "max KV cache length of input sequences"
          " (<asked_tokens:tokens>) exceeds the KV cache manager's maximum supported length"
          " (<max_model_len_that_fits:tokens>)", says="request_refused"),
    shape("host cache quota set to", "host cache quota set to <host_memory:GiB>~GiB"),
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
    shape("CacheConfig(max_batches=", "CacheConfig(max_batches=<max_num_seqs:count>, block_size="
          "<block_size:tokens>, num_cpu_blocks=<num_cpu_blocks:blocks>, num_gpu_blocks="
          "<num_gpu_blocks:blocks>", ends=True, says="pytorch"),
    shape("CacheConfig(max_batches=", "max_prefill_token_num=<max_num_batched_tokens:tokens>"),
    shape("CacheConfig(max_batches=", "cache_max_entry_count=<cache_max_entry_count:fraction>"),
    shape("Update max_prefill_token_num=", "No enough memory.…Update max_prefill_token_num="
          "<max_num_batched_tokens:tokens>"),
    shape("No enough gpu memory for", "No enough gpu memory for {kv cache|runtime}", ends=True,
          fails=True, says="nothing_left"),
    shape("No enough host memory for", "No enough host memory for kv cache", ends=True, fails=True,
          says="host-cache-too-large"),
    shape("Warm-up for", "Warm-up for <asked_tokens:tokens> tokens failed", ends=True, fails=True,
          says="warm_up"),
)  # fmt: skip
"""TurboMind: src/turbomind/models/llama/BlockManager.cc, engine/engine.cc; PyTorch engine 0.7 to
0.18: pytorch/engine/executor/base.py (model_agent.py before)."""

TGI: tuple[Shape, ...] = (
    shape("text_generation_launcher: Args", "Args", opens=True, says="starting"),
    shape("KV-cache blocks", "KV-cache blocks: <num_gpu_blocks:blocks>, size: <block_size:tokens>",
          ends=True, keep="least"),
    shape("max batch total tokens to", "Setting max batch total tokens to <kv_cache_tokens:tokens>",
          ends=True),
    shape("Inferred max batch total", "Inferred max batch total tokens: <kv_cache_tokens:tokens>",
          ends=True),
    shape("must be <= `max_batch_total_tokens`", "`max_total_tokens` must be <="
          " `max_batch_total_tokens`. Given: <max_model_len:tokens> and <kv_cache_tokens:tokens>",
          ends=True, fails=True, says="too_long"),
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
    shape("kv_bytes_per_token", 'kv_bytes_per_token["][=][:][ ]<kv_bytes_per_token:bytes-2>'),
    shape("without KV cache", "Total memory usage without KV cache: <used_memory:MiB> MB"
          " (Parameters: <weights_memory:MiB> MB. Temporary buffer: <activation_memory:MiB> MB"),
    shape("per token in the context window", "KV cache size: <token_memory:MiB> MB per token in the"
          " context window"),
)  # fmt: skip
"""cpp/serve/config.cc, InferForKVCache, cli/model_metadata.py; MB is 2^20."""

EXLLAMA: tuple[Shape, ...] = (
    shape("nsufficient VRAM", "Insufficient VRAM {for|in split for} model and cache",
          ends=True, fails=True, says="allocation"),
)  # fmt: skip
"""ExLlamaV2, ExLlamaV3, TabbyAPI: no line about the cache, only the refusal."""
