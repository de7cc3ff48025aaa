"""Zamba2: Mamba-2 in every layer; hybrid layers also run a shared attention block.

The attention block works on the hidden states beside the embeddings, so its heads are twice as
wide as hidden size over heads. Its weights are shared; every hybrid layer keeps K and V of its own.
"""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.recurrent import Mamba2
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, heads, kv_heads, num_layers, runs

__all__ = ["read"]

_CLASS = "Zamba2Config"  # transformers 5.24 models/zamba2/configuration_zamba2.py


def read(f: Fields) -> Layers:
    """Return the layers by `layers_block_type`."""
    count = num_layers(f)
    state = _mamba2(f)
    attention = FullAttention(num_kv_heads=kv_heads(f), head_dim=_head_dim(f))
    kinds: dict[str, Caches] = {
        "mamba": (state,),
        "linear_attention": (state,),
        "hybrid": (attention, state),
    }
    names = f.texts("layers_block_type", "layer_types", known=list(kinds))
    if names is None:
        raise f.missing("layers_block_type")
    if len(names) < count:
        raise f.fault("layers_block_type", f"{len(names)} entries", f"one for each of {count}")
    return Layers(runs([kinds[name] for name in names[:count]]))


def _head_dim(f: Fields) -> int:
    """Return twice the hidden size over the heads; `kv_channels` is half of that and not used."""
    count = heads(f)
    width = f.whole("attention_hidden_size") or 2 * f.need("hidden_size", high=2**20)
    if width % count:
        raise f.fault("num_attention_heads", count, f"a divisor of {width}")
    return width // count


def _mamba2(f: Fields) -> Mamba2:
    """Return the state; the oldest configs spell their keys differently (Zamba2-7B)."""
    expand = f.default_whole("mamba_expand", "expansion_factor", default=2, of=_CLASS, high=1024)
    inner = expand * f.need("hidden_size", high=2**20)
    name = "n_mamba_heads" if f.has("n_mamba_heads") else "mamba_headdim"
    given = f.whole(name)
    if given is None:
        raise f.missing("n_mamba_heads", "mamba_headdim")
    if inner % given:
        raise f.fault(name, given, f"a divisor of {inner}")
    count = given if name == "n_mamba_heads" else inner // given
    return Mamba2(
        num_heads=count,
        head_dim=inner // count,
        state_size=f.default_whole("mamba_d_state", "state_size", default=64, of=_CLASS),
        n_groups=f.default_whole("mamba_ngroups", default=1, of=_CLASS),
        conv_kernel=f.default_whole("mamba_d_conv", "conv_dimension", default=4, of=_CLASS),
    )
