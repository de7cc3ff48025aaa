"""GPT-Neo: global and local layers, listed by layer or as repeated patterns."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    heads,
    hidden_per_head,
    num_layers,
    runs,
    sliding,
)

__all__ = ["read"]

_CLASS = "GPTNeoConfig"  # transformers 5.24 models/gpt_neo/configuration_gpt_neo.py
_KINDS = ("global", "local")


def read(f: Fields) -> Layers:
    """Return the layers by `attention_layers`, else by `attention_types`."""
    count = num_layers(f)
    full = FullAttention(num_kv_heads=heads(f), head_dim=hidden_per_head(f))
    local: Caches = (sliding(full, f.default_whole("window_size", default=256, of=_CLASS)),)
    f.notes.append("local layers count as windows; transformers keeps all their tokens")
    words = f.texts("attention_layers", known=_KINDS, length=count) or _patterns(f, count)
    return Layers(runs([local if word == "local" else (full,) for word in words]))


def _patterns(f: Fields, count: int) -> list[str]:
    """Return the layers of `attention_types`: [[["global", "local"], 12]]."""
    words: list[str] = []
    for entry in f.items("attention_types") or ():
        match entry:
            # A repetition that cannot fit is not unfolded.
            case [[*pattern], int(times)] if times > 0 and len(pattern) * times <= count:
                words += pattern * times
            case _:
                raise f.fault("attention_types", entry, f"words and how often, {count} in all")
        if len(words) > count:
            break
    if len(words) != count or not all(word in _KINDS for word in words):
        raise f.fault("attention_types", f"{len(words)} entries", f"{count} of global and local")
    return words
