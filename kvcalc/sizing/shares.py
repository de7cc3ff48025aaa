"""How engines call their share of a card's memory, and the sequences that they run at once."""

from __future__ import annotations

__all__ = ["LONGER", "PLACES", "SHARES"]

SHARES = {
    "vllm": "gpu_memory_utilization",
    "vllm-ascend": "gpu_memory_utilization",
    "vllm-tpu": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
    "lmdeploy": "cache_max_entry_count",
}
"""Engine -> its setting for the share of the card's memory (a field of Deployment for vLLM)."""

PLACES = {
    "llama.cpp": "parallel",
    "sglang": "max_running_requests",
    "tensorrt-llm": "max_batch_size",
    "lmdeploy": "max_batch_size",
    "tgi": "max_batch_size",
    "mlc-llm": "max_num_sequence",
    "exllamav2": "max_batch_size",
    "exllamav3": "max_batch_size",
}
"""Engine -> what it calls the sequences that it runs at once, where that is not max_num_seqs."""

LONGER = {
    "vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "vllm-ascend": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "vllm-tpu": "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
}
"""Engine that refuses a maximum beyond the model's own -> the variable that lets it pass."""
