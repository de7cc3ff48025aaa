"""The compute buffer: the memory that a context computes its largest step in.

llama.cpp b11434 src/llama-context.cpp (llama_context::sched_reserve): the graph of a step of
n_ubatch tokens, with as many outputs as the context may be asked for, is laid out once and its
buffer kept. Only builds from b11434 on were measured; older ones had other graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.core.model import ModelSpec
from kvcalc.engines.llamacpp.allocator import peak_bytes
from kvcalc.engines.llamacpp.cells import padded, windowed
from kvcalc.engines.llamacpp.contexts import Context, contexts_of
from kvcalc.engines.llamacpp.device import bounds
from kvcalc.engines.llamacpp.families import SCALED_EXPERTS, SINGLE_PARTS, families
from kvcalc.engines.llamacpp.ggml import Graph
from kvcalc.engines.llamacpp.graph import decoder
from kvcalc.engines.llamacpp.graph_delta import delta_decoder
from kvcalc.engines.llamacpp.graph_latent import latent_decoder
from kvcalc.engines.llamacpp.graph_scan import scan_decoder
from kvcalc.engines.llamacpp.graph_shapes import Conv, Family, Scan, Shape, Step, shortened
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.shapes import expert_groups, latent_of, shape_of
from kvcalc.engines.llamacpp.types import quantized

__all__ = ["CPU_ALIGNMENT", "Interval", "buffer_of", "compute_buffer", "step_of"]

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
    model: ModelSpec, settings: Settings, *, gpu: bool = False, outputs: int | None = None
) -> Interval | None:
    """Return the bytes of the compute buffer of the model's own context.

    Args:
        model: with its widths (`size`).
        settings: as resolved.
        gpu: on a GPU that computes all layers, of which there are as many as settings.placing has
            shares; else on a CPU.
        outputs: tokens of a step whose logits can be asked for; None for the server's.

    Returns:
        The interval; None where the model's widths are not known, kvcalc does not know the graph of
        its architecture, or the build is older than those that were measured.

    Raises:
        UnsupportedError: what llama.cpp refuses, or kvcalc does not model.
    """
    main = contexts_of(model, settings, [])[0]
    return buffer_of(main, settings, gpu=gpu, outputs=outputs)


def buffer_of(
    main: Context,
    settings: Settings,
    *,
    gpu: bool = False,
    outputs: int | None = None,
    every_tensor: bool = False,
    every_layer: bool = False,
) -> Interval | None:
    """Return the bytes of the compute buffer of a context; see `compute_buffer`.

    `every_tensor`: the model has every tensor that llama.cpp can use, as one from key-values alone.
    `every_layer`: repeats of equal layers are laid out too, which changes no byte.
    """
    if settings.build.number < _MEASURED_FROM or settings.method == "mtp":
        return None
    lows, highs = [], []
    for step in _steps(main, settings, outputs):
        for graph, shape in _graphs(
            main, settings, step, every_tensor=every_tensor, every_layer=every_layer
        ):
            if gpu:
                low, high = bounds(graph, shape, step, devices=len(settings.placing.shares))
            else:
                low = high = peak_bytes(graph, CPU_ALIGNMENT)
            lows.append(low)
            highs.append(high)
    if not lows:
        return None
    return Interval(min(lows), max(highs), _reason(gpu=gpu, exact=min(lows) == max(highs)))


def _reason(*, gpu: bool, exact: bool) -> str:
    if gpu:
        return "a GPU's backend lays the graph out in its own way"
    return "" if exact else "the file or the speculation decides what is left open here"


def _steps(main: Context, settings: Settings, outputs: int | None) -> list[Step]:
    """Return the largest step; with speculation those with the fewest and the most outputs.

    tools/server (server_output_limits): a slot asks for one output, and for one more for every
    token proposed.
    """
    first = step_of(main, settings, outputs)
    if settings.method is None or outputs is not None:
        return [first]
    return [first, first._replace(outputs=min(settings.cells.total, settings.cells.ubatch))]


def step_of(main: Context, settings: Settings, outputs: int | None) -> Step:
    """Return the largest step of a context."""
    cells, sizes, types = settings.cells, main.sizes, settings.types
    tokens = min(cells.total, cells.ubatch)
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


def _graphs(
    main: Context, settings: Settings, step: Step, *, every_tensor: bool, every_layer: bool
) -> Iterator[tuple[Graph, Shape]]:
    """Yield every graph that the context can have."""
    served = main.served
    scaled = every_tensor and served.arch in SCALED_EXPERTS
    for groups in expert_groups(served):
        shape = shape_of(served, groups, main.sizes.states, scaled=scaled)
        if shape is None:
            return
        if not every_layer:
            shape = shape._replace(layers=shortened(shape.layers))
        for family in families(served.arch):
            yield _graph(main, family, shape, step, settings, every_tensor=every_tensor), shape


def _graph(
    main: Context,
    family: Family,
    shape: Shape,
    step: Step,
    settings: Settings,
    *,
    every_tensor: bool,
) -> Graph:
    arch = main.served.arch
    mixers = [layer.mixer for layer in shape.layers if layer.mixer is not None]
    if mixers and isinstance(mixers[0], (Scan, Conv)):
        single, sequences = arch in SINGLE_PARTS, settings.cells.sequences
        return scan_decoder(family, shape, step, sequences, single=single)
    if mixers:
        scored = every_tensor and arch == "qwen35"
        joined, sequences = arch == "qwen3next", settings.cells.sequences
        return delta_decoder(family, shape, step, sequences, joined=joined, scored=scored)
    latent = latent_of(main.served)
    if latent is None:
        return decoder(family, shape, step)
    return latent_decoder(family, shape, step, latent, settings.types.k.name)
