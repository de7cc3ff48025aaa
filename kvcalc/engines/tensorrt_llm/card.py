"""What the card decides: dtypes of the cache that it has kernels for, FlashMLA's blocks, reuse.

TensorRT-LLM docs/source/features/quantization.md, Hardware Support Matrix (FP8 and NVFP4 KV cache);
_torch/model_config.py, enable_flash_mla; _torch/pyexecutor/py_executor_creator.py.
"""

from __future__ import annotations

from kvcalc.core.attention import Mla
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec

__all__ = ["FLASH_MLA_BLOCK", "capability", "check_dtype", "flash_mla", "reuses_latents"]

FLASH_MLA_BLOCK = 64
_FLASH_MLA_WIDTH = 576
_HOPPER = (9, 0)
_AMPERE = (8, 0)
_NVFP4 = ((10, 0), (10, 3))
_LATENT_REUSE = ((9, 0), (10, 0), (10, 3), (12, 0))


def capability(deployment: Deployment) -> tuple[int, int] | None:
    """Return the compute capability of the card; None where none is named.

    Raises:
        UnsupportedError: a card that is none of NVIDIA's.
    """
    gpu = deployment.gpu
    if not isinstance(gpu, GpuSpec):
        return None
    if gpu.compute_capability is None:
        raise UnsupportedError(
            f"{gpu.name} is no CUDA card, and TensorRT-LLM runs on no other",
            hint="name an NVIDIA card (kvcalc gpus lists them)",
        )
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major), int(minor)


def check_dtype(word: str, card: tuple[int, int] | None, name: str) -> None:
    """Refuse a cache dtype that the support matrix does not give the card.

    Raises:
        UnsupportedError: fp8 on a card older than Ampere, or nvfp4 on another than sm100 and sm103.
    """
    if card is None:
        return
    of = f"{name} (compute capability {card[0]}.{card[1]})"
    if word == "nvfp4" and card not in _NVFP4:
        raise UnsupportedError(
            f"TensorRT-LLM has no nvfp4 KV cache on {of}: its support matrix lists"
            " Blackwell's 10.0 and 10.3 alone",
            hint="choose --kv-cache-dtype fp8",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )
    if word.startswith("fp8") and card < _AMPERE:
        raise UnsupportedError(
            f"TensorRT-LLM has no fp8 KV cache on {of}: its support matrix begins with Ampere",
            hint="leave the dtype of the cache at auto",
            code="cache-dtype-refused",
            setting="kv_cache_dtype",
        )


def flash_mla(model: ModelSpec, card: tuple[int, int] | None) -> bool:
    """Return whether FlashMLA sets the block size: latents of 576 elements on Hopper."""
    return card == _HOPPER and any(
        isinstance(cache, Mla) and cache.kv_lora_rank + cache.qk_rope_head_dim == _FLASH_MLA_WIDTH
        for _, cache in model.caches()
    )


def reuses_latents(card: tuple[int, int] | None) -> bool:
    """Return whether blocks of latents are shared on the card; so where none is named."""
    return card is None or card in _LATENT_REUSE
