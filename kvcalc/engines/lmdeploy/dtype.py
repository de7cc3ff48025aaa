"""The dtype that LMDeploy runs a model in: float16 or bfloat16, whatever its config says."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import cache_dtype
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.lmdeploy.version import Release

__all__ = ["dtype_of"]

_DTYPES = ("float16", "bfloat16")
_BFLOAT16_CARDS = 8
"""Least major compute capability with bfloat16 (utils.py, is_bf16_supported)."""


def dtype_of(
    model: ModelSpec, deployment: Deployment, backend: str, found: Release, notes: list[str]
) -> str:
    """Return the dtype that the model is run in.

    Of a dtype that it does not run the PyTorch engine makes float16 (pytorch/config.py,
    _update_torch_dtype); TurboMind bfloat16 where the card has it (turbomind/converter.py,
    _resolve_dtype), and float16 before 0.10.1 (turbomind/deploy/converter.py).

    Args:
        model: as published.
        deployment: as asked for.
        backend: pytorch or turbomind.
        found: the release.
        notes: a line is added where the model's own is not taken.

    Raises:
        UnsupportedError: a dtype is asked for that LMDeploy does not take (messages.py).
    """
    if deployment.dtype != "auto":
        wanted = cache_dtype(deployment.dtype).name
        if wanted not in _DTYPES:
            raise UnsupportedError(
                f"LMDeploy runs no model in {wanted}", hint=f"choose {' or '.join(_DTYPES)}"
            )
        return wanted
    if model.dtype in _DTYPES:
        return model.dtype
    gpu = deployment.gpu
    capability = gpu.compute_capability if isinstance(gpu, GpuSpec) else None
    old = capability is not None and int(capability.partition(".")[0]) < _BFLOAT16_CARDS
    bfloat16 = backend == "turbomind" and found.prefers_bfloat16 and not old
    taken = "bfloat16" if bfloat16 else "float16"
    notes.append(f"LMDeploy runs no model in {model.dtype}: {taken} is taken")
    return taken
