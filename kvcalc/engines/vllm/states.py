"""States of recurrent layers as vLLM keeps them: bytes, dtypes, and blocks a request has of them.

vLLM 0.33 model_executor/layers/mamba/mamba_utils.py (shapes and dtypes), MambaSpec (blocks), and
the layers' own get_kv_cache_spec (the block for a checkpoint inside a prefill).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2, ShortConv
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.settings import Settings

__all__ = ["State", "check_groups", "checkpoint_alignment", "state_of"]

_FLASHINFER_GDN_ALIGNMENT = 64
_HOPPER, _BLACKWELL, _BLACKWELL_CONSUMER = 9, 10, 12
_KERNEL_HEAD = 128


class State(NamedTuple):
    """One layer's state on one rank.

    Attributes:
        payload: bytes by role, as one sequence uses them.
        proposed_bytes: room in the convolution for tokens being proposed.
        checkpoint: a request keeps one more block for a checkpoint inside its prefill.
    """

    payload: tuple[tuple[str, int], ...]
    proposed_bytes: int
    checkpoint: bool

    @property
    def content(self) -> int:
        """Bytes of the state with its room for proposed tokens."""
        return sum(size for _, size in self.payload) + self.proposed_bytes


def state_of(cache: Cache, settings: Settings, architecture: str | None) -> State:
    """Return the state that a recurrent layer keeps (already that of one rank)."""
    rules = settings.rules
    conv_dtype = (
        settings.dtype if settings.mamba_cache_dtype == "auto" else (settings.mamba_cache_dtype)
    )
    byte = rules.state_dtype_is_cache_dtype and settings.kv_dtype.startswith("fp8")
    payload: list[tuple[str, int]] = []
    proposed = 0
    for tensor in cache.states():
        dtype = conv_dtype
        if tensor.role == "recurrent":
            dtype = _recurrent_dtype(cache, tensor.dtype, conv_dtype, settings, architecture)
        size = 1 if byte else element_bytes(dtype)
        payload.append((tensor.role, tensor.elements * size))
        if tensor.role == "conv" and _KINDS.get(type(cache)) in rules.proposed_rows:
            proposed += settings.proposed * tensor.shape[1] * size
    return State(tuple(payload), proposed, _keeps_checkpoint(cache, settings, architecture))


_KINDS: dict[type, str] = {
    Mamba2: "mamba2",
    GatedDeltaNet: "gdn",
    KimiDeltaAttention: "kda",
    ShortConv: "short_conv",
}


def _recurrent_dtype(
    cache: Cache, pinned: str | None, conv_dtype: str, settings: Settings, architecture: str | None
) -> str:
    """Return the dtype of a recurrent state: what is asked for, the model's, the convolution's."""
    asked, rules = settings.mamba_ssm_cache_dtype, settings.rules
    own_kernels = (architecture or "").startswith("KimiK3")
    if (
        isinstance(cache, KimiDeltaAttention)
        and asked not in ("auto", "float32")
        and not own_kernels
    ):
        raise UnsupportedError(
            f"vLLM keeps the state of {architecture} in float32, not in {asked}",
            hint="leave mamba_ssm_cache_dtype out",
        )
    if isinstance(cache, GatedDeltaNet) and not rules.gdn_ssm_dtype:
        return conv_dtype
    if asked != "auto":
        return asked
    if architecture == "NemotronHForCausalLM" and rules.nemotron_dtype == "auto":
        return conv_dtype
    return pinned or conv_dtype


def _keeps_checkpoint(cache: Cache, settings: Settings, architecture: str | None) -> bool:
    if isinstance(cache, Mamba2):
        return settings.rules.mamba2_checkpoint
    if isinstance(cache, GatedDeltaNet):
        return settings.rules.gdn_checkpoint and _flashinfer_gdn(cache, settings.card)
    # Kimi-K3 has kernels of its own; Kimi-Linear's layer cannot export a checkpoint.
    if isinstance(cache, KimiDeltaAttention) and (architecture or "").startswith("KimiK3"):
        families = (_HOPPER, _BLACKWELL, _BLACKWELL_CONSUMER)
        if not settings.rules.kda_checkpoint or settings.dtype != "bfloat16":
            return False
        return settings.card.family in families and cache.head_dim == _KERNEL_HEAD
    return False


def _flashinfer_gdn(cache: GatedDeltaNet, card: Card) -> bool:
    """Whether FlashInfer prefills such layers: gdn/qwen_gdn_linear_attn.py."""
    if card.capability == (9, 0):
        return True
    newer = card.family in (_BLACKWELL, _BLACKWELL_CONSUMER)
    return newer and cache.head_k_dim == _KERNEL_HEAD


def checkpoint_alignment(caches: list[Cache], settings: Settings) -> int:
    """Return what blocks must be a multiple of so that prefills can export checkpoints; 1: nothing.

    model_executor/layers/mamba/abstract.py, get_mamba_prefill_checkpoint_alignment: every state
    layer must be able to.
    """
    exports = bool(caches) and all(
        isinstance(cache, GatedDeltaNet) and _flashinfer_gdn(cache, settings.card)
        for cache in caches
    )
    return _FLASHINFER_GDN_ALIGNMENT if exports and settings.rules.gdn_checkpoint else 1


def check_groups(cache: Cache, tp: int, architecture: str | None) -> None:
    """Refuse groups of a Mamba-2 layer that vLLM cannot split: mamba_mixer2.py.

    Raises:
        UnsupportedError: neither one group nor a number that divides; Zamba2 with several, whose
            pages vLLM 0.33 counts too small (it fails an assertion at start-up).
    """
    if isinstance(cache, Mamba2) and cache.n_groups > 1 and architecture == "Zamba2ForCausalLM":
        raise UnsupportedError(
            "vLLM fails at start-up for a Zamba2 with several state groups",
            hint="use --engine none for the model's own arithmetic",
        )
    if isinstance(cache, Mamba2) and cache.n_groups % tp and cache.n_groups != 1:
        raise UnsupportedError(
            f"{cache.n_groups} state groups cannot be split over {tp} ranks",
            hint=f"choose a tensor parallel size that divides {cache.n_groups}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
