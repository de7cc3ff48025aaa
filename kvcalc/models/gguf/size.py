"""The widths and weights that a GGUF file states beside its cache: all of them optional.

llama.cpp b11434 src/llama-model.cpp (llama_model_base::load_hparams); numbers of file types:
include/llama.h (llama_ftype). A value that makes no sense
is left out: sizes change nothing of the cache.
"""

from __future__ import annotations

from kvcalc.core.size import ModelSize, WeightPart
from kvcalc.core.weight_dtypes import UNKNOWN_FORMAT
from kvcalc.models.gguf.fields import Fields
from kvcalc.models.gguf.tensors import Tensors

__all__ = ["model_size"]

_AS_WIDE = frozenset(("granitemoe", "hunyuan-moe", "llama", "minimax-m2", "phimoe"))
"""Architectures whose experts are as wide as feed_forward_length, whatever the other key says."""

_FILE_TYPES = {
    0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1",
    10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m",
    16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 25: "iq4_nl", 30: "iq4_xs", 32: "bfloat16",
    38: "mxfp4",
}  # fmt: skip


def model_size(fields: Fields, blocks: int, drafts: int, tensors: Tensors | None) -> ModelSize:
    """Return the sizes that a file's keys and tensors give.

    Args:
        fields: the keys.
        blocks: layers, draft layers included.
        drafts: draft layers, which are the last.
        tensors: of all files; None where they are not known.
    """
    inner = fields.by_layer("feed_forward_length")
    heads = fields.by_layer("attention.head_count")
    experts = fields.quietly("expert_count")
    dense = fields.quietly("leading_dense_block_count") or 0
    step = fields.quietly("interleave_moe_layer_step") or 1
    rope = fields.quietly("rope.dimension_count")
    head = fields.quietly("attention.key_length_mla")
    if head is None and fields.quietly("attention.kv_lora_rank") is not None:
        head = fields.quietly("attention.key_length")
    value = fields.quietly("attention.value_length_mla")
    kind = fields.file_type()
    return ModelSize(
        hidden_size=fields.quietly("embedding_length"),
        intermediate_size=max(inner, default=0) or None,
        vocab_size=fields.vocabulary(),
        num_experts=experts,
        num_experts_per_tok=fields.quietly("expert_used_count") if experts else None,
        moe_intermediate_size=_expert_width(fields, inner) if experts else None,
        num_moe_layers=max(1, (fields.main - dense) // step) if experts else None,
        first_moe_layer=dense if experts else None,
        shared_intermediate_size=_shared(fields) if experts else None,
        q_lora_rank=fields.quietly("attention.q_lora_rank"),
        kv_lora_rank=fields.quietly("attention.kv_lora_rank"),
        qk_nope_head_dim=head - rope if head and rope and head > rope else None,
        v_head_dim=value or (fields.quietly("attention.value_length") if head else None),
        index_n_heads=fields.quietly("attention.indexer.head_count"),
        layer_heads=_varying(heads),
        layer_inner=_varying(inner),
        weights_bytes=None if tensors is None else tensors.total,
        weights_dtype=UNKNOWN_FORMAT if kind is None else _FILE_TYPES.get(kind, UNKNOWN_FORMAT),
        weights_source=None if tensors is None else "the tensors of the GGUF file",
        parts=() if tensors is None else _parts(tensors, blocks, drafts),
    )


def _parts(tensors: Tensors, blocks: int, drafts: int) -> tuple[WeightPart, ...]:
    """Return one part a layer, one of the draft layers, and one of what stands outside."""
    main = blocks - drafts
    layers = {i: size for i, size in tensors.by_layer.items() if i < main}
    draft = sum(size for i, size in tensors.by_layer.items() if i >= main)
    rest = tensors.total - sum(layers.values()) - draft
    parts = [WeightPart(kind="other", layer=None, divided_bytes=rest)]
    parts += [
        WeightPart(kind="other", layer=i, divided_bytes=size) for i, size in sorted(layers.items())
    ]
    if draft:
        parts.append(WeightPart(kind="draft", layer=None, divided_bytes=draft))
    return tuple(parts)


def _expert_width(fields: Fields, inner: tuple[int, ...]) -> int | None:
    own = fields.quietly("expert_feed_forward_length")
    if own is None or fields.arch in _AS_WIDE:
        return max(inner, default=0) or None
    return own


def _shared(fields: Fields) -> int:
    known = fields.quietly("expert_shared_feed_forward_length")
    if known is not None:
        return known
    each = fields.quietly("expert_feed_forward_length") or 0
    return each * (fields.quietly("expert_shared_count") or 0)


def _varying(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers if len(set(numbers)) > 1 else ()
