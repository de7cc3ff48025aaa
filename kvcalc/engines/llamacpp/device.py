"""The compute buffer on a GPU: bounds, as every backend lays a graph out in its own way.

llama.cpp b11434: ggml/src/ggml-backend.cpp (inputs lie on the host and are copied; several GPUs
hold 4 copies of them, GGML_SCHED_MAX_COPIES), ggml/src/ggml-cuda/fattn.cu
(ggml_cuda_flash_attn_ext_get_alloc_size: a packed cache is unpacked to f16 first) and
ggml_backend_cuda_graph_optimize (operations that are done at once keep their parents longer).
"""

from __future__ import annotations

from kvcalc.core.units import cdiv
from kvcalc.engines.llamacpp.allocator import peak_bytes
from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph_shapes import LayerShape, Shape, Step

__all__ = ["GPU_ALIGNMENT", "bounds"]

GPU_ALIGNMENT = 256
"""No backend rounds a tensor's size up to more: CUDA 128, Vulkan and Metal up to 256."""

_COPIES = 4
_F16 = 2
_KEPT = 3
"""Large tensors that operations done at once keep longer than the graph needs them."""


def bounds(graph: Graph, shape: Shape, step: Step, *, devices: int) -> tuple[int, int]:
    """Return the least and the most bytes that a graph takes on a GPU that computes all of it.

    The least is the largest operation with what it reads; of several GPUs only one computes the
    logits, so that they do not count. The most is the graph as on a CPU, inputs
    included, with what a backend can add: alignment, the unpacked cache, tensors kept longer, and
    copies of the inputs where there are several GPUs.
    """
    low = max(
        _least(node)
        for node in graph.nodes
        if not _on_host(node) and not (node.output and devices > 1)
    )
    high = peak_bytes(graph, GPU_ALIGNMENT)
    high += max(_unpacked(layer, step) for layer in shape.layers)
    inner = [node for node in graph.nodes if node.base is None and not node.output]
    high += _KEPT * max(_rounded(node.size) for node in inner)
    if devices > 1:
        high += (_COPIES - 1) * sum(_rounded(leaf.size) for leaf in graph.leafs if leaf.entry)
    return low, high


def _rounded(size: int) -> int:
    return cdiv(size, GPU_ALIGNMENT) * GPU_ALIGNMENT


def _on_host(node: Tensor) -> bool:
    """Whether a node is of the embedding, which llama.cpp looks up on the host."""
    return node.op in ("GET_ROWS", "DUP") and all(parent.entry for parent in node.src)


def _least(node: Tensor) -> int:
    """Bytes that are there at once: what a node reads, and the node if it cannot take its place."""
    read = {id(p.base or p): (p.base or p).size for p in node.src if not (p.base or p).outside}
    own = 0 if node.base is not None else node.size
    return max(own, sum(read.values()))


def _unpacked(layer: LayerShape, step: Step) -> int:
    cells = (step.window_cells if layer.windowed else step.cells) * step.streams
    k = layer.head_k if step.k_packed else 0
    v = layer.head_v if step.v_packed else 0
    return _F16 * (k + v) * layer.kv_heads * cells if step.flash else 0
