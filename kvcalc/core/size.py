"""The widths of a model that decide what is not cache: its weights, activations and logits."""

from __future__ import annotations

from kvcalc.core.values import Positive, Value, require_range

__all__ = ["ModelSize"]


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
        tie_word_embeddings: the output shares the embedding's matrix.
        parameters: of everything in the checkpoint, towers and drafts included, as counted by the
            publisher or from its shapes.
        weights_bytes: of all tensors as stored in the published checkpoint.
        weights_dtype: what most of them are stored in (`bfloat16`, `fp8`, `mxfp4`, `awq`, ...).
        encoder_bytes: of weights_bytes, those of vision, audio and other towers.
        weights_source: where weights_bytes was read.
    """

    hidden_size: Positive | None = None
    intermediate_size: Positive | None = None
    vocab_size: Positive | None = None
    num_experts: Positive | None = None
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None
    num_moe_layers: Positive | None = None
    tie_word_embeddings: bool | None = None
    parameters: int | None = None
    weights_bytes: int | None = None
    weights_dtype: str | None = None
    encoder_bytes: int | None = None
    weights_source: str | None = None

    def __post_init__(self) -> None:
        widths = (
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "num_moe_layers",
        )
        require_range(self, 1, *widths, optional=True)
        sizes = ("parameters", "weights_bytes", "encoder_bytes")
        require_range(self, 0, *sizes, high=2**60, optional=True)
