"""The compute buffer: the memory that a context computes its largest step in.

llama.cpp b11434 src/llama-context.cpp (llama_context::sched_reserve): the graph of a step of
n_ubatch tokens, with as many outputs as the context may be asked for, is laid out once and its
buffer kept. Only builds from b11434 on were measured; older ones had other graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
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
from kvcalc.engines.llamacpp.graph_latent import Latent, latent_decoder
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
    devices = len(settings.placing.shares) if gpu else 0
    found = [
        _laid_out(built, devices)
        for step in _steps(main, settings, outputs)
        for built in _graphs(main, settings, step, every_tensor, every_layer)
    ]
    if not found:
        return None
    low, high = min(low for low, _ in found), max(high for _, high in found)
    return Interval(low, high, _reason(gpu=gpu, exact=low == high))


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


class _Built(NamedTuple):
    """All that a graph is built from."""

    family: Family
    shape: Shape
    step: Step
    sequences: int
    arch: str | None
    latent: Latent | None
    k_type: str
    scored: bool


def _graphs(
    main: Context, settings: Settings, step: Step, every_tensor: bool, every_layer: bool
) -> Iterator[_Built]:
    """Yield what each graph that the context can have is built from."""
    served, arch = main.served, main.served.arch
    for groups in expert_groups(served):
        scaled = every_tensor and arch in SCALED_EXPERTS
        shape = shape_of(served, groups, main.sizes.states, scaled=scaled)
        if shape is None:
            return
        if not every_layer:
            shape = shape._replace(layers=shortened(shape.layers))
        for family in families(arch):
            yield _Built(
                family,
                shape,
                step,
                settings.cells.sequences,
                arch,
                latent_of(served),
                settings.types.k.name,
                scored=every_tensor and arch == "qwen35",
            )


@lru_cache(maxsize=512)
def _laid_out(built: _Built, devices: int) -> tuple[int, int]:
    """Return the bytes of a graph: of `devices` GPUs, or of a CPU for 0."""
    graph = _graph(built)
    if devices:
        return bounds(graph, built.shape, built.step, devices=devices)
    found = peak_bytes(graph, CPU_ALIGNMENT)
    return found, found


def _graph(built: _Built) -> Graph:
    family, shape, step, sequences, arch, latent, k_type, scored = built
    mixer = next((layer.mixer for layer in shape.layers if layer.mixer is not None), None)
    if isinstance(mixer, (Scan, Conv)):
        return scan_decoder(family, shape, step, sequences, single=arch in SINGLE_PARTS)
    if mixer is not None:
        joined = arch == "qwen3next"
        return delta_decoder(family, shape, step, sequences, joined=joined, scored=scored)
    if latent is None:
        return decoder(family, shape, step)
    return latent_decoder(family, shape, step, latent, k_type)
