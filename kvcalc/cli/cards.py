"""From what was typed to the card, its memory and the engine's share of it."""

from __future__ import annotations

from kvcalc.cli import inputs
from kvcalc.cli.given import share_of_gpu
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.units import format_bytes

__all__ = ["card_settings"]


def card_settings(deployment: Deployment, values: Values, memory: int | None) -> dict[str, object]:
    """Return what was given of the card and its share, by field of Deployment.

    Args:
        deployment: as far as it is known; its gpu may be the card.
        values: what was given.
        memory: of the card, where that is given by itself.
    """
    changes: dict[str, object] = {}
    gpu = deployment.gpu
    if memory is not None:
        if isinstance(gpu, GpuSpec):
            changes["gpu"] = gpu.with_memory(memory)
        else:
            text = f"a card of {format_bytes(memory)}"
            changes["gpu"] = GpuSpec(
                name=text, title=text, memory_bytes=memory, compute_capability="9.0"
            )
    share = values["gpu_memory_utilization"]
    if share is not None:
        changes["gpu_memory_utilization"] = values.at(
            "gpu_memory_utilization", lambda: share_of_gpu(share)
        )
    for name in ("enforce_eager", "enable_expert_parallel"):
        found = inputs.switched(values, name)
        if found is not None:
            changes[name] = found
    return changes
