"""DeepSeek-V3.2 and GLM-5: latent attention, and an indexer that picks tokens for it.

From GLM-5.2 on some layers have no indexer of their own and use the picks of the last one before.
"""

from __future__ import annotations

from kvcalc.core.attention import Indexer
from kvcalc.core.errors import UnknownNameError
from kvcalc.models.hf_config.families.deepseek import mla
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, drafts, num_layers, runs

__all__ = ["read"]

_CLASS = "DeepseekV32Config"
# transformers 5.24 models/deepseek_v32/configuration_deepseek_v32.py; GlmMoeDsaConfig has the same

_LETTERS = {"F": "full", "S": "shared"}


def read(f: Fields) -> Layers:
    """Return latent attention everywhere and indexers where they are; a draft layer has both."""
    count = num_layers(f)
    latent = mla(f)
    index = Indexer(index_head_dim=f.default_whole("index_head_dim", default=128, of=_CLASS))
    kinds: dict[str, Caches] = {"full": (latent, index), "shared": (latent,)}
    types = _types(f, count)
    notes = {i: "uses another layer's indexer" for i, t in enumerate(types) if t == "shared"}
    # vLLM 0.33: a draft layer always has an indexer of its own (measured for DeepSeek-V3.2).
    return Layers(runs([kinds[t] for t in types], notes), drafts(f, latent, index))


def _types(f: Fields, count: int) -> list[str]:
    """Return full or shared for each layer: as listed, by pattern, or by frequency and offset.

    transformers 5.24 GlmMoeDsaConfig, and vLLM 0.33 models/deepseek_v32/attention.py.
    """
    types = f.texts("indexer_types", known=list(_LETTERS.values()))
    name = "indexer_types"
    pattern = f.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        name = "index_topk_pattern"
        for letter in pattern[:MAX_LAYERS]:
            if letter not in _LETTERS:
                raise UnknownNameError(f"layer of {f.name(name)}", letter, _LETTERS, where=f.where)
        types = [_LETTERS[letter] for letter in pattern[:MAX_LAYERS]]
    elif types is None and pattern is not None:
        name = "index_topk_pattern"
        types = f.texts(name, known=list(_LETTERS.values()))
    if types is None:
        every = f.whole("index_topk_freq", high=MAX_LAYERS) or 1
        offset = f.whole("index_skip_topk_offset", low=0, high=MAX_LAYERS)
        first = 2 if offset is None else offset
        return ["shared" if max(i - first + 1, 0) % every else "full" for i in range(count)]
    if len(types) < count:
        raise f.fault(name, f"{len(types)} entries", f"one for each of {count} layers")
    return types[:count]
