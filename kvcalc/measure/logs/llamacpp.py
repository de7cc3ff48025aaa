"""Lines of llama.cpp and of what is built on it: llama-server, ollama, LM Studio, koboldcpp.

A start prints one line a cache (base, window, indexer, draft) and one a device; the former are
numbered in their order, so that none is taken for another.
"""

from __future__ import annotations

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["SHAPES"]

_K_V = "[, K (<k_type:word>): <k_size:MiB> MiB, V (<v_type:word>): <v_size:MiB> MiB]"

SHAPES: tuple[Shape, ...] = (
    shape("build: ", "build: <build:count> (<commit:word>)", opens=True),
    shape("build = ", "build = <build:count> (<commit:word>)", opens=True),
    shape("version: ", "version: <build:count> (<commit:word>)", opens=True),
    shape("build_info: ", "build_info: b<build:count>-<commit:word>", opens=True),
    shape("loaded meta data", "llama_model_loader: loaded meta data with", opens=True,
          says="loading"),
    shape("loading draft model", "loading draft model", says="draft"),
    shape("compute capability", "Device <card_index:count>: <card:card>, compute capability",
          keep="first"),
    shape("inference compute", 'name="<card:quoted>"', keep="first"),
    shape("inference compute", 'description="<card:quoted>"', keep="first"),
    shape("using device ", "using device <device_name:word> (<card:card>)", keep="first"),
    shape("print_info: ", "print_info: n_layer ~= <n_layer:count>", keep="first"),
    shape("n_ctx_train", "n_ctx_train ~= <n_ctx_train:tokens>", keep="first"),
    shape("n_head_kv ", "n_head_kv ~= <n_head_kv:count>", keep="first"),
    shape("n_embd_head_k ", "n_embd_head_k ~= <n_embd_head_k:count>", keep="first"),
    shape("n_embd_head_v ", "n_embd_head_v ~= <n_embd_head_v:count>", keep="first"),
    shape("n_embd_k_gqa ", "n_embd_k_gqa ~= <n_embd_k_gqa:count>", keep="first"),
    shape("n_embd_v_gqa ", "n_embd_v_gqa ~= <n_embd_v_gqa:count>", keep="first"),
    shape("n_swa ", "n_swa ~= <n_swa:tokens>", keep="first"),
    shape("model ftype", "model ftype ~= <ftype:word>", keep="first"),
    shape("offloaded ", "offloaded <layers_on_gpu:count>/<layers_in_all:count> layers to GPU",
          keep="first"),
    shape("model buffer size", "<device:word> model buffer size ~= <model_buffer:MiB> MiB",
          keep="sum"),
    shape("n_ctx ", "{llama_context|llama_new_context_with_model|llama_init_from_model}:"
          " n_ctx ~= <n_ctx:tokens>", keep="first", changes=True),
    shape("n_ctx ", "n_ctx ~= <n_ctx:tokens>", keep="first"),
    shape("server is listening", "server is listening", says="serving"),
    shape("n_ctx_per_seq", "n_ctx_per_seq ~= <n_ctx_seq:tokens>", keep="first"),
    shape("n_ctx_seq ", "n_ctx_seq ~= <n_ctx_seq:tokens>", keep="first"),
    shape("n_seq_max ", "n_seq_max ~= <n_seq_max:count>", keep="first"),
    shape("n_batch ", "n_batch ~= <n_batch:tokens>", keep="first"),
    shape("n_ubatch ", "n_ubatch ~= <n_ubatch:tokens>", keep="first"),
    shape("kv_unified ", "kv_unified ~= <kv_unified:word>", keep="first"),
    shape("flash_attn ", "flash_attn ~= <flash_attn:word>", keep="first"),
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
    shape("KV self size", "KV self size = <cache_size:MiB> MiB" + _K_V, ends=True),
    shape("KV self size", "KV self size = <cache_size:MiB> MiB, c^KV (<k_type:word>): <k_size:MiB>"
          " MiB, kv^T", ends=True),
    shape("kv self size", "kv self size = <cache_size:MiB> MB", ends=True),
    shape("creating non-SWA KV cache", "creating non-SWA KV cache, size = <cells_full:count> cells",
          keep="first"),
    shape("SWA KV cache, size", "creating SWA KV cache, size = <cells_window:count> cells",
          keep="first"),
    shape("KV buffer size", "<device:word> KV buffer size = <kv_buffer:MiB> MiB", keep="sum"),
    shape("RS buffer size", "<device:word> RS buffer size = <state_buffer:MiB> MiB", keep="sum"),
    shape("compute buffer size", "<device:word> compute buffer size = <compute_buffer:MiB> MiB",
          keep="sum"),
    shape("output buffer size", "<device:word> output buffer size = <output_buffer:MiB> MiB",
          keep="first"),
    shape("allocating ", "allocating <failed_memory:MiB> MiB on device <failed_device:count>:"
          " <allocator:word> failed: out of memory", ends=True, fails=True,
          says="allocation"),
    shape("failed to allocate", "failed to allocate [<failed_device_name:word> ]buffer[ of size "
          "<failed_bytes:bytes>]", ends=True, fails=True, says="allocation"),
    shape("for kv cache", "failed to allocate buffer for kv cache", ends=True, fails=True,
          says="cache_failed"),
    shape("failed to initialize the context", "failed to initialize the context", ends=True,
          fails=True, says="stopped"),
    shape("exiting due to model loading", "exiting due to model loading error", ends=True,
          fails=True, says="stopped"),
    shape("msg=offload", "layers.requested=<layers_requested:count> layers.model="
          "<layers_in_all:count> layers.offload=<layers_on_gpu:count>", opens=True),
    shape("memory.required.full", 'memory.required.full="<estimated_full:size>"'),
    shape("memory.required.kv", 'memory.required.kv="<estimated_kv:size>"'),
    shape("memory.graph.full", 'memory.graph.full="<estimated_graph:size>"'),
    shape("memory.weights.total", 'memory.weights.total="<estimated_weights:size>"'),
)  # fmt: skip
"""llama.cpp since 2023 (llama-context.cpp, llama-kv-cache.cpp, llama-model.cpp), ik_llama.cpp, and
the scheduler of ollama, whose figures are estimates."""
