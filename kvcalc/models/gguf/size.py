"""The widths and weights that a GGUF header gives; none of it is needed, so none of it can fail.

Names of keys: llama.cpp b11434 `src/llama-arch.cpp` (LLM_KV_NAMES); numbers of file types:
`include/llama.h` (llama_ftype).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvcalc.core.size import ModelSize, WeightPart
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.core.weight_dtypes import UNKNOWN_FORMAT
from kvcalc.models.gguf.metadata import Entry, Skipped
from kvcalc.models.gguf.tensors import Tensors

__all__ = ["gguf_size"]

_FILE_TYPES = {
    0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1",
    10: "q2_k", 11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m",
    16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 25: "iq4_nl", 30: "iq4_xs", 32: "bfloat16",
    38: "mxfp4",
}  # fmt: skip


def gguf_size(
    arch: str, entries: Mapping[str, Entry], blocks: int, drafts: int, tensors: Tensors | None
) -> ModelSize:
    """Return the sizes of a model in GGUF files.

    Args:
        arch: `general.architecture`.
        entries: the key-values.
        blocks: layers, draft layers included.
        drafts: draft layers, which are the last.
        tensors: of all files; None where they are not known.
    """

    def number(name: str, low: int = 1) -> int | None:
        return _number(entries.get(f"{arch}.{name}"), low)

    experts = number("expert_count")
    dense = number("leading_dense_block_count", low=0) or 0
    moe = blocks - drafts - dense
    has = experts is not None and experts > 1 and moe > 0
    inner = number("feed_forward_length")
    expert_inner = number("expert_feed_forward_length") or inner
    shared = number("expert_shared_feed_forward_length", low=0)
    count = number("expert_shared_count", low=0)
    type_ = entries.get("general.file_type")
    return ModelSize(
        hidden_size=number("embedding_length"),
        intermediate_size=inner,
        vocab_size=number("vocab_size") or _length(entries.get("tokenizer.ggml.tokens")),
        num_experts=experts if has else None,
        num_experts_per_tok=number("expert_used_count") if has else None,
        moe_intermediate_size=expert_inner if has else None,
        num_moe_layers=moe if has else None,
        first_moe_layer=dense if has else None,
        shared_intermediate_size=(shared or (count or 0) * (expert_inner or 0)) if has else None,
        q_lora_rank=number("attention.q_lora_rank"),
        weights_bytes=None if tensors is None else tensors.total,
        weights_dtype=_FILE_TYPES.get(type_, UNKNOWN_FORMAT)
        if type(type_) is int
        else UNKNOWN_FORMAT,
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


def _number(entry: Entry | None, low: int) -> int | None:
    if isinstance(entry, tuple) and not isinstance(entry, Skipped):  # one a layer
        known = [n for n in entry if type(n) is int and low <= n <= MAX_DIMENSION]
        return max(known, default=None)
    return entry if type(entry) is int and low <= entry <= MAX_DIMENSION else None


def _length(entry: Entry | None) -> int | None:
    if isinstance(entry, Skipped):
        return _number(entry.length, 1) if entry.what == "a list" else None
    return len(entry) or None if isinstance(entry, tuple) else None
