"""What a llama.cpp server takes of the host's memory beside weights and caches there."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.memory import HostPart
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.output import output_buffer
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["host_notes", "host_parts"]

_MIB = 2**20
_PROCESS = (64 * _MIB, 1024 * _MIB)


def host_notes(main: Context, settings: Settings) -> Iterator[str]:
    """Say what context checkpoints and the prompt cache take of the host's memory."""
    partial = _checkpoint_bytes(main, settings)
    if partial and settings.checkpoints:
        most = partial * settings.checkpoints
        yield (
            f"host memory: up to {settings.checkpoints} checkpoints a slot of up to"
            f" {format_count(partial)} B each, {format_count(most)} B for each slot"
        )
    if settings.cache_ram and settings.rules.server_slots:
        limit = (
            "without a limit"
            if settings.cache_ram < 0
            else f"of up to {format_count(settings.cache_ram * _MIB)} B"
        )
        yield f"host memory: a cache of idle prompts {limit} (cache_ram)"


def host_parts(main: Context, settings: Settings) -> tuple[HostPart, ...]:
    """Return what a server takes of the host's memory beyond weights and caches there."""
    parts = [
        HostPart(
            name="process",
            low_bytes=_PROCESS[0],
            high_bytes=_PROCESS[1],
            source="the server itself and the GPU's driver: a wide bound, not measured",
        )
    ]
    output = output_buffer(main.served.model, settings)
    if output is not None:
        parts.append(
            HostPart(
                name="output buffer",
                low_bytes=output,
                high_bytes=output,
                source="4 B x the vocabulary for each sequence",
            )
        )
    partial = _checkpoint_bytes(main, settings)
    if partial and settings.checkpoints:
        slots = settings.cells.sequences
        parts.append(
            HostPart(
                name="context checkpoints",
                low_bytes=0,
                high_bytes=partial * settings.checkpoints * slots,
                source=f"ctx_checkpoints: {settings.checkpoints} for each of {slots} slots",
                setting="--ctx-checkpoints",
                unit_bytes=partial * slots,
            )
        )
    if settings.cache_ram and settings.rules.server_slots:
        limit = None if settings.cache_ram < 0 else settings.cache_ram * _MIB
        default = "" if settings.cache_ram_given else ", the default"
        parts.append(
            HostPart(
                name="prompt cache",
                low_bytes=0,
                high_bytes=limit,
                source=f"cache_ram {settings.cache_ram}{default}: the KV cache of idle prompts; the"
                " last one is saved before older ones are dropped",
                setting="LLAMA_ARG_CACHE_RAM" if settings.runners > 1 else "--cache-ram",
                unit_bytes=_MIB,
            )
        )
    if settings.runners > 1:
        others = settings.runners - 1
        highs = [part.high_bytes for part in parts]
        known = [size for size in highs if size is not None]
        parts.append(
            HostPart(
                name="other models",
                low_bytes=0,
                high_bytes=others * sum(known) if len(known) == len(highs) else None,
                source=f"ollama keeps up to {settings.runners} models loaded, each in a server of"
                " its own: as much again for each of the others",
                setting="OLLAMA_MAX_LOADED_MODELS",
                unit_bytes=max(1, sum(known)),
            )
        )
    return tuple(parts)


def _checkpoint_bytes(main: Context, settings: Settings) -> int:
    """Bytes of the largest checkpoint: the windows of a sequence, or its state.

    tools/server (create_checkpoint) saves what cannot be computed from the cells that stay:
    measured as 8 B, 24 B a cache, 24 B a layer (12 B where it has K alone), and for each cell 12 B
    and its rows. Of states only the rows are counted.
    """
    windows = [kept for kept in main.kept if kept.cache == "swa"]
    states = [kept for kept in main.kept if kept.cache == "state"]
    total = sum(size for kept in states for size in kept.payload.values())
    if windows and not main.sizes.swa_full:
        cells = min(main.sizes.window, settings.cells.per_sequence)
        rows = sum(sum(kept.payload.values()) + kept.widened for kept in windows)
        layers = sum(24 if len(kept.tensors) > 1 else 12 for kept in windows)
        total += 8 + 24 + layers + cells * (12 + rows)
    return total
