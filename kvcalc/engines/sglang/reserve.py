"""What SGLang itself reckons with for steps and graphs: the settings that decide it."""

from __future__ import annotations

from kvcalc.core.model import ModelSpec
from kvcalc.engines.sglang.families import is_latent
from kvcalc.engines.sglang.memory import Reserve, reserved_mib
from kvcalc.engines.sglang.settings import Settings

__all__ = ["reserve_of", "reserved"]

_MIB = 2**20


def reserve_of(model: ModelSpec, settings: Settings) -> Reserve:
    """Return what of a server decides how much its default keeps back."""
    return Reserve(
        tp=settings.tp,
        pp=settings.pp,
        chunk=settings.chunk,
        attn_dp=settings.attn_dp,
        graph_batch=settings.graph_batch,
        max_requests=settings.max_requests,
        latent=is_latent(model),
        graphs=settings.graphs,
    )


def reserved(model: ModelSpec, settings: Settings) -> int:
    """Return the bytes that SGLang itself reckons with for steps and graphs."""
    return int(reserved_mib(settings.card, reserve_of(model, settings)) * _MIB)
