"""What families with recurrent states share: state dtypes, Mamba sizes and draft layers."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import KvcalcError
from kvcalc.core.recurrent import Mamba1, Mamba2
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches

__all__ = [
    "draft_count",
    "mamba1",
    "mamba2",
    "need_attention",
    "state_dtype",
    "words",
]

_MAX_DRAFTS = 64
"""Multi-token-prediction layers of one model; the most published is 7."""


def state_dtype(f: Fields, name: str) -> str | None:
    """Return the dtype that a config pins its recurrent state to; None where it pins none.

    Raises:
        InputError: not a dtype that states are kept in.
    """
    text = f.text(name)
    if text is None or text == "auto":
        return None
    dtype = text.removeprefix("torch.")
    try:
        element_bytes(dtype)
    except KvcalcError:
        raise f.fault(name, text, "float32, bfloat16, float16 or auto") from None
    return dtype


def draft_count(f: Fields, *names: str) -> int:
    """Return how many multi-token-prediction layers the config names; 0 where it names none."""
    return f.whole(*names, low=0, high=_MAX_DRAFTS) or 0


def need_attention(f: Fields) -> FullAttention:
    """Return K and V of a class whose defaults are numbers of its own, which are not guessed.

    Raises:
        InputError: no number of KV heads, or no head size.
    """
    return FullAttention(
        num_kv_heads=f.need("num_key_value_heads"),
        head_dim=f.need("head_dim", "attention_head_dim"),
    )


def mamba1(f: Fields, of: str, *, prefix: str = "") -> Mamba1:
    """Return a Mamba state: the inner size as given, else so many times the hidden size.

    Args:
        f: the config.
        of: the config class whose defaults fill in.
        prefix: `mamba_` where the class spells the keys mamba_d_conv and mamba_d_state (Jamba).
    """
    state, conv = ("mamba_d_state", "mamba_d_conv") if prefix else ("state_size", "conv_kernel")
    inner = None if prefix else f.whole("intermediate_size", "d_inner")
    if inner is None:
        expand = f.default_whole(f"{prefix}expand", default=2, of=of, high=1024)
        inner = expand * f.need("hidden_size", "d_model", high=2**20)
    return Mamba1(
        intermediate_size=inner,
        state_size=f.default_whole(state, default=16, of=of),
        conv_kernel=f.default_whole(conv, default=4, of=of),
    )


def mamba2(f: Fields, of: str, *, inner: int | None = None) -> Mamba2:
    """Return the Mamba-2 state of the keys that Bamba, Granite 4 and Falcon-H1 spell alike.

    Args:
        f: the config.
        of: the config class whose defaults fill in.
        inner: the inner size; by default so many times the hidden size.

    Raises:
        InputError: heads that do not make up the inner size.
    """
    if inner is None:
        expand = f.default_whole("mamba_expand", default=2, of=of, high=1024)
        inner = expand * f.need("hidden_size", high=2**20)
    heads = f.default_whole("mamba_n_heads", default=128, of=of)
    given = None if f.get("mamba_d_head") == "auto" else f.whole("mamba_d_head")
    size = given or inner // heads
    if heads * size != inner:
        raise f.fault(
            "mamba_n_heads", heads, f"a number of heads of size {size} that make up {inner}"
        )
    return Mamba2(
        num_heads=heads,
        head_dim=size,
        state_size=f.default_whole("mamba_d_state", default=256, of=of),
        n_groups=f.default_whole("mamba_n_groups", default=1, of=of),
        conv_kernel=f.default_whole("mamba_d_conv", default=4, of=of),
    )


def words(kinds: dict[str, Caches]) -> dict[str, Caches]:
    """Return the kinds under the older words too: mamba and attention, as they were published."""
    both = {"linear_attention": "mamba", "full_attention": "attention"}
    return kinds | {old: kinds[new] for new, old in both.items() if new in kinds}
