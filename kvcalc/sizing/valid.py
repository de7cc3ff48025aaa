"""A question as a program asks it: numbers that can be meant, each fault with what to write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvcalc.core.deployment import MAX_BYTES
from kvcalc.core.errors import InvalidValueError, UnknownNameError, nearest
from kvcalc.core.lengths import whole_number
from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve import SETTINGS

__all__ = ["checked", "settings_to_solve"]

_COUNT = "give a whole number from 1, such as 16"
_BYTES = "give bytes as an int: 15 * 2**30"


def checked(question: Question) -> Question:
    """Return a question with its numbers as plain ints.

    Raises:
        InvalidValueError: a number that is none, or out of the range that its meaning allows.
    """
    weights, free = question.weights_bytes, question.free_bytes
    quantization = question.quantization
    if quantization is not None and not isinstance(quantization, str):
        raise InvalidValueError(
            f"quantization is {quantization!r:.60}, not a name",
            hint="give the format of the weights, such as fp8, or leave it out",
        )
    return question._replace(
        sequences=_within(question.sequences, "sequences", 1, MAX_DIMENSION, _COUNT),
        instances=_within(question.instances, "instances", 1, MAX_DIMENSION, _COUNT),
        weights_bytes=None
        if weights is None
        else _within(weights, "weights_bytes", 1, MAX_BYTES, _BYTES),
        host_bytes=None
        if question.host_bytes is None
        else _within(question.host_bytes, "host_bytes", 1, MAX_BYTES, _BYTES),
        free_bytes=None if free is None else _within(free, "free_bytes", 0, MAX_BYTES, _BYTES),
        lengths=_lengths(question.lengths),
    )


def settings_to_solve(names: object) -> tuple[str, ...]:
    """Return what is to be solved for, each once.

    Raises:
        InvalidValueError: no list of names.
        UnknownNameError: no such setting.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        close = nearest(names, SETTINGS, 1) if isinstance(names, str) else []
        example = (close or ["max-model-len"])[0]
        raise InvalidValueError(
            f"solve_for is {names!r:.60}, not a list of settings",
            hint=f'give a list: solve_for=["{example}"]',
        )
    found = tuple(dict.fromkeys(names))
    for name in found:
        if name not in SETTINGS:
            raise UnknownNameError("setting to solve for", f"{name}", SETTINGS)
    return found


def _lengths(lengths: Any) -> Sequence[int]:
    if isinstance(lengths, (str, bytes)) or not isinstance(lengths, Iterable):
        raise InvalidValueError(
            f"at is {lengths!r:.60}, not a list of lengths", hint="give a list: at=[4096]"
        )
    return tuple(_within(n, "a length of at", 1, MAX_DIMENSION, _COUNT) for n in lengths)


def _within(value: object, name: str, low: int, high: int, hint: str) -> int:
    found = whole_number(value, name, hint)
    if not low <= found <= high:
        shown = format_count(found) if abs(found) <= high else "beyond all measure"
        raise InvalidValueError(f"{name} is {shown}, not from {low} to {high}", hint=hint)
    return found
