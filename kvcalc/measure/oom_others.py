"""Out-of-memory texts of vLLM, llama.cpp, XLA, TensorFlow, and of the drivers themselves."""

from __future__ import annotations

import re
from math import prod

from kvcalc.core.oom_values import OomText
from kvcalc.measure.oom_amounts import amount, exact, found, minus

__all__ = ["ggml", "hbm", "plain", "tensorflow", "vllm_kv", "vllm_start", "xla"]

_ELEMENT = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element, by TensorFlow's names."""

_MOST_DIMENSIONS = 32


def vllm_kv(before: str, behind: str) -> OomText | None:
    """vLLM, V1: one sequence of the maximum does not fit into the cache's memory."""
    asked = found(r"\(?<U>\s*$", before)
    free = found(r"available KV cache memory \(<U>\)", behind)
    if asked is None or free is None:
        return None
    return OomText(
        wording="vllm-kv",
        backend="vllm",
        what="the KV cache of one sequence of max_model_len",
        asked=asked,
        free=free,
    )


def vllm_start(before: str, behind: str) -> OomText | None:
    """vLLM, V1: less is free at start than the share that it is to use."""
    del before
    match = re.search(
        r"on device (?:\S{1,20} )?\((\d{1,9}(?:\.\d{1,4})?)/(\d{1,9}(?:\.\d{1,4})?) GiB\)", behind
    )
    asked = found(r"utilization \([\d.]{1,10}, <U>\)", behind)
    if match is None or asked is None:
        return None
    free, capacity = amount(f"{match[1]} GiB"), amount(f"{match[2]} GiB")
    return OomText(
        wording="vllm-start",
        backend="vllm",
        what="the share of the device that --gpu-memory-utilization names",
        asked=asked,
        capacity=capacity,
        free=free,
        process=exact(0),  # it has taken nothing yet
    )


def ggml(before: str, behind: str) -> OomText | None:
    """llama.cpp and what is built on it: one buffer of a device.

    What is free is told at the start only, before the weights: it counts where it is too little
    even so.
    """
    asked = found(r"allocating <U> on device", behind) or found(r"size ?= ?<U>", behind)
    if asked is None:
        size = re.search(r"of size (\d{1,20})", behind)
        if size is None:
            return None
        asked = exact(int(size[1]))
    device = re.search(r"on device (\d{1,4})|allocate (\S{1,40}) buffer", behind)
    name = (device[1] or device[2]) if device else None
    at_start = None
    if name:
        number = re.search(r"\d{1,4}$", name)
        label = rf"\w*{number[0]}\b" if number else re.escape(name)
        at_start = found(rf"using device {label}[^\n]{{0,120}}? - <U> free", before)
    lowered = (before[-200:] + " " + behind).lower()
    backends = {"hip": "hip", "rocm": "hip", "vulkan": "vulkan", "metal": "metal", "sycl": "sycl"}
    backend = next((to for word, to in backends.items() if word in lowered), "cuda")
    return OomText(
        wording="ggml",
        backend=backend,
        device=name,
        what=_buffer(before, behind),
        asked=asked,
        free=at_start if at_start is not None and at_start.high < asked.low else None,
    )


def _buffer(before: str, behind: str) -> str | None:
    """Say which buffer it was: what follows names it, or what was allocated before leaves it."""
    if re.search(r"compute (?:\w{1,10} )?buffers?|graph_reserve", behind) or re.search(
        r"gallocr_reserve\w{0,8}:? ?$", before
    ):
        return "a compute buffer, which is not the KV cache"
    if re.search(r"kv[ _]?cache|for (?:the )?kv", behind, re.IGNORECASE):
        return "the KV cache"
    if re.search(r"unable to (?:allocate|load)|error loading model", behind):
        return "the weights"
    if re.search(r"KV self size|KV buffer size", before):
        return "a compute buffer, which is not the KV cache: that was allocated before"
    return None


def xla(before: str, behind: str) -> OomText | None:
    """XLA, as JAX prints it under RESOURCE_EXHAUSTED."""
    del before
    asked = found(r"allocat(?:e|ing) <U>", behind) or found(
        r"Attempting to (?:reserve|allocate) <U>", behind
    )
    if asked is None:
        return None
    return OomText(
        wording="xla",
        backend="tpu" if "hbm" in behind or "Attempting to" in behind else "xla",
        asked=asked,
        # Free in its own allocator, whose holes matter: not what the driver has free.
        unallocated=found(r"There (?:are|is) <U> free", behind),
        largest=found(r"largest contiguous region of free memory is <U>", behind),
    )


def hbm(before: str, behind: str) -> OomText | None:
    """XLA on a TPU: the compiled program needs more than the chip has."""
    del before
    asked, capacity = found(r"Used <U> of", behind), found(r"Used \S{1,20} of <U> \w", behind)
    if asked is None or capacity is None:
        return None
    return OomText(
        wording="xla-hbm",
        backend="tpu",
        what="the compiled program with its arguments",
        asked=asked,
        capacity=capacity,
        free=capacity,
    )


def tensorflow(before: str, behind: str) -> OomText | None:
    """TensorFlow's and XLA's BFC allocator; its statistics follow in the log."""
    if "not a failure" in behind:  # it tries another way, with less memory
        return None
    asked = found(r"trying to allocate <U>", behind)
    rounded = re.search(r"rounded to (\d{1,20})\)", behind)
    if rounded:
        asked = exact(int(rounded[1]))
    if asked is None:
        shape = re.search(r"shape ?\[([\d,]{1,300})\] and type (\w{1,20})", behind)
        if shape is None or shape[2] not in _ELEMENT:
            return None
        sides = [int(side) for side in shape[1].split(",") if side][:_MOST_DIMENSIONS]
        if any(side >= 2**40 for side in sides):
            return None
        asked = exact(prod(sides) * _ELEMENT[shape[2]])
    limit, in_use = (
        re.search(rf"\b{name}: {{1,30}}(\d{{1,20}})", behind) for name in ("Limit", "InUse")
    )
    capacity = exact(int(limit[1])) if limit else None
    allocated = exact(int(in_use[1])) if in_use else None
    name = re.search(r"Allocator \((\S{1,60})\)\s*$", before) or re.search(
        r"by allocator (\S{1,60})", behind
    )
    return OomText(
        wording="bfc",
        backend="bfc",
        device=name[1] if name else None,
        asked=asked,
        capacity=capacity,
        allocated=allocated,
        unallocated=minus(capacity, allocated),
    )


def plain(before: str, behind: str) -> OomText | None:
    """Words of a driver or a framework without any figure."""
    del before
    lowered = behind[:40].lower()
    known = ("cuda", "hip", "npu", "xpu", "mps")
    backend = next((name for name in known if lowered.startswith(name)), None)
    if backend is None:
        backend = "vulkan" if "device_memory" in lowered or "outofdevice" in lowered else "unknown"
    return OomText(wording="driver", backend=backend)
