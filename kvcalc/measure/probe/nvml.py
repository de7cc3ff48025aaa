"""What the NVIDIA driver counts on each GPU, and its probe results.

Figures of nvml.h: memory information of version 2 tells what is reserved apart, which `used` of
version 1 includes. What a process uses is not told under Windows' display model, and in containers
process ids may be another namespace's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvcalc.answers.probed import MeasuredBytes, ProbeResult
from kvcalc.core.errors import UnavailableError
from kvcalc.core.units import format_bytes

__all__ = ["Card", "cards", "driver_results", "process_bytes"]

_LIBRARIES = {"win32": ("nvml.dll",)}
_UNIX = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_NOT_TOLD = 2**64 - 1  # of a process, under Windows' display model
_TEXT = 96
_MANY = 1_024  # processes on one card


class Card(NamedTuple):
    """A card as the driver counts it.

    Attributes:
        number, name, uuid: which.
        driver: its version.
        total, reserved, used, free: bytes; `used` without what is reserved.
        processes: (process id, bytes; None where the driver does not tell).
    """

    number: int
    name: str
    uuid: str
    driver: str
    total: int
    reserved: int
    used: int
    free: int
    processes: tuple[tuple[int, int | None], ...]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    ]


class _MemoryV1(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint32),
        ("used", ctypes.c_uint64),
        ("instance", ctypes.c_uint32),
        ("compute", ctypes.c_uint32),
    ]


def cards() -> tuple[Card, ...]:
    """Return every card."""
    with _library() as nvml:
        count = ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "no card")
        return tuple(_card(nvml, index) for index in range(count.value))


def process_bytes(uuid: str | None) -> int | None:
    """Return what the driver counts for this process on a card; None where it does not tell."""
    try:
        found = cards()
    except UnavailableError:
        return None
    for card in found:
        if uuid is None or uuid in card.uuid:
            for pid, used in card.processes:
                if pid == os.getpid():
                    return used
    return None


@contextmanager
def _library() -> Iterator[Any]:
    nvml = None
    for name in _LIBRARIES.get(sys.platform, _UNIX):
        try:
            nvml = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if nvml is None:
        raise UnavailableError(
            "no NVIDIA driver: its management library is not there",
            hint="kvcalc probe --device cpu measures storage bytes here; --dry-run needs no device",
        )
    _check(nvml.nvmlInit_v2(), "the NVIDIA driver does not answer")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _check(code: int, message: str) -> None:
    if code:
        raise UnavailableError(f"{message} (NVML error {code})", hint="try nvidia-smi")


def _text(call: Any, *before: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    return "" if call(*before, buffer, _TEXT) else buffer.value.decode("utf-8", "replace")


def _card(nvml: Any, index: int) -> Card:
    handle = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), f"no card {index}")
    total, reserved, free = _memory(nvml, handle)
    return Card(
        number=index,
        name=_text(nvml.nvmlDeviceGetName, handle),
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        driver=_text(nvml.nvmlSystemGetDriverVersion),
        total=total,
        reserved=reserved,
        used=max(0, total - reserved - free),
        free=free,
        processes=_processes(nvml, handle),
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """Return (total, reserved, free); drivers without the second version fold reserved into used.

    `used` is not asked for: whether it includes what is reserved was told in both ways.
    """
    second = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
    call = getattr(nvml, "nvmlDeviceGetMemoryInfo_v2", None)
    if call is not None and not call(handle, ctypes.byref(second)):
        return second.total, second.reserved, second.free
    first = _MemoryV1()
    _check(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(first)), "no memory is told")
    return first.total, 0, first.free


def _processes(nvml: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    call = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if call is None:
        return ()
    count = ctypes.c_uint(_MANY)
    found = (_Process * _MANY)()
    if call(handle, ctypes.byref(count), found):
        return ()
    return tuple(
        (each.pid, None if each.used == _NOT_TOLD else each.used)
        for each in found[: min(count.value, _MANY)]
    )


# --------------------------------------------------------------------- probe results


def driver_results() -> Iterator[ProbeResult]:
    """Yield one result a card."""
    for card in cards():
        yield _result(card)


def _result(card: Card) -> ProbeResult:
    own = next((used for pid, used in card.processes if pid == os.getpid()), None)
    told = [used for _, used in card.processes if used is not None]
    return ProbeResult(
        backend="nvml",
        device=f"{card.number}: {card.name}",
        kind="cuda",
        model=None,
        engine=None,
        kv_cache_dtype=None,
        block_size=None,
        max_model_len=None,
        versions={"driver": card.driver},
        measured=MeasuredBytes(process_bytes=own, device_bytes=card.used),
        engine_says={
            "total": card.total,
            "reserved by the driver": card.reserved,
            "used": card.used,
            "free": card.free,
            "of processes that are told": sum(told),
        },
        verdict=(
            f"{format_bytes(card.free)} of {format_bytes(card.total)} are free; the driver keeps"
            f" {format_bytes(card.reserved)}, compute processes hold {format_bytes(sum(told))}"
            f" ({len(card.processes)})."
        ),
    )
