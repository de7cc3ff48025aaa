"""RWKV-5, 6 and 7: a square state a head, and the last token's vectors of both blocks."""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError
from kvcalc.core.recurrent import Rwkv
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, num_layers, same

__all__ = ["read"]

_KNOWN = ("rwkv5", "rwkv6", "rwkv7")


def read(f: Fields) -> Layers:
    """Return equal layers of state.

    Raises:
        UnsupportedError: RWKV-4, whose state is three numbers a channel.
    """
    version = f.text("model_type")
    if version is None:
        raise f.missing("model_type")
    if version not in _KNOWN:
        raise NotModelledError(
            f"model_type {version!r:.60} of RWKV is not modelled: RWKV-4 keeps three numbers a"
            " channel, not a square state a head",
            hint=f"known: {', '.join(_KNOWN)}",
            where=f.where,
        )
    hidden = f.need("hidden_size")
    attention = f.whole("attention_hidden_size")
    if attention not in (None, hidden):
        raise f.fault("attention_hidden_size", attention, f"the hidden size {hidden}")
    size = f.need("head_size", "head_dim", high=hidden)
    if hidden % size:
        raise f.fault("head_size", size, f"a divisor of the hidden size {hidden}")
    # RWKV/rwkv-5-world-3b modeling_rwkv5.py, state_attn_kv: float32; llama.cpp b11434 n_embd_s.
    f.notes.append("the recurrent state is in float32 whatever the model dtype (modeling_rwkv5.py)")
    return same(num_layers(f), Rwkv(hidden_size=hidden, head_size=size, state_dtype="float32"))
