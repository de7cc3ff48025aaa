"""The compute buffer: the memory that a context computes its largest step in.

llama.cpp b11434 src/llama-context.cpp (llama_context::sched_reserve): the graph of a step of
n_ubatch tokens, with as many outputs as the context may be asked for, is laid out once and its
buffer kept. Only builds from b11434 on were measured; older ones had other graphs.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.model import ModelSpec
from kvcalc.engines.llamacpp.allocator import peak_bytes
from kvcalc.engines.llamacpp.cells import padded, windowed
from kvcalc.engines.llamacpp.contexts import Context, contexts_of
from kvcalc.engines.llamacpp.families import SCALED_EXPERTS, families
from kvcalc.engines.llamacpp.ggml import Graph
from kvcalc.engines.llamacpp.graph import Family, Shape, Step, decoder
from kvcalc.engines.llamacpp.graph_delta import delta_decoder
from kvcalc.engines.llamacpp.graph_latent import latent_decoder
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.shapes import expert_groups, latent_of, shape_of
from kvcalc.engines.llamacpp.types import quantized

__all__ = ["CPU_ALIGNMENT", "Interval", "compute_buffer", "step_of"]

CPU_ALIGNMENT = 32
"""Bytes that a tensor's size is rounded up to: ggml-backend.cpp, TENSOR_ALIGNMENT."""

_MEASURED_FROM = 11434


class Interval(NamedTuple):
    """Bytes that lie between two bounds; equal where the number is exact.

    Attributes:
        low: at least so many.
        high: at most so many.
        reason: why it is no one number; empty where it is.
    """

    low: int
    high: int
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high


def compute_buffer(
    model: ModelSpec, settings: Settings, *, outputs: int | None = None
) -> Interval | None:
    """Return the bytes of the compute buffer of a context on a CPU.

    Args:
        model: with its widths (`size`).
        settings: as resolved.
        outputs: tokens of a step whose logits can be asked for; None for the server's: one a slot.

    Returns:
        The interval; None where the model's widths are not known, or kvcalc does not know the
        graph of its architecture.

    Raises:
        UnsupportedError: what llama.cpp refuses, or kvcalc does not model.
    """
    main = contexts_of(model, settings, [])[0]
    return buffer_of(main, settings, outputs=outputs)


def buffer_of(
    main: Context, settings: Settings, *, outputs: int | None = None, every_tensor: bool = False
) -> Interval | None:
    """Return the bytes of the compute buffer of a context.

    `every_tensor`: the model has every tensor that llama.cpp can use, as one from key-values alone.
    """
    found: list[int] = []
    known = families(main.served.arch)
    step = step_of(main, settings, outputs)
    if settings.build.number < _MEASURED_FROM:
        return None
    for groups in expert_groups(main.served):
        scaled = every_tensor and main.served.arch in SCALED_EXPERTS
        shape = shape_of(main.served, groups, main.sizes.states, scaled=scaled)
        if shape is None:
            return None
        for family in known:
            graph = _graph(main, family, shape, step, settings, every_tensor=every_tensor)
            found.append(peak_bytes(graph, CPU_ALIGNMENT))
    if not found:
        return None
    reason = "" if len(set(found)) == 1 else "the file decides what its architecture leaves open"
    return Interval(min(found), max(found), reason)


def step_of(main: Context, settings: Settings, outputs: int | None) -> Step:
    """Return the largest step of a context."""
    cells, sizes = settings.cells, main.sizes
    tokens = min(cells.total, cells.ubatch)
    types = settings.types
    window = windowed(
        cells, sizes.window, sizes.window_pad, unified=cells.unified, full=sizes.swa_full
    )
    return Step(
        tokens=padded(tokens, cells.sequences),
        outputs=min(tokens, cells.sequences if outputs is None else outputs),
        streams=cells.streams,
        cells=cells.per_sequence,
        window_cells=window,
        flash=main.flash,
        k_packed=quantized(types.k),
        v_packed=quantized(types.v),
        k_cast=types.k.name == "float32",
        v_cast=types.v.name == "float32",
    )


def _graph(
    main: Context,
    family: Family,
    shape: Shape,
    step: Step,
    settings: Settings,
    *,
    every_tensor: bool,
) -> Graph:
    if any(layer.mixer is not None for layer in shape.layers):
        return delta_decoder(
            family,
            shape,
            step,
            settings.cells.sequences,
            joined=main.served.arch == "qwen3next",
            scored=every_tensor and main.served.arch == "qwen35",
        )
    latent = latent_of(main.served)
    if latent is None:
        return decoder(family, shape, step)
    return latent_decoder(family, shape, step, latent, settings.types.k.name)
