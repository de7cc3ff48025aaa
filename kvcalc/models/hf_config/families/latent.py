"""Latent and sparse attention: one vector for all heads (MLA), indexers, compressed entries."""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, Indexer, Mla, SlidingMla
from kvcalc.core.errors import UnknownNameError
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    draft_runs,
    drafts,
    num_layers,
    runs,
    same,
)
from kvcalc.models.hf_config.states import draft_count, need_attention

__all__ = [
    "mla",
    "read_deepseek",
    "read_deepseek_dsa",
    "read_deepseek_v4",
    "read_longcat_flash",
    "read_minimax_m3",
]


# DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash and their kin: one latent for all heads.
def mla(f: Fields) -> Mla:
    """Return the latent and the rotary key; `num_key_value_heads` says nothing about them."""
    return Mla(
        kv_lora_rank=f.need("kv_lora_rank"), qk_rope_head_dim=f.need("qk_rope_head_dim", low=0)
    )


def read_deepseek(f: Fields) -> Layers:
    """Return equal layers of latent attention; draft layers are kept apart."""
    latent = mla(f)
    return Layers(same(num_layers(f), latent).layers, drafts(f, latent))


# DeepSeek-V3.2 and GLM-5: latent attention, and an indexer that picks tokens for it.
#
# From GLM-5.2 on some layers have no indexer of their own and use the picks of the last one before.
_DEEPSEEK_DSA_CLASS = "DeepseekV32Config"
# transformers 5.24 models/deepseek_v32/configuration_deepseek_v32.py; GlmMoeDsaConfig has the same

_INDEXER_LETTERS = {"F": "full", "S": "shared"}


def read_deepseek_dsa(f: Fields) -> Layers:
    """Return latent attention everywhere and indexers where they are; a draft layer has both."""
    count = num_layers(f)
    latent = mla(f)
    index = Indexer(
        index_head_dim=f.default_whole("index_head_dim", default=128, of=_DEEPSEEK_DSA_CLASS)
    )
    kinds: dict[str, Caches] = {"full": (latent, index), "shared": (latent,)}
    types = _indexer_types(f, count)
    notes = {i: "uses another layer's indexer" for i, t in enumerate(types) if t == "shared"}
    # vLLM 0.33: a draft layer always has an indexer of its own (measured for DeepSeek-V3.2).
    return Layers(runs([kinds[t] for t in types], notes), drafts(f, latent, index))


def _indexer_types(f: Fields, count: int) -> list[str]:
    """Return full or shared for each layer: as listed, by pattern, or by frequency and offset.

    transformers 5.24 GlmMoeDsaConfig, and vLLM 0.33 models/deepseek_v32/attention.py.
    """
    types = f.texts("indexer_types", known=list(_INDEXER_LETTERS.values()))
    name = "indexer_types"
    pattern = f.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        name = "index_topk_pattern"
        for letter in pattern[:MAX_LAYERS]:
            if letter not in _INDEXER_LETTERS:
                raise UnknownNameError(
                    f"layer of {f.name(name)}", letter, _INDEXER_LETTERS, where=f.where
                )
        types = [_INDEXER_LETTERS[letter] for letter in pattern[:MAX_LAYERS]]
    elif types is None and pattern is not None:
        name = "index_topk_pattern"
        types = f.texts(name, known=list(_INDEXER_LETTERS.values()))
    if types is None:
        every = f.whole("index_topk_freq", high=MAX_LAYERS) or 1
        offset = f.whole("index_skip_topk_offset", low=0, high=MAX_LAYERS)
        first = 2 if offset is None else offset
        return ["shared" if max(i - first + 1, 0) % every else "full" for i in range(count)]
    if len(types) < count:
        raise f.fault(name, f"{len(types)} entries", f"one for each of {count} layers")
    return types[:count]


# DeepSeek-V4: a window of raw entries in every layer, compressed entries by `compress_ratios`.
#
# Ratio 4 folds overlapping windows of 4 tokens and has an indexer over them; ratio 128 folds 128
# tokens and reads all entries; 0 keeps the window only. All caches are one vector for all heads.
_DEEPSEEK_V4_CLASS = "DeepseekV4Config"
# transformers 5.24 models/deepseek_v4/configuration_deepseek_v4.py

_SPARSE, _HEAVY = 4, 128  # vLLM 0.33 models/deepseek_v4/compressor.py knows no other ratio
_RATIO_OF_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": _SPARSE,
    "heavily_compressed_attention": _HEAVY,
}


def read_deepseek_v4(f: Fields) -> Layers:
    """Return what each layer keeps by its ratio; a draft layer keeps the window only."""
    size = f.default_whole("head_dim", default=512, of=_DEEPSEEK_V4_CLASS, low=2)
    rope = f.default_whole(
        "qk_rope_head_dim", default=64, of=_DEEPSEEK_V4_CLASS, low=0, high=size - 1
    )
    window = SlidingMla(
        head_dim=size,
        qk_rope_head_dim=rope,
        sliding_window=f.default_whole("sliding_window", default=128, of=_DEEPSEEK_V4_CLASS),
    )
    sparse, heavy = (
        CompressedAttention(
            head_dim=size, qk_rope_head_dim=rope, compress_ratio=ratio, overlap=ratio == _SPARSE
        )
        for ratio in (_SPARSE, _HEAVY)
    )
    index = Indexer(
        index_head_dim=f.default_whole("index_head_dim", default=128, of=_DEEPSEEK_V4_CLASS),
        compress_ratio=_SPARSE,
        overlap=True,
    )
    kinds: dict[int, Caches] = {
        0: (window,),
        1: (window,),
        _SPARSE: (window, sparse, index),
        _HEAVY: (window, heavy),
    }
    ratios = _compress_ratios(f, num_layers(f), list(kinds))
    # vLLM 0.33 attention.py: a draft layer is not compressed, listed or not (measured).
    return Layers(runs([kinds[ratio] for ratio in ratios]), drafts(f, window))


def _compress_ratios(f: Fields, count: int, known: list[int]) -> list[int]:
    """Return the ratio of each layer; the list goes on with those of draft layers."""
    name = "compress_ratios"
    ratios = f.wholes(name)
    if ratios is None:
        name = "layer_types"
        words = f.texts(name, known=list(_RATIO_OF_TYPE))
        if words is None:
            raise f.missing("compress_ratios")
        ratios = [_RATIO_OF_TYPE[word] for word in words]
        _check_compress_rates(f)
    if len(ratios) < count:
        raise f.fault(name, f"{len(ratios)} entries", f"one for each of {count} layers")
    for ratio in ratios[:count]:
        if ratio not in known:
            raise f.fault(name, ratio, f"0, {_SPARSE} or {_HEAVY}")
    return ratios[:count]


def _check_compress_rates(f: Fields) -> None:
    """Refuse ratios that no engine compresses by, where the layers are listed by word."""
    rates = f.section("compress_rates")
    for word, ratio in _RATIO_OF_TYPE.items():
        given = rates.whole(word) if rates is not None and ratio else None
        if rates is not None and given not in (None, ratio):
            raise rates.fault(word, given, f"{ratio}")


# LongCat-Flash: two latent attentions in every layer, so two caches.
def read_longcat_flash(f: Fields) -> Layers:
    """Return equal layers of two latents each; a draft layer has one."""
    latent = mla(f)
    # num_hidden_layers, where transformers 5.24 saves it, counts the attentions: twice num_layers.
    count = f.need("num_layers", high=MAX_LAYERS)
    attentions = f.whole("num_hidden_layers", high=2 * MAX_LAYERS)
    if attentions not in (None, count, 2 * count):
        raise f.fault("num_hidden_layers", attentions, f"twice num_layers {count}")
    drafts = f.default_whole(
        "num_nextn_predict_layers", default=1, of="vLLM's LongCatFlashMTP", low=0, high=64
    )
    return Layers(same(count, latent, latent).layers, draft_runs(drafts, latent))


# MiniMax-M3: grouped-query attention, and an indexer's key on the sparse layers.
_MINIMAX_M3_CLASS = "MiniMaxM3VLTextConfig"
# transformers 5.24 models/minimax_m3_vl/configuration_minimax_m3_vl.py


def read_minimax_m3(f: Fields) -> Layers:
    """Return K and V everywhere, and the key of one index vector on the sparse layers."""
    count = num_layers(f)
    full = need_attention(f)
    sparse = f.section("sparse_attention_config")
    index = Indexer(
        index_head_dim=(
            sparse.default_whole("sparse_index_dim", default=128, of=_MINIMAX_M3_CLASS)
            if sparse
            else f.default_whole("index_head_dim", default=128, of=_MINIMAX_M3_CLASS)
        ),
        index_dtype="bfloat16",  # vLLM 0.33 models/minimax_m3/common/indexer.py (measured)
    )
    kinds: dict[str, Caches] = {"full_attention": (full,), "minimax_m3_sparse": (full, index)}
    layers = by_type(f, count, kinds)
    if layers is None:
        flags = sparse.wholes("sparse_attention_freq") if sparse else None
        if sparse is None or flags is None:
            raise f.missing("sparse_attention_config.sparse_attention_freq", "layer_types")
        if len(flags) < count:
            raise sparse.fault(
                "sparse_attention_freq", f"{len(flags)} entries", f"one for each of {count} layers"
            )
        layers = [
            kinds["minimax_m3_sparse" if flag else "full_attention"] for flag in flags[:count]
        ]
    # vLLM 0.33 models/minimax_m3/nvidia/mtp.py: draft layers are sparse.
    drafts = draft_count(f, "num_mtp_modules", "num_nextn_predict_layers")
    return Layers(runs(layers), draft_runs(drafts, full, index))
