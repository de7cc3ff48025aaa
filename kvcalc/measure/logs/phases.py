"""What a start was at when it ended: by the last line before, and by the functions of a traceback.

A worker may be ahead of another by a line; what any of them has begun, all have.
"""

from __future__ import annotations

import re
from types import MappingProxyType

__all__ = ["FRAME_WORDS", "PHASES", "frame_of", "inner", "later"]

PHASES = MappingProxyType(
    {
        "": "starting",
        "loading": "loading the weights",
        "profiling": "profiling a step",
        "allocating": "allocating the cache",
        "capturing": "capturing CUDA graphs",
        "warming": "warming up",
        "opening": "opening the API",
        "serving": "serving",
    }
)
"""Phase -> in words, in the order of a start."""

_ORDER = {name: place for place, name in enumerate(PHASES)}

_FRAMES = MappingProxyType(
    {
        "load_model": "loading",
        "load_weights": "loading",
        "create_weights": "loading",
        "process_weights_after_loading": "loading",
        "initialize_model": "loading",
        "determine_available_memory": "profiling",
        "determine_num_available_blocks": "profiling",
        "profile_run": "profiling",
        "profile_cudagraph_memory": "profiling",
        "initialize_from_config": "allocating",
        "initialize_kv_cache": "allocating",
        "_allocate_kv_cache": "allocating",
        "_allocate_kv_cache_tensors": "allocating",
        "initialize_cache": "allocating",
        "_init_cache_engine": "allocating",
        "init_memory_pool": "allocating",
        "capture_model": "capturing",
        "_capture_cudagraphs": "capturing",
        "capture_one_batch_size": "capturing",
        "init_cuda_graphs": "capturing",
        "init_device_graphs": "capturing",
        "compile_or_warm_up_model": "warming",
        "_dummy_sampler_run": "warming",
        "run_busy_loop": "serving",
        "event_loop_normal": "serving",
        "event_loop_overlap": "serving",
    }
)
"""Function of an engine -> the phase of a start that it belongs to."""

FRAME_WORDS = tuple(f", in {name}" for name in _FRAMES)
"""Of a traceback's line that names one of them."""

_FRAME = re.compile(r"File \"[^\"\n]{1,300}\", line \d{1,6}, in (?P<name>\w{1,80})\b")
_OUTER = ("serving", "warming")
"""Phases whose functions call those of others, which then tell more."""


def frame_of(text: str) -> str:
    """Return the phase of the function that a traceback's line names; "" for none."""
    match = _FRAME.search(text)
    return _FRAMES.get(match["name"], "") if match else ""


def later(one: str, other: str) -> str:
    """Return the later of two phases."""
    return max(one, other, key=_ORDER.__getitem__)


def inner(found: str, frame: str) -> str:
    """Return the phase of a traceback, whose outer frames come first, with one more of them."""
    return frame if not found or found in _OUTER else found
