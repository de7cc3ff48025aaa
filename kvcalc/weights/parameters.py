"""Parameters of a model, counted from its layers and widths; intervals where something is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.weights.mixers import Count, Frame, PartName, mixer
from kvcalc.weights.shapes import Shape, shape_of

__all__ = ["Parts", "count_parts", "parameters", "total"]

Parts = dict[PartName, tuple[int, int]]
"""Part -> parameters at least and at most."""

_LOOSE_NORMS = (0, 5)  # norms of hidden_size a layer that published classes have
_TOWER_OPEN = 8  # tables, mergers and projectors: at most one in so many of a tower's layers
_LARGEST_TOWER = 6_000_000_000  # InternViT-6B, the largest that is published
_UNLISTED = Shape(matrices=3, draft_tables=None, loose=True, gate_open=True)
_SHARED = {"Zamba2ForCausalLM": "its blocks of attention are stored once and used many times"}
"""Architectures whose layers share matrices, so that layers times widths say too much."""

_MlpKind = Literal["dense", "experts"]


class _Widths(NamedTuple):
    """The widths that every count needs."""

    hidden: int
    vocab: int


def parameters(model: ModelSpec) -> tuple[int, int]:
    """Return the parameters of a model at least and at most, drafts and towers included.

    `ModelSize.parameters` where it is given; else counted from layers and widths.

    Raises:
        UnsupportedError: a width that is needed is not known.
    """
    if model.size is not None and model.size.parameters is not None:
        return model.size.parameters, model.size.parameters
    return total(count_parts(model))


def total(parts: Parts) -> tuple[int, int]:
    """Return the sum of all parts."""
    return sum(low for low, _ in parts.values()), sum(high for _, high in parts.values())


def count_parts(model: ModelSpec, start: int = 0, end: int | None = None) -> Parts:
    """Return the parameters of layers `start` to `end` by part.

    Embedding, head, final norm, towers and drafts count whatever the layers: they are parts of
    their own, which a stage may leave out.

    Raises:
        UnsupportedError: a width that is needed is not known.
    """
    size = model.size or ModelSize()
    if model.architecture in _SHARED:
        raise _uncounted(_SHARED[model.architecture])
    if any(run.note == "encoder layer" for run in model.layers):
        raise _uncounted("what is in the layers of an encoder is not known")
    widths = _widths(size)
    shape = shape_of(model.architecture)
    made = shape or _UNLISTED
    frame = Frame(
        hidden=widths.hidden,
        heads=model.num_attention_heads,
        head_dim=_widest_head(model),
        size=size,
        shape=made,
        bias=_biases(made, size),
    )
    found: Parts = {}
    _add(found, _outside(model, size, widths, made))
    index = 0
    stop = model.num_hidden_layers if end is None else end
    kinds = _mlp_kinds(model, size)
    for run in model.layers:
        first, last = max(index, start), min(index + run.count, stop)
        if first < last:
            _add(found, _layer(_with_mixer(run, model), frame), last - first)
        index += run.count
    mlps = _Mlps(size, made, widths.hidden, known=shape is not None)
    counted = Counter(kind for own in kinds[start:stop] for kind in own)
    for kind, count in counted.items():
        _add(found, mlps.of(kind), count)
    if model.draft_layers:
        _add(found, _drafts(model, size, frame, mlps, widths))
    return found


def _widths(size: ModelSize) -> _Widths:
    missing = [n for n in ("hidden_size", "vocab_size") if getattr(size, n) is None]
    if size.hidden_size is None or size.vocab_size is None:
        raise _uncounted(f"{' and '.join(missing)} not known")
    return _Widths(size.hidden_size, size.vocab_size)


def _uncounted(what: str) -> UnsupportedError:
    return NotModelledError(
        f"the model's parameters cannot be counted: {what}",
        hint="give the checkpoint's folder, or --weights SIZE",
    )


def _add(found: Parts, counts: Iterable[Count], times: int = 1) -> None:
    for part, low, high in counts:
        before = found.get(part, (0, 0))
        found[part] = before[0] + times * low, before[1] + times * high


def _widest_head(model: ModelSpec) -> int:
    widths = (getattr(cache, "head_dim", 0) for _, cache in model.caches())
    return max(widths, default=0)


def _biases(shape: Shape, size: ModelSize) -> tuple[bool, bool]:
    """Return whether the projections of Q, K and V, and of the output, have biases."""
    if shape.flags:
        return bool(size.attention_bias), bool(size.attention_bias)
    if shape.qkv_bias and size.attention_bias is False:
        return False, False
    return shape.qkv_bias, shape.o_bias


def _outside(model: ModelSpec, size: ModelSize, widths: _Widths, shape: Shape) -> list[Count]:
    """Return what stands outside the layers."""
    h, table = widths.hidden, widths.hidden * widths.vocab
    rows = 0 if shape.positions is None else shape.positions + (model.max_position_embeddings or 0)
    embedding = table + rows * h
    # A table of positions or of words a layer that the widths do not show (Gemma-3n) is not here.
    tied = shape.tied if size.tie_word_embeddings is None else size.tie_word_embeddings
    head = 0 if tied or not shape.head else table + (widths.vocab if shape.head_bias else 0)
    final = shape.final_norms * h
    towers = [_tower(t.hidden_size, t.intermediate_size, t.num_layers) for t in size.towers]
    unseen = _LARGEST_TOWER if _has_unseen_tower(model, size) else 0
    return [
        Count("embedding", embedding, embedding + (4 * h if shape.loose else 0)),
        Count("head", 0 if tied is None else head, head),
        Count("norm", 0 if shape.loose else final, 2 * h if shape.loose else final),
        Count("encoder", sum(low for low, _ in towers), sum(high for _, high in towers) + unseen),
    ]


def _has_unseen_tower(model: ModelSpec, size: ModelSize) -> bool:
    """Whether a class has a tower that the config at hand says nothing of."""
    return not size.towers and (model.architecture or "").endswith("ForConditionalGeneration")


def _tower(hidden: int, inner: int, layers: int) -> tuple[int, int]:
    """Return a tower's parameters: with a gate or without one; tables and projectors are open."""
    # Some give the width of what follows the tower as its own inner width (GLM-4.1V).
    low = layers * (4 * hidden * hidden + 2 * hidden * min(inner, 4 * hidden))
    high = layers * (4 * hidden * hidden + 3 * hidden * inner + 16 * hidden + 2 * inner)
    return low, high + high // _TOWER_OPEN + 64 * 2**20


def _with_mixer(run: LayerRun, model: ModelSpec) -> LayerRun:
    """Return a run that attends to images as one that attends to text; any other as it is."""
    if run.caches or not run.note.startswith("attends"):
        return run
    return next((other for other in model.layers if other.caches), run)


def _layer(run: LayerRun, frame: Frame) -> list[Count]:
    """Return the mixers of a layer and its norms."""
    counts = [count for cache in run.caches for count in mixer(cache, frame)]
    low, high = _LOOSE_NORMS if frame.shape.loose else (frame.shape.norms,) * 2
    vectors = frame.shape.vectors
    return [*counts, Count("norm", low * frame.hidden + vectors, high * frame.hidden + vectors)]


def _mlp_kinds(model: ModelSpec, size: ModelSize) -> list[tuple[_MlpKind, ...]]:
    """Return which MLPs each layer has.

    Where they are fewer than layers, those stand in layers that keep nothing (Nemotron-H); where
    they are more, layers have both (Gemma-4). Else dense layers come before the first one with
    experts, and the rest of them is spread evenly.
    """
    layers = model.num_hidden_layers
    experts = size.num_moe_layers or 0
    dense = layers - experts if size.num_dense_layers is None else size.num_dense_layers
    if experts + dense > layers:
        both: list[tuple[_MlpKind, ...]] = []
        for i in range(layers):
            own: tuple[_MlpKind, ...] = ("dense",) if i < dense else ()
            both.append((*own, "experts") if i >= layers - experts else own)
        return both
    notes = [None if run.caches else run.note for run in model.layers for _ in range(run.count)]
    empty = [i for i, note in enumerate(notes) if note is not None]
    kinds: list[tuple[_MlpKind, ...]] = [()] * layers
    apart = len(empty) >= experts + dense
    if apart and sum("moe" in (note or "") for note in notes) == experts:
        for i in empty:
            kinds[i] = ("experts",) if "moe" in (notes[i] or "") else ("dense",)
        return kinds
    places = empty if apart else list(range(layers))
    leading = min(size.first_moe_layer or 0, dense)
    spread = experts + dense - leading
    for rank, i in enumerate(places[: experts + dense]):
        at = rank - leading
        # The last of every equal share has experts.
        has = rank >= leading and (at + 1) * experts // spread > at * experts // spread
        kinds[i] = ("experts",) if has else ("dense",)
    return kinds


class _Mlps:
    """The parameters of dense MLPs and of layers with experts."""

    def __init__(self, size: ModelSize, shape: Shape, hidden: int, *, known: bool) -> None:
        self._size, self._shape, self._hidden = size, shape, hidden
        self._matrices = (shape.matrices if known else 2, shape.matrices)
        self._bias = bool(size.mlp_bias) if shape.flags else shape.mlp_bias

    def of(self, kind: _MlpKind) -> list[Count]:
        """Return the parameters of one MLP.

        Raises:
            UnsupportedError: its widths are not known.
        """
        return self._experts() if kind == "experts" else [self._dense()]

    def _dense(self) -> Count:
        inner = self._size.intermediate_size
        if inner is None:
            raise _uncounted("intermediate_size is not known")
        return Count("mlp", *self._mlp(self._hidden, inner))

    def _mlp(self, width: int, inner: int) -> tuple[int, int]:
        low, high = (count * width * inner for count in self._matrices)
        vectors = (self._shape.matrices - 1) * inner + width
        if self._bias:
            return low + vectors, high + vectors
        return low, high + (vectors if self._shape.loose else 0)

    def _experts(self) -> list[Count]:
        size, h = self._size, self._hidden
        if size.num_experts is None or size.moe_intermediate_size is None:
            raise _uncounted("the number or the width of its experts is not known")
        width = size.expert_hidden_size or h
        low, high = self._mlp(width, size.moe_intermediate_size)
        router = h * size.num_experts
        bias = size.num_experts if self._shape.router_bias else 0
        around = 2 * h * width if width != h else 0  # to the experts' width and back
        counts = [
            Count("experts", size.num_experts * low, size.num_experts * high),
            Count(
                "router",
                router + bias + around,
                router + around + (size.num_experts if self._shape.loose else bias),
            ),
        ]
        if size.shared_intermediate_size:
            low, high = self._mlp(h, size.shared_intermediate_size)
            gate = h if self._shape.shared_gate else 0
            counts.append(Count("shared", low + gate, high + (h if self._shape.loose else gate)))
        return counts


def _drafts(
    model: ModelSpec, size: ModelSize, frame: Frame, mlps: _Mlps, widths: _Widths
) -> list[Count]:
    """Return the multi-token-prediction layers: a layer each and a projection from two streams.

    DeepSeek-V3 stores embedding and head with each once more, Qwen3-Next shares them.
    """
    h = widths.hidden
    kinds = [kind for own in _mlp_kinds(model, size) for kind in own]
    mlp = mlps.of(kinds[-1]) if kinds else []
    mlp_low, mlp_high = sum(c.low for c in mlp), sum(c.high for c in mlp)
    low = high = 0
    for run in model.draft_layers:
        counts = _layer(run, frame)
        mixers = sum(c.low for c in counts), sum(c.high for c in counts)
        alone = any(not other.caches for other in model.draft_layers)
        own = (0, 0) if alone and run.caches else (mlp_low, mlp_high)
        low += run.count * (mixers[0] + own[0])
        high += run.count * (mixers[1] + own[1] + 2 * h * h + 4 * h)
    count = sum(run.count for run in model.draft_layers)
    tables = count * 2 * widths.vocab * h
    if frame.shape.draft_tables:
        low += tables + count * 2 * h * h
    if frame.shape.draft_tables is not False:
        high += tables
    return [Count("draft", low, high)]
