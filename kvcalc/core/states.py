"""What a recurrent or convolution state costs under each engine's layout.

The tensors are the model's (`StateTensor`); engines differ in the dtype and in whether the
convolution keeps the newest input beside the kernel - 1 older ones.
"""

from __future__ import annotations

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.kind import StateTensor
from kvcalc.core.values import Value

__all__ = ["LLAMA_CPP_STATES", "STATE_LAYOUTS", "TRANSFORMERS_STATES", "VLLM_STATES", "StateLayout"]


class StateLayout(Value, frozen=True, kw_only=True):
    """One engine's way of keeping states.

    Attributes:
        engine: whose layout it is.
        extra_conv_rows: rows a convolution keeps beyond kernel - 1.
        dtype: every state in this dtype; None for the model dtype.
        recurrent_dtype: the recurrent state in this dtype; None for the config's own state dtype,
            else the model dtype.
        source: where the rule was read or measured.
    """

    engine: str
    extra_conv_rows: int = 0
    dtype: str | None = None
    recurrent_dtype: str | None = None
    source: str

    def bytes_of(self, state: StateTensor, model_dtype: str) -> int:
        """Return the bytes of one state tensor of one sequence and layer."""
        elements = state.elements
        if state.role == "conv":
            kernel_rows, channels = state.shape
            elements = (kernel_rows + self.extra_conv_rows) * channels
        dtype = self.dtype or state.dtype or model_dtype
        if state.role == "recurrent":
            dtype = self.dtype or self.recurrent_dtype or state.dtype or model_dtype
        return elements * element_bytes(dtype)


VLLM_STATES = StateLayout(
    engine="vllm", source="vLLM 0.33 model_executor/layers/mamba/mamba_utils.py, MambaSpec"
)
TRANSFORMERS_STATES = StateLayout(
    engine="transformers",
    extra_conv_rows=1,
    recurrent_dtype="float32",
    source="transformers 5.24 cache_utils.py, LinearAttentionLayer (measured)",
)
LLAMA_CPP_STATES = StateLayout(
    engine="llama.cpp", dtype="float32", source="llama.cpp b11434 llama_memory_recurrent (measured)"
)
STATE_LAYOUTS = (VLLM_STATES, TRANSFORMERS_STATES, LLAMA_CPP_STATES)
"""Layouts measured so far; engine `none` keeps states as vLLM does."""
