"""Measured against computed: a pool allocated on a device as an engine would, and read back.

One file a back end; none imports its library before it is asked for.
"""

from __future__ import annotations

from typing import Literal

from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.measure.probe.device import Device

__all__ = ["BACKENDS", "KERNELS", "KINDS", "Backend", "checked_names", "open_device"]

KINDS = ("auto", "cuda", "rocm", "xpu", "mps", "cpu")
KERNELS = ("auto", "flashinfer", "flash-attn", "flex", "sdpa")

Backend = Literal["torch", "nvml", "vllm", "llama.cpp", "transformers"]

BACKENDS: tuple[Backend, ...] = ("torch", "nvml", "vllm", "llama.cpp", "transformers")
"""torch measures (a CPU without torch: numpy); nvml reads the driver; the others ask the engine."""

_DRY = 80 * 2**30


def checked_names(kind: str, kernel: str) -> None:
    """Check a kind of device and a kernel."""
    for what, name, known in (("kind of device", kind, KINDS), ("kernel", kernel, KERNELS)):
        if name not in known:
            raise UnknownNameError(what, str(name), known)


def open_device(
    kind: str, kernel: str, *, dry_run: bool, memory_bytes: int | None = None, name: str = ""
) -> Device:
    """Return the device that is measured."""
    if dry_run:
        if kind != "auto" or kernel != "auto":
            raise UnsupportedError(
                "a dry run has no device and runs no kernel", hint="leave out --device and --kernel"
            )
        from kvcalc.measure.probe.synthetic import SyntheticDevice

        return SyntheticDevice(memory_bytes or _DRY, name or "a card of 80 GiB")
    from kvcalc.measure.probe.torch_device import TorchDevice, installed

    if kind == "cpu" and not installed():
        from kvcalc.measure.probe.numpy_device import NumpyDevice

        return NumpyDevice(kernel)
    return TorchDevice(kind, kernel)
