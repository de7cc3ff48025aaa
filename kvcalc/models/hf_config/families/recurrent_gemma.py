"""RecurrentGemma (Griffin): real-gated linear recurrent units, every third layer a window."""

from __future__ import annotations

from kvcalc.core.recurrent import RgLru
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, full_attention, num_layers, repeat, runs
from kvcalc.models.hf_config.parts import sliding as window_of

__all__ = ["read"]

_CLASS = "RecurrentGemmaConfig"
# transformers 5.24 models/recurrent_gemma/configuration_recurrent_gemma.py


def read(f: Fields) -> Layers:
    """Return the layers by `block_types`, which repeat."""
    size = f.default_whole("attention_window_size", "sliding_window", default=2048, of=_CLASS)
    state = RgLru(
        lru_width=f.need("lru_width", "hidden_size"),
        conv_kernel=f.default_whole("conv1d_width", default=4, of=_CLASS),
        # modeling_recurrent_gemma.py, _setup_cache: "always computed in full precision".
        state_dtype="float32",
    )
    f.notes.append("the recurrent state is in float32 whatever the model dtype (transformers 5.24)")
    kinds: dict[str, Caches] = {
        "recurrent": (state,),
        "attention": (window_of(full_attention(f), size),),
    }
    types = f.texts("block_types", known=list(kinds))
    if types is None:
        types = ["recurrent", "recurrent", "attention"]
        f.notes.append(f"block_types is left out: {', '.join(types)} by default of {_CLASS}")
    if not types:
        raise f.fault("block_types", "empty", "at least one block")
    return Layers(runs(repeat([kinds[t] for t in types], num_layers(f))))
