"""All shapes by engine, and the words of which every line that matters has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.measure.logs import llamacpp, others, sglang, vllm, vllm_refusals
from kvcalc.measure.logs.errors import ERROR_WORDS
from kvcalc.measure.logs.phases import FRAME_WORDS
from kvcalc.measure.logs.settings import MARKS
from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["BY_ENGINE", "COMMON", "NEEDLES", "OOM_WORDS", "SHAPES", "matters", "shapes_near"]

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


class _Index:
    """Which of many words a line may have: those of which it has a piece, and the short ones.

    A line is cut at every fourth letter; wherever a word begins, some of the line's pieces lie
    whole within it. Of these the one that is in no common line is kept. So a line costs its
    length, not the number of words.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._at: dict[str, list[int]] = {}
        self._always: list[int] = []
        for number, word in enumerate(words):
            if len(word) < _SHORTEST:
                self._always.append(number)
                continue
            for first in range(_STEP):
                cut = [word[i : i + _STEP] for i in range(first, len(word) - _STEP + 1, _STEP)]
                best = min(cut, key=lambda piece: (piece in _COMMON, piece not in self._at))
                if number not in self._at.setdefault(best, []):
                    self._at[best].append(number)
        self._pieces = frozenset(self._at)

    def near(self, line: str) -> list[int]:
        """Return the numbers of the words that a line may have, in their order."""
        pieces = self._pieces.intersection(
            [line[i : i + _STEP] for i in range(0, len(line), _STEP)]
        )
        if not pieces:
            return self._always
        return sorted({*self._always, *(number for one in pieces for number in self._at[one])})


NEEDLES = _needles()
SHAPES: tuple[tuple[str, Shape], ...] = (
    *((engine, one) for engine, shapes in BY_ENGINE.items() for one in shapes),
    *(("", one) for one in COMMON),
)
"""The shapes with their engines; "" of those that belong to whatever start is there."""

_OF_NEEDLES = _Index(NEEDLES)
_OF_SHAPES = _Index([one.needle for _, one in SHAPES])


def matters(line: str) -> bool:
    """Whether a line may tell something; most lines of a serving log cannot."""
    return any(NEEDLES[number] in line for number in _OF_NEEDLES.near(line))


def shapes_near(text: str) -> Iterator[tuple[int, str, Shape]]:
    """Yield number, engine and shape of those whose needle a line has."""
    for number in _OF_SHAPES.near(text):
        engine, one = SHAPES[number]
        if one.needle in text:
            yield number, engine, one
