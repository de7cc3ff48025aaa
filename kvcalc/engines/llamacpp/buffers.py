"""What a context takes beside its caches, for readers: the compute and the output buffer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.llamacpp.compute import Interval, buffer_of, step_of
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.output import output_buffer
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["buffer_notes", "known_buffer", "on_cpu", "unknown_buffers", "with_buffers"]


def on_cpu(settings: Settings) -> bool:
    """Whether no layer leaves the host, so that a CPU computes."""
    return settings.placing.n_gpu_layers == 0


def known_buffer(main: Context, settings: Settings) -> Interval | None:
    """Return the compute buffer of the model's own context, of a GPU where one was named.

    None where it is not known: also where a named GPU computes some layers alone, or the cache
    stays on the host (-nkvo), as both divide the graph.
    """
    placing = settings.placing
    if on_cpu(settings) or not placing.named:
        return buffer_of(main, settings)
    layers = placing.n_gpu_layers
    if placing.host or (layers is not None and layers <= len(main.served.numbered)):
        return None
    return buffer_of(main, settings, gpu=True)


def buffer_notes(main: Context, settings: Settings) -> Iterator[str]:
    """Yield a line for each of the buffers of the model's own context that is known."""
    found = known_buffer(main, settings)
    if found is not None:
        step = step_of(main, settings, None)
        size = format_count(found.low)
        if not found.exact:
            size += f" to {format_count(found.high)}"
        gpu = settings.placing.named and not on_cpu(settings)
        where = "each GPU" if len(settings.placing.shares) > 1 else "a GPU"
        why = f" ({found.reason})" if found.reason else ""
        yield (
            f"compute buffer on {where if gpu else 'a CPU'}: {size} B for a step of"
            f" {format_count(step.tokens)} tokens with"
            f" {format_number_of(step.outputs, 'output')}{why}"
        )
    output = output_buffer(main.served.model, settings)
    if output is not None:
        sequences = format_number_of(settings.cells.sequences, "sequence")
        yield (
            f"output buffer: {format_count(output)} B of host memory at start, a row of the"
            f" vocabulary for {sequences}"
        )


def unknown_buffers(contexts: list[Context], settings: Settings) -> list[str]:
    """Return the buffers that kvcalc cannot tell."""
    main = contexts[0]
    said = []
    if known_buffer(main, settings) is None:
        said.append(
            "compute buffers to the byte: the graph is divided between GPU and host, or not known;"
            " with a card they count as an interval"
        )
    said.extend(f"the compute buffer of the {c.sizes.names}context" for c in contexts[1:])
    if output_buffer(main.served.model, settings) is None:
        sequences = format_number_of(settings.cells.sequences, "sequence")
        said.append(
            f"the output buffer: 4 B x the vocabulary x {sequences} of host memory at start"
        )
    return said


def with_buffers(
    ranks: tuple[Rank, ...], contexts: list[Context], settings: Settings
) -> tuple[Rank, ...]:
    """Return the ranks with what the host takes beside the caches, where that is exact."""
    if not on_cpu(settings) or len(contexts) > 1:
        return ranks
    found = buffer_of(contexts[0], settings)
    output = output_buffer(contexts[0].served.model, settings)
    if found is None or not found.exact or output is None:
        return ranks
    beside = found.low + output
    return tuple(
        msgspec.structs.replace(rank, outside_bytes=beside) if rank.on_host else rank
        for rank in ranks
    )
