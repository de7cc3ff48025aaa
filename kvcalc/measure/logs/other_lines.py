"""Lines of llama.cpp, SGLang and the engines of few lines.

A start prints one line a cache (base, window, indexer, draft) and one a device; the former are
numbered in their order, so that none is taken for another.
"""

from __future__ import annotations

from functools import partial

from kvcalc.measure.logs.line_patterns import Shape, shape

__all__ = ["EXLLAMA", "LLAMACPP", "LMDEPLOY", "MLC", "SGLANG", "TENSORRT_LLM", "TGI"]

_BREAKDOWN = (
    "<device_self:MiB-floor> = <device_model:MiB-floor> + <device_context:MiB-floor> + "
    "<device_compute:MiB-floor>"
)
"""What common_memory_breakdown_print (llama_memory_breakdown_print until early 2026) says of a
buffer's owner: in whole MiB, rounded down. What is not accounted for wraps around below 0."""

_K_V = "[, K (<k_type:word>): <k_size:MiB> MiB, V (<v_type:word>): <v_size:MiB> MiB]"

_refuses = partial(shape, ends=True, fails=True)

_REFUSALS = (
    _refuses("requires flash_attn", "quantized V cache requires flash_attn",
             says="quantised-v-needs-flash"),
    _refuses("requires flash_attn", "V cache quantization requires flash_attn",
             says="quantised-v-needs-flash"),
    _refuses("requires Flash Attention", "quantized V cache was requested, but this requires Flash"
             " Attention", says="quantised-v-needs-flash"),
    _refuses("does not divide n_embd_head", "{K|V} cache type <refused_type:word> with block size"
             " <type_block:count> does not divide", says="cache-type-over-head"),
    _refuses("different K (", "does not support different K (<k_type:word>) and V (<v_type:word>)"
             " cache types", says="latent-cache-types"),
    _refuses("n_seq_max must be", "n_seq_max must be <= <most_sequences:count>",
             says="sequences-over-limit"),
    _refuses("SPLIT_MODE_TENSOR requires", "SPLIT_MODE_TENSOR requires flash_attn",
             says="split-needs-flash"),
    _refuses("SPLIT_MODE_TENSOR not", "SPLIT_MODE_TENSOR not implemented for architecture",
             says="split-not-served"),
    _refuses("support split buffers", "device <failed_device_name:word> does not support split"
             " buffers", says="split-rows-not-served"),
    _refuses("for main_gpu", "invalid value for main_gpu: <main_gpu:count> (available devices: "
             "<devices_there:count>)", says="main-gpu-out-of-range"),
    _refuses("input configs", "got <split_parts:count> input configs, but system only has "
             "<most_devices:count> devices", says="devices-over-limit"),
    _refuses("context type MTP", "context type MTP requested but model doesn't contain MTP layers",
             says="mtp-without-layers"),
)  # fmt: skip
"""Lines in which llama.cpp refuses to start, each by its code in engines/llamacpp/refusals.tsv."""

LLAMACPP: tuple[Shape, ...] = (
    *_REFUSALS,
    shape("build: ", "build: <build:count> (<commit:word>)", opens=True),
    shape("build = ", "build = <build:count> (<commit:word>)", opens=True),
    shape("version: ", "version: <build:count> (<commit:word>)", opens=True),
    shape("build_info: ", "build_info: b<build:count>-<commit:word>", opens=True),
    shape("loaded meta data", "llama_model_loader: loaded meta data with", opens=True,
          says="loading"),
    shape("loading draft model", "loading draft model", says="draft"),
    shape("draft context", "creating MTP draft context", says="mtp"),
    shape("compute capability", "Device <card_index:count>: <card:card>, compute capability",
          keep="first"),
    shape("inference compute", 'name="<card:quoted>"', keep="first"),
    shape("inference compute", 'description="<card:quoted>"', keep="first"),
    shape("using device ", "using device <device_name:word> (<card:card>)", keep="first"),
    shape("using device ", "using device <device:word> (…- <device_free:MiB-floor> MiB free",
          keep="latest"),
    shape("compute capability", "Device <card_index:count>: … VRAM: <total_memory:MiB-floor> MiB",
          keep="first"),
    shape("projected to use ", "projected to use <projected_memory:MiB-floor> MiB of {device|host}"
          " memory vs. <free_memory:MiB-floor> MiB of {free device|total host} memory"),
    shape("context size reduced from", "context size reduced from <full_context:tokens> to "
          "<fitted_context:tokens>"),
    shape("+ (", "- <device:word> (<card:card>) ~~~~| <device_total:MiB-floor> = "
          "<device_free:MiB-floor> + (~" + _BREAKDOWN + ") + <device_other:MiB-floor>",
          keep="latest", ends=True),
    shape("memory_breakdown_print", "- <device:word> ~~~~| " + _BREAKDOWN, keep="latest",
          ends=True),
    shape("print_info: ", "print_info: n_layer ~= <n_layer:count>", keep="first"),
    shape("n_ctx_train", "n_ctx_train ~= <n_ctx_train:tokens>", keep="first"),
    shape("n_head_kv ", "n_head_kv ~= <n_head_kv:count>", keep="first"),
    shape("n_embd_head_k ", "n_embd_head_k ~= <n_embd_head_k:count>", keep="first"),
    shape("n_embd_head_v ", "n_embd_head_v ~= <n_embd_head_v:count>", keep="first"),
    shape("n_embd_k_gqa ", "n_embd_k_gqa ~= <n_embd_k_gqa:count>", keep="first"),
    shape("n_embd_v_gqa ", "n_embd_v_gqa ~= <n_embd_v_gqa:count>", keep="first"),
    shape("n_swa ", "n_swa ~= <n_swa:tokens>", keep="first"),
    shape("model ftype", "model ftype ~= <ftype:quoted>", keep="first"),
    shape("file type ", "file type ~= <ftype:quoted>", keep="first"),
    shape("file size ", "file size ~= <file_size:size> (<bits_per_weight:times> BPW)",
          keep="first"),
    shape("model size ", "model size ~= <file_size:size> (<bits_per_weight:times> BPW)",
          keep="first"),
    shape("offloaded ", "offloaded <layers_on_gpu:count>/<layers_in_all:count> layers to GPU",
          keep="first"),
    shape("model buffer size", "<device:word> model buffer size ~= <model_buffer:MiB> MiB",
          keep="sum"),
    shape("n_ctx ", "{llama_context|llama_new_context_with_model|llama_init_from_model}:"
          " n_ctx ~= <n_ctx:tokens>", keep="first", changes=True),
    shape("n_ctx ", ": n_ctx ~= <n_ctx:tokens>", keep="first"),
    shape("server is listening", "server is listening", says="serving"),
    shape("server listening", "HTTP server listening", says="serving"),
    shape("slots are idle", "all slots are idle", says="serving"),
    shape("llama runner started", "llama runner started", says="serving"),
    shape("n_slots = ", "initializing[ slots], n_slots = <n_slots:count>[, n_ctx_slot = "
          "<n_ctx_slot:tokens>][, kv_unified = [']<kv_unified:word>[']]", ends=True),
    shape("n_slots=", "n_slots=<n_slots:count>", ends=True),
    shape("new slot", "new slot[,] {n_ctx_slot|n_ctx} = <n_ctx_slot:tokens>", ends=True),
    shape("n_ctx_slot=", "n_ctx_slot=<n_ctx_slot:tokens>", ends=True),
    shape("max context: ", "Slot <slot:count> - max context: <n_ctx_slot:tokens>", ends=True),
    shape("prompt cache is enabled", "prompt cache is enabled, size limit: <prompt_cache:MiB-floor>"
          " MiB"),
    shape("context checkpoint ", "created context checkpoint <checkpoint:count> of "
          "<checkpoints:count> (… n_tokens = <checkpoint_tokens:tokens>, size = "
          "<checkpoint_size:MiB> MiB)"),
    shape("n_ctx_per_seq", "n_ctx_per_seq ~= <n_ctx_seq:tokens>", keep="first"),
    shape("n_ctx_seq ", "n_ctx_seq ~= <n_ctx_seq:tokens>", keep="first"),
    shape("n_seq_max ", "n_seq_max ~= <n_seq_max:count>", keep="first"),
    shape("n_batch ", "n_batch ~= <n_batch:tokens>", keep="first"),
    shape("n_ubatch ", "n_ubatch ~= <n_ubatch:tokens>", keep="first"),
    shape("kv_unified ", "kv_unified ~= <kv_unified:word>", keep="first"),
    shape("flash_attn ", "flash_attn ~= <flash_attn:word>", keep="first"),
    shape("Flash Attention was auto", "Flash Attention was auto, set to <flash_set:word>"),
    shape("enabling flash_attn", "enabling flash_attn since it is required", says="flash"),
    shape("flash_attn is not", "flash_attn is not compatible with", says="no_flash"),
    shape("kv_size = ", "kv_size = <cells:count>, offload = <offload:count>, type_k = "
          "'<k_type:quoted>', type_v = '<v_type:quoted>', n_layer = <cache_layers:count>",
          keep="first"),
    shape("llama_kv_cache", "llama_kv_cache[_unified][_iswa]: size = <cache_size:MiB> MiB (~"
          "<cells:count> cells, <cache_layers:count> layers[, ~<cache_seqs:count>"
          "[/~<cache_streams:count>] seqs])" + _K_V, numbered=True, ends=True),
    shape("llama_memory_recurrent", "llama_memory_recurrent: size = <state_size:MiB> MiB (~"
          "<state_cells:count> cells, <state_layers:count> layers[, ~<state_seqs:count> seqs]"
          "[ <state_copies:count> rs_seq])[, R (<r_type:word>): <r_size:MiB> MiB,"
          " S (<s_type:word>): <s_size:MiB> MiB]", numbered=True, ends=True),
    shape("KV self size", "KV self size = <cache_size:MiB> MiB" + _K_V, numbered=True, ends=True),
    shape("KV self size", "KV self size = <cache_size:MiB> MiB, c^KV (<k_type:word>): <k_size:MiB>"
          " MiB, kv^T[ (<v_type:word>)]: {not used|<v_size:MiB> MiB}", numbered=True, ends=True),
    shape("kv self size", "kv self size = <cache_size:MiB> MB", numbered=True, ends=True),
    shape("creating non-SWA KV cache", "creating non-SWA KV cache, size = <cells_full:count> cells",
          keep="first"),
    shape("SWA KV cache, size", "creating SWA KV cache, size = <cells_window:count> cells",
          keep="first"),
    shape("KV buffer size", "<device:word> KV buffer size = <kv_buffer:MiB> MiB", keep="sum"),
    shape("RS buffer size", "<device:word> RS buffer size = <state_buffer:MiB> MiB", keep="sum"),
    shape("state buffer size", "<device:word> DSV4 <state_name:word> state buffer size = "
          "<compressor_buffer:MiB> MiB", keep="sum"),
    shape("LoRA buffer size", "<device:word> LoRA buffer size = <lora_buffer:MiB> MiB",
          keep="sum"),
    shape("llm_load_tensors", "llm_load_tensors: <device:word> buffer size = <model_buffer:MiB> "
          "MiB", keep="sum"),
    shape("mem required", "mem required ~= <host_weights:MiB> M[i]B", keep="first"),
    shape("VRAM used", "VRAM used~: <gpu_weights:MiB> M[i]B", keep="first"),
    shape("VRAM kv self", "VRAM kv self = <cache_on_gpu:MiB> M[i]B"),
    shape("compute buffer total", "compute buffer total size = <compute_total:MiB> M[i]B"),
    shape("VRAM scratch buffer", "VRAM scratch buffer: <scratch_buffer:MiB> M[i]B"),
    shape("total VRAM used", "total VRAM used: <gpu_used:MiB> M[i]B (model: <gpu_weights:MiB> M[i]B"
          ", context: <gpu_context:MiB> M[i]B)", ends=True),
    shape("compute buffer size", "<device:word> compute buffer size = <compute_buffer:MiB> MiB",
          keep="sum"),
    shape("output buffer size", "<device:word> output buffer size = <output_buffer:MiB> MiB",
          keep="first"),
    shape("allocating ", "allocating <failed_memory:MiB> MiB on device <failed_device:count>:"
          " <allocator:word> failed: out of memory", ends=True, fails=True,
          says="allocation"),
    shape("failed to allocate", "failed to allocate [<failed_device_name:word> ]buffer of size "
          "<failed_bytes:bytes>", ends=True, fails=True, says="allocation"),
    shape("failed to allocate", "failed to allocate {buffer|compute}", ends=True, fails=True,
          says="allocation"),
    shape("unable to allocate ", "unable to allocate <failed_device_name:word> buffer", ends=True,
          fails=True, says="allocation"),
    shape("for kv cache", "failed to allocate buffer for kv cache", ends=True, fails=True,
          says="cache_failed"),
    shape("failed to initialize the context", "failed to initialize the context", ends=True,
          fails=True, says="stopped"),
    shape("exiting due to model loading", "exiting due to model loading error", ends=True,
          fails=True, says="stopped"),
    shape("msg=offload", "layers.requested=<layers_requested:count> layers.model="
          "<layers_in_all:count> layers.offload=<layers_on_gpu:count>", opens=True),
    shape("model weights", 'msg="model weights" device=<device:word> size="<device_model:size>"',
          keep="latest"),
    shape("kv cache", 'msg="kv cache" device=<device:word> size="<device_context:size>"',
          keep="latest", ends=True),
    shape("compute graph", 'msg="compute graph" device=<device:word> size="<device_compute:size>"',
          keep="latest", ends=True),
    shape("total memory", 'msg="total memory" size="<used_memory:size>"'),
    shape("inference compute", 'total="<total_memory:size>" available="<free_memory:size>"',
          keep="first"),
    shape("llama server", "--ctx-size <asked_context:tokens>"),
    shape("llama server", "--parallel <asked_slots:count>"),
    shape("memory.required.full", 'memory.required.full="<estimated_full:size>"'),
    shape("memory.required.kv", 'memory.required.kv="<estimated_kv:size>"'),
    shape("memory.graph.full", 'memory.graph.full="<estimated_graph:size>"'),
    shape("memory.weights.total", 'memory.weights.total="<estimated_weights:size>"'),
)  # fmt: skip
"""llama.cpp since 2023 (llama-context.cpp, llama-kv-cache.cpp, llama-model.cpp), ik_llama.cpp, and
the scheduler of ollama, whose figures are estimates."""


# --------------------------------------------------------------------- sglang
#
# Lines of SGLang. It writes GB and divides by 2^30; one line a rank is normal.

SGLANG: tuple[Shape, ...] = (
    shape("server_args=", "server_args=", opens=True, says="starting"),
    shape("oad weight begin", "Load weight begin. avail mem=<free_before_weights:GiB> GB",
          keep="first", opens=True),
    shape("oad weight end", "Load weight end.…avail mem=<free_after_weights:GiB> GB",
          keep="least"),
    shape("oad weight end", "Load weight end.… mem usage=<weights_memory:GiB> GB",
          keep="most", numbered=True),
    shape("oad weight end", "Load weight end.… type=<architecture:word>", numbered=True),
    shape("oad weight end", "Load weight end.… dtype=torch.<dtype:word>,", keep="first"),
    shape("sing KV cache dtype", "Using KV cache dtype: torch.<kv_cache_dtype:word>", keep="first"),
    shape("KV Cache is allocated", "KV Cache is allocated. …#tokens: "
          "<kv_cache_tokens:tokens>", keep="least", numbered=True),
    shape("KV Cache is allocated", "KV Cache is allocated.…K size: <k_size:GiB> GB, V size: "
          "<v_size:GiB> GB", keep="least", numbered=True),
    shape("KV Cache is allocated", "KV Cache is allocated.…KV size: <kv_size:GiB> GB",
          keep="least", numbered=True),
    shape("amba Cache is allocated", "Mamba Cache is allocated.…max_mamba_cache_size: "
          "<state_slots:count>", keep="first"),
    shape("conv_state size", "conv_state size: <conv_state_size:GiB>GB, ssm_state size: "
          "<ssm_state_size:GiB>GB", keep="first"),
    shape("intermediate_ssm_state_cache", "intermediate_ssm_state_cache size: "
          "<proposed_ssm_size:GiB>GB[,] intermediate_conv_window_cache size: "
          "<proposed_conv_size:GiB>GB", keep="first"),
    shape("emory pool end", "Memory pool end. avail mem=<free_after_pool:GiB> GB", keep="least"),
    *(
        shape(f"{captured} {graphs} end", f"¬mem usage=<{name}:GiB> GB", keep="most")
        for captured, name in (
            ("apture", "graph_memory"),
            ("apture target decode", "graph_memory"),
            ("apture target verify", "graph_memory"),
            ("apture piecewise", "prefill_graph_memory"),
            ("apture target prefill", "prefill_graph_memory"),
            ("apture draft", "draft_graph_memory"),
            ("apture draft decode", "draft_graph_memory"),
            ("apture draft verify", "draft_graph_memory"),
            ("apture UNO tree draft", "draft_graph_memory"),
            ("apture draft extend", "draft_extend_graph_memory"),
            ("apture draft prefill", "draft_prefill_graph_memory"),
        )
        for graphs in ("cuda graph", "CUDA graph")
    ),
    shape("raph end", "avail mem=<free_after_graphs:GiB> GB", keep="least"),
    shape("nit torch distributed ends", "mem usage=<distributed_memory:GiB> GB", keep="most"),
    shape("KV cache allocated", "KV cache allocated. …#tokens: <kv_cache_tokens:tokens>, K size:"
          " <k_size:GiB> GB, V size: <v_size:GiB> GB", keep="least"),
    shape("KV cache allocated", "KV cache allocated. …#tokens: <kv_cache_tokens:tokens>, KV size:"
          " <kv_size:GiB> GB", keep="least"),
    shape("liding window memory pool", "full_layer_tokens=<full_tokens:tokens>", keep="least"),
    shape("liding window memory pool", "swa_layer_tokens=<window_tokens:tokens>", keep="least"),
    shape("SWAKVPool", "SWAKVPool mem usage: <pool_memory:GiB> GB, swa size:"
          " <window_tokens:tokens>, full size: <full_tokens:tokens>", keep="least"),
    shape("of the KV budget for post-sizing", "Reserving <image_memory:GiB> GB of the KV budget",
          keep="most"),
    shape("for hierarchical KV cache", "Allocating <host_memory:GB> GB host memory for"
          " hierarchical KV cache", keep="most"),
    shape("max_total_num_tokens=", "¬max_total_num_tokens=<max_total_num_tokens:tokens>",
          keep="least", ends=True),
    shape("max_total_num_tokens=", "chunked_prefill_size=<chunked_prefill_size:tokens>"),
    shape("max_total_num_tokens=", "max_running_requests=<max_running_requests:count>"),
    shape("max_total_num_tokens=", "max_prefill_tokens=<max_prefill_tokens:tokens>"),
    shape("max_total_num_tokens=", "available_gpu_mem=<free_after_start:GiB> GB", keep="least"),
    shape("context_len=", "context_len=<context_length:tokens>"),
    shape("emory profiling: available_gpu_memory",
          "available_gpu_memory=<free_after_weights:GiB> GB, total_gpu_memory=<total_memory:GiB>"
          " GB, mem_fraction_static=<mem_fraction_static:fraction>, rest_memory="
          "<available_kv_cache:GiB> GB", keep="least"),
    *(
        shape("memory calculation:", f"¬{printed}=<{name}:{kind}>", keep="least")
        for printed, name, kind in (
            ("bytes_per_full_token", "bytes_per_full_token", "bytes-2"),
            ("available_bytes", "available_kv_cache", "GiB"),
            ("full_token", "full_tokens", "tokens"),
            ("c128_state_fixed", "c128_state_memory", "GiB"),
            ("c2_state_fixed", "c2_state_memory", "GiB"),
            ("c4_state_fixed", "c4_state_memory", "GiB"),
            ("swa_fixed", "window_memory", "GiB"),
            ("swa_ring_fixed", "window_ring_memory", "GiB"),
        )
    ),
    shape("leave no GPU memory for the KV cache",
          "leave no GPU memory for the KV cache under --mem-fraction-static="
          "<mem_fraction_static:fraction>", ends=True, fails=True, says="nothing_left"),
    shape("Not enough memory. Please try to increase --mem-fraction-static",
          "Not enough memory. Please try to increase --mem-fraction-static",
          ends=True, fails=True, says="nothing_left"),
    shape("the profiled value -", "is larger than the profiled value -", ends=True, fails=True,
          says="nothing_left"),
    shape("is larger than the profiled value",
          "max_total_tokens=<max_total_tokens:tokens> is larger than the profiled value "
          "<profiled_tokens:tokens>", keep="least"),
    *(
        shape(words, words, ends=True, fails=True, says=code)
        for words, code in (
            ("assert self.total_num_heads % attn_tp_size", "heads-over-ranks"),
            ("assert cfg.tp_size % cfg.attn_dp_size", "groups-over-ranks"),
            ("assert self.tp_size % self.dp_size", "groups-over-ranks"),
            ("trtllm_mha backend can only be used with non-MLA", "no-attention-backend"),
            ("backend can only be used with MLA models", "no-attention-backend"),
            ("--kv-cache-dtype mxfp8 requires an SM100", "cache-dtype-refused"),
            ("only supports sm75 and above", "gpu-too-old"),
            ("disable-radix-cache are mutually exclusive", "contradiction"),
            ("state cache is too small to serve any requests", "no-room-for-requests"),
            ("must be divisible by number of nodes", "too-few-gpus"),
            ("To allow overriding this maximum, set the env var SGLANG_ALLOW", "length-over-model"),
            ("chunked_prefill_size must be divisible by page_size", "chunk-not-whole-pages"),
            ("Chunked prefill is aligned to", "chunk-not-whole-pages"),
            ("is not compatible with radix cache when using", "state-tracking"),
            ("no_buffer do not support overlap schedule", "state-tracking"),
            ("no_buffer only supports page_size=1", "state-tracking"),
            ("extra_buffer is not supported for", "state-tracking"),
            ("mamba extra_buffer is not compatible with --disable-radix-cache", "state-tracking"),
            ("trtllm_mha backend only supports topk = 1", "speculation-settings"),
            ("speculative_eagle_topk > 1 with page_size > 1 is", "speculation-settings"),
            ("standalone speculative decoding does not support dp", "speculation-settings"),
            ("ngram speculative decoding does not support dp", "speculation-settings"),
            ("not compatible with overlap schedule, speculative decoding", "speculation-settings"),
            ("Pipeline parallelism currently only supports EAGLE", "speculation-settings"),
            ("speculative decoding (MTP) is only supported on prefill", "speculation-settings"),
            ("for hybrid (mamba/linear-attention) state cache", "no-room-for-states"),
            ("leaves no room for the full KV pool", "no-memory-for-blocks"),
            ("max_running_request is zero", "no-room-for-requests"),
            ("Memory pool size is too small", "no-room-for-requests"),
            ("Not enough host memory available. Requesting", "host-cache-too-large"),
            ("The host memory should be larger than the device memory", "host-cache-too-small"),
        )
    ),
    shape("cannot hold even one request", "SWA pool (<window_tokens:tokens> tokens) cannot hold"
          " even one request…sliding_window_size (<window:tokens>) + page_size"
          " (<block_size:tokens>)", ends=True, fails=True, says="window-pool-too-small"),
    shape("for hybrid (mamba/linear-attention) state", "max_mamba_cache_size=<state_slots:count>"),
    shape("for hybrid (mamba/linear-attention) state",
          "mamba_cache_per_req=<state_memory:MiB> MB"),
    shape("state cache is too small to serve", "mamba_ratio=<states_per_request:count>"),
    shape("Not enough host memory available", "Requesting <host_memory:GB> GB but only have"
          " <host_free:GB> GB free"),
    shape("is greater than the derived context_length", "context_length (<max_model_len:tokens>)"
          " is greater than the derived context_length (<longest_of_model:tokens>)"),
    shape("#swa tokens", "#full tokens: <full_tokens:tokens>, #swa tokens: <window_tokens:tokens>",
          keep="least"),
    shape("apture cuda graph failed", "Capture cuda graph failed", ends=True, fails=True,
          says="graphs"),
    shape("full_max_total_num_tokens", "full_max_total_num_tokens[=][: ]<full_tokens:tokens>",
          keep="least"),
    shape("swa_max_total_num_tokens", "swa_max_total_num_tokens[=][: ]<window_tokens:tokens>",
          keep="least"),
)  # fmt: skip
"""SGLang 0.2 to 0.5.23: model_executor/model_runner.py, mem_cache/memory_pool.py."""


# --------------------------------------------------------------------- others
#
# Lines of TensorRT-LLM, LMDeploy, TGI, MLC-LLM, ExLlama and transformers' batching.

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
