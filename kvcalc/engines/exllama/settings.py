"""What both ExLlamas read of a deployment."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    UnknownNameError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_count
from kvcalc.engines.releases import Releases

__all__ = ["KNOWN", "Arguments", "longest", "version"]

KNOWN = {
    "engine",
    "engine_version",
    "gpu",
    "tensor_parallel_size",
    "data_parallel_size",
    "kv_cache_dtype",
    "max_model_len",
    "kv_cache_memory_bytes",
    "engine_args",
}
"""Settings of a deployment that both have."""
_DEFAULT_MAX_MODEL_LEN = 8192


class Arguments:
    """An engine's own settings, checked by name and kind."""

    def __init__(self, deployment: Deployment, engine: str, known: dict[str, type]) -> None:
        """Check the names.

        Raises:
            UnknownNameError: a setting that is not one of `known` (name -> int, str or bool).
            InvalidValueError: one of another kind.
        """
        self._given = {k: v for k, v in deployment.engine_args.items() if v is not None}
        for name, value in self._given.items():
            if name not in known:
                raise UnknownNameError(f"setting of {engine}", name, known)
            if known[name] is str and type(value) in (int, str):
                self._given[name] = str(value)
            elif type(value) is not known[name]:
                raise InvalidValueError(f"{name} is {value!r:.60}, not {_KINDS[known[name]]}")

    def number(self, name: str, low: int = 1) -> int | None:
        """Return a whole number.

        Raises:
            InvalidValueError: below `low`.
        """
        value = self._given.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or value < low:
            raise InvalidValueError(f"{name} is {value}, not a whole number from {low}")
        return value

    def text(self, name: str) -> str | None:
        """Return a word; a number is one too."""
        value = self._given.get(name)
        return None if value is None else str(value)

    def switch(self, name: str) -> bool:
        """Return whether a switch is on."""
        return self._given.get(name) is True


_KINDS = {int: "a whole number", str: "a word", bool: "true or false"}


def longest(model: ModelSpec, deployment: Deployment, notes: list[str]) -> int:
    """Return the longest sequence; a line is added to `notes` where it was assumed."""
    length = deployment.max_model_len or model.max_position_embeddings
    if length is None:
        length = _DEFAULT_MAX_MODEL_LEN
        notes.append(f"the model names no maximum: {format_count(length)} tokens are taken")
    return length


def version(text: str | None, releases: Releases) -> tuple[str, tuple[int, int]]:
    """Return a release, and its major and minor number; the newest known one for newer ones.

    Raises:
        UnknownReleaseError: no release, or one older than those that are known.
    """
    number = releases.read(text).number
    return releases.spelled(number), number[:2]
