"""Nemotron-H, Nemotron Nano, 3 and 3.5: a letter or a word says what each layer is.

`M` is Mamba-2, `*` attention; `-` (MLP) and `E` (experts) are layers too, which keep nothing.
"""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import UnknownNameError
from kvcalc.core.layers import LayerRun
from kvcalc.core.recurrent import Mamba2
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, runs
from kvcalc.models.hf_config.states import draft_count, state_dtype

__all__ = ["read"]

_CLASS = "NemotronHConfig"  # transformers 5.24 models/nemotron_h/configuration_nemotron_h.py

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_WORDS = {"mamba": "linear_attention", "attention": "full_attention"} | {
    word: word for word in _LETTERS.values()
}


def read(f: Fields) -> Layers:
    """Return the layers by pattern, and the pattern of the draft layers."""
    kinds: dict[str, Caches] = {
        "linear_attention": (_mamba2(f),),
        "full_attention": (_attention(f),),
        "mlp": (),
        "moe": (),
    }
    names = _names(f, ("layers_block_type", "layer_types"), "hybrid_override_pattern")
    if names is None:
        raise f.missing("hybrid_override_pattern", "layers_block_type")
    count = f.whole("num_hidden_layers", high=MAX_LAYERS)
    if count is not None and count != len(names):
        # As transformers does, and vLLM 0.33 nemotron_h.py, which makes a layer for every letter.
        f.notes.append(f"num_hidden_layers {count} is not followed: {len(names)} layers are listed")
    drafts = draft_count(f, "num_nextn_predict_layers")
    draft = (
        _names(f, ("mtp_layers_block_type",), "mtp_hybrid_override_pattern")
        or ["full_attention", "moe"]  # by default of the class
    )
    return Layers(_runs(names, kinds), _runs(draft, kinds) * drafts)


def _runs(names: list[str], kinds: dict[str, Caches]) -> tuple[LayerRun, ...]:
    notes = {i: f"{name} only" for i, name in enumerate(names) if not kinds[name]}
    return runs([kinds[name] for name in names], notes)


def _names(f: Fields, lists: tuple[str, ...], pattern: str) -> list[str] | None:
    """Return what each layer is, from a list of words or from a text of letters."""
    listed = f.texts(*lists, known=list(_WORDS))
    if listed is not None:
        names = [_WORDS[word] for word in listed]
    elif (letters := f.text(pattern)) is None:
        return None
    else:
        for letter in letters[:MAX_LAYERS]:
            if letter not in _LETTERS:
                raise UnknownNameError(
                    f"layer of {f.name(pattern)}", letter, _LETTERS, where=f.where
                )
        names = [_LETTERS[letter] for letter in letters[: MAX_LAYERS + 1]]
    if not 0 < len(names) <= MAX_LAYERS:
        raise f.fault(pattern, f"{len(names)} layers", f"1 to {MAX_LAYERS} layers")
    return names


def _attention(f: Fields) -> FullAttention:
    size = f.default_whole("head_dim", "attention_head_dim", default=128, of=_CLASS)
    return FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=size)


def _mamba2(f: Fields) -> Mamba2:
    # vLLM 0.33 models/config.py, NemotronHForCausalLMConfig, and the class: float32 by default.
    pinned = state_dtype(f, "mamba_ssm_cache_dtype")
    if not f.has("mamba_ssm_cache_dtype"):
        pinned = "float32"
        f.notes.append(f"mamba_ssm_cache_dtype is left out: float32 by default of {_CLASS}")
    return Mamba2(
        num_heads=f.default_whole("mamba_num_heads", default=128, of=_CLASS),
        head_dim=f.default_whole("mamba_head_dim", default=64, of=_CLASS),
        state_size=f.default_whole("ssm_state_size", default=128, of=_CLASS),
        n_groups=f.default_whole("n_groups", "mamba_n_groups", default=8, of=_CLASS),
        conv_kernel=f.default_whole("conv_kernel", "mamba_d_conv", default=4, of=_CLASS),
        state_dtype=pinned,
    )
