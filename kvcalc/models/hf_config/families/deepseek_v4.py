"""DeepSeek-V4: a window of raw entries in every layer, compressed entries by `compress_ratios`.

Ratio 4 folds overlapping windows of 4 tokens and has an indexer over them; ratio 128 folds 128
tokens and reads all entries; 0 keeps the window only. All caches are one vector for all heads.
"""

from __future__ import annotations

from kvcalc.core.attention import CompressedAttention, Indexer, SlidingMla
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, drafts, num_layers, runs

__all__ = ["read"]

_CLASS = "DeepseekV4Config"  # transformers 5.24 models/deepseek_v4/configuration_deepseek_v4.py

_SPARSE, _HEAVY = 4, 128  # vLLM 0.33 models/deepseek_v4/compressor.py knows no other ratio
_WORDS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": _SPARSE,
    "heavily_compressed_attention": _HEAVY,
}


def read(f: Fields) -> Layers:
    """Return what each layer keeps by its ratio; a draft layer keeps the window only."""
    size = f.default_whole("head_dim", default=512, of=_CLASS, low=2)
    rope = f.default_whole("qk_rope_head_dim", default=64, of=_CLASS, low=0, high=size - 1)
    window = SlidingMla(
        head_dim=size,
        qk_rope_head_dim=rope,
        sliding_window=f.default_whole("sliding_window", default=128, of=_CLASS),
    )
    sparse, heavy = (
        CompressedAttention(
            head_dim=size, qk_rope_head_dim=rope, compress_ratio=ratio, overlap=ratio == _SPARSE
        )
        for ratio in (_SPARSE, _HEAVY)
    )
    index = Indexer(
        index_head_dim=f.default_whole("index_head_dim", default=128, of=_CLASS),
        compress_ratio=_SPARSE,
        overlap=True,
    )
    kinds: dict[int, Caches] = {
        0: (window,),
        1: (window,),
        _SPARSE: (window, sparse, index),
        _HEAVY: (window, heavy),
    }
    ratios = _ratios(f, num_layers(f), list(kinds))
    # vLLM 0.33 attention.py: a draft layer is not compressed, listed or not (measured).
    return Layers(runs([kinds[ratio] for ratio in ratios]), drafts(f, window))


def _ratios(f: Fields, count: int, known: list[int]) -> list[int]:
    """Return the ratio of each layer; the list goes on with those of draft layers."""
    name = "compress_ratios"
    ratios = f.wholes(name)
    if ratios is None:
        name = "layer_types"
        words = f.texts(name, known=list(_WORDS))
        if words is None:
            raise f.missing("compress_ratios")
        ratios = [_WORDS[word] for word in words]
        _check_rates(f)
    if len(ratios) < count:
        raise f.fault(name, f"{len(ratios)} entries", f"one for each of {count} layers")
    for ratio in ratios[:count]:
        if ratio not in known:
            raise f.fault(name, ratio, f"0, {_SPARSE} or {_HEAVY}")
    return ratios[:count]


def _check_rates(f: Fields) -> None:
    """Refuse ratios that no engine compresses by, where the layers are listed by word."""
    rates = f.section("compress_rates")
    for word, ratio in _WORDS.items():
        given = rates.whole(word) if rates is not None and ratio else None
        if rates is not None and given not in (None, ratio):
            raise rates.fault(word, given, f"{ratio}")
