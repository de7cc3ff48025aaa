"""States of recurrent and convolution layers: fixed size a sequence. One class a kind."""

from __future__ import annotations

from typing import Self

import msgspec

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.kind import CacheBase, HeadSplit, StateTensor, divide, split_heads
from kvcalc.core.values import Positive, require_range

__all__ = [
    "GatedDeltaNet",
    "KimiDeltaAttention",
    "LightningAttention",
    "Mamba1",
    "Mamba2",
    "RgLru",
    "Rwkv",
    "ShortConv",
]


class _Recurrent(CacheBase, frozen=True, kw_only=True):
    """A state of fixed size a sequence.

    `state_dtype` is the dtype that the model's config gives its recurrent state; without one the
    state is in the model dtype. Convolution states are always in the model dtype.
    """

    state_dtype: str | None = None

    def replicas(self, tp: int) -> int:
        return 1

    def _check_state_dtype(self) -> None:
        if self.state_dtype is not None:
            element_bytes(self.state_dtype)

    def _recurrent(self, *shape: int) -> StateTensor:
        return StateTensor(role="recurrent", shape=shape, dtype=self.state_dtype)


def _conv(kernel: int, channels: int) -> tuple[StateTensor, ...]:
    return (StateTensor(role="conv", shape=(kernel - 1, channels)),) if kernel > 1 else ()


class Mamba1(_Recurrent, frozen=True, kw_only=True, tag="mamba1"):
    """Mamba: a convolution window and `state_size` numbers for each inner channel."""

    intermediate_size: Positive
    state_size: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "intermediate_size", "state_size", "conv_kernel")
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        return (
            *_conv(self.conv_kernel, self.intermediate_size),
            self._recurrent(self.intermediate_size, self.state_size),
        )

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        inner = divide(self.intermediate_size, tp, "inner channels")
        return msgspec.structs.replace(self, intermediate_size=inner)

    def describe(self) -> str:
        return f"{self.intermediate_size} channels x {self.state_size}"


class Mamba2(_Recurrent, frozen=True, kw_only=True, tag="mamba2"):
    """Mamba-2: a state of head_dim x state_size a head, and a convolution over x, B and C."""

    num_heads: Positive
    head_dim: Positive
    state_size: Positive
    n_groups: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        channels = self.num_heads * self.head_dim + 2 * self.n_groups * self.state_size
        return (
            *_conv(self.conv_kernel, channels),
            self._recurrent(self.num_heads, self.head_dim, self.state_size),
        )

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        """Split heads and groups; with more ranks than groups, groups are replicated.

        vLLM 0.33 model_executor/layers/mamba/mamba_utils.py, extra_groups_for_head_shards.
        """
        return msgspec.structs.replace(
            self,
            num_heads=divide(self.num_heads, tp, "state heads"),
            n_groups=split_heads(self.n_groups, tp),
        )

    def describe(self) -> str:
        return f"{self.num_heads} heads x {self.head_dim} x {self.state_size}"


class GatedDeltaNet(_Recurrent, frozen=True, kw_only=True, tag="gated_delta_net"):
    """Gated delta net (Qwen3-Next, Qwen3.5): value heads keep head_v_dim x head_k_dim."""

    num_k_heads: Positive
    num_v_heads: Positive
    head_k_dim: Positive
    head_v_dim: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel")
        require_range(self, 1, *names)
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        channels = 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim
        return (
            *_conv(self.conv_kernel, channels),
            self._recurrent(self.num_v_heads, self.head_v_dim, self.head_k_dim),
        )

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(
            self,
            num_k_heads=divide(self.num_k_heads, tp, "key heads"),
            num_v_heads=divide(self.num_v_heads, tp, "value heads"),
        )

    def describe(self) -> str:
        return f"{self.num_v_heads} heads x {self.head_v_dim} x {self.head_k_dim}"


class KimiDeltaAttention(_Recurrent, frozen=True, kw_only=True, tag="kimi_delta_attention"):
    """Kimi delta attention: a square state a head, and a convolution over q, k and v."""

    num_heads: Positive
    head_dim: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "num_heads", "head_dim", "conv_kernel")
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        return (
            *_conv(self.conv_kernel, 3 * self.num_heads * self.head_dim),
            self._recurrent(self.num_heads, self.head_dim, self.head_dim),
        )

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(self, num_heads=divide(self.num_heads, tp, "state heads"))

    def describe(self) -> str:
        return f"{self.num_heads} heads x {self.head_dim} x {self.head_dim}"


class LightningAttention(_Recurrent, frozen=True, kw_only=True, tag="lightning_attention"):
    """Lightning and other linear attention: a square state a head, no convolution (MiniMax-01)."""

    num_heads: Positive
    head_dim: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "num_heads", "head_dim")
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        return (self._recurrent(self.num_heads, self.head_dim, self.head_dim),)

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(self, num_heads=divide(self.num_heads, tp, "state heads"))

    def describe(self) -> str:
        return f"{self.num_heads} heads x {self.head_dim} x {self.head_dim}"


class RgLru(_Recurrent, frozen=True, kw_only=True, tag="rg_lru"):
    """Real-gated linear recurrent unit (RecurrentGemma): a number a channel, a convolution."""

    lru_width: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "lru_width", "conv_kernel")
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        return (*_conv(self.conv_kernel, self.lru_width), self._recurrent(self.lru_width))

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(self, lru_width=divide(self.lru_width, tp, "channels"))

    def describe(self) -> str:
        return f"{self.lru_width} channels"


class ShortConv(CacheBase, frozen=True, kw_only=True, tag="short_conv"):
    """A short convolution and nothing else (LFM2)."""

    hidden_size: Positive
    conv_kernel: Positive

    def __post_init__(self) -> None:
        require_range(self, 1, "hidden_size", "conv_kernel")

    def states(self) -> tuple[StateTensor, ...]:
        return _conv(self.conv_kernel, self.hidden_size)

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(self, hidden_size=divide(self.hidden_size, tp, "channels"))

    def replicas(self, tp: int) -> int:
        return 1

    def describe(self) -> str:
        return f"{self.conv_kernel - 1} x {self.hidden_size}"


class Rwkv(_Recurrent, frozen=True, kw_only=True, tag="rwkv"):
    """RWKV: a square state a head, and the last token's vectors (`token_shifts` of them)."""

    hidden_size: Positive
    head_size: Positive
    token_shifts: Positive = 2

    def __post_init__(self) -> None:
        require_range(self, 1, "hidden_size", "head_size", "token_shifts")
        if self.hidden_size % self.head_size:
            raise InvalidValueError(
                f"hidden_size {self.hidden_size} is no multiple of head_size {self.head_size}"
            )
        self._check_state_dtype()

    def states(self) -> tuple[StateTensor, ...]:
        heads = self.hidden_size // self.head_size
        return (
            StateTensor(role="shift", shape=(self.token_shifts, self.hidden_size)),
            self._recurrent(heads, self.head_size, self.head_size),
        )

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        heads = divide(self.hidden_size // self.head_size, tp, "state heads")
        return msgspec.structs.replace(self, hidden_size=heads * self.head_size)

    def describe(self) -> str:
        heads = self.hidden_size // self.head_size
        return f"{heads} heads x {self.head_size} x {self.head_size}"
