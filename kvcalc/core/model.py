"""A model as kvcalc sees it: the layers in order and what each of them keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, assert_never

import msgspec

from kvcalc.core.dtypes import KvDtype, element_bytes, kv_dtype
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.kind import (
    All,
    Chunks,
    EveryNth,
    HeadSplit,
    Once,
    Span,
    Windowed,
    split_heads,
)
from kvcalc.core.layers import MAX_LAYERS, Cache, LayerRun
from kvcalc.core.size import ModelSize, WeightTensor
from kvcalc.core.states import VLLM_STATES, StateLayout
from kvcalc.core.units import add_rates
from kvcalc.core.values import Positive, Value, require_range

__all__ = [
    "PARTITION",
    "ModelSpec",
    "Trait",
    "row_bytes",
    "span_tokens",
    "stage_partition",
    "stage_sizes",
]

Trait = Literal["alibi", "attention_sinks", "image_prefix"]
"""What changes no byte of a row, and yet decides which kernels an engine can use: linear position
biases; learned sinks in the softmax; image tokens that see one another both ways."""


def row_bytes(cache: Cache, dtype: KvDtype) -> int:
    """Return the bytes that a cache keeps for one token (or one entry, or one encoder token)."""
    return sum(dtype.bytes_of(row) for row in cache.rows())


def span_tokens(span: Span, tokens: int) -> int:
    """Return the most rows that a span keeps on the way to a sequence of `tokens` tokens.

    >>> span_tokens(Windowed(tokens=1024), 8192)
    1024
    """
    match span:
        case All():
            return tokens
        case Windowed(tokens=limit) | Chunks(tokens=limit):
            return min(tokens, limit)
        case EveryNth(ratio=ratio):
            return tokens // ratio
        case Once(tokens=fixed):
            return fixed


def stage_sizes(num_layers: int, pipeline_parallel_size: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage.

    Layers left over go one each to the stages counted back from the last but one, which spares
    the first stage its embedding and the last its head: vLLM 0.33 distributed/utils.py,
    get_pp_indices.

    Raises:
        UnsupportedError: more stages than layers.

    >>> stage_sizes(61, 2), stage_sizes(61, 4)
    ((31, 30), (15, 15, 16, 15))
    """
    if pipeline_parallel_size > num_layers:
        raise UnsupportedError(
            f"{num_layers} layers cannot be split over {pipeline_parallel_size} pipeline stages",
            hint="choose at most as many stages as the model has layers",
        )
    base, left = divmod(num_layers, pipeline_parallel_size)
    sizes = [base] * pipeline_parallel_size
    for stage in range(2, left + 2):
        sizes[-stage] += 1
    return tuple(sizes)


PARTITION = "VLLM_PP_LAYER_PARTITION"
"""vLLM's variable that shares layers out over pipeline stages, as a setting of its own."""


def stage_partition(
    told: object, num_layers: int, pipeline_parallel_size: int
) -> tuple[int, ...] | None:
    """Return the layers of each stage as a user tells them; None where nothing is told.

    Args:
        told: such as `20,22,20`.
        num_layers: of the model.
        pipeline_parallel_size: stages.

    Raises:
        InvalidValueError: no list of layers.
        UnsupportedError: one for another number of stages, or layers that do not add up (vLLM
            distributed/utils.py, get_pp_indices).

    >>> stage_partition("20,22,20", 62, 3)
    (20, 22, 20)
    """
    if told is None:
        return None
    such_as = ",".join(map(str, stage_sizes(num_layers, pipeline_parallel_size)))
    hint = f"give {pipeline_parallel_size} numbers that add up to {num_layers}, such as {such_as}"
    try:
        sizes = tuple(int(part) for part in str(told).split(","))
    except ValueError:
        raise InvalidValueError(f"{told!r:.40} is no list of layers", hint=hint) from None
    if len(sizes) != pipeline_parallel_size or min(sizes) < 1 or sum(sizes) != num_layers:
        raise UnsupportedError(
            f"{told!s:.40} does not share {num_layers} layers over {pipeline_parallel_size}"
            " pipeline stages",
            hint=hint,
            code="stage-partition",
            setting=PARTITION,
        )
    return sizes


class ModelSpec(Value, frozen=True, kw_only=True):
    """The layers of a model in order.

    Attributes:
        name: the preset's name or the file's.
        num_hidden_layers: decoder layers, draft layers apart.
        dtype: the model dtype, which `auto` caches and states are kept in.
        max_position_embeddings: the longest sequence the model was made for, if known.
        stretched_position_embeddings: the longest with the rope scaling of its config, where that
            is more (yarn, linear, dynamic); None where nothing is stretched.
        layers: runs of equal layers, in order; their counts add up to num_hidden_layers.
        draft_layers: multi-token-prediction layers, used only when speculation is on.
        architecture: the class name in the published config.
        kv_cache_dtype: what the checkpoint asks `auto` to be, where it is not the model dtype.
        kv_cache_method: the quantisation whose config asks that (`modelopt`, `compressed-tensors`):
            engines follow some and not others; None: modelopt, or not said.
        num_attention_heads: query heads of a layer where they are known; they bound how engines
            split a model.
        encoder_divisor: what a tensor-parallel size must divide for a vision encoder that is split
            with the model (heads and channels: their greatest common divisor).
        mamba_chunk_size: tokens that Mamba layers compute at once; it decides the block size of
            some engines.
        traits: what decides which kernels can serve the model, apart from its rows.
        size: widths and weights, where they are known; they change nothing of the cache.
        weights: tensors of the weights where the model's file tells them all; empty where it does
            not.
        origin: what an engine is given to load it: a repository, a folder or a GGUF file as it was
            named; None where nothing tells.
        contradictions: what its files say against one another: one of them is another model's.
        notes: what a reader of the numbers should know of this model.
    """

    name: str
    num_hidden_layers: Positive
    dtype: str
    layers: Annotated[tuple[LayerRun, ...], msgspec.Meta(min_length=1)]
    max_position_embeddings: Positive | None = None
    stretched_position_embeddings: Positive | None = None
    draft_layers: tuple[LayerRun, ...] = ()
    architecture: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_method: str | None = None
    num_attention_heads: Positive | None = None
    encoder_divisor: Positive | None = None
    mamba_chunk_size: Positive | None = None
    traits: tuple[Trait, ...] = ()
    size: ModelSize | None = None
    weights: tuple[WeightTensor, ...] = ()
    origin: str | None = None
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> int | None:
        """The longest sequence that the model takes, stretched positions counted."""
        return self.stretched_position_embeddings or self.max_position_embeddings

    def __post_init__(self) -> None:
        require_range(self, 1, "num_hidden_layers", high=MAX_LAYERS)
        known = (
            "max_position_embeddings",
            "stretched_position_embeddings",
            "num_attention_heads",
            "encoder_divisor",
            "mamba_chunk_size",
        )
        require_range(self, 1, *known, optional=True)
        element_bytes(self.dtype)
        self.resolve("auto")
        total = sum(run.count for run in self.layers)
        if total != self.num_hidden_layers:
            raise InvalidValueError(
                f"layers add up to {total}, num_hidden_layers is {self.num_hidden_layers}"
            )

    def caches(self) -> Iterator[tuple[int, Cache]]:
        """Yield (number of layers, cache) for every cache of every run, in order."""
        for run in self.layers:
            for cache in run.caches:
                yield run.count, cache

    @property
    def has_state_layers(self) -> bool:
        """Whether some layer keeps a state and no rows."""
        return any(cache.states() and not cache.rows() for _, cache in self.caches())

    def with_layers(self, count: int, caches: tuple[Cache, ...]) -> ModelSpec:
        """Return a model of `count` layers that all keep these caches."""
        run = LayerRun(count=count, caches=caches)
        return msgspec.structs.replace(self, num_hidden_layers=count, layers=(run,))

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> ModelSpec:
        """Return what one of `tp` tensor-parallel ranks keeps of every layer.

        Raises:
            UnsupportedError: some heads cannot be split so.
        """
        if tp == 1:
            return self
        runs = tuple(
            msgspec.structs.replace(run, caches=tuple(c.on_rank(tp, split) for c in run.caches))
            for run in self.layers
        )
        return msgspec.structs.replace(self, layers=runs)

    def stages(self, pp: int, sizes: tuple[int, ...] | None = None) -> tuple[ModelSpec, ...]:
        """Return the model's pipeline stages, each with its own layers.

        Args:
            pp: number of stages.
            sizes: layers of each stage, where an engine does not split as `stage_sizes` does.

        Raises:
            UnsupportedError: more stages than layers.
        """
        if pp == 1:
            return (self,)
        rest = [(run.count, run) for run in self.layers]
        stages = []
        for size in sizes or stage_sizes(self.num_hidden_layers, pp):
            runs, wanted = [], size
            while wanted:
                count, run = rest[0]
                taken = min(count, wanted)
                runs.append(msgspec.structs.replace(run, count=taken))
                wanted -= taken
                rest[0] = (count - taken, run)
                if count == taken:
                    rest.pop(0)
            stages.append(msgspec.structs.replace(self, num_hidden_layers=size, layers=tuple(runs)))
        return tuple(stages)

    def growing_bytes(self, tokens: int, kv_cache_dtype: str | KvDtype = "auto") -> int:
        """Return the bytes of the rows that a sequence of `tokens` tokens keeps, encoder apart."""
        dtype = self._dtype(kv_cache_dtype)
        return sum(
            count * span_tokens(cache.span, tokens) * row_bytes(cache, dtype)
            for count, cache in self.caches()
            if not isinstance(cache.span, Once)
        )

    def bytes_per_token(self, kv_cache_dtype: str | KvDtype = "auto") -> int | None:
        """Return what one more token costs while every window is still open.

        A compressed cache counts with its mean. None where that is no whole number of bytes (see
        `growth`).
        """
        grown, tokens = self.growth(kv_cache_dtype)
        return grown if tokens == 1 else None

    def growth(self, kv_cache_dtype: str | KvDtype = "auto") -> tuple[int, int]:
        """Return (bytes, tokens) in lowest terms: what tokens cost on average, windows open."""
        return self._growth(kv_cache_dtype, windows_open=True)

    def bytes_per_token_past_windows(self, kv_cache_dtype: str | KvDtype = "auto") -> int | None:
        """Return what one more token costs once every window and chunk is full (None: as above)."""
        grown, tokens = self._growth(kv_cache_dtype, windows_open=False)
        return grown if tokens == 1 else None

    def _growth(self, kv_cache_dtype: str | KvDtype, *, windows_open: bool) -> tuple[int, int]:
        dtype = self._dtype(kv_cache_dtype)
        rates = []
        for count, cache in self.caches():
            size = count * row_bytes(cache, dtype)
            match cache.span:
                case All():
                    rates.append((size, 1))
                case EveryNth(ratio=ratio):
                    rates.append((size, ratio))
                case Windowed() | Chunks():
                    rates += [(size, 1)] * windows_open
                case Once():
                    pass
                case other:
                    assert_never(other)
        return add_rates(rates)

    def state_bytes(self, layout: StateLayout = VLLM_STATES) -> int:
        """Return the bytes of fixed state that one sequence keeps, whatever its length."""
        return sum(
            count * layout.bytes_of(state, self.dtype)
            for count, cache in self.caches()
            for state in cache.states()
        )

    def encoder_bytes(self, kv_cache_dtype: str | KvDtype = "auto") -> int:
        """Return the bytes of the encoder's rows (cross-attention), a sequence."""
        dtype = self._dtype(kv_cache_dtype)
        return sum(
            count * cache.span.tokens * row_bytes(cache, dtype)
            for count, cache in self.caches()
            if isinstance(cache.span, Once)
        )

    def sequence_bytes(self, tokens: int, kv_cache_dtype: str | KvDtype = "auto") -> int:
        """Return the bytes of one sequence of `tokens` tokens: rows, encoder rows and state.

        Windows and chunks count as many tokens as they can hold; no block is rounded up.
        """
        if tokens < 0:
            raise InvalidValueError(f"{tokens} tokens: a sequence cannot be shorter than nothing")
        growing = self.growing_bytes(tokens, kv_cache_dtype)
        return growing + self.encoder_bytes(kv_cache_dtype) + self.state_bytes()

    def resolve(self, kv_cache_dtype: str) -> KvDtype:
        """Return a KV cache dtype by name; `auto` is the checkpoint's own, else the model dtype.

        Raises:
            UnknownNameError: no such dtype.
        """
        return kv_dtype(kv_cache_dtype, self.kv_cache_dtype or self.dtype)

    def _dtype(self, kv_cache_dtype: str | KvDtype) -> KvDtype:
        return (
            kv_cache_dtype if isinstance(kv_cache_dtype, KvDtype) else self.resolve(kv_cache_dtype)
        )
