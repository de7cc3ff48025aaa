"""Linear attention, gated recurrences and short convolutions, alone and mixed with attention."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import NotModelledError
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.models.hf_config.families.latent import mla
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    draft_runs,
    drafts,
    full_attention,
    head_dim,
    heads,
    num_layers,
    repeat,
    runs,
    same,
    sliding,
)
from kvcalc.models.hf_config.states import draft_count, need_attention, state_dtype

__all__ = [
    "delta_net_layers",
    "read_bailing_linear",
    "read_kimi_linear",
    "read_lfm2",
    "read_minicpmv4_6",
    "read_minimax_text",
    "read_qwen3_5",
    "read_qwen3_next",
    "read_recurrent_gemma",
    "read_rwkv",
    "read_xlstm",
]


# Ring-linear (BailingMoeLinearV2): lightning attention, the last of every group full attention.
def read_bailing_linear(f: Fields) -> Layers:
    """Return the layers by `layer_group_size`.

    inclusionAI/Ring-mini-linear-2.0 modeling_bailing_moe_linear_v2.py, decoder layer: layers left
    over after the last whole group are full attention too.
    """
    count = num_layers(f)
    full = need_attention(f)
    state = LightningAttention(num_heads=heads(f), head_dim=full.head_dim)
    group = f.need("layer_group_size", high=MAX_LAYERS)
    whole = count // group * group
    layers: list[Caches] = [
        (full,) if (i + 1) % group == 0 or i >= whole else (state,) for i in range(count)
    ]
    return Layers(runs(layers), drafts(f, full))


# Kimi-Linear and Kimi-K3: Kimi delta attention, and latent attention at the listed layers.
_KIMI_LINEAR_CLASS = "KimiLinearConfig"
# transformers 5.24 models/kimi_linear/configuration_kimi_linear.py


def read_kimi_linear(f: Fields) -> Layers:
    """Return the layers by the 1-based lists of `linear_attn_config`, or by `layer_types`."""
    count = num_layers(f)
    latent = mla(f)
    linear = f.section("linear_attn_config")
    kinds: dict[str, Caches] = {
        "linear_attention": (_kimi_state(f, linear),),
        "full_attention": (latent,),
    }
    layers = by_type(f, count, kinds) if linear is None else _kimi_layers(linear, count, kinds)
    if layers is None:
        raise f.missing("linear_attn_config", "layer_types")
    f.notes.append(
        "the recurrent state is in float32 whatever the model dtype (vLLM 0.33, kda_state_dtype)"
    )
    # vLLM 0.33: a draft layer's number stands in neither list, which makes it latent attention.
    return Layers(runs(layers), drafts(f, latent))


def _kimi_state(f: Fields, linear: Fields | None) -> KimiDeltaAttention:
    """Return the state; the class of transformers spells what the published section holds."""
    if linear is not None:
        return KimiDeltaAttention(
            num_heads=linear.need("num_heads"),
            head_dim=linear.need("head_dim"),
            conv_kernel=linear.default_whole(
                "short_conv_kernel_size", default=4, of=_KIMI_LINEAR_CLASS
            ),
            state_dtype="float32",
        )
    if not f.has("linear_num_heads"):
        raise f.missing("linear_attn_config", "linear_num_heads")
    return KimiDeltaAttention(
        num_heads=f.need("linear_num_heads"),
        head_dim=f.default_whole("linear_head_dim", default=128, of=_KIMI_LINEAR_CLASS),
        conv_kernel=f.default_whole("linear_conv_kernel_dim", default=4, of=_KIMI_LINEAR_CLASS),
        state_dtype="float32",
    )


def _kimi_layers(linear: Fields, count: int, kinds: dict[str, Caches]) -> list[Caches]:
    """Return what each layer is; every layer must stand in one of the two lists, first is 1."""
    kda = linear.wholes("kda_layers", low=1, high=MAX_LAYERS)
    full = linear.wholes("full_attn_layers", low=1, high=MAX_LAYERS)
    if kda is None or full is None:
        raise linear.missing("full_attn_layers" if kda is not None else "kda_layers")
    in_kda, in_full = frozenset(kda), frozenset(full)
    for layer in range(1, count + 1):
        if (layer in in_kda) == (layer in in_full):
            raise linear.fault(
                "kda_layers",
                f"{'in both lists' if layer in in_kda else 'in neither list'} for layer {layer}",
                "in one of kda_layers and full_attn_layers",
            )
    return [
        kinds["linear_attention" if layer in in_kda else "full_attention"]
        for layer in range(1, count + 1)
    ]


# LFM2: short convolutions, with full attention at the listed layers.
_LFM2_CLASS = "Lfm2Config"  # transformers 5.24 models/lfm2/configuration_lfm2.py


def read_lfm2(f: Fields) -> Layers:
    """Return the layers by `layer_types`, or by `full_attn_idxs`."""
    count = num_layers(f)
    full: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    conv: Caches = (
        ShortConv(
            # vLLM 0.33 lfm2.py reads conv_dim, which equals the hidden size in all models.
            hidden_size=f.need("conv_dim", "hidden_size"),
            conv_kernel=f.default_whole("conv_L_cache", default=3, of=_LFM2_CLASS),
        ),
    )
    layers = by_type(f, count, {"conv": conv, "full_attention": full})
    if layers is None:
        listed = f.wholes("full_attn_idxs", high=count - 1)
        if listed is None:
            raise f.missing("layer_types", "full_attn_idxs")
        indices = frozenset(listed)
        layers = [full if i in indices else conv for i in range(count)]
    return Layers(runs(layers))


# MiniMax-Text-01 and M1: lightning attention with full attention every eighth layer.
def read_minimax_text(f: Fields) -> Layers:
    """Return the layers by `attn_type_list` (1 is full attention) or by `layer_types`."""
    count = num_layers(f)
    full: Caches = (need_attention(f),)
    state: Caches = (LightningAttention(num_heads=heads(f), head_dim=head_dim(f)),)
    types = f.wholes("attn_type_list", high=1)
    if types is None:
        layers = by_type(f, count, {"linear_attention": state, "full_attention": full})
        if layers is None:
            raise f.missing("attn_type_list", "layer_types")
        return Layers(runs(layers))
    if len(types) < count:
        raise f.fault("attn_type_list", f"{len(types)} entries", f"one for each of {count} layers")
    return Layers(runs([full if kind else state for kind in types[:count]]))


# Qwen3-Next: gated delta net with full attention every few layers.
_QWEN3_NEXT_CLASS = "Qwen3NextConfig"
# transformers 5.24 models/qwen3_next/configuration_qwen3_next.py; Qwen3_5TextConfig has the same


def read_qwen3_next(f: Fields) -> Layers:
    """Return the layers, and the one draft layer that the checkpoints hold unnamed."""
    # vLLM 0.33: a draft layer is one full-attention layer (measured).
    drafts = f.default_whole(
        "num_nextn_predict_layers", default=1, of="vLLM's Qwen3NextMTP", low=0, high=64
    )
    return delta_net_layers(f, None, drafts)


def delta_net_layers(f: Fields, dtype: str | None, drafts: int) -> Layers:
    """Return the layers by `layer_types`, or full attention as the last of every interval.

    Args:
        f: the config.
        dtype: what the recurrent state is pinned to.
        drafts: draft layers, each of full attention.
    """
    count = num_layers(f)
    full = need_attention(f)
    linear = GatedDeltaNet(
        num_k_heads=f.default_whole("linear_num_key_heads", default=16, of=_QWEN3_NEXT_CLASS),
        num_v_heads=f.default_whole("linear_num_value_heads", default=32, of=_QWEN3_NEXT_CLASS),
        head_k_dim=f.default_whole("linear_key_head_dim", default=128, of=_QWEN3_NEXT_CLASS),
        head_v_dim=f.default_whole("linear_value_head_dim", default=128, of=_QWEN3_NEXT_CLASS),
        conv_kernel=f.default_whole("linear_conv_kernel_dim", default=4, of=_QWEN3_NEXT_CLASS),
        state_dtype=dtype,
    )
    kinds: dict[str, Caches] = {"linear_attention": (linear,), "full_attention": (full,)}
    found = by_type(f, count, kinds)
    if found is None:
        interval = f.default_whole(
            "full_attention_interval", default=4, of=_QWEN3_NEXT_CLASS, high=MAX_LAYERS
        )
        found = repeat([(linear,)] * (interval - 1) + [(full,)], count)
    return Layers(runs(found), draft_runs(drafts, full))


# Qwen3.5, 3.6 and 3.8, dense and with experts: as Qwen3-Next, the state's dtype in the config.
def read_qwen3_5(f: Fields) -> Layers:
    """Return the layers; `mamba_ssm_dtype` pins the recurrent state."""
    return delta_net_layers(
        f, state_dtype(f, "mamba_ssm_dtype"), draft_count(f, "mtp_num_hidden_layers")
    )


# MiniCPM-V 4.6: Qwen3.5 inside, but vLLM does not follow its pinned state dtype.
def read_minicpmv4_6(f: Fields) -> Layers:
    """Return the layers of the Qwen3.5 inside, the state in the model dtype."""
    if pinned := state_dtype(f, "mamba_ssm_dtype"):
        # vLLM 0.33 models/config.py follows the key for the Qwen3.5 classes only (measured).
        f.notes.append(
            f"mamba_ssm_dtype {pinned} is not followed: vLLM 0.33 keeps this class's state in"
            " the model dtype"
        )
    return delta_net_layers(f, None, draft_count(f, "mtp_num_hidden_layers"))


# RecurrentGemma (Griffin): real-gated linear recurrent units, every third layer a window.
_RECURRENT_GEMMA_CLASS = "RecurrentGemmaConfig"
# transformers 5.24 models/recurrent_gemma/configuration_recurrent_gemma.py


def read_recurrent_gemma(f: Fields) -> Layers:
    """Return the layers by `block_types`, which repeat."""
    size = f.default_whole(
        "attention_window_size", "sliding_window", default=2048, of=_RECURRENT_GEMMA_CLASS
    )
    state = RgLru(
        lru_width=f.need("lru_width", "hidden_size"),
        conv_kernel=f.default_whole("conv1d_width", default=4, of=_RECURRENT_GEMMA_CLASS),
        # modeling_recurrent_gemma.py, _setup_cache: "always computed in full precision".
        state_dtype="float32",
    )
    f.notes.append("the recurrent state is in float32 whatever the model dtype (transformers 5.24)")
    kinds: dict[str, Caches] = {
        "recurrent": (state,),
        "attention": (sliding(full_attention(f), size),),
    }
    types = f.texts("block_types", known=list(kinds))
    if types is None:
        types = ["recurrent", "recurrent", "attention"]
        f.notes.append(
            f"block_types is left out: {', '.join(types)} by default of {_RECURRENT_GEMMA_CLASS}"
        )
    if not types:
        raise f.fault("block_types", "empty", "at least one block")
    return Layers(runs(repeat([kinds[t] for t in types], num_layers(f))))


# RWKV-5, 6 and 7: a square state a head, and the last token's vectors of both blocks.
_RWKV_VERSIONS = ("rwkv5", "rwkv6", "rwkv7")


def read_rwkv(f: Fields) -> Layers:
    """Return equal layers of state.

    Raises:
        UnsupportedError: RWKV-4, whose state is three numbers a channel.
    """
    version = f.text("model_type")
    if version is None:
        raise f.missing("model_type")
    if version not in _RWKV_VERSIONS:
        raise NotModelledError(
            f"model_type {version!r:.60} of RWKV is not modelled: RWKV-4 keeps three numbers a"
            " channel, not a square state a head",
            hint=f"known: {', '.join(_RWKV_VERSIONS)}",
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


# xLSTM: known, and refused: its matrix memory comes with a normaliser and a stabiliser.
def read_xlstm(f: Fields) -> Layers:
    """Refuse: no kind states this memory (transformers 5.24 modeling_xlstm.py, xLSTMCache).

    Raises:
        UnsupportedError: always.
    """
    raise NotModelledError(
        "xLSTM keeps a matrix, a vector and a number a head, a kind of state that is not modelled",
        hint="it has no KV cache: its state does not grow with the sequence",
        where=f.where,
    )
