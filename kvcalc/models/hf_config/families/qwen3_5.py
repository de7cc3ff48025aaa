"""Qwen3.5, 3.6 and 3.8, dense and with experts: as Qwen3-Next, the state's dtype in the config."""

from __future__ import annotations

from kvcalc.models.hf_config.families.qwen3_next import layers
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers
from kvcalc.models.hf_config.states import draft_count, state_dtype

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers; `mamba_ssm_dtype` pins the recurrent state."""
    return layers(f, state_dtype(f, "mamba_ssm_dtype"), draft_count(f, "mtp_num_hidden_layers"))
