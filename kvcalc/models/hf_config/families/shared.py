"""Chunked attention, KV shared between layers, and cross-attention to an encoder's output."""

from __future__ import annotations

from kvcalc.core.attention import ChunkedAttention, CrossAttention, FullAttention, SharedKv
from kvcalc.core.errors import InputError, NotModelledError
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    same,
    shared_tail,
    sliding,
    unmasked,
    window,
    window_list,
    windowed,
)

__all__ = [
    "read_encoder_decoder",
    "read_gemma3n",
    "read_gemma4",
    "read_hunyuan",
    "read_llama4",
    "read_mllama",
    "read_t5",
]


# Llama 4: chunked attention where a layer has rotary position, full attention where it has not.
_LLAMA4_CLASS = "Llama4TextConfig"  # transformers 5.24 models/llama4/configuration_llama4.py


def read_llama4(f: Fields) -> Layers:
    """Return the layers by `layer_types` or `no_rope_layers`, else every fourth full."""
    count = num_layers(f)
    full = full_attention(f)
    local: Caches = (full,)
    size = f.whole("attention_chunk_size", low=0)
    if size:
        local = (
            ChunkedAttention(
                num_kv_heads=full.num_kv_heads, head_dim=full.head_dim, attention_chunk_size=size
            ),
        )
    layers = by_type(f, count, {"full_attention": (full,), "chunked_attention": local})
    if layers is None:
        # An empty list is none: the class fills it, as it does a missing one.
        rotary = f.wholes("no_rope_layers", high=1) or []
        if not rotary:
            period = f.default_whole("no_rope_layer_interval", default=4, of=_LLAMA4_CLASS)
            rotary = [int(has) for has in every_nth_full(count, period)]
        if len(rotary) != count:
            raise f.fault(
                "no_rope_layers", f"{len(rotary)} entries", f"one for each of {count} layers"
            )
        layers = [local if has else (full,) for has in rotary]
    return Layers(runs(layers))


# Gemma 3n: four window layers to one full layer; the last layers read what earlier ones keep.
def read_gemma3n(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else every fifth full (Gemma3nTextConfig)."""
    count = num_layers(f)
    local = every_nth_full(count, 5)
    layers = windowed(f, count, full_attention(f), window(f), local)
    return Layers(runs(shared_tail(f, layers)))


# Gemma 4: window layers of one shape, full layers of another, and layers that share.
_GEMMA4_CLASS = "Gemma4TextConfig"  # transformers 5.24 models/gemma4/configuration_gemma4.py


def read_gemma4(f: Fields) -> Layers:
    """Return window layers, and full layers with `global_head_dim` and their own KV heads."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    local = full_attention(f)
    tokens = window(f)
    if tokens is None:
        raise f.missing("sliding_window")
    heads = None
    if f.flag("attention_k_eq_v", default=False):
        # K is the V of such a layer before its norm and rotation: both are kept all the same.
        heads = f.whole("num_global_key_value_heads")
    full = FullAttention(
        num_kv_heads=heads or local.num_kv_heads,
        head_dim=f.default_whole("global_head_dim", default=512, of=_GEMMA4_CLASS),
    )
    has_window = window_list(f, count) or every_nth_full(count, 6)
    has_window[-1] = False  # the class makes the last layer full, whatever the list says
    layers: list[Caches] = [(sliding(local, tokens),) if w else (full,) for w in has_window]
    return Layers(runs(shared_tail(f, layers)))


# Hunyuan: with cross-layer attention only the first layer of every few keeps K and V.
def read_hunyuan(f: Fields) -> Layers:
    """Return the layers; `cla_share_factor` counts where `use_cla` is true only.

    Hunyuan's modeling_hunyuan.py, HunYuanAttention: a layer whose index is no multiple of the
    factor reads the K and V of the last one that is.
    """
    if f.flag("use_mla", default=False):
        raise NotModelledError(
            "use_mla is true: Hunyuan's latent attention is not modelled",
            hint="no published Hunyuan model uses it",
            where=f.where,
        )
    full: Caches = (full_attention(f),)
    factor = 1
    if f.flag("use_cla", default=False):
        factor = f.need("cla_share_factor", high=MAX_LAYERS)
    return Layers(
        runs(
            [
                (SharedKv(source_layer=i - i % factor),) if i % factor else full
                for i in range(num_layers(f))
            ]
        )
    )


# Whisper and BART: the decoder keeps its own tokens, and the encoder's output once a sequence.
def read_encoder_decoder(f: Fields) -> Layers:
    """Return decoder layers; `num_hidden_layers` is the encoder's in these classes."""
    count = f.need("decoder_layers", high=MAX_LAYERS)
    groups = f.need("decoder_attention_heads")
    hidden = f.need("d_model")
    if hidden % groups:
        raise InputError(
            f"{f.name('d_model')} {hidden} is no multiple of {groups} heads",
            hint="correct the config",
            where=f.where,
        )
    size = hidden // groups
    tokens = f.need("max_source_positions", "max_position_embeddings")
    f.notes.append(f"cross-attention is counted for an input of {tokens} encoder tokens")
    return same(
        count,
        FullAttention(num_kv_heads=groups, head_dim=size),
        CrossAttention(num_kv_heads=groups, head_dim=size, encoder_tokens=tokens),
    )


# T5: as other encoder-decoders, with a head size of its own and no longest input.
_T5_INPUT = 512  # tokens that T5 was trained on; its positions are relative


def read_t5(f: Fields) -> Layers:
    """Return decoder layers, as many as the encoder's where the config counts those only."""
    count = f.need("num_decoder_layers", "num_layers", high=MAX_LAYERS)
    heads = f.need("num_heads")
    size = f.need("d_kv")
    tokens = f.whole("n_positions") or _T5_INPUT
    f.notes.append(f"cross-attention is counted for an input of {tokens} encoder tokens")
    return same(
        count,
        FullAttention(num_kv_heads=heads, head_dim=size),
        CrossAttention(num_kv_heads=heads, head_dim=size, encoder_tokens=tokens),
    )


# Llama 3.2 Vision: some layers attend to an image instead of the text.
_IMAGE_NOTE = "attends to images: nothing for text alone"


def read_mllama(f: Fields) -> Layers:
    """Return the layers; those of `cross_attention_layers` keep nothing for text alone.

    Their K and V are of image patches (transformers 5.24 models/mllama): 1,601 rows for each tile
    of an image.
    """
    count = num_layers(f)
    full: Caches = (full_attention(f),)
    crossing = f.wholes("cross_attention_layers", high=count - 1)
    if crossing is None:
        raise f.missing("cross_attention_layers")
    f.notes.append(
        f"{len(set(crossing))} layers attend to images; counted as empty, as for text alone"
    )
    notes = dict.fromkeys(crossing, _IMAGE_NOTE)
    return Layers(runs([() if i in notes else full for i in range(count)], notes))
