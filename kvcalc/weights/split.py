"""How weights are split over GPUs: a checkpoint's tensors, or parts that were counted.

vLLM 0.33 model_executor/layers/{linear,vocab_parallel_embedding}.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

from kvcalc.core.attention import ChunkedAttention, CrossAttention, FullAttention, SlidingWindow
from kvcalc.core.errors import NotModelledError
from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.size import ModelSize, WeightPart
from kvcalc.core.units import cdiv, round_up
from kvcalc.weights.mixers import PartName
from kvcalc.weights.parameters import Parts, count_parts

__all__ = [
    "VOCABULARY_MULTIPLE",
    "Ranks",
    "Stages",
    "evenly",
    "on_rank",
    "padding_bytes",
    "shares",
    "stage_parts",
    "stored_by_stage",
    "towers_on_rank",
]

VOCABULARY_MULTIPLE = 64
"""Rows of embedding and head are padded to it: vLLM 0.33 vocab_parallel_embedding.py,
DEFAULT_VOCAB_PADDING_SIZE."""

_ON_LAST_STAGE = ("lm_head", "norm", "draft")
_BY_GROUP = ("attention", "kv", "latent", "recurrent")
"""Parts of a layer that each group of DP attention keeps of its own."""

_TOWERS = ("vision", "audio")

Stages = Literal["none", "first", "every"]
"""Pipeline stages that load something."""


class Ranks(NamedTuple):
    """How many ranks share a model, and over how many its experts are spread.

    Attributes:
        tp: ranks of a stage.
        pp: stages.
        stage: which of them.
        ep: ranks that share the experts.
        sizes: layers of each stage, where they are not shared out as `stage_sizes` does.
        groups: groups of ranks of a stage that each keep the attention of their own requests.
        towers: stages that have the encoders of images and sound.
    """

    tp: int
    pp: int
    stage: int
    ep: int
    sizes: tuple[int, ...] | None = None
    groups: int = 1
    towers: Stages = "first"

    @property
    def attention(self) -> int:
        """Ranks that share the attention of a layer."""
        return self.tp // self.groups

    @property
    def has_towers(self) -> bool:
        """Whether a rank of this stage has the encoders of images and sound."""
        return self.towers == "every" or (self.towers == "first" and not self.stage)


def stored_by_stage(
    parts: Iterable[WeightPart],
    tp: int,
    pp: int,
    *,
    drafts: bool = True,
    sizes: tuple[int, ...] | None = None,
    groups: int = 1,
) -> tuple[int, ...]:
    """Return the bytes that a rank of each pipeline stage keeps of a checkpoint's tensors.

    Matrices are divided by the ranks of a stage, norms, routers and vectors are whole on each;
    decoder layers go to stages as in `stage_sizes`, embeddings and towers to the first, the head,
    the last norm and drafts to the last, where a checkpoint without a head keeps its embedding
    once more.

    Args:
        parts: the tensors by class and layer.
        tp: ranks of a stage.
        pp: stages.
        drafts: count draft layers.
        sizes: layers of each stage, where they are told.
        groups: of the ranks of a stage, each with an attention of its own.

    Raises:
        UnsupportedError: more stages than layers, or parts without layers.
    """
    found = tuple(parts)
    stage_of = _stages(found, pp, sizes)
    has_head = any(part.kind == "lm_head" for part in found)
    held = [0] * pp
    for part in found:
        if part.kind == "draft" and not drafts:
            continue
        last = part.layer is None and part.kind in _ON_LAST_STAGE
        stage = pp - 1 if last else 0 if part.layer is None else stage_of[part.layer]
        held[stage] += part.on_rank(tp // groups if part.kind in _BY_GROUP else tp)
        if pp > 1 and part.kind == "embedding" and part.rows and not has_head:
            held[-1] += part.on_rank(tp)
    return tuple(held)


def _stages(parts: tuple[WeightPart, ...], pp: int, told: tuple[int, ...] | None) -> dict[int, int]:
    layers = sorted({part.layer for part in parts if part.layer is not None})
    if pp == 1:
        return dict.fromkeys(layers, 0)
    if not layers:
        raise NotModelledError(
            "the tensors' names show no layers to split over pipeline stages",
            hint="use one pipeline stage",
        )
    sizes = told if told and sum(told) == len(layers) else stage_sizes(len(layers), pp)
    stages = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    return dict(zip(layers, stages, strict=True))


def padding_bytes(parts: Iterable[WeightPart], ranks: Ranks) -> int:
    """Return what padded rows of the vocabulary add on a rank."""
    padded = 0
    for part in parts:
        here = ranks.pp - 1 if part.kind == "lm_head" else 0
        if part.rows and here == ranks.stage:
            rows = round_up(part.rows, VOCABULARY_MULTIPLE)
            row = cdiv(part.divided_bytes, part.rows)
            padded += (cdiv(rows, ranks.tp) - cdiv(part.rows, ranks.tp)) * row
    return padded


def stage_parts(model: ModelSpec, ranks: Ranks) -> Parts:
    """Return the parameters of a pipeline stage by part."""
    if ranks.pp == 1:
        return _with_towers(count_parts(model), ranks)
    sizes = ranks.sizes or stage_sizes(model.num_hidden_layers, ranks.pp)
    start = sum(sizes[: ranks.stage])
    parts = count_parts(model, start, start + sizes[ranks.stage])
    last = ranks.stage == ranks.pp - 1
    if ranks.stage:
        table = parts.pop("embedding", (0, 0))
        # A head that is the embedding is kept once more; where it is not known, it may be.
        if last and parts.get("head", (0, 0))[0] == 0:
            head = parts.get("head", (0, 0))
            parts["head"] = (table[0] if head[1] == 0 else head[0], max(table[1], head[1]))
    if not last:
        parts.pop("head", None)
        parts.pop("draft", None)
        # The norm after the last layer is the last stage's (PPMissingLayer elsewhere in vLLM).
        outside, norms = count_parts(model, 0, 0).get("norm", (0, 0)), parts.get("norm", (0, 0))
        parts["norm"] = max(0, norms[0] - outside[1]), max(0, norms[1] - outside[0])
    return _with_towers(parts, ranks)


def _with_towers(parts: Parts, ranks: Ranks) -> Parts:
    if not ranks.has_towers:
        parts.pop("encoder", None)
    return parts


def towers_on_rank(parts: Iterable[WeightPart], ranks: Ranks) -> int:
    """Return by how much a rank has more of a checkpoint's encoders than `stored_by_stage` says."""
    held = sum(part.on_rank(ranks.tp) for part in parts if part.kind in _TOWERS)
    return held * (ranks.has_towers - (ranks.stage == 0))


def evenly(parts: Parts, ranks: Ranks) -> dict[PartName, int]:
    """Return the parts divided by the ranks of a stage (or of a group) alike."""
    return {
        part: cdiv(high, ranks.attention if part in _BY_GROUP else ranks.tp)
        for part, (_, high) in parts.items()
    }


def on_rank(model: ModelSpec, parts: Parts, ranks: Ranks) -> Parts:
    """Return what one rank keeps of a stage's parts."""
    found: Parts = {}
    tp, ep, group = ranks.tp, ranks.ep, ranks.attention
    least, most = _kv_divisors(model, group)
    vocab = (model.size or ModelSize()).vocab_size or 1
    rows = round_up(vocab, VOCABULARY_MULTIPLE)
    for part, (low, high) in parts.items():
        match part:
            case "router" | "norm" | "latent":
                found[part] = low, high
            case "embedding" | "head":
                # Groups of DP attention have the tables divided by all ranks, or by their own.
                found[part] = low // tp, ceil(Fraction(high * rows, vocab * group))
            case "attention" | "recurrent":
                found[part] = low // group, cdiv(high, group)
            case "kv":
                found[part] = low // most, cdiv(high, least)
            case "experts":
                found[part] = low // ep, cdiv(high, ep)
            case "shared":
                # With experts spread over other ranks, shared ones are divided or whole.
                found[part] = low // tp, high if ep != tp else cdiv(high, tp)
            case "encoder":
                found[part] = low // tp, high
            case _:
                found[part] = low // tp, cdiv(high, tp)
    return found


def shares(model: ModelSpec, whole: Parts, own: Parts, ranks: Ranks) -> tuple[Fraction, Fraction]:
    """Return the share of all weights that one rank keeps, at least and at most.

    Args:
        model: for its KV heads and vocabulary.
        whole: all parts, at least and at most.
        own: those of the rank's stage.
        ranks: the split.
    """
    bounds: list[tuple[int, int]] = []
    least: list[Fraction] = []
    most: list[Fraction] = []
    for part, (low, high) in whole.items():
        kept = [
            on_rank(model, {part: (own.get(part, (0, 0))[i],) * 2}, ranks)[part] for i in (0, 1)
        ]
        found = [
            (Fraction(held[0], size), Fraction(held[1], size))
            for held, size in zip(kept, (low, high), strict=True)
            if size
        ]
        if found:
            bounds.append((low, high))
            least.append(min(f[0] for f in found))
            most.append(max(f[1] for f in found))
    return _least(bounds, least), -_least(bounds, [-rate for rate in most])


def _least(bounds: list[tuple[int, int]], rates: list[Fraction]) -> Fraction:
    """Return the least mean of rates, weighed by sizes that lie between bounds.

    A part counts with its most where its rate is below the mean, else with its least; the mean
    falls until it is its own (Dinkelbach's method for a quotient of linear functions).
    """
    mean = max(rates, default=Fraction(1))
    while True:
        pairs = zip(bounds, rates, strict=True)
        sizes = [high if rate < mean else low for (low, high), rate in pairs]
        total = sum(sizes)
        if not total:
            return mean
        better = sum((r * n for r, n in zip(rates, sizes, strict=True)), Fraction(0)) / total
        if better >= mean:
            return mean
        mean = better


def _kv_divisors(model: ModelSpec, tp: int) -> tuple[int, int]:
    """Return by how much the projections of K and V are divided at least and at most."""
    kinds = (FullAttention, SlidingWindow, ChunkedAttention, CrossAttention)
    heads = {c.num_kv_heads for _, c in model.caches() if isinstance(c, kinds)} or {tp}
    return min(tp, *heads), min(tp, max(heads))
