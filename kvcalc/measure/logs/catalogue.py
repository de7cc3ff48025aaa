"""All shapes by engine, and the words of which every line that matters has one."""

from __future__ import annotations

from kvcalc.measure.logs import llamacpp, others, sglang, vllm, vllm_refusals
from kvcalc.measure.logs.errors import ERROR_WORDS
from kvcalc.measure.logs.phases import FRAME_WORDS
from kvcalc.measure.logs.settings import MARKS
from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["BY_ENGINE", "COMMON", "NEEDLES", "OOM_WORDS", "matters"]

BY_ENGINE: dict[str, tuple[Shape, ...]] = {
    "vllm": (*vllm.SHAPES, *vllm_refusals.SHAPES),
    "sglang": sglang.SHAPES,
    "llama.cpp": llamacpp.SHAPES,
    "tensorrt-llm": others.TENSORRT_LLM,
    "lmdeploy": others.LMDEPLOY,
    "tgi": others.TGI,
    "mlc-llm": others.MLC,
    "exllamav2": others.EXLLAMA,
}
"""kvcalc's name of an engine -> the shapes of its lines."""

COMMON: tuple[Shape, ...] = (
    shape("pplication startup complete", "Application startup complete", says="ready",
          phase="serving", joins=True),
    shape("vicorn running on", "Uvicorn running on http", says="ready", phase="serving",
          joins=True),
    shape("is fired up and ready", "The server is fired up and ready", says="ready",
          phase="serving", joins=True),
)  # fmt: skip
"""Lines of the servers that engines are built on: a start that is there serves."""

OOM_WORDS = (
    "Tried to allocate",
    "out of memory",
    "OutOfMemoryError",
    "reserved by PyTorch but unallocated",
)
"""Of a line that belongs to an out-of-memory text."""


def _needles() -> tuple[str, ...]:
    """Return the needles of all shapes and settings, without those that hold another."""
    found = {one.needle for shapes in (*BY_ENGINE.values(), COMMON) for one in shapes}
    found |= {*MARKS, *OOM_WORDS, *ERROR_WORDS, *FRAME_WORDS}
    return tuple(sorted(word for word in found if not any(w != word and w in word for w in found)))


_STEP = 4
"""Letters of a piece: each needle of twice as many, less one, has one at a whole number of them."""
_SHORTEST = 2 * _STEP - 1

_COMMON = """
INFO: 10.0.0.1:12345 - "POST /v1/chat/completions HTTP/1.1" 200 OK  GET /health /metrics
INFO 10-03 08:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation
throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache
hit rate: 0.0% Decode batch. #running-req: 1, #token: 100, token usage: 0.01, gen throughput
(token/s): 100.0, #queue-req: 0 slot print_timing: id 0 | task 1 | prompt eval time = 1.00 ms / 1
tokens per second total time, n_tokens = update_slots: params_from_: srv log_server_r: request: POST
"""
"""What the lines of a server that serves are made of: most lines of most logs."""


def _grams() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return pieces of which each needle has one wherever it stands in a line, and short needles.

    A line is cut at every fourth letter; wherever a needle begins, some of the line's pieces lie
    whole within it. Of these the one that is in no common line is kept.
    """
    kept: set[str] = set()
    for needle in NEEDLES:
        if len(needle) < _SHORTEST:
            continue
        for first in range(_STEP):
            cut = [needle[i : i + _STEP] for i in range(first, len(needle) - _STEP + 1, _STEP)]
            kept.add(min(cut, key=lambda piece: (piece in _COMMON, piece not in kept)))
    return frozenset(kept), tuple(word for word in NEEDLES if len(word) < _SHORTEST)


NEEDLES = _needles()
_GRAMS, _SHORT = _grams()


def matters(line: str) -> bool:
    """Whether a line may tell something; most lines of a serving log cannot.

    Few lines have one of the pieces, so that the needles are looked for in those alone.
    """
    if not _GRAMS.isdisjoint([line[i : i + _STEP] for i in range(0, len(line), _STEP)]):
        return any(needle in line for needle in NEEDLES)
    return any(needle in line for needle in _SHORT)
