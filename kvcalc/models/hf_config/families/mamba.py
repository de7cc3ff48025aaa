"""Mamba states, alone and mixed with attention layers."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import UnknownNameError
from kvcalc.core.layers import LayerRun
from kvcalc.core.recurrent import Mamba2
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    full_attention,
    head_dim,
    heads,
    kv_heads,
    num_layers,
    runs,
    same,
)
from kvcalc.models.hf_config.states import draft_count, mamba1, mamba2, state_dtype, words

__all__ = [
    "read_bamba",
    "read_falcon_h1",
    "read_granite_hybrid",
    "read_jamba",
    "read_mamba",
    "read_mamba2",
    "read_nemotron_h",
    "read_zamba2",
]


# Mamba and FalconMamba: a convolution window and a state in every layer, no attention.
_MAMBA_CLASS = "MambaConfig"
# transformers 5.24 models/mamba/configuration_mamba.py; FalconMamba equal


def read_mamba(f: Fields) -> Layers:
    """Return equal layers of Mamba."""
    return same(num_layers(f), mamba1(f, _MAMBA_CLASS))


# Mamba-2: a state in every layer, and a convolution over x, B and C; no attention.
_MAMBA2_CLASS = "Mamba2Config"  # transformers 5.24 models/mamba2/configuration_mamba2.py


def read_mamba2(f: Fields) -> Layers:
    """Return equal layers of Mamba-2."""
    state = Mamba2(
        num_heads=f.default_whole("num_heads", default=128, of=_MAMBA2_CLASS),
        head_dim=f.default_whole("head_dim", default=64, of=_MAMBA2_CLASS),
        state_size=f.default_whole("state_size", default=128, of=_MAMBA2_CLASS),
        n_groups=f.default_whole("n_groups", default=8, of=_MAMBA2_CLASS),
        conv_kernel=f.default_whole("conv_kernel", default=4, of=_MAMBA2_CLASS),
    )
    inner = f.default_whole("expand", default=2, of=_MAMBA2_CLASS) * f.need("hidden_size")
    if state.num_heads * state.head_dim != inner:
        raise f.fault("num_heads", state.num_heads, f"heads of {state.head_dim} that fill {inner}")
    return same(num_layers(f), state)


# Bamba: Mamba-2 layers with full attention at the listed indices.
_BAMBA_CLASS = "BambaConfig"  # transformers 5.24 models/bamba/configuration_bamba.py


def read_bamba(f: Fields) -> Layers:
    """Return Mamba-2 layers, and full attention at `attn_layer_indices`."""
    count = num_layers(f)
    indices = f.wholes("attn_layer_indices", high=count - 1)
    if indices is None:
        raise f.missing("attn_layer_indices")  # the class would have no attention at all
    attention: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    state: Caches = (mamba2(f, _BAMBA_CLASS),)
    listed = frozenset(indices)
    return Layers(runs([attention if i in listed else state for i in range(count)]))


# Falcon-H1: attention and a Mamba-2 state side by side in every layer.
_FALCON_H1_CLASS = "FalconH1Config"  # transformers 5.24 models/falcon_h1/configuration_falcon_h1.py


def read_falcon_h1(f: Fields) -> Layers:
    """Return equal layers that keep K, V and a state."""
    attention = FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f))
    return same(num_layers(f), attention, mamba2(f, _FALCON_H1_CLASS, inner=f.need("mamba_d_ssm")))


# Granite 4 hybrid: Mamba-2 layers with full attention where `layer_types` says so.
_GRANITE_HYBRID_CLASS = "GraniteMoeHybridConfig"
# transformers 5.24 models/granitemoehybrid/configuration_granitemoehybrid.py


def read_granite_hybrid(f: Fields) -> Layers:
    """Return the layers that the config lists (the class alone would have Mamba-2 only)."""
    kinds = words(
        {
            "linear_attention": (mamba2(f, _GRANITE_HYBRID_CLASS),),
            "full_attention": (full_attention(f),),
        }
    )
    layers = by_type(f, num_layers(f), kinds)
    if layers is None:
        raise f.missing("layer_types")
    return Layers(runs(layers))


# Jamba: Mamba layers with full attention in one of every period.
_JAMBA_CLASS = "JambaConfig"  # transformers 5.24 models/jamba/configuration_jamba.py


def read_jamba(f: Fields) -> Layers:
    """Return Mamba layers, and full attention where the index leaves the offset."""
    period = f.default_whole("attn_layer_period", default=8, of=_JAMBA_CLASS, high=MAX_LAYERS)
    offset = f.default_whole(
        "attn_layer_offset", default=4, of=_JAMBA_CLASS, low=0, high=MAX_LAYERS
    )
    if offset >= period:
        raise f.fault("attn_layer_offset", offset, f"less than attn_layer_period {period}")
    attention: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    state: Caches = (mamba1(f, _JAMBA_CLASS, prefix="mamba_"),)
    return Layers(
        runs([attention if i % period == offset else state for i in range(num_layers(f))])
    )


# Nemotron-H, Nemotron Nano, 3 and 3.5: a letter or a word says what each layer is.
#
# `M` is Mamba-2, `*` attention; `-` (MLP) and `E` (experts) are layers too, which keep nothing.
_NEMOTRON_H_CLASS = "NemotronHConfig"
# transformers 5.24 models/nemotron_h/configuration_nemotron_h.py

_NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NEMOTRON_TYPES = {"mamba": "linear_attention", "attention": "full_attention"} | {
    word: word for word in _NEMOTRON_LETTERS.values()
}


def read_nemotron_h(f: Fields) -> Layers:
    """Return the layers by pattern, and the pattern of the draft layers."""
    kinds: dict[str, Caches] = {
        "linear_attention": (_nemotron_mamba2(f),),
        "full_attention": (_nemotron_attention(f),),
        "mlp": (),
        "moe": (),
    }
    names = _nemotron_types(f, ("layers_block_type", "layer_types"), "hybrid_override_pattern")
    if names is None:
        raise f.missing("hybrid_override_pattern", "layers_block_type")
    count = f.whole("num_hidden_layers", high=MAX_LAYERS)
    if count is not None and count != len(names):
        # As transformers does, and vLLM 0.33 nemotron_h.py, which makes a layer for every letter.
        f.notes.append(f"num_hidden_layers {count} is not followed: {len(names)} layers are listed")
    drafts = draft_count(f, "num_nextn_predict_layers")
    draft = (
        _nemotron_types(f, ("mtp_layers_block_type",), "mtp_hybrid_override_pattern")
        or ["full_attention", "moe"]  # by default of the class
    )
    return Layers(_nemotron_runs(names, kinds), _nemotron_runs(draft, kinds) * drafts)


def _nemotron_runs(names: list[str], kinds: dict[str, Caches]) -> tuple[LayerRun, ...]:
    notes = {i: f"{name} only" for i, name in enumerate(names) if not kinds[name]}
    return runs([kinds[name] for name in names], notes)


def _nemotron_types(f: Fields, lists: tuple[str, ...], pattern: str) -> list[str] | None:
    """Return what each layer is, from a list of words or from a text of letters."""
    listed = f.texts(*lists, known=list(_NEMOTRON_TYPES))
    if listed is not None:
        names = [_NEMOTRON_TYPES[word] for word in listed]
    elif (letters := f.text(pattern)) is None:
        return None
    else:
        for letter in letters[:MAX_LAYERS]:
            if letter not in _NEMOTRON_LETTERS:
                raise UnknownNameError(
                    f"layer of {f.name(pattern)}", letter, _NEMOTRON_LETTERS, where=f.where
                )
        names = [_NEMOTRON_LETTERS[letter] for letter in letters[: MAX_LAYERS + 1]]
    if not 0 < len(names) <= MAX_LAYERS:
        raise f.fault(pattern, f"{len(names)} layers", f"1 to {MAX_LAYERS} layers")
    return names


def _nemotron_attention(f: Fields) -> FullAttention:
    size = f.default_whole("head_dim", "attention_head_dim", default=128, of=_NEMOTRON_H_CLASS)
    return FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=size)


def _nemotron_mamba2(f: Fields) -> Mamba2:
    # vLLM 0.33 models/config.py, NemotronHForCausalLMConfig, and the class: float32 by default.
    pinned = state_dtype(f, "mamba_ssm_cache_dtype")
    if not f.has("mamba_ssm_cache_dtype"):
        pinned = "float32"
        f.notes.append(
            f"mamba_ssm_cache_dtype is left out: float32 by default of {_NEMOTRON_H_CLASS}"
        )
    return Mamba2(
        num_heads=f.default_whole("mamba_num_heads", default=128, of=_NEMOTRON_H_CLASS),
        head_dim=f.default_whole("mamba_head_dim", default=64, of=_NEMOTRON_H_CLASS),
        state_size=f.default_whole("ssm_state_size", default=128, of=_NEMOTRON_H_CLASS),
        n_groups=f.default_whole("n_groups", "mamba_n_groups", default=8, of=_NEMOTRON_H_CLASS),
        conv_kernel=f.default_whole("conv_kernel", "mamba_d_conv", default=4, of=_NEMOTRON_H_CLASS),
        state_dtype=pinned,
    )


# Zamba2: Mamba-2 in every layer; hybrid layers also run a shared attention block.
#
# The attention block works on hidden states and embeddings, so its heads are twice as wide as
# hidden size over heads. Its weights are shared; every hybrid layer keeps its own K and V.
_ZAMBA2_CLASS = "Zamba2Config"  # transformers 5.24 models/zamba2/configuration_zamba2.py


def read_zamba2(f: Fields) -> Layers:
    """Return the layers by `layers_block_type`."""
    count = num_layers(f)
    state = _zamba2_mamba2(f)
    attention = FullAttention(num_kv_heads=kv_heads(f), head_dim=_zamba2_head_dim(f))
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


def _zamba2_head_dim(f: Fields) -> int:
    """Return twice the hidden size over the heads; `kv_channels` is half of that and not used."""
    count = heads(f)
    width = f.whole("attention_hidden_size") or 2 * f.need("hidden_size", high=2**20)
    if width % count:
        raise f.fault("num_attention_heads", count, f"a divisor of {width}")
    return width // count


def _zamba2_mamba2(f: Fields) -> Mamba2:
    """Return the state; the oldest configs spell their keys differently (Zamba2-7B)."""
    expand = f.default_whole(
        "mamba_expand", "expansion_factor", default=2, of=_ZAMBA2_CLASS, high=1024
    )
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
        state_size=f.default_whole("mamba_d_state", "state_size", default=64, of=_ZAMBA2_CLASS),
        n_groups=f.default_whole("mamba_ngroups", default=1, of=_ZAMBA2_CLASS),
        conv_kernel=f.default_whole("mamba_d_conv", "conv_dimension", default=4, of=_ZAMBA2_CLASS),
    )
