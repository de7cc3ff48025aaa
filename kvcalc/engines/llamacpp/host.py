"""What a llama.cpp server takes of the host's memory beside weights and caches there."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.memory import HostPart
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.families import families
from kvcalc.engines.llamacpp.loaded import Spans
from kvcalc.engines.llamacpp.output import output_buffer
from kvcalc.engines.llamacpp.overrides import HOST
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.tensors import Kept

__all__ = ["checkpoint_bytes", "host_notes", "host_parts", "on_host"]


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


# Context checkpoints: what of a sequence a server keeps in host memory to go back to.
#
# llama.cpp b11434 tools/server/server-context.cpp (create_checkpoint) and common/common.cpp
# (common_prompt_checkpoint): of the model's own context what cannot be computed anew from the cells
# that stay (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY), and of a draft's context the same, which is every
# cell of the sequence where the draft is neither windowed nor recurrent. The formats are those of
# state_write in src/llama-context.cpp, llama-kv-cache.cpp and llama-memory-recurrent.cpp.

_OF_DRAFTS = 9101
"""The last build that was read without the draft's part; 9113 has it."""
_WITHOUT_TOKEN = 10488
"""The last build whose cells of M-RoPE were read without a token; 10950 has it."""
_SEQUENCE = 8
_CACHE = 24
_TENSOR = 12
_CELL = 12
_PLACE, _PLACE_AND_TOKEN = 8, 12
_STATES, _STATE = 12, 8


def checkpoint_bytes(contexts: list[Context], settings: Settings, tokens: int) -> int:
    """Return the bytes of a checkpoint of a sequence of so many tokens; 0 where none is made.

    Args:
        contexts: the model's own first.
        settings: as resolved.
        tokens: of the sequence.
    """
    main, *drafts = contexts
    if not _partial(main):
        return 0
    if settings.build.number <= _OF_DRAFTS:
        drafts = []
    return sum(_state(context, settings, tokens) for context in (main, *drafts))


def _partial(context: Context) -> list[Kept]:
    """Return what of a context is written: states and windows; nothing where it has none."""
    return [
        kept
        for kept in context.kept
        if kept.cache == "state" or (kept.cache == "swa" and not context.sizes.swa_full)
    ]


def _state(context: Context, settings: Settings, tokens: int) -> int:
    """Return the bytes of a context's part of a sequence."""
    written = _partial(context) or context.kept
    total = _SEQUENCE
    states = [kept for kept in written if kept.cache == "state"]
    if states:
        total += _STATES + _STATE
    total += sum(_TENSOR * len(kept.payload) + sum(kept.payload.values()) for kept in states)
    for cache in dict.fromkeys(kept.cache for kept in written if kept.cache != "state"):
        layers = [kept for kept in written if kept.cache == cache]
        rows = sum(sum(kept.payload.values()) + kept.widened for kept in layers)
        limit = context.sizes.window if cache == "swa" else tokens
        cells = min(limit, tokens)
        total += _CACHE + sum(_TENSOR * len(kept.tensors) for kept in layers)
        total += cells * (_cell(context, settings) + rows)
    return total


def _cell(context: Context, settings: Settings) -> int:
    """Return the bytes of a cell beside its rows (state_write_meta): 12, more with M-RoPE."""
    if not any(family.axes > 1 for family in families(context.served.arch)):
        return _CELL
    older = settings.build.number <= _WITHOUT_TOKEN
    return _CELL + (_PLACE if older else _PLACE_AND_TOKEN)
