"""When vLLM's options came and went, as far as its wheels were looked at."""

from __future__ import annotations

from kvcalc.engines.vllm.version import Release

__all__ = ["BACKEND_OPTION_SINCE", "SINCE", "numbers", "older_than"]

SINCE = {
    "language_model_only": "0.17.0",
    "cpu_offload_gb": "0.5.3",
    "data_parallel_size": "0.8.5",
    "speculative_config": "0.8.5",
    "cudagraph_mode": "0.10.1",
    "kv_cache_memory_bytes": "0.10.2",
    "decode_context_parallel_size": "0.10.2",
    "mamba_cache_dtype": "0.10.2",
    "mamba_ssm_cache_dtype": "0.10.2",
    "kv_offloading_size": "0.11.2",
    "kv_offloading_backend": "0.11.2",
    "max_cudagraph_capture_size": "0.11.2",
    "prefill_context_parallel_size": "0.12.0",
    "offload_group_size": "0.17.0",
    "kv_cache_dtype_skip_layers": "0.19.1",
    "max_num_active_seqs": "0.31.0",
    "use_heterogeneous_vocab": "0.25.0",
    "spec_method": "0.22.1",
    "spec_model": "0.22.1",
    "spec_tokens": "0.22.1",
}
"""Option -> the first release that was seen with it."""

BACKEND_OPTION_SINCE = (0, 14)
"""--attention-backend; before, VLLM_ATTENTION_BACKEND says it."""


def numbers(release: str) -> tuple[int, ...]:
    """Return a release as numbers to compare by.

    >>> numbers("0.10.2")
    (0, 10, 2)
    """
    return tuple(map(int, release.split(".")))


def older_than(release: Release, option: str) -> bool:
    """Whether an option was not seen yet in a release."""
    first = SINCE.get(option)
    return first is not None and release.number < numbers(first)
