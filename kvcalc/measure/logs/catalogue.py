"""All shapes by engine, and the words of which every line that matters has one."""

from __future__ import annotations

from kvcalc.measure.logs import llamacpp, others, sglang, vllm, vllm_refusals
from kvcalc.measure.logs.errors import ERROR_WORDS
from kvcalc.measure.logs.settings import MARKS
from kvcalc.measure.logs.shapes import Shape

__all__ = ["BY_ENGINE", "NEEDLES", "OOM_WORDS", "PIECES", "matters"]

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

OOM_WORDS = (
    "Tried to allocate",
    "out of memory",
    "OutOfMemoryError",
    "reserved by PyTorch but unallocated",
)
"""Of a line that belongs to an out-of-memory text."""


def _needles() -> tuple[str, ...]:
    """Return the needles of all shapes and settings, without those that hold another."""
    found = {one.needle for shapes in BY_ENGINE.values() for one in shapes}
    found |= {*MARKS, *OOM_WORDS, *ERROR_WORDS}
    return tuple(sorted(word for word in found if not any(w != word and w in word for w in found)))


def _pieces(needles: tuple[str, ...]) -> tuple[str, ...]:
    """Return few pieces of five letters of which every needle has one: the commonest first."""
    left, pieces = set(needles), []
    while left:
        counts: dict[str, int] = {}
        for word in sorted(left):
            for piece in {word[i : i + _PIECE] for i in range(max(1, len(word) - _PIECE + 1))}:
                counts[piece] = counts.get(piece, 0) + 1
        best = max(counts, key=lambda piece: (counts[piece], piece))
        pieces.append(best)
        left = {word for word in left if best not in word}
    return tuple(pieces)


_PIECE = 5
NEEDLES = _needles()
PIECES = _pieces(NEEDLES)


def matters(line: str) -> bool:
    """Whether a line may tell something; most lines of a serving log cannot.

    A third of the time of looking for each needle: a line has one of the pieces first.
    """
    for piece in PIECES:
        if piece in line:
            return any(needle in line for needle in NEEDLES)
    return False
