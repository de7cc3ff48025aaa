"""Lines of SGLang. It writes GB and divides by 2^30; one line a rank is normal."""

from __future__ import annotations

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["SHAPES"]

SHAPES: tuple[Shape, ...] = (
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
