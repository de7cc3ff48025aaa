"""Kimi-Linear and Kimi-K3: Kimi delta attention, and latent attention at the listed layers."""

from __future__ import annotations

from kvcalc.core.recurrent import KimiDeltaAttention
from kvcalc.models.hf_config.families.deepseek import mla
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, by_type, drafts, num_layers, runs

__all__ = ["read"]

_CLASS = "KimiLinearConfig"  # transformers 5.24 models/kimi_linear/configuration_kimi_linear.py


def read(f: Fields) -> Layers:
    """Return the layers by the 1-based lists of `linear_attn_config`, or by `layer_types`."""
    count = num_layers(f)
    latent = mla(f)
    linear = f.section("linear_attn_config")
    kinds: dict[str, Caches] = {
        "linear_attention": (_state(f, linear),),
        "full_attention": (latent,),
    }
    layers = by_type(f, count, kinds) if linear is None else _listed(linear, count, kinds)
    if layers is None:
        raise f.missing("linear_attn_config", "layer_types")
    f.notes.append(
        "the recurrent state is in float32 whatever the model dtype (vLLM 0.33, kda_state_dtype)"
    )
    # vLLM 0.33: a draft layer's number stands in neither list, which makes it latent attention.
    return Layers(runs(layers), drafts(f, latent))


def _state(f: Fields, linear: Fields | None) -> KimiDeltaAttention:
    """Return the state; the class of transformers spells what the published section holds."""
    if linear is not None:
        return KimiDeltaAttention(
            num_heads=linear.need("num_heads"),
            head_dim=linear.need("head_dim"),
            conv_kernel=linear.default_whole("short_conv_kernel_size", default=4, of=_CLASS),
            state_dtype="float32",
        )
    if not f.has("linear_num_heads"):
        raise f.missing("linear_attn_config", "linear_num_heads")
    return KimiDeltaAttention(
        num_heads=f.need("linear_num_heads"),
        head_dim=f.default_whole("linear_head_dim", default=128, of=_CLASS),
        conv_kernel=f.default_whole("linear_conv_kernel_dim", default=4, of=_CLASS),
        state_dtype="float32",
    )


def _listed(linear: Fields, count: int, kinds: dict[str, Caches]) -> list[Caches]:
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
