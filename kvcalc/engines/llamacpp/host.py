"""What a llama.cpp server takes of the host's memory beside weights and caches there."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.memory import HostPart
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.checkpoints import checkpoint_bytes
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.output import output_buffer
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["host_notes", "host_parts", "on_host"]

_MIB = 2**20
_PROCESS = (64 * _MIB, 1024 * _MIB)


def host_notes(contexts: list[Context], settings: Settings) -> Iterator[str]:
    """Say what context checkpoints and the prompt cache take of the host's memory."""
    longest = settings.cells.longest
    partial = checkpoint_bytes(contexts, settings, longest)
    if partial and settings.checkpoints:
        most = partial * settings.checkpoints
        grows = (partial - checkpoint_bytes(contexts, settings, 1)) // max(1, longest - 1)
        at = ""
        if len(contexts) > 1 and grows:
            at = f" at {format_count(longest)} tokens, as the draft's cells are in each of them"
        yield (
            f"host memory: up to {settings.checkpoints} checkpoints a slot of up to"
            f" {format_count(partial)} B each{at}, {format_count(most)} B for each slot"
            " (--ctx-checkpoints)"
        )
    if settings.cache_ram and settings.rules.server_slots:
        limit = (
            "without a limit"
            if settings.cache_ram < 0
            else f"of up to {format_count(settings.cache_ram * _MIB)} B"
        )
        yield f"host memory: a cache of idle prompts {limit} (cache_ram)"


def on_host(
    ranks: tuple[Rank, ...], weights: Spans | None, settings: Settings
) -> Iterator[HostPart]:
    """Yield the weights and the caches that lie in the host's memory.

    Weights that are mapped from the file (llama-mmap.cpp) are pages that the kernel may drop: they
    take all of their bytes where there is room.
    """
    low, high = (0, 0) if weights is None else weights[HOST]
    if high:
        mapped = settings.mapped
        yield HostPart(
            name="weights",
            low_bytes=0 if mapped else low,
            high_bytes=high,
            source="mapped from the file, whose pages the kernel may drop"
            if mapped
            else "read into memory (no mmap)",
            pinned=not mapped,
        )
    caches = sum(pool.total_bytes(pool.units or 0) for r in ranks if r.on_host for pool in r.pools)
    if caches:
        yield HostPart(
            name="cache", low_bytes=caches, high_bytes=caches, source="layers on the host"
        )


def host_parts(contexts: list[Context], settings: Settings) -> tuple[HostPart, ...]:
    """Return what a server takes of the host's memory beyond weights and caches there."""
    parts = [
        HostPart(
            name="process",
            low_bytes=_PROCESS[0],
            high_bytes=_PROCESS[1],
            source="the server itself and the GPU's driver: a wide bound, not measured",
        )
    ]
    output = output_buffer(contexts[0].served.model, settings)
    if output is not None:
        parts.append(
            HostPart(
                name="output buffer",
                low_bytes=output,
                high_bytes=output,
                source="4 B x the vocabulary for each sequence",
            )
        )
    partial = checkpoint_bytes(contexts, settings, settings.cells.longest)
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
                is_default=not settings.cache_ram_given,
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
