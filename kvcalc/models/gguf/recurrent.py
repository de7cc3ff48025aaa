"""What a recurrent layer keeps, and which layers are recurrent.

llama.cpp b11434: llama_hparams::n_embd_r and n_embd_s (`src/llama-hparams.cpp`) give the floats of
the convolution (R) and of the state (S); each kind below comes to the same numbers.
"""

from __future__ import annotations

from kvcalc.core.layers import Cache
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Rwkv,
    ShortConv,
)
from kvcalc.models.gguf.attention import Heads
from kvcalc.models.gguf.fields import Fields

__all__ = [
    "by_interval",
    "gated_delta_net",
    "kimi_delta_attention",
    "lightning",
    "mamba1",
    "mamba2",
    "rwkv",
    "short_conv",
    "without_kv_heads",
]


def mamba1(fields: Fields) -> Cache:
    """Return the state of a Mamba layer; a group_count in the file is not read."""
    return Mamba1(
        intermediate_size=fields.number("ssm.inner_size"),
        state_size=fields.number("ssm.state_size"),
        conv_kernel=fields.number("ssm.conv_kernel"),
    )


def mamba2(fields: Fields) -> Cache:
    """Return the state of a Mamba-2 layer; `time_step_rank` is its heads.

    With 0 groups (plamo2) the convolution covers the inner channels alone, as Mamba's does.
    """
    inner, heads = fields.number("ssm.inner_size"), fields.number("ssm.time_step_rank")
    groups = fields.number("ssm.group_count", low=0)
    if not groups:
        return mamba1(fields)
    if inner % heads:
        raise fields.senseless(f"ssm.inner_size {inner} does not divide by {heads} heads")
    return Mamba2(
        num_heads=heads,
        head_dim=inner // heads,
        state_size=fields.number("ssm.state_size"),
        n_groups=groups,
        conv_kernel=fields.number("ssm.conv_kernel"),
    )


def gated_delta_net(fields: Fields) -> Cache:
    """Return the state of a gated delta net, whose sizes the file gives under Mamba's keys."""
    inner, heads = fields.number("ssm.inner_size"), fields.number("ssm.time_step_rank")
    if inner % heads:
        raise fields.senseless(f"ssm.inner_size {inner} does not divide by {heads} value heads")
    return GatedDeltaNet(
        num_k_heads=fields.number("ssm.group_count"),
        num_v_heads=heads,
        head_k_dim=fields.number("ssm.state_size"),
        head_v_dim=inner // heads,
        conv_kernel=fields.number("ssm.conv_kernel"),
    )


def kimi_delta_attention(fields: Fields) -> Cache:
    """Return the state of Kimi delta attention; its heads are the first layer's query heads."""
    return KimiDeltaAttention(
        num_heads=fields.numbers("attention.head_count", fields.blocks)[0],
        head_dim=fields.number("kda.head_dim"),
        conv_kernel=fields.number("ssm.conv_kernel"),
    )


def lightning(heads: Heads) -> Cache:
    """Return the state of lightning attention: a square of `key_length` a query head."""
    return LightningAttention(num_heads=heads.query[0], head_dim=heads.k)


def rwkv(fields: Fields) -> Cache:
    """Return the state of an RWKV layer; two shifted tokens where the file does not say."""
    return Rwkv(
        hidden_size=fields.number("embedding_length"),
        head_size=fields.number("wkv.head_size"),
        token_shifts=fields.number("token_shift_count", default=2),
    )


def short_conv(fields: Fields) -> Cache:
    """Return the state of a short convolution (LFM2)."""
    return ShortConv(
        hidden_size=fields.number("embedding_length"),
        conv_kernel=fields.number("shortconv.l_cache"),
    )


def without_kv_heads(fields: Fields) -> tuple[bool, ...]:
    """Return which layers are recurrent: those with 0 KV heads, draft layers apart."""
    heads = fields.numbers("attention.head_count", fields.blocks)
    kv = fields.numbers("attention.head_count_kv", fields.blocks, default=heads)
    return tuple(not kept and i < fields.main for i, kept in enumerate(kv))


def by_interval(fields: Fields, interval: int) -> tuple[bool, ...]:
    """Return which layers are recurrent: all but every `interval`-th.

    The file may give the interval (`full_attention_interval`) or a list with an entry a layer.
    """
    name = "attention.recurrent_layers"
    if fields.has(name):
        flags = fields.numbers(name, fields.blocks)
        return tuple(flag != 0 and i < fields.main for i, flag in enumerate(flags))
    interval = fields.number("full_attention_interval", default=interval)
    return tuple(i < fields.main and (i + 1) % interval != 0 for i in range(fields.blocks))
