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
    shape("apture cuda graph end", "Capture cuda graph end.…mem usage=<graph_memory:GiB> GB",
          keep="most"),
    shape("max_total_num_tokens=", "¬max_total_num_tokens=<max_total_num_tokens:tokens>",
          keep="least", ends=True),
    shape("max_total_num_tokens=", "chunked_prefill_size=<chunked_prefill_size:tokens>"),
    shape("max_total_num_tokens=", "max_running_requests=<max_running_requests:count>"),
    shape("context_len=", "context_len=<context_length:tokens>"),
    shape("emory profiling: available_gpu_memory",
          "available_gpu_memory=<free_after_weights:GiB> GB, total_gpu_memory=<total_memory:GiB>"
          " GB, mem_fraction_static=<mem_fraction_static:fraction>, rest_memory="
          "<available_kv_cache:GiB> GB", keep="least"),
    shape("memory calculation: bytes_per_full_token",
          "bytes_per_full_token=<bytes_per_full_token:bytes-2>, available_bytes="
          "<available_kv_cache:GiB> GB, full_token=<full_tokens:tokens>", keep="least"),
    shape("leave no GPU memory for the KV cache",
          "leave no GPU memory for the KV cache under --mem-fraction-static="
          "<mem_fraction_static:fraction>", ends=True, fails=True, says="nothing_left"),
    shape("Not enough memory. Please try to increase --mem-fraction-static",
          "Not enough memory. Please try to increase --mem-fraction-static",
          ends=True, fails=True, says="nothing_left"),
    shape("is larger than the profiled value",
          "max_total_tokens=<max_total_tokens:tokens> is larger than the profiled value "
          "<profiled_tokens:tokens>", keep="least"),
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
