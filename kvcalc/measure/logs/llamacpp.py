"""Lines of llama.cpp and of what is built on it: llama-server, ollama, LM Studio, koboldcpp.

A start prints one line a cache (base, window, indexer, draft) and one a device; the former are
numbered in their order, so that none is taken for another.
"""

from __future__ import annotations

from functools import partial

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["SHAPES"]

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

SHAPES: tuple[Shape, ...] = (
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
