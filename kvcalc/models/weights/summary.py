"""What the weights of a checkpoint take: in all, by dtype, by class, by layer, and by rank.

`with_weights` and `with_stated` put the totals into a model's sizes.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kvcalc.core.errors import InputError, InvalidValueError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize, TensorClass, WeightPart
from kvcalc.core.values import Value
from kvcalc.models.text import shown
from kvcalc.models.weights.header import ShardIndex, Tensor
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS
from kvcalc.weights.parameters import count_parts, total
from kvcalc.weights.split import stored_by_stage

__all__ = [
    "Weights",
    "draft_layers",
    "gather",
    "summarise",
    "tensor_class",
    "with_stated",
    "with_weights",
]


_WHOLE = ("norm", "router")
_MATRIX = 2
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_OF_QUANTISATION = re.compile(
    r"(?:^|[._])(?:scales?|scale_inv|scale_2|scale_ub|scaling_factor|zeros?|qzeros|absmax|quant_map"
    r"|quant_state|g_idx|biases)(?:$|[._])|weight_shape$|\.SCB$"
)
"""Names of what a quantised matrix is read with: no engine casts it to the model dtype."""


class Weights(Value, frozen=True, kw_only=True):
    """The weights of a checkpoint, exact to the byte as stored.

    Attributes:
        total_bytes: of all tensors' data, without headers.
        tensors: how many there are.
        parameters: elements as stored; a packed format (GPTQ, AWQ, MXFP4 in U8) keeps several
            parameters in one element, and scales count as well.
        by_dtype: bytes of each safetensors dtype.
        by_class: bytes of each class of tensor that occurs (`weights.classes` says how names
            are read).
        by_layer: bytes of each decoder layer, towers, drafts and an encoder apart.
        shards: files they lie in.
        stated_bytes: `total_size` of the index's metadata; None where it says nothing.
        parts: what `per_rank` is computed from.
        notes: what a reader of the numbers should know.
    """

    total_bytes: int
    tensors: int
    parameters: int
    by_dtype: dict[str, int]
    by_class: dict[str, int]
    by_layer: dict[int, int]
    shards: int
    stated_bytes: int | None = None
    parts: tuple[WeightPart, ...] = ()
    notes: tuple[str, ...] = ()

    def per_rank(
        self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
    ) -> tuple[int, ...]:
        """Estimate the bytes that a rank holds when the model is split evenly.

        An estimate, and the only one here: engines pad, fuse, requantise, and keep copies of
        KV heads where there are fewer than ranks. The convention:

        - matrices (two dimensions or more) are divided by the ranks of a stage, rounded up a
          class and layer; norms, routers, vectors and scalars are whole on every rank;
        - tables of a vocabulary (embedding, lm_head) are divided by rows, rounded up;
        - decoder layers go to stages as in `core.model.stage_sizes`; embeddings, towers, an
          encoder and other tensors to the first stage; lm_head, the norms outside layers and
          draft layers to the last, where a checkpoint without an lm_head keeps its embedding
          once more.

        Returns:
            One number a pipeline stage; its tensor-parallel ranks hold equally much.

        Raises:
            InvalidValueError: a size below 1.
            UnsupportedError: more stages than layers.
        """
        tp, pp = tensor_parallel_size, pipeline_parallel_size
        for name, size in (("tensor_parallel_size", tp), ("pipeline_parallel_size", pp)):
            if type(size) is not int or size < 1:
                raise InvalidValueError(f"{name} is {size!r:.60}, not a whole number from 1 up")
        return stored_by_stage(self.parts, tp, pp)


def gather(
    index: ShardIndex, shards: Mapping[str, tuple[Tensor, ...]], where: str
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the tensors that an index lists, and notes on those that it does not.

    Args:
        index: the checkpoint's index.
        shards: the tensors of each of its files.
        where: how errors name the index.

    Raises:
        InputError: a file lacks a tensor that the index says it holds.
    """
    tensors: list[Tensor] = []
    notes: list[str] = list(index.notes)
    for shard, names in index.names_of().items():
        listed = [tensor for tensor in shards[shard] if tensor.name in names]
        tensors += listed
        if len(listed) < len(names):
            held = {tensor.name for tensor in listed}
            missing = min(names - held)
            message = f"{shown(shard, 80)} holds no tensor {shown(missing, 80)}"
            if len(names) - len(listed) > 1:
                message += f", nor {len(names) - len(listed) - 1} more of the index"
            hint = "the index and the files are of different checkpoints: download them again"
            raise InputError(message, hint=hint, where=where)
        if len(shards[shard]) > len(listed):
            extra = [tensor for tensor in shards[shard] if tensor.name not in names]
            size = sum(tensor.bytes for tensor in extra)
            notes.append(
                f"{shard} holds {len(extra)} tensors ({size} bytes) that the index does not list;"
                " they are not counted"
            )
    return tensors, tuple(notes)


def summarise(
    tensors: Iterable[Tensor],
    *,
    shards: int,
    stated_bytes: int | None = None,
    notes: tuple[str, ...] = (),
) -> Weights:
    """Add up the tensors of a checkpoint."""
    found = list(tensors)
    by_dtype: dict[str, int] = defaultdict(int)
    by_class: dict[str, int] = defaultdict(int)
    by_layer: dict[int, int] = defaultdict(int)
    parts = _Parts([tensor.name for tensor in found])
    for tensor in found:
        kind, layer = parts.add(tensor)
        by_dtype[tensor.dtype] += tensor.bytes
        by_class[kind] += tensor.bytes
        if layer is not None:
            by_layer[layer] += tensor.bytes
    total = sum(by_dtype.values())
    if stated_bytes is not None and stated_bytes != total:
        notes = (*notes, f"the index's total_size is {stated_bytes}, the tensors take {total}")
    return Weights(
        total_bytes=total,
        tensors=len(found),
        parameters=sum(tensor.elements for tensor in found),
        by_dtype=dict(sorted(by_dtype.items())),
        by_class={kind: by_class[kind] for kind in CLASSES if kind in by_class},
        by_layer=dict(sorted(by_layer.items())),
        shards=shards,
        stated_bytes=stated_bytes,
        parts=parts.all(),
        notes=notes,
    )


class _Parts:
    """Tensors sorted into parts."""

    def __init__(self, names: list[str]) -> None:
        self._drafts = draft_layers(names)
        self._two_stacks = has_two_stacks(names)
        self._sums: dict[tuple[TensorClass, int | None, int, str], list[int]] = {}

    def add(self, tensor: Tensor) -> tuple[TensorClass, int | None]:
        """Count a tensor and return its class and decoder layer."""
        kind, layer = self._place(tensor.name)
        table = kind in ("embedding", "lm_head") and len(tensor.shape) == _MATRIX
        rows = tensor.shape[0] if table else 0
        stored = _PLAIN.get(tensor.dtype, "")
        if stored and _OF_QUANTISATION.search(tensor.name):
            stored = ""
        sums = self._sums.setdefault((kind, layer, rows, stored), [0, 0])
        divided = len(tensor.shape) >= _MATRIX and kind not in _WHOLE
        sums[0 if divided else 1] += tensor.bytes
        return kind, layer

    def _place(self, name: str) -> tuple[TensorClass, int | None]:
        kind, layer = tensor_class(name), layer_of(name)
        if kind in ("vision", "audio", "draft"):
            return kind, None
        if layer in self._drafts:
            return "draft", None
        if self._two_stacks and in_encoder(name):
            return kind, None
        return kind, layer

    def all(self) -> tuple[WeightPart, ...]:
        """Return the parts in order of layers, those outside of them first."""
        order = sorted(self._sums.items(), key=_place_of)
        return tuple(
            WeightPart(
                kind=kind,
                layer=layer,
                rows=rows,
                stored=stored,
                divided_bytes=divided,
                whole_bytes=whole,
            )
            for (kind, layer, rows, stored), (divided, whole) in order
        )


def _place_of(
    item: tuple[tuple[TensorClass, int | None, int, str], list[int]],
) -> tuple[int, int, int, str]:
    (kind, layer, rows, stored), _ = item
    return -1 if layer is None else layer, CLASSES.index(kind), rows, stored


# What a tensor is for, told from its name alone.
#
# Names are what checkpoints share: there is no field for it. A name is cut at its dots; the rules
# are tried in the order of `_RULES`, most specific first, and what none of them knows is `other`.
#
#     draft      multi-token-prediction layers: a part called mtp..., nextn..., or (DeepSeek-V3,
#                GLM-4.5) a layer of the main list that holds eh_proj, enorm, hnorm or shared_head
#     vision     the vision tower and its projector: visual, vision_tower, mm_projector, ...
#     audio      the same for audio: audio_tower, speech..., ...
#     norm       norm, layernorm, ln_1, ln_f ... right above the parameter, wherever it stands
#     lm_head    lm_head, embed_out, output_layer; output or head at the top
#     embedding  embed_tokens, wte, word_embeddings, ...; positions too
#     router     the gate of a mixture of experts
#     experts    experts, shared_expert(s), and mixtures named otherwise
#     recurrent  state space, linear attention and short convolutions
#     attention  whatever stands in self_attn, attention, attn, ...
#     mlp        mlp, feed_forward, ffn, fc1, up_proj, ...

CLASSES: tuple[TensorClass, ...] = TensorClass.__args__  # type: ignore[attr-defined]
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})(?:\.|$)")
_NUMBER = re.compile(r"\.\d+(?=\.)")
_DRAFT_MARK = re.compile(r"\.(?:eh_proj|enorm|hnorm|shared_head)\.")
_ENCODER = re.compile(r"(?:^|\.)encoder\.")
_DECODER = re.compile(r"(?:^|\.)decoder\.")
# Each pattern is searched in the name in lower case, a dot before and none behind.
_RULES: tuple[tuple[TensorClass, re.Pattern[str]], ...] = (
    ("draft", re.compile(r"\.(?:mtp|nextn)[^.]*\.")),
    (
        "vision",
        re.compile(
            r"\.[^.]*(?:vision|visual|image|mm_projector|multi_modal_projector|patch_embed)"
            r"|^\.vit\.|^\.(?:model\.)?mlp1\.|^\.(?:model\.)?vpm\.|^\.(?:model\.)?resampler\."
        ),
    ),
    ("audio", re.compile(r"\.[^.]*(?:audio|speech)|^\.(?:model\.)?apm\.")),
    ("norm", re.compile(r"\.(?:[^.]*norm[^.]*|ln\d*|ln_[^.]*)\.[^.]+$|\.[^.]*norm$")),
    ("lm_head", re.compile(r"\.(?:lm_head|embed_out|output_layer)\.|^\.(?:output|head)\.")),
    (
        "router",
        re.compile(
            r"\.(?:mlp|moe|ffn|block_sparse_moe|feed_forward|mixer)\.(?:gate|shared_expert_gate)\."
            r"|\.router\.|\.e_score_correction_bias$|\.moe_gate\."
        ),
    ),
    ("experts", re.compile(r"\.[^.]*(?:expert|moe)[^.]*\.")),
    (
        "recurrent",
        re.compile(
            r"\.(?:mamba\d*|linear_attn|ssm|rwkv|time_mixer|recurrent_block|short_conv)\."
            r"|\.conv\.|\.(?:mixer|temporal_block)\."
            r"(?!(?:[qkvo]_proj|(?:up|down|gate)_proj|fc[^.]*)\.)"
        ),
    ),
    ("attention", re.compile(r"\.[^.]*(?:attn|attention)[^.]*\.|\.[qkvo]_proj\.")),
    (
        "mlp",
        re.compile(
            r"\.(?:[^.]*mlp[^.]*|ffn|feed_forward|densereludense|fc\d[^.]*|fc_in|fc_out)\."
            r"|\.(?:gate_up_proj|gate_proj|up_proj|down_proj|w[123]|dense_h_to_4h|dense_4h_to_h)\."
        ),
    ),
    ("embedding", re.compile(r"\.[^.]*embed[^.]*\.|\.(?:wte|wpe)\.|^\.shared\.")),
)


def tensor_class(name: str) -> TensorClass:
    """Return what a tensor is for.

    >>> tensor_class("model.layers.3.self_attn.q_proj.weight")
    'attention'
    >>> tensor_class("model.layers.3.self_attn.q_norm.weight")
    'norm'
    """
    return _class_of(_NUMBER.sub(".0", name))


@functools.lru_cache(maxsize=4096)
def _class_of(pattern: str) -> TensorClass:
    """Return the class of all names that differ in the numbers of layers and experts alone."""
    path = f".{pattern.lower()}"
    return next((found for found, rule in _RULES if rule.search(path)), "other")


def layer_of(name: str) -> int | None:
    """Return the number of the layer a tensor belongs to; None for what stands outside layers.

    >>> layer_of("model.layers.12.mlp.experts.3.up_proj.weight")
    12
    """
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def draft_layers(names: Iterable[str]) -> frozenset[int]:
    """Return the layers of the main list that only predict further tokens."""
    marked = (name for name in names if _DRAFT_MARK.search(name))
    found = (layer_of(name) for name in marked if tensor_class(name) != "draft")
    return frozenset(layer for layer in found if layer is not None)


def has_two_stacks(names: Iterable[str]) -> bool:
    """Return whether there are an encoder and a decoder, towers apart.

    Either word alone says nothing: ChatGLM calls its decoder an encoder.
    """
    stacks = [name for name in names if "coder." in name]
    stacks = [name for name in stacks if tensor_class(name) not in ("vision", "audio")]
    return any(map(in_encoder, stacks)) and any(map(_DECODER.search, stacks))


def in_encoder(name: str) -> bool:
    """Return whether a tensor stands in something called encoder."""
    return bool(_ENCODER.search(name))


_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ENCODERS = ("vision", "audio")


def with_weights(spec: ModelSpec, weights: Weights, source: str) -> ModelSpec:
    """Return a model that knows its checkpoint's tensors.

    Elements are counted as parameters where every tensor is of plain floats: packed formats keep
    several in one, and scales count as elements too.

    Args:
        spec: as its config describes it.
        weights: of its checkpoint.
        source: where they were read, in words.
    """
    size = spec.size or ModelSize()
    plain = set(weights.by_dtype) <= set(_FLOATS)
    size = msgspec.structs.replace(
        size,
        parameters=weights.parameters if plain else size.parameters,
        weights_bytes=weights.total_bytes,
        weights_error_bytes=None,
        weights_dtype=_format(weights, size.weights_dtype),
        encoder_bytes=sum(weights.by_class.get(kind, 0) for kind in _ENCODERS),
        weights_source=source,
        parts=weights.parts,
    )
    against = (*spec.contradictions, *_contradictions(spec, weights, plain=plain))
    return msgspec.structs.replace(
        spec, size=size, contradictions=against, notes=(*spec.notes, *weights.notes)
    )


def with_stated(spec: ModelSpec, size_bytes: int, source: str) -> ModelSpec:
    """Return a model that knows what an index says its tensors take together.

    Args:
        spec: as its config describes it.
        size_bytes: of all tensors.
        source: where they were read, in words.
    """
    size = msgspec.structs.replace(
        spec.size or ModelSize(), weights_bytes=size_bytes, weights_error_bytes=None
    )
    size = msgspec.structs.replace(size, weights_source=source)
    return msgspec.structs.replace(spec, size=size)


_OFF = 1.02
"""How far a sum of tensors may be from the counted bounds before it is another model's."""


def _contradictions(spec: ModelSpec, weights: Weights, *, plain: bool) -> Iterator[str]:
    """Yield what a checkpoint's tensors say against its config."""
    layers, drafts = spec.num_hidden_layers, sum(run.count for run in spec.draft_layers)
    held = max(weights.by_layer, default=-1) + 1
    if held and not layers <= held <= layers + drafts:
        yield f"the tensors are of {held} layers, the config says {layers}"
    said = None if spec.size is None else spec.size.weights_dtype
    packed = sum(n for name, n in weights.by_dtype.items() if name not in _FLOATS)
    if _is_packed(said) and plain:
        yield f"the config says that weights are in {said}, and no tensor is packed"
    elif said in WIDTHS and 2 * packed > weights.total_bytes:
        yield f"most tensors are packed, and the config says nothing of a quantisation ({said})"
    if weights.stated_bytes not in (None, weights.total_bytes):
        yield f"the index says {weights.stated_bytes} B, the tensors take {weights.total_bytes} B"
    if not plain:
        return
    try:
        low, high = total(count_parts(spec))
    except UnsupportedError:
        return  # the config does not say how wide everything is
    if not low / _OFF <= weights.parameters <= high * _OFF:
        counted = f"{low:,} to {high:,}" if low != high else f"{low:,}"
        yield f"the tensors have {weights.parameters:,} elements, the config comes to {counted}"


def _is_packed(said: str | None) -> bool:
    return said is not None and said != UNKNOWN_FORMAT and said not in WIDTHS


def _format(weights: Weights, said: str | None) -> str | None:
    """Return what most weights are stored in: by their dtype, or as the config says it."""
    if not weights.by_dtype:
        return said
    most = max(weights.by_dtype, key=lambda name: weights.by_dtype[name])
    if most in ("F32", "F16", "BF16"):
        return _FLOATS[most]
    if _is_packed(said):
        return said
    # A config may leave its quantisation to a file of its own (hf_quant_config.json).
    return "fp8" if most.startswith("F8_E") and most != "F8_E8M0" else None
