"""What a run knows beside its files: options, and what kvcalc.yaml says of everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.answers.assertions import Assertion, CheckLevel
from kvcalc.checks.cards import card_of, memory_only
from kvcalc.checks.file import Given
from kvcalc.checks.models import Models
from kvcalc.core.deployment import GpuSpec

__all__ = ["Context"]


class Context(NamedTuple):
    """Settings of a run.

    Attributes:
        models: looks models up.
        gpu: a card for everything, whatever the files say.
        gpu_memory: its memory, instead of what it has.
        gpu_free: of each card before a server starts.
        host_memory: that a server may have, whatever the files say.
        default_gpu: a card for what names none.
        engine_version: for everything, whatever the files say.
        sequences: the goal of everything.
        quantization: what the weights of everything are in, whatever the files say.
        beside: what kvcalc.yaml says at its top, for what says nothing itself (see keys.BESIDE).
        assertions: for everything, by name.
        levels: of findings by code.
        price: of an hour of one GPU.
        figures: which figure of an estimate is compared.
    """

    models: Models
    gpu: str | None = None
    gpu_memory: int | None = None
    gpu_free: int | None = None
    host_memory: int | None = None
    default_gpu: str | None = None
    engine_version: str | None = None
    sequences: int | None = None
    quantization: str | None = None
    beside: Mapping[str, Given] = {}
    assertions: Mapping[str, Assertion] = {}
    levels: Mapping[str, CheckLevel] = {}
    price: float | None = None
    figures: str = "expected"

    def card(self, word: str | None, key: str | None = None) -> GpuSpec | None:
        """Return the card of a deployment whose file calls it `word`; None: nothing names one.

        Raises:
            UnknownNameError: no card of that name.
        """
        name, where = (self.gpu, None) if self.gpu is not None else (word, key)
        if name is None:
            name = self.default_gpu
        card = None if name is None else card_of(name, where)
        if self.gpu_memory is None:
            return card
        return memory_only(self.gpu_memory) if card is None else card.with_memory(self.gpu_memory)
