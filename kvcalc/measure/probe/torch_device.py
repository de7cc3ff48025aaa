"""A device measured by torch, and the kernels that run a decode step on it.

Each reads the pool where it lies: [K or V, blocks, block, heads, head_dim] in one tensor a layer,
or K and V in tensors of their own. A kernel that cannot (a block size, a dtype, a missing package)
says why, and with `auto` the next one is taken. `sdpa` is torch's own attention over copies of the
blocks, which every device has.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any
from weakref import WeakValueDictionary

from kvcalc.core.errors import UnavailableError
from kvcalc.measure.probe import KERNELS, nvml
from kvcalc.measure.probe.device import (
    Attention,
    Contiguous,
    Decoded,
    DeviceFacts,
    Paged,
    Reading,
    available,
    resident,
)

__all__ = ["Kernels", "TorchDevice", "installed"]

_WORKSPACE = 128 * 2**20  # FlashInfer's float workspace, as its documentation gives it
_FLASH_BLOCK = 256  # flash-attn 2 reads blocks of multiples of it
_PACKAGES = {"flashinfer": "flashinfer-python", "flash-attn": "flash-attn"}


class _CannotError(Exception):
    """This kernel does not run here; the message says why."""


class Kernels:
    """The kernels of one device."""

    def __init__(self, torch: Any, device: Any, wanted: str) -> None:
        self._torch = torch
        self._device = device
        self._wanted = wanted
        self._compiled: Any = None
        self.versions = dict(_versions())

    def paged(self, step: Paged) -> Decoded:
        """Run a step with the kernel that is wanted, or with the first that can."""
        notes: list[str] = []
        names = self._order() if self._wanted == "auto" else (self._wanted,)
        for name in names:
            try:
                run = {
                    "flashinfer": self._flashinfer,
                    "flash-attn": self._flash_attn,
                    "flex": self._flex,
                    "sdpa": self._sdpa,
                }[name]
                with self._torch.inference_mode():
                    run(step)
                return Decoded(name, notes=tuple(notes))
            except _CannotError as error:
                if self._wanted != "auto":
                    raise UnavailableError(
                        f"kernel {name} does not run here: {error}", hint="--kernel auto"
                    ) from None
                notes.append(f"{name} was not taken: {error}")
        raise UnavailableError("no kernel runs here", hint="; ".join(notes)[:200])

    def _order(self) -> tuple[str, ...]:
        """On a CPU gathered blocks: uncompiled FlexAttention computes all scores there."""
        return ("sdpa",) if self._device.type == "cpu" else KERNELS[1:]

    def contiguous(self, step: Contiguous) -> Decoded:
        """Run SDPA over one piece a request, each request its own tokens."""
        torch, attention = self._torch, step.attention
        query = self._query(attention, 1)
        with torch.inference_mode():
            for keys, values in zip(step.keys, step.values, strict=True):
                k, v = (self._whole(each, attention, step.slots) for each in (keys, values))
                for request, length in enumerate(step.lengths):
                    self._attend(query, k[request, :length], v[request, :length], attention)
        return Decoded("sdpa")

    # ------------------------------------------------------------------ views

    def _dtype(self, attention: Attention) -> Any:
        return getattr(self._torch, attention.dtype)

    def _query(self, attention: Attention, requests: int) -> Any:
        shape = (requests, attention.num_heads, attention.head_dim)
        return self._torch.zeros(shape, dtype=self._dtype(attention), device=self._device)

    def _layers(self, step: Paged) -> Iterator[tuple[Any, Any]]:
        """Yield K and V of each layer as [blocks, block, heads, head_dim]."""
        a = step.attention
        shape = (-1, a.block_size, a.num_kv_heads, a.head_dim)
        for layer in range(a.layers):
            if step.apart:
                pair = step.tensors[layer], step.tensors[a.layers + layer]
                yield tuple(each.view(self._dtype(a)).view(shape) for each in pair)
            else:
                both = step.tensors[layer].view(self._dtype(a)).view(2, *shape)
                yield both[0], both[1]

    def _whole(self, tensor: Any, attention: Attention, slots: int) -> Any:
        shape = (-1, slots, attention.num_kv_heads, attention.head_dim)
        return tensor.view(self._dtype(attention)).view(shape)

    def _ids(self, values: list[int], dtype: str = "int32") -> Any:
        dtype_ = getattr(self._torch, dtype)
        return self._torch.tensor(values, dtype=dtype_, device=self._device)

    def _table(self, step: Paged) -> Any:
        """Return block ids of all requests in rows of one length."""
        width = max(len(table) for table in step.tables)
        rows = [[*table, *[0] * (width - len(table))] for table in step.tables]
        return self._ids(rows)  # type: ignore[arg-type]  # rows of them

    # ------------------------------------------------------------------ kernels

    def _attend(self, query: Any, keys: Any, values: Any, attention: Attention) -> Any:
        """Attend from one query to [tokens, heads, head_dim]."""
        k, v = (each.transpose(0, 1).unsqueeze(0) for each in (keys, values))
        q = query[:1].unsqueeze(2)
        groups = attention.num_heads // attention.num_kv_heads
        return self._torch.nn.functional.scaled_dot_product_attention(
            q, k, v, enable_gqa=groups > 1
        )

    def _sdpa(self, step: Paged) -> None:
        """Gather each request's blocks, last block whole, and attend to its tokens."""
        a = step.attention
        query = self._query(a, 1)
        tables = [self._ids(list(table), "int64") for table in step.tables]
        for keys, values in self._layers(step):
            for table, length in zip(tables, step.lengths, strict=True):
                k, v = (
                    each.index_select(0, table).view(-1, a.num_kv_heads, a.head_dim)[-length:]
                    if a.window
                    else each.index_select(0, table).view(-1, a.num_kv_heads, a.head_dim)[:length]
                    for each in (keys, values)
                )
                self._attend(query, k, v, a)

    def _flex(self, step: Paged) -> None:
        """Run FlexAttention with a mask whose blocks are the pool's pages."""
        a, torch = step.attention, self._torch
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            flex = import_module("torch.nn.attention.flex_attention")
            paging = import_module("torch.nn.attention.experimental._paged_attention")
        except ImportError:
            raise _CannotError("this torch has no paged FlexAttention") from None
        requests = len(step.lengths)
        first = next(self._layers(step))[0]
        blocks, width = first.shape[0], max(len(table) for table in step.tables)
        paged = paging.PagedAttention(blocks, a.block_size, requests, device=str(self._device))
        for request, length in enumerate(step.lengths):
            paged.reserve(self._ids([request], "int64")[0], self._ids([length], "int64")[0])
        lengths = self._ids(list(step.lengths), "int64")

        def written(b: Any, h: Any, q: Any, kv: Any) -> Any:
            del h, q
            return kv < lengths[b]

        mask = flex.create_block_mask(
            written, requests, None, 1, width * a.block_size,
            device=str(self._device), BLOCK_SIZE=(1, a.block_size),
        )  # fmt: skip
        mask = paged.convert_logical_block_mask(mask, self._ids(list(range(requests)), "int64"))
        query = self._query(a, requests).unsqueeze(2)
        run = flex.flex_attention
        if self._device.type != "cpu":
            self._compiled = self._compiled or torch.compile(flex.flex_attention)
            run = self._compiled
        for keys, values in self._layers(step):
            k, v = (
                each.reshape(1, -1, a.num_kv_heads, a.head_dim).transpose(1, 2)
                for each in (keys, values)
            )
            run(query, k, v, block_mask=mask, enable_gqa=a.num_heads != a.num_kv_heads)

    def _flash_attn(self, step: Paged) -> None:
        a = step.attention
        if self._device.type != "cuda":
            raise _CannotError("it runs on CUDA and ROCm")
        if a.block_size % _FLASH_BLOCK:
            raise _CannotError(f"it reads blocks of multiples of {_FLASH_BLOCK} tokens")
        if a.dtype == "float32":
            raise _CannotError("it reads 16-bit caches")
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            package = import_module("flash_attn")
        except ImportError:
            raise _CannotError("the package is not installed") from None
        query = self._query(a, len(step.lengths)).unsqueeze(1)
        lengths, table = self._ids(list(step.lengths)), self._table(step)
        for keys, values in self._layers(step):
            package.flash_attn_with_kvcache(
                query, keys, values, cache_seqlens=lengths, block_table=table
            )

    def _flashinfer(self, step: Paged) -> None:
        a = step.attention
        if self._device.type != "cuda":
            raise _CannotError("it runs on CUDA")
        if a.dtype == "float32":
            raise _CannotError("it reads 16-bit caches")
        if a.window:
            raise _CannotError("windows are not masked here")
        try:
            package = import_module("flashinfer")
        except ImportError:
            raise _CannotError("the package is not installed") from None
        torch = self._torch
        # Made for each step, so that its peak counts it; servers make it once.
        buffer = torch.zeros(_WORKSPACE, dtype=torch.uint8, device=self._device)
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper(buffer, "NHD")
        starts, last = [0], []
        ids: list[int] = []
        for table, length in zip(step.tables, step.lengths, strict=True):
            ids += table
            starts.append(len(ids))
            last.append((length - 1) % a.block_size + 1)
        wrapper.plan(
            self._ids(starts), self._ids(ids), self._ids(last),
            a.num_heads, a.num_kv_heads, a.head_dim, a.block_size,
            q_data_type=self._dtype(a), kv_data_type=self._dtype(a),
        )  # fmt: skip
        query = self._query(a, len(step.lengths))
        for keys, values in self._layers(step):
            wrapper.run(query, (keys, values))


def _versions() -> Iterator[tuple[str, str]]:
    for name, package in _PACKAGES.items():
        try:
            yield name, version(package)
        except PackageNotFoundError:
            continue


# --------------------------------------------------------------------- torch device
#
# PyTorch's devices: CUDA, ROCm, XPU and MPS by their allocators' figures, the CPU by its storages.
#
# torch.cuda, torch.xpu and torch.mps are asked, not torch.accelerator, which releases before 2.9
# have not. ROCm answers as CUDA does. On a CPU there is no caching allocator: exact bytes of the
# storages, what a step took by torch's own profiler, and what the system counts for the process.

_CPU_HINT = "kvcalc probe --device cpu measures storage bytes here; --dry-run needs no device"


def installed() -> bool:
    """Whether torch is there; nothing of it is imported."""
    return find_spec("torch") is not None


class TorchDevice:
    """One device that torch knows.

    Args:
        kind: one of probe.KINDS; auto is the first accelerator that is there.
        kernel: which decode kernel, or auto.
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
            return Reading(storage=storage, process=resident(), free=available())
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
