"""The widths of a model that decide what is not cache: its weights, activations and logits."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvcalc.core.units import cdiv
from kvcalc.core.values import NonNegative, Positive, Value, require_range

__all__ = [
    "MAX_PARAMETERS",
    "KeptPart",
    "ModelSize",
    "TensorClass",
    "Tower",
    "WeightPart",
    "WeightTensor",
]


MAX_PARAMETERS = 2**60
"""Of parameters and of bytes; above it a number is a slip."""
_Total = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARAMETERS)]
TensorClass = Literal[
    "embedding",
    "lm_head",
    "attention",
    "recurrent",
    "mlp",
    "experts",
    "router",
    "norm",
    "vision",
    "audio",
    "draft",
    "other",
]
"""What a tensor is for; `models.weights.classes` tells it from a name."""
KeptPart = Literal["attention", "recurrent", "mlp", "shared"]
"""What a quantisation may leave as it is, routers, norms and tables apart, which all leave."""


class WeightPart(Value, frozen=True, kw_only=True):
    """Tensors of one class and one place, as a split over ranks sees them.

    Attributes:
        kind: the class.
        layer: the decoder layer; None outside of them.
        rows: of a vocabulary's table, which is divided by rows; 0 for all else.
        stored: the dtype of plain floats (`float32`, `bfloat16`, `float16`); empty for packed
            weights, their scales, and all that no engine casts.
        divided_bytes: of the matrices that tensor parallelism divides.
        whole_bytes: of what every rank keeps whole.
    """

    kind: TensorClass
    layer: int | None
    rows: int = 0
    stored: str = ""
    divided_bytes: int = 0
    whole_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes as stored."""
        return self.divided_bytes + self.whole_bytes

    def on_rank(self, tp: int) -> int:
        """Return the bytes that one of `tp` ranks keeps."""
        if self.rows:
            row_bytes = cdiv(self.divided_bytes, self.rows)
            return cdiv(self.rows, tp) * row_bytes + self.whole_bytes
        return cdiv(self.divided_bytes, tp) + self.whole_bytes


class Tower(Value, frozen=True, kw_only=True):
    """An encoder of images or sound beside the decoder: a stack of equal layers.

    Attributes:
        hidden_size: its width.
        intermediate_size: inner width of its MLPs.
        num_layers: its layers.
    """

    hidden_size: Positive
    intermediate_size: Positive
    num_layers: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "hidden_size", "intermediate_size", "num_layers")


class ModelSize(Value, frozen=True, kw_only=True):
    """What a published config or checkpoint says of a model beside its cache; None: not said.

    Attributes:
        hidden_size: width of the residual stream.
        intermediate_size: inner width of a dense MLP, the widest where layers differ.
        vocab_size: rows of the embedding as published.
        num_experts: routed experts of a layer that has any.
        num_experts_per_tok: of these, experts that a token goes through.
        moe_intermediate_size: inner width of a routed expert.
        num_moe_layers: layers with routed experts.
        num_dense_layers: layers with a dense MLP, where they are not all those without experts.
        first_moe_layer: number of the first layer with routed experts, counted from 0.
        shared_intermediate_size: inner width of all shared experts of a layer together; 0: none.
        expert_hidden_size: width that routed experts work at, where it is not hidden_size.
        q_lora_rank: latent of the queries in latent attention.
        kv_lora_rank: latent that keys and values are made from.
        qk_nope_head_dim: of a head of latent attention, the part without positions.
        v_head_dim: width of a value head of latent attention.
        index_n_heads: query heads of a sparse-attention indexer.
        attention_bias: the config's word on biases of the attention's projections.
        mlp_bias: the same for MLPs.
        layer_heads: query heads by layer, where they differ.
        layer_inner: inner widths of dense MLPs by layer, where they differ; 0: the layer has none.
        tie_word_embeddings: the output shares the embedding's matrix.
        towers: encoders of images and sound.
        parameters: of everything in the checkpoint, towers and drafts included, as counted by the
            publisher or from its shapes.
        weights_bytes: of all tensors as stored in the published checkpoint.
        weights_dtype: what most of them are stored in (`bfloat16`, `fp8`, `mxfp4`, `awq`, ...).
        weight_block: rows and columns of weights in fp8 that share a scale, where blocks do.
        expert_dtype: what routed experts are stored in, where it is not weights_dtype.
        kept: parts of the decoder that a quantisation leaves in the model dtype, as its config
            lists them.
        encoder_bytes: of weights_bytes, those of vision, audio and other towers.
        weights_error_bytes: how far weights_bytes may be off, where it was rounded or is of files.
        weights_source: where weights_bytes was read.
        parts: the checkpoint's tensors by class and layer, where its headers were read.
    """

    hidden_size: Positive | None = None
    intermediate_size: Positive | None = None
    vocab_size: Positive | None = None
    num_experts: Positive | None = None
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None
    num_moe_layers: Positive | None = None
    num_dense_layers: NonNegative | None = None
    first_moe_layer: NonNegative | None = None
    shared_intermediate_size: NonNegative | None = None
    expert_hidden_size: Positive | None = None
    q_lora_rank: Positive | None = None
    kv_lora_rank: Positive | None = None
    qk_nope_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    index_n_heads: Positive | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    layer_heads: tuple[NonNegative, ...] = ()
    layer_inner: tuple[NonNegative, ...] = ()
    tie_word_embeddings: bool | None = None
    towers: tuple[Tower, ...] = ()
    parameters: _Total | None = None
    weights_bytes: _Total | None = None
    weights_dtype: str | None = None
    weight_block: Positive | None = None
    expert_dtype: str | None = None
    kept: tuple[KeptPart, ...] | None = None
    encoder_bytes: _Total | None = None
    weights_error_bytes: _Total | None = None
    weights_source: str | None = None
    parts: tuple[WeightPart, ...] = ()

    def __post_init__(self) -> None:
        widths = (
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "num_moe_layers",
            "expert_hidden_size",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "v_head_dim",
            "index_n_heads",
        )
        require_range(self, 1, *widths, optional=True)
        counts = ("num_dense_layers", "first_moe_layer", "shared_intermediate_size")
        require_range(self, 0, *counts, optional=True)
        sizes = ("parameters", "weights_bytes", "encoder_bytes", "weights_error_bytes")
        require_range(self, 0, *sizes, high=MAX_PARAMETERS, optional=True)


# The weights of a model, tensor by tensor, as its file holds them.


class WeightTensor(Value, frozen=True, kw_only=True):
    """One tensor of a model's weights.

    Attributes:
        name: as in the file, such as `blk.7.ffn_up.weight`.
        bytes: of its data; at least, where no file tells them.
        row: elements of its innermost dimension.
        block: elements that its type packs together; 1 where it packs none.
        block_bytes: bytes that they become.
        more_bytes: what it may take beyond `bytes`; 0 where a file tells it.
    """

    name: str
    bytes: NonNegative
    row: NonNegative
    block: Positive
    block_bytes: Positive
    more_bytes: NonNegative = 0
