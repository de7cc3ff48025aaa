"""Logs written by us, in the shapes that engines print, one of every kind that is read.

Figures are those that the engines' rules give, so that a prediction agrees with them.
"""

from __future__ import annotations

__all__ = [
    "ALL",
    "LLAMACPP",
    "LMDEPLOY",
    "MLC",
    "OLLAMA",
    "SGLANG",
    "TENSORRT_LLM",
    "TGI",
    "V0",
    "V1",
    "V1_FULL",
    "V1_TOO_LONG",
]

_ENGINE = "(EngineCore_DP0 pid=71) INFO 10-03 08:00:{second:02d} [{file}] "


def _core(second: int, file: str, text: str) -> str:
    return _ENGINE.format(second=second, file=file) + text


_ARGS = (
    "(APIServer pid=1) INFO 10-03 08:00:00 [utils.py:233] non-default args: {'model':"
    " 'Qwen/Qwen3-8B', 'max_model_len': 32768, 'gpu_memory_utilization': 0.9}"
)
_CONFIG = (
    "Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-8B',"
    " speculative_config=None, tokenizer='Qwen/Qwen3-8B', dtype=torch.bfloat16, max_seq_len=32768,"
    " tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None,"
    " enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching=True"
)

V1 = "\n".join(
    (
        "(APIServer pid=1) INFO 10-03 08:00:00 [api.py:18] vLLM API server version 0.10.2",
        _ARGS,
        _core(10, "core.py:75", _CONFIG),
        _core(20, "gpu_model_runner.py:2420", "Model loading took 15.2683 GiB and 9.8 seconds"),
        _core(30, "gpu_worker.py:298", "Available KV cache memory: 5.06 GiB"),
        _core(30, "kv_cache_utils.py:864", "GPU KV cache size: 36,832 tokens"),
        _core(
            30,
            "kv_cache_utils.py:868",
            "Maximum concurrency for 32,768 tokens per request: 1.12x",
        ),
        _core(40, "gpu_model_runner.py:3118", "Graph capturing finished in 5 secs, took 0.61 GiB"),
    )
)
"""36,832 tokens are 2,302 blocks of 16 tokens of 147,456 B: 5.058 GiB."""

V1_TOO_LONG = "\n".join(
    (
        _ARGS.replace("32768", "131072"),
        _core(5, "core.py:75", _CONFIG.replace("32768", "131072").replace("0.10.2", "0.24.0")),
        _core(30, "gpu_worker.py:508", "Available KV cache memory: 5.06 GiB"),
        "(EngineCore_DP0 pid=71) ValueError: To serve at least one request with the model's max seq"
        " len (131072), (18.0 GiB KV cache is needed, which is larger than the available KV cache"
        " memory (5.06 GiB). Based on the available memory, the estimated maximum model length is"
        " 36832. Try increasing `gpu_memory_utilization`",
    )
)

V1_FULL = "\n".join(
    (
        "Estimated CUDA graph memory: 2.5 GiB total",
        "Available KV cache memory: 17.0 GiB",
        "GPU KV cache size: 123,792 tokens, Maximum concurrency for 32,768 tokens per request:"
        " 3.78x",
        "CUDA graph pool memory: 0.5 GiB (actual), 2.5 GiB (estimated), difference: 2.0 GiB"
        " (400.0%).",
        "Free memory on device (39.0/40.0 GiB) on startup. Desired GPU memory utilization is (0.9,"
        " 36.0 GiB). Actual usage is 15.5 GiB for consumed memory (weights + non-torch), 1.0 GiB"
        " for peak activation, and 0.5 GiB for CUDAGraph memory. Replace gpu_memory_utilization"
        " config with `--kv-cache-memory=17559453696` (16.35 GiB) to fit into requested memory, or"
        " `--kv-cache-memory=23458746368` (21.85 GiB) to fully utilize gpu memory. Current kv cache"
        " memory in use is 17.0 GiB.",
    )
)
"""36.0 - 15.5 - 1.0 - 2.5 = 17.0; 17.0 - 0.5 - 0.1465 = 16.35; 39 - 15.5 - 1 - 0.5 - 0.1465."""

V0 = "\n".join(
    (
        "INFO 12-02 01:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.4) with config:"
        " model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192,"
        " tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto",
        "INFO 12-02 01:00:09 model_runner.py:1077] Loading model weights took 14.9888 GB",
        "INFO 12-02 01:00:19 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB"
        " initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB"
        " memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB"
        " gpu_memory_utilization=0.90",
        "INFO 12-02 01:00:19 gpu_executor.py:113] # GPU blocks: 1951, # CPU blocks: 2048",
        "INFO 12-02 01:00:19 gpu_executor.py:117] Maximum concurrency for 8192 tokens per request:"
        " 3.81x",
    )
)

_RANKED = "[2026-02-04 10:00:0{n} TP{rank}] {text}"


def _both(n: int, *texts: str) -> list[str]:
    return [_RANKED.format(n=n, rank=rank, text=text) for rank, text in enumerate(texts)]


SGLANG = "\n".join(
    (
        "[2026-02-04 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2,"
        " mem_fraction_static=0.85, kv_cache_dtype='auto', context_length=40960, page_size=1)",
        *_both(1, *["Load weight begin. avail mem=78.50 GB"] * 2),
        *_both(
            2,
            "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=70.80 GB, mem"
            " usage=7.70 GB.",
            "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=70.79 GB, mem"
            " usage=7.71 GB.",
        ),
        *_both(3, *["Using KV cache dtype: torch.bfloat16"] * 2),
        *_both(
            4, *["KV Cache is allocated. #tokens: 800000, K size: 27.47 GB, V size: 27.47 GB"] * 2
        ),
        *_both(5, *["Memory pool end. avail mem=15.50 GB"] * 2),
        "[2026-02-04 10:00:09 TP0] max_total_num_tokens=800000, chunked_prefill_size=8192,"
        " max_prefill_tokens=16384, max_running_requests=2048, context_len=40960,"
        " available_gpu_mem=15.00 GB",
    )
)
"""800,001 slots x 36 layers x 4 heads x 128 x 2 B = 27.47 GiB of K on each of two ranks."""

LLAMACPP = "\n".join(
    (
        "0.00.100.000 I build: 11434 (abcdef12) with cc for x86_64-linux-gnu",
        "0.00.351.243 I llama_model_loader: loaded meta data with 28 key-value pairs and 291 tensors"
        " from /models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf (version GGUF V3 (latest))",
        "llama_model_loader: - kv   0:                       general.architecture str              "
        "= llama",
        "llama_model_loader: - kv   1:                               general.name str              "
        "= Test 8B",
        "llama_model_loader: - kv   5:                          llama.block_count u32              "
        "= 32",
        "llama_model_loader: - kv   6:                       llama.context_length u32              "
        "= 131072",
        "llama_model_loader: - kv   7:                     llama.embedding_length u32              "
        "= 4096",
        "llama_model_loader: - kv   9:                 llama.attention.head_count u32              "
        "= 32",
        "llama_model_loader: - kv  10:              llama.attention.head_count_kv u32              "
        "= 8",
        "llama_model_loader: - kv  11:                     llama.rope.freq_base f32              "
        "= 500000.000000",
        "llama_context: n_seq_max     = 1",
        "llama_context: n_ctx         = 8192",
        "llama_context: n_ctx_seq     = 8192",
        "llama_context: n_batch       = 2048",
        "llama_context: n_ubatch      = 512",
        "llama_context: kv_unified    = false",
        "llama_kv_cache:      CUDA0 KV buffer size =   544.00 MiB",
        "llama_kv_cache: size =  544.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (q8_0):  272.00"
        " MiB, V (q8_0):  272.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   258.50 MiB",
    )
)
"""8,192 cells x 32 layers x 1,024 elements x 34/32 B = 272 MiB of K."""

OLLAMA = (
    "time=2025-05-19T10:00:00.000Z level=INFO source=server.go:168 msg=offload library=cuda"
    ' layers.requested=-1 layers.model=35 layers.offload=20 memory.available="[3.2 GiB]"'
    ' memory.required.full="2.6 GiB" memory.required.kv="254.0 MiB"'
    ' memory.weights.total="2.3 GiB" memory.graph.full="517.0 MiB"'
)

TENSORRT_LLM = "\n".join(
    (
        "[TensorRT-LLM] TensorRT-LLM version: 1.0.0",
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total:"
        " 79.10 GiB, available: 20.00 GiB",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4608",
        "[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 0, onboard blocks to"
        " primary memory before reuse: true",
        "[TensorRT-LLM][INFO] Number of tokens per block: 32.",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 18.00 GiB for max tokens in paged KV cache"
        " (147456).",
    )
)
"""0.9 x 20 GiB over 32 tokens of 131,072 B (Llama-3.1-8B): 4,608 blocks."""

LMDEPLOY = "\n".join(
    (
        "[TM][INFO] [BlockManager] block_size = 8 MB",
        "[TM][INFO] [BlockManager] max_block_count = 1200",
        "[TM][INFO] [BlockManager] chunk_size = 1200",
    )
)

TGI = "\n".join(
    (
        "2025-01-01T00:00:00.000000Z  INFO text_generation_launcher: Args { model_id:"
        ' "meta-llama/Llama-3.1-8B-Instruct", num_shard: Some(1) }',
        "2025-01-01T00:00:30.000000Z  INFO text_generation_launcher: KV-cache blocks: 150000, size:"
        " 1",
        "2025-01-01T00:00:31.000000Z  INFO text_generation_router_v3: Setting max batch total tokens"
        " to 150000",
    )
)

MLC = (
    "Insufficient GPU memory error: The available single GPU memory is 20000.000 MB, which is less"
    " than the sum of model weight size (6000.000 MB) and temporary buffer size (15000.000 MB)."
)

ALL = {
    "vllm v1": V1, "vllm v1 refused": V1_TOO_LONG, "vllm v1 budget": V1_FULL, "vllm v0": V0,
    "sglang": SGLANG, "llama.cpp": LLAMACPP, "ollama": OLLAMA, "tensorrt-llm": TENSORRT_LLM,
    "lmdeploy": LMDEPLOY, "tgi": TGI, "mlc-llm": MLC,
}  # fmt: skip
"""Name -> log."""
