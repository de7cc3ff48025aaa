"""What decides on the shape of a graph: how architectures differ, the widths of a model, one step.

llama.cpp b11434: src/llama-graph.cpp and src/models/ (what the architectures do).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

__all__ = [
    "Conv",
    "Delta",
    "Experts",
    "Family",
    "Gating",
    "LayerShape",
    "Scan",
    "Shape",
    "Step",
    "shortened",
]

Gating = Literal["softmax", "sigmoid", "chosen"]
"""How scores of experts become weights: over all, each by itself, or over the chosen ones."""


class Family(NamedTuple):
    """How the models of an architecture differ, as far as memory goes.

    Attributes:
        embedding: what scales it: nothing, a number, or a number a token (an input).
        norm: the operation; the other one cannot take its parent's place.
        before: attention and MLP read a norm of the stream.
        after: what they give passes a norm before it is added.
        qk_norm: queries and keys pass a norm, a head at a time or whole rows.
        v_norm: values pass a norm without weights; `v_is_k`: layers without a window have no
            projection of values, and take the keys'.
        rope: which layers turn queries and keys.
        q_scaled: queries are scaled by an operation of their own.
        fused: queries, keys and values come from one projection.
        mlp: gate and up from two projections, from one, or up alone with an
            activation, which may be squared.
        parallel: the MLP reads what attention reads; in which order both and the stream are added.
        residual_first: results that are added to the stream; to the others the stream is added.
        capped: scores are capped, without flash attention by three operations more.
        gating: of experts.
        gate_norm: weights of the chosen experts are made to add up to 1.
        gate_scale: and scaled.
        gate_bias: experts are chosen by biased scores.
        gate_first: tokens are weighted before the experts see them (Llama 4).
        shared_gate: what a shared expert gives is weighted: by a sigmoid, or by silu(x) / x.
        axes: positions a token (4 where images have places of their own).
        scan_norm: what a scan gives passes a norm, a group at a time.
        tempered: queries that are not turned are scaled by their position (Llama 4).
    """

    embedding: Literal["plain", "scaled", "by_token"] = "plain"
    norm: Literal["RMS_NORM", "NORM"] = "RMS_NORM"
    before: bool = True
    after: bool = False
    qk_norm: Literal["none", "heads", "rows"] = "none"
    v_norm: bool = False
    v_is_k: bool = False
    rope: Literal["all", "windowed", "none"] = "all"
    q_scaled: bool = False
    fused: bool = False
    mlp: Literal["gated", "joined", "plain", "squared"] = "gated"
    parallel: tuple[Literal["mlp", "attention", "stream"], ...] = ()
    residual_first: tuple[Literal["attention", "mlp"], ...] = ()
    capped: bool = False
    gating: Gating = "softmax"
    gate_norm: bool = True
    gate_scale: bool = False
    gate_bias: bool = False
    gate_first: bool = False
    tempered: bool = False
    shared_gate: Literal["none", "sigmoid", "silu"] = "none"
    axes: int = 1
    scan_norm: bool = True


class Delta(NamedTuple):
    """A gated delta net: heads of keys and of values, their widths, tokens of its convolution.

    `kept`: states of a sequence, snapshots included.
    """

    k_heads: int
    v_heads: int
    head_k: int
    head_v: int
    kernel: int
    kept: int = 1


class Scan(NamedTuple):
    """A selective scan (Mamba-2): heads, their width, states of a head, groups, the convolution.

    `kept`: states of a sequence, snapshots included.
    """

    heads: int
    head: int
    state: int
    groups: int
    kernel: int
    kept: int = 1


class Conv(NamedTuple):
    """A short convolution (LFM2): its channels, and the tokens that it looks at."""

    channels: int
    kernel: int


class LayerShape(NamedTuple):
    """One layer: its heads, the width of its MLP, whether it has experts and a window."""

    heads: int
    kv_heads: int
    head_k: int
    head_v: int
    inner: int
    windowed: bool = False
    experts: bool = False
    mixer: Delta | Scan | Conv | None = None


class Experts(NamedTuple):
    """Experts of a layer: how many, how many a token goes through, their width; the shared one's.

    `groups`: a token first chooses `groups_used` of so many groups.
    `scaled`: their weights have scales of their own (NVFP4, and models from key-values alone).
    """

    number: int
    used: int
    inner: int
    shared: int = 0
    scaled: bool = False
    groups: int = 1
    groups_used: int = 1


class Shape(NamedTuple):
    """The widths of a model."""

    hidden: int
    vocab: int
    layers: tuple[LayerShape, ...]
    experts: Experts | None = None


class Step(NamedTuple):
    """One step at its largest.

    Attributes:
        tokens: in the step, a multiple of the sequences.
        outputs: tokens whose logits are wanted.
        streams: pools of cells.
        cells: of a stream; `window_cells` of one of sliding layers.
        flash: flash attention.
        k_packed, v_packed: the cache type packs blocks of elements.
        k_cast, v_cast: flash attention first makes the whole cache f16 (a cache in f32).
    """

    tokens: int
    outputs: int
    streams: int
    cells: int
    window_cells: int
    flash: bool
    k_packed: bool = False
    v_packed: bool = False
    k_cast: bool = False
    v_cast: bool = False


_PERIODS = 8  # layers; the longest pattern of published models has this many
_LEFT = 4


@lru_cache(maxsize=64)
def shortened(layers: tuple[LayerShape, ...]) -> tuple[LayerShape, ...]:
    """Return the layers with most repeats of a pattern taken out of their middle.

    The allocator finds every second repeat as it found the one two before, so that the peak stays
    the same; every recorded answer is compared with all layers as well.

    >>> layer = LayerShape(8, 2, 64, 64, 512)
    >>> len(shortened((layer,) * 80)), len(shortened((layer,) * 5))
    (4, 5)
    """
    best = layers
    for start in range(min(_PERIODS, len(layers))):
        for period in range(1, _PERIODS + 1):
            end = start
            while end + period < len(layers) and layers[end] == layers[end + period]:
                end += 1
            repeats = (end - start) // period + 1
            dropped = max(0, repeats - _LEFT) // 2 * 2 * period
            if len(layers) - dropped < len(best):
                best = layers[: start + period] + layers[start + period + dropped :]
    return best
