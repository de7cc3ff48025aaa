"""Lines of vLLM, V0 and V1, and of its plugins for other chips."""

from __future__ import annotations

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["SHAPES"]

_V0 = (
    shape("blocks:", "{GPU|CUDA|cuda|rocm|cpu|hpu|npu|xpu|tpu} blocks: <num_gpu_blocks:blocks>"
          "[, #~CPU blocks: <num_cpu_blocks:blocks>]", keep="least", ends=True,
          phase="allocating"),
    shape("# CPU blocks", "# CPU blocks: ", says="v0"),
    shape("Memory profiling results:",
          "total_gpu_memory=<total_memory:GiB>GiB initial_memory_usage=<initial_memory:GiB>GiB"
          " peak_torch_memory=<peak_torch_memory:GiB>GiB"
          " memory_usage_post_profile=<post_profile_memory:GiB>GiB"
          " non_torch_memory=<non_torch_memory:GiB>GiB kv_cache_size=<available_kv_cache:GiB>GiB"
          " gpu_memory_utilization=<gpu_memory_utilization:share>", keep="least", opens=True,
          phase="allocating"),
    shape("the current vLLM instance can use",
          "total_gpu_memory (<total_memory:GiB>GiB) x gpu_memory_utilization"
          " (<gpu_memory_utilization:share>) = <requested_memory:GiB>GiB"),
    shape("model weights take",
          "model weights take <weights_memory:GiB>GiB; non_torch_memory takes"
          " <non_torch_memory:GiB>GiB; PyTorch activation peak memory takes"
          " <activation_memory:GiB>GiB; the rest of the memory reserved for KV Cache is"
          " <available_kv_cache:GiB>GiB", keep="least", opens=True, phase="allocating"),
    shape("The model's max seq len",
          "The model's max seq len (<max_model_len:tokens>) is larger than the maximum number of"
          " tokens that can be stored in KV cache (<kv_cache_tokens:tokens>)",
          keep="least", ends=True, fails=True, says="too_long_v0"),
)  # fmt: skip

_MEMORY = (
    shape("vailable KV cache memory", "Available KV cache memory: <available_kv_cache:GiB> GiB",
          keep="least", opens=True, phase="allocating"),
    shape("for KV cache on node", "set (<available_kv_cache:GiB>/<free_memory:GiB>) GiB for KV"
          " cache on node", keep="least", opens=True),  # the CPU backend
    shape("odel loading took", "Model loading took <weights_memory:GiB> {GB|GiB}", keep="most",
          phase="profiling"),
    shape("oading model weights took", "Loading model weights took <weights_memory:GiB> {GB|GiB}",
          keep="most", phase="profiling"),
    shape("raph capturing finished",
          "Graph capturing finished in <graph_seconds:count> secs, took <graph_memory:GiB> GiB",
          keep="most", phase="warming"),
    shape("stimated CUDA graph memory",
          "Estimated CUDA graph memory: <estimated_graph_memory:GiB> GiB total", keep="most"),
    shape("graph pool memory",
          "graph pool memory: <graph_memory:GiB> GiB (actual),"
          " <estimated_graph_memory:GiB> GiB (estimated)", keep="most"),
    shape("CUDA graph memory profiling is enabled",
          "current --gpu-memory-utilization=<gpu_memory_utilization:share-4> is equivalent to"
          " --gpu-memory-utilization=<utilization_without_graphs:share-4>"),
    shape("--gpu-memory-utilization from",
          "--gpu-memory-utilization from <gpu_memory_utilization:share-4> to"
          " <utilization_with_graphs:share-4> to maintain"),
    shape("Free memory on device",
          "Free memory on device (<free_memory:GiB>/<total_memory:GiB> GiB) on startup. Desired GPU"
          " memory utilization is (<gpu_memory_utilization:fraction>, <requested_memory:GiB>"
          " GiB)."),
    shape("Actual usage is",
          "Actual usage is <weights_memory:GiB> GiB for weight[s][(s)], <activation_memory:GiB> GiB"
          " for peak activation, <non_torch_memory:GiB> GiB for non-torch memory, and"
          " <graph_memory:GiB> GiB for CUDAGraph memory"),
    shape("Actual usage is",
          "Actual usage is <consumed_memory:GiB> GiB for consumed memory (weights + non-torch),"
          " <activation_memory:GiB> GiB for peak activation, and <graph_memory:GiB> GiB for"
          " CUDAGraph memory"),
    shape("to fit into requested memory",
          "`--kv-cache-memory[-bytes]=<suggested_to_fit:bytes>`[ (<suggested_to_fit_gib:GiB> GiB)]"
          " to fit into requested memory"),
    shape("to fully utilize gpu memory",
          "`--kv-cache-memory[-bytes]=<suggested_to_fill:bytes>`[ (<suggested_to_fill_gib:GiB>"
          " GiB)] to fully utilize gpu memory"),
    shape("Current kv cache memory in use is",
          "Current kv cache memory in use is <available_kv_cache:GiB> GiB", keep="least"),
    shape("Current kv cache memory in use is",
          "Current kv cache memory in use is <available_kv_cache:bytes> bytes", keep="least"),
    shape("is less than desired GPU memory utilization",
          "Free memory on device[ {cuda|npu|xpu|hpu}:<device:count>] (<free_memory:GiB>/"
          "<total_memory:GiB> GiB) on startup is less than desired GPU memory utilization"
          " (<gpu_memory_utilization:fraction>, <requested_memory:GiB> GiB)",
          ends=True, fails=True, says="others_hold"),
)  # fmt: skip

_SIZE = (
    shape("KV cache size:", "{GPU|CPU|NPU|TPU|XPU} KV cache size: <kv_cache_tokens:tokens> tokens",
          keep="least", ends=True),
    shape("Maximum concurrency for",
          "Maximum concurrency for <max_model_len:tokens> tokens per request:"
          " <max_concurrency:times>x", keep="least", ends=True),
    shape("max seq len", "To serve at least one request with the {models's|model's} max seq len"
          " (<max_model_len:tokens>)", ends=True, fails=True, says="too_long"),
    shape("KV cache is needed", "<needed_memory:GiB> {GB|GiB} KV cache is needed",
          keep="most", ends=True, fails=True, says="too_long"),
    shape("available KV cache memory",
          "larger than the available KV cache memory (<available_kv_cache:GiB> {GB|GiB})",
          keep="least", ends=True, fails=True, says="too_long"),
    shape("stimated maximum model length", "estimated maximum model length is"
          " <max_model_len_that_fits:tokens>",
          keep="least", ends=True, fails=True, says="too_long"),
    shape("No available memory for the cache blocks", "No available memory for the cache blocks",
          ends=True, fails=True, says="nothing_left"),
    shape("Overriding num_gpu_blocks",
          "Overriding num_gpu_blocks=<profiled_blocks:blocks> with"
          " num_gpu_blocks_override=<num_gpu_blocks_override:blocks>"),
    shape("to fit Mamba cache blocks", "to fit Mamba cache blocks (<num_gpu_blocks:blocks> blocks"
          " available)", keep="least"),
    shape("cache_config_info", 'num_gpu_blocks="<num_gpu_blocks:blocks>"'),
    shape("cache_config_info", 'num_cpu_blocks="<num_cpu_blocks:blocks>"'),
    shape("cache_config_info", 'swap_space_bytes="<swap_space_bytes:bytes>"'),
    shape("cache_config_info", 'kv_cache_size_tokens="<kv_cache_tokens:tokens>"'),
)  # fmt: skip

_SHAPE = (
    shape("etting attention block size to",
          "Setting attention block size to <attention_block_size:tokens> tokens"),
    shape("Padding mamba page size by", "Padding mamba page size by <state_padding:percent>%"),
    shape("padding layers, may waste",
          "Add <padding_layers:count> padding layers, may waste at most <padding_waste:percent>%",
          keep="sum"),
    shape("using group_size", "using group_size <group_size:count>"),
    shape("Hybrid KV cache manager is disabled", "Hybrid KV cache manager is disabled",
          says="no_hybrid_manager"),
    shape("to store kv cache", "Using <kv_cache_dtype:word> data type to store kv cache"),
    shape("fp8_ds_mla", "Using … fp8_ds_mla", says="fp8_ds_mla"),
    shape("fp8_ds_mla", "Using {DeepSeek's fp8_ds_mla|fp8_ds_mla}", says="fp8_ds_mla"),
    shape("Encoder cache will be initialized",
          "Encoder cache will be initialized with a budget of <encoder_budget:tokens> tokens"),
    shape("hunked prefill is enabled",
          "Chunked prefill is enabled with max_num_batched_tokens=<max_num_batched_tokens:tokens>"),
    shape("KV cache page size calculated by vLLM",
          "calculated by vLLM (<page_computed:bytes> Bytes) does not match with actual page size"
          " used by Attention kernel (<page_actual:bytes> Bytes)"),
)  # fmt: skip

_START = (
    shape("vLLM API server version", "vLLM API server version[:] <engine_version:word>",
          opens=True, once=True),
    shape("█  version ", "█ version <engine_version:word>", opens=True),  # its banner
    shape("LLM engine (v", "Initializing a[n] [V0 ][V1 ]LLM engine (v<engine_version:word>)"
          " with config:", opens=True, once=True),
    shape("esolved architecture", "Resolved architecture: <architecture:word>", keep="first"),
    shape("failed to start", "{EngineCore|Engine process|Engine core} failed to start",
          ends=True, fails=True, says="stopped"),
    shape("ngine core init", "Engine core initialization failed", ends=True, fails=True,
          says="stopped"),
    shape("lugin ascend", "Platform plugin ascend", says="ascend"),
    shape("NPU blocks", "NPU blocks", says="ascend"),
    shape("NPU graph memory", "NPU graph memory", says="ascend"),
    shape("latform plugin tpu", "Platform plugin tpu", says="tpu"),
)  # fmt: skip

_WORDING = (
    shape("KV cache is needed", "GB KV cache is needed", says="until 0.8.2"),
    shape("max seq len", "the models's max seq len", says="until 0.21.0"),
    shape("max seq len", "at least one request with the model's max seq len", says="since 0.22.0"),
    shape("conserving_memory", "conserving_memory", says="since 0.13.0"),
    shape("which also controls CPU memory", "which also controls CPU memory", says="since 0.22.0"),
    shape("flag also controls CPU memory", "flag also controls CPU memory", says="since 0.22.0"),
    shape("Actual usage is", "GiB for consumed memory", says="since 0.27.0"),
    shape("Actual usage is", "GiB for weight", says="until 0.26.0"),
    shape("raph memory profiling will be", "In v0.19, CUDA graph memory profiling will be",
          says="until 0.19.1"),
    shape("raph memory profiling is", "CUDA graph memory profiling is", says="since 0.20.0"),
    shape("stimated CUDA graph memory", "Estimated CUDA graph memory", says="since 0.18.0"),
    shape("Maximum concurrency for", "tokens, Maximum concurrency for", says="since 0.28.0"),
)  # fmt: skip
"""Words that a release brought or took away: they date a log whose lines name no source file
(v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py and gpu_model_runner.py)."""

_PHASES = (
    shape("tarting to load model", "Starting to load model", phase="loading"),
    shape("checkpoint shards", "Loading {safetensors|pt|npcache} checkpoint shards",
          phase="loading", joins=True),
    shape("oading drafter model", "Loading drafter model", phase="loading", joins=True),
    shape("apturing ", "Capturing {CUDA graph|the model for CUDA graphs|cudagraphs}",
          phase="capturing", joins=True),
    shape("raph capturing finished", "Graph capturing finished in", phase="warming"),
    shape("init engine (profile", "init engine (profile, create kv cache, warmup model) took",
          says="ready", phase="opening"),
    shape("tarting vLLM API server", "Starting vLLM API server", says="ready", phase="opening"),
    shape("vg prompt throughput", "Avg prompt throughput: ", says="ready", phase="serving"),
)  # fmt: skip
"""Lines that tell what a start does from then on (v1/worker/gpu_model_runner.py, model_loader/
weight_utils.py, v1/engine/core.py, entrypoints/openai/api_server.py)."""

SHAPES: tuple[Shape, ...] = (
    *_START, *_V0, *_MEMORY, *_SIZE, *_SHAPE, *_PHASES, *_WORDING,
)  # fmt: skip
"""vLLM 0.2 to 0.33; the files that print them are named beside the rules (engines/vllm)."""
