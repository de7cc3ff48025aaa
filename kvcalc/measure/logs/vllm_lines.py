"""Lines of vLLM: of its start, of its memory, and those in which it refuses to start."""

from __future__ import annotations

from functools import partial

from kvcalc.measure.logs.line_patterns import Shape, shape

__all__ = ["VLLM", "VLLM_REFUSALS"]

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

VLLM: tuple[Shape, ...] = (
    *_START, *_V0, *_MEMORY, *_SIZE, *_SHAPE, *_PHASES, *_WORDING,
)  # fmt: skip
"""vLLM 0.2 to 0.33; the files that print them are named beside the rules (engines/vllm)."""


# --------------------------------------------------------------------- vllm refusals
#
# Lines in which vLLM refuses to start, each by its code in kvcalc/engines/vllm/refusals.tsv.

_refuses = partial(shape, ends=True, fails=True)

_STEP = (
    _refuses("is smaller than max_model_len",
             "max_num_batched_tokens (<max_num_batched_tokens:tokens>) is smaller than"
             " max_model_len (<max_model_len:tokens>)", says="prompt-over-step"),
    _refuses("greater than or equal to max_num_seqs",
             "max_num_batched_tokens (<max_num_batched_tokens:tokens>) must be greater than or"
             " equal to max_num_seqs (<max_num_seqs:count>)", says="step-below-sequences"),
    _refuses("max_num_active_seqs (", "max_num_active_seqs (<max_num_active_seqs:count>) cannot be"
             " greater than max_num_seqs (<max_num_seqs:count>)", says="active-over-sequences"),
    _refuses("max_long_partial_prefills",
             "{self.max_long_partial_prefills=|max_long_partial_prefills (}"
             "<max_long_partial_prefills:count>…{self.|}max_num_partial_prefills{=| (}"
             "<max_num_partial_prefills:count>", says="partial-prefills"),
    _refuses("long_prefill_token_threshold (", "long_prefill_token_threshold"
             " (<long_prefill_token_threshold:tokens>) cannot be greater than the max_model_len"
             " (<max_model_len:tokens>)", says="threshold-over-length"),
    _refuses("Mamba cache align mode", "In Mamba cache align mode, block_size"
             " (<attention_block_size:tokens>) must be <= max_num_batched_tokens"
             " (<max_num_batched_tokens:tokens>)", says="block-over-step"),
    _refuses("hunked prefill is required for",
             "Chunked prefill is required for {mamba cache mode|Mamba prefix caching}",
             says="prefixes-need-chunks"),
    _refuses("hunked MM input is required", "Chunked MM input is required",
             says="prefixes-need-chunks"),
    _refuses("hunked MM input disabled",
             "Chunked MM input disabled but max_tokens_per_mm_item (<item_tokens:tokens>) is larger"
             " than max_num_batched_tokens (<max_num_batched_tokens:tokens>)",
             says="encoder-over-step"),
    _refuses("max_num_scheduled_tokens is set to",
             "max_num_scheduled_tokens is set to <scheduled_tokens:count> based on the speculative"
             " decoding settings, which does not allow", says="step-below-drafts"),
    _refuses("does not have enough slots", "does not have enough slots to schedule a token and"
             " support the speculative decoding settings", says="step-below-drafts"),
    _refuses("onsider increasing max_num_batched_tokens", "Consider increasing"
             " max_num_batched_tokens or decreasing num_speculative_tokens",
             says="step-below-adapter-drafts"),
    _refuses("o valid cudagraph sizes", "No valid cudagraph sizes after rounding to multiple of"
             " <graph_multiple:count>", says="graphs-below-proposals"),
    _refuses("must be divisible by", "num_speculative_tokens:<num_speculative_tokens:count> must be"
             " divisible by n_predict=<n_predict:count>", says="proposals-not-divided"),
    _refuses("same vocabulary size", "Target and draft model should have the same vocabulary size."
             " Target model vocab_size=<target_rows:count>. Draft model vocab_size="
             "<draft_rows:count>", says="draft-vocabulary"),
    _refuses("sync scheduling is not", "Async scheduling is not {supported with"
             " pipeline-parallel-size|yet compatible with pipeline_parallel_size} > 1",
             says="async-with-stages"),
    _refuses("sync scheduling is only supported", "async scheduling is only supported with EAGLE",
             says="async-with-proposals"),
)  # fmt: skip

_SPLIT = (
    _refuses("Total number of attention heads", "Total number of attention heads (<heads:count>)"
             " must be divisible by tensor parallel size (<tensor_parallel_size:count>)",
             says="heads-over-ranks"),
    _refuses("is not divisible by", "AssertionError: <width:count> is not divisible by"
             " <tensor_parallel_size:count>", says="width-over-ranks"),
    _refuses("divisible by weight quantization", "<rank_width:count> is not divisible by weight"
             " quantization {block_n|block_k} = <quantised_group:count>",
             says="quantised-width-over-ranks"),
    _refuses("is not divisible by", "<rank_width:count> is not divisible by {min_thread_n|"
             "min_thread_k} = <quantised_group:count>", says="kernel-width-over-ranks"),
    _refuses("size is not aligned with", "The {input|output} size is not aligned with the quantized"
             " weight shape", says="kernel-width-over-ranks"),
    _refuses("Number of experts in the model", "Number of experts in the model must be greater than"
             " 0 when expert parallelism is enabled", says="experts-needed"),
    _refuses("ipeline parallelism is", "Pipeline parallelism is {not supported for this model|only"
             " supported for the following}", says="stages-not-served"),
    _refuses("does not match", "{partitions)=|partitions}<partition:count> does not match"
             " {pp_size|num_hidden_layers}=<partition_wanted:count>", says="stage-partition"),
    _refuses("KV sharing target layer", "Specified KV sharing target layer for <layer:word> is not"
             " valid", says="shared-kv-over-stages"),
    _refuses("than total num kv heads", "tensor parallel size <tensor_parallel_size:count> must be"
             " greater than total num kv heads <heads:count>", says="context-parallel-over-heads"),
    _refuses("ecode context parallel", "{decode context parallel size must less than or equal to|"
             "Decode context parallelism for GQA/MQA requires}",
             says="context-parallel-over-heads"),
    _refuses("decode-context-parallel-size", "`--decode-context-parallel-size` (<dcp:count>)"
             " {exceeds the maximum|for GQA/MQA}", says="context-parallel-over-heads"),
    _refuses("than max local gpu count", "tensor_parallel_size (<tensor_parallel_size:count>) to"
             " less than max local gpu count (<node_gpus:count>)", says="too-few-gpus"),
    _refuses("World size (", "World size (<world_size:count>) is larger than the number of"
             " available GPUs (<node_gpus:count>)", says="too-few-gpus"),
)  # fmt: skip

_CHOICES = (
    _refuses("derived max_model_len", "max_model_len (<max_model_len:tokens>) is greater than the"
             " derived max_model_len (<length_key:word>=<longest_of_model:count>[.0] ",
             says="length-over-model"),
    _refuses("are not supported for now", "Model architectures \\['<architecture:quoted>'… are"
             " not supported for now", says="unserved-model"),
    _refuses("re-initialize the input batch", "Cannot re-initialize the input batch when CPU"
             " weight offloading is enabled", says="cpu-offload-groups"),
    _refuses("is only supported on GPUs", "Bfloat16 is only supported on GPUs with compute"
             " capability of at least 8.0", says="bfloat16-on-old-gpu"),
    _refuses("does not support float16", "does not support float16. Reason",
             says="float16-refused"),
    _refuses("fp8_e5m2 kv-cache", "fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
             says="fp8-e5m2-checkpoint"),
    _refuses("nvfp4 KV cache", "nvfp4 KV cache is not supported with MLA", says="nvfp4-with-mla"),
    _refuses("o valid attention backend", "No valid attention backend found",
             says="no-attention-backend"),
    _refuses("argument --block-size", "argument --block-size: invalid choice",
             says="block-not-taken"),
    _refuses("argument --max-lora-rank", "argument --max-lora-rank: invalid choice",
             says="adapter-rank"),
    _refuses("max_lora_rank (", "max_lora_rank (<max_lora_rank:count>) must be one of",
             says="adapter-rank"),
    _refuses("max_cpu_loras (", "max_cpu_loras (<max_cpu_loras:count>) must be >= max_loras"
             " (<max_loras:count>)", says="adapters-on-host"),
    _refuses("to one unified type", "KV cache specs to one unified type",
             says="hybrid-manager-needed"),
    _refuses("the maximum page size", "is not divisible by the maximum page size",
             says="pages-not-equal"),
    _refuses("oo large swap space", "Too large swap space. <swap_space:GiB> GiB out of the"
             " <host_memory:GiB> GiB total CPU memory", says="swap-over-host"),
    _refuses("rror in memory profiling", "Error in memory profiling. Initial free memory"
             " <free_before:GiB> GiB, current free memory <free_after:GiB> GiB",
             says="memory-freed-meanwhile"),
)  # fmt: skip

_STATES = (
    _refuses("available Mamba cache blocks", "max_num_seqs (<max_num_seqs:count>) exceeds available"
             " Mamba cache blocks (<num_gpu_blocks:blocks>)", keep="least",
             says="sequences-over-state-blocks"),
    _refuses("num_cache_lines", "assert num_cache_lines >= batch", says="graphs-over-state-blocks"),
)  # fmt: skip

VLLM_REFUSALS: tuple[Shape, ...] = (*_STATES, *_STEP, *_SPLIT, *_CHOICES)
"""Of vLLM 0.2 to 0.33; the files that print them stand in the table."""
