"""The card as SGLang asks about it: its generation, and the memory that defaults depend on."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, NotModelledError

__all__ = ["ASSUMED", "Card", "card_of"]

_MIB = 2**20
_HOPPER, _BLACKWELL, _BLACKWELL_CONSUMER = 9, 10, 12


class Card(NamedTuple):
    """What the rules ask of a card."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]

    @property
    def hopper(self) -> bool:
        """Whether it is an H100, H200 or H20."""
        return self.capability[0] == _HOPPER

    @property
    def since_blackwell(self) -> bool:
        """Whether it is of Blackwell's generation or a later one."""
        return self.capability[0] >= _BLACKWELL

    @property
    def sm100(self) -> bool:
        """Whether it is a Blackwell data-centre card (B200, GB200, B300)."""
        return self.capability[0] == _BLACKWELL

    @property
    def blackwell(self) -> bool:
        """Whether it is any Blackwell card."""
        return self.capability[0] in (_BLACKWELL, _BLACKWELL_CONSUMER)

    @property
    def memory_mib(self) -> float:
        """Memory in MiB, as the start-up rules count it."""
        return self.memory_bytes / _MIB


ASSUMED = Card("h100-80gb", 85_520_809_984, (9, 0))
"""Taken where no card is named: the one that most deployments and logs are of."""


def card_of(deployment: Deployment, notes: list[str]) -> Card:
    """Return the facts of the deployment's GPU; the assumed one where none is named.

    Raises:
        InvalidValueError: a GPU's name instead of the GPU.
        UnsupportedError: a GPU without a CUDA compute capability (ROCm's rules are others).
    """
    gpu = deployment.gpu
    if gpu is None:
        notes.append(
            f"no card was named: {ASSUMED.name} (kernels and with them the page depend on it;"
            " --gpu)"
        )
        return ASSUMED
    if not isinstance(gpu, GpuSpec):
        raise InvalidValueError(
            f"gpu {gpu!r:.40} is a name where the card itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    if gpu.compute_capability is None:
        raise NotModelledError(
            f"{gpu.name} is no CUDA card, and SGLang's rules are known here for those alone",
            hint="name an NVIDIA card (kvcalc gpus lists them)",
        )
    major, _, minor = gpu.compute_capability.partition(".")
    return Card(gpu.name, gpu.memory_bytes, (int(major), int(minor)))
