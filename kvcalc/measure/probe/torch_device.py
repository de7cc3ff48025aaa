"""PyTorch's devices: CUDA, ROCm, XPU and MPS by their allocators' figures, the CPU by its storages.

torch.cuda, torch.xpu and torch.mps are asked, not torch.accelerator, which releases before 2.9 have
not. ROCm answers as CUDA does. On a CPU there is no caching allocator: exact bytes of the storages,
what a step took by torch's own profiler, and what the system counts for the process.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakValueDictionary

from kvcalc.core.errors import UnavailableError
from kvcalc.measure.probe import host, nvml
from kvcalc.measure.probe.device import Contiguous, Decoded, DeviceFacts, Paged, Reading
from kvcalc.measure.probe.kernels import Kernels

__all__ = ["TorchDevice", "installed"]

_CPU_HINT = "kvcalc probe --device cpu measures storage bytes here; --dry-run needs no device"


def installed() -> bool:
    """Whether torch is there; nothing of it is imported."""
    return find_spec("torch") is not None


class TorchDevice:
    """One device that torch knows.

    Args:
        kind: one of probe.KINDS; auto is the first accelerator that is there.
        kernel: which decode kernel, or auto.

    Raises:
        UnavailableError: torch is not installed, or has no such device.
    """

    def __init__(self, kind: str = "auto", kernel: str = "auto") -> None:
        self._torch = torch = _imported()
        self._kind = _present(torch, kind)
        self._device = torch.device("cuda" if self._kind == "rocm" else self._kind)
        self._module = None if self._kind == "cpu" else getattr(torch, self._device.type)
        # Weak, so that what is still counted after a release is what something else keeps.
        self._held: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._uuid = self._card_id()
        self._kernels = Kernels(torch, self._device, kernel)
        self.facts = self._facts()

    # ------------------------------------------------------------------ what it is

    def _facts(self) -> DeviceFacts:
        versions = {"torch": str(self._torch.__version__), **self._kernels.versions}
        for name in ("cuda", "hip", "xpu"):
            found = getattr(self._torch.version, name, None)
            if found:
                versions[name] = str(found)
        if self._kind == "cuda":
            try:
                versions["driver"] = nvml.cards()[0].driver
            except (UnavailableError, IndexError):
                versions["driver"] = "not told"
        return DeviceFacts(
            kind=self._kind,
            name=self._name(),
            caching=self._kind in ("cuda", "rocm", "xpu"),
            unified=self._kind in ("mps", "cpu"),
            versions=versions,
        )

    def _name(self) -> str:
        if self._kind in ("cuda", "rocm", "xpu"):
            return str(self._module.get_device_name())  # type: ignore[union-attr]  # not of a CPU
        machine = platform.machine()
        return f"Apple GPU ({machine})" if self._kind == "mps" else f"CPU ({machine})"

    def _card_id(self) -> str | None:
        if self._kind != "cuda":
            return None
        module: Any = self._module
        found = getattr(module.get_device_properties(module.current_device()), "uuid", None)
        return None if found is None else str(found)

    # ------------------------------------------------------------------ readings

    def settle(self) -> None:
        """Wait, collect, and hand cached segments back."""
        gc.collect()
        if self._module is not None:
            self._module.synchronize()
            self._module.empty_cache()

    def reset_peak(self) -> None:
        """Begin to watch for a new peak, where the device has one."""
        if self.facts.caching:
            self._module.reset_peak_memory_stats()  # type: ignore[union-attr]  # not of a CPU

    def read(self) -> Reading:
        """Read every layer of accounting."""
        storage = sum(tensor.untyped_storage().nbytes() for tensor in self._held.values())
        if self._module is None:
            return Reading(storage=storage, process=host.resident(), free=host.available())
        self._module.synchronize()
        if self._kind == "mps":
            allocated = int(self._module.current_allocated_memory())
            reserved = int(self._module.driver_allocated_memory())
            most = int(self._module.recommended_max_memory())
            return Reading(
                storage=storage,
                allocated=allocated,
                reserved=reserved,
                free=max(0, most - reserved),
            )
        free, total = self._module.mem_get_info()
        stats = self._module.memory_stats()
        return Reading(
            storage=storage,
            requested=stats.get("requested_bytes.all.current"),
            allocated=int(self._module.memory_allocated()),
            reserved=int(self._module.memory_reserved()),
            peak=int(self._module.max_memory_allocated()),
            process=nvml.process_bytes(self._uuid) if self._kind == "cuda" else None,
            used=int(total) - int(free),
            free=int(free),
        )

    # ------------------------------------------------------------------ work

    def allocate(self, size: int) -> Any:
        """Allocate bytes of zeros, as engines allocate their pools."""
        torch = self._torch
        try:
            tensor = torch.zeros(size, dtype=torch.uint8, device=self._device)
        except (RuntimeError, MemoryError) as error:  # torch's OutOfMemoryError is the first
            raise UnavailableError(
                " ".join(str(error).split())[:400],
                hint="kvcalc frag --oom explains such a text; --limit takes less",
            ) from None
        self._held[id(tensor)] = tensor
        return tensor

    def release(self, handles: tuple[Any, ...]) -> None:
        """Leave tensors to their last holder, who is about to let them go."""

    def decode_paged(self, step: Paged) -> Decoded:
        """Run a decode step over the pool."""
        return self._timed(lambda: self._kernels.paged(step))

    def decode_contiguous(self, step: Contiguous) -> Decoded:
        """Run the same over one piece a request."""
        return self._timed(lambda: self._kernels.contiguous(step))

    def _timed(self, run: Any) -> Decoded:
        """Run a step; where no allocator tells a peak, torch's profiler does."""
        try:
            if self._kind == "cpu":
                return _profiled(run)
            decoded: Decoded = run()
            self._module.synchronize()  # type: ignore[union-attr]  # not of a CPU
        except (RuntimeError, MemoryError) as error:
            raise UnavailableError(
                " ".join(str(error).split())[:400], hint="--limit takes less; --kernel another"
            ) from None
        return decoded


def _imported() -> Any:
    try:
        return import_module("torch")
    except ImportError:
        raise UnavailableError(
            "no GPU is seen: torch, which would ask for one, is not installed",
            hint="pip install 'kvcalc[probe]'; --device cpu measures here without it, and --dry-run"
            " needs no device",
        ) from None


def _present(torch: Any, kind: str) -> str:
    """Return the kind of device that is asked for and there."""
    cuda = "rocm" if getattr(torch.version, "hip", None) else "cuda"
    there = []
    if torch.cuda.is_available():
        there.append(cuda)
    for name, module in (
        ("xpu", getattr(torch, "xpu", None)),
        ("mps", getattr(torch.backends, "mps", None)),
    ):
        if module is not None and module.is_available():
            there.append(name)
    if kind == "cpu" or (kind == "auto" and there):
        return "cpu" if kind == "cpu" else there[0]
    if kind in there:
        return kind
    what = "no GPU" if kind == "auto" else f"no {kind} device"
    others = f", but has {', '.join(there)}" if there else ""
    raise UnavailableError(
        f"{what}: torch {torch.__version__} sees none{others}",
        hint=f"--device {there[0]}" if there else _CPU_HINT,
    )


def _profiled(run: Any) -> Decoded:
    """Run a step on the CPU and return the most that it held at once."""
    profiler = import_module("torch.profiler")
    activities = [profiler.ProfilerActivity.CPU]
    with _quiet(), profiler.profile(activities=activities, profile_memory=True) as profile:
        decoded: Decoded = run()
    # Every allocation and release in order; the public list leaves out those inside an operator.
    results = getattr(profile.profiler, "kineto_results", None)
    now = most = 0
    for event in () if results is None else results.events():
        if event.name() == "[memory]":
            now += int(event.nbytes())
            most = max(most, now)
    return decoded._replace(workspace=most or None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libraries write to stderr by themselves off it: the profiler tells each start."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
