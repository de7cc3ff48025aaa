"""The card as vLLM asks about it: compute capability, memory, and defaults that depend on them."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import NotModelledError
from kvcalc.engines.vllm.rules import Rules

__all__ = ["ASSUMED", "BatchDefaults", "Card", "batch_defaults", "card_of"]

_GIB = 2**30
_LARGEST = 160 * _GIB
_LARGE = 70 * _GIB
_GB10 = (12, 1)

Capability = tuple[int, int]


class Card(NamedTuple):
    """What the rules ask of a card."""

    name: str
    memory_bytes: int
    capability: Capability

    @property
    def family(self) -> int:
        """The major compute capability: 9 for Hopper."""
        return self.capability[0]

    @property
    def has_fp8(self) -> bool:
        """Whether Triton kernels can read fp8 natively."""
        return self.capability >= (8, 9)

    @property
    def has_bfloat16(self) -> bool:
        """Whether kernels can compute in bfloat16."""
        return self.capability >= (8, 0)


ASSUMED = Card("h100-80gb", 85_520_809_984, (9, 0))
"""Taken where no card is named: the one that most deployments and logs are of."""


def card_of(gpu: GpuSpec) -> Card:
    """Return the facts of a GPU.

    Raises:
        UnsupportedError: a GPU without a CUDA compute capability (ROCm's rules are others).
    """
    if gpu.compute_capability is None:
        raise NotModelledError(
            f"{gpu.name} is no CUDA card, and vLLM's rules are known for those alone",
            hint="name an NVIDIA card (kvcalc gpus lists them)",
        )
    major, _, minor = gpu.compute_capability.partition(".")
    return Card(gpu.name, gpu.memory_bytes, (int(major), int(minor)))


class BatchDefaults(NamedTuple):
    """Tokens and sequences of a step where the settings do not say (`vllm serve`)."""

    max_num_batched_tokens: int
    max_num_seqs: int


def batch_defaults(card: Card, rules: Rules) -> BatchDefaults:
    """Return the defaults of a server on a card.

    vLLM 0.33 engine/arg_utils.py, EngineArgs.get_batch_defaults (OPENAI_API_SERVER).
    """
    if card.memory_bytes >= _LARGEST and rules.large_cards:
        return BatchDefaults(16384, 1024)
    small = (rules.a100_is_small and "a100" in card.name) or (
        rules.gb10_is_small and card.capability == _GB10
    )
    if card.memory_bytes >= _LARGE and not small:
        return BatchDefaults(8192, 1024)
    return BatchDefaults(2048, 256)
