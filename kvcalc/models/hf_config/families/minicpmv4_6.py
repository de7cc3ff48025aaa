"""MiniCPM-V 4.6: Qwen3.5 inside, but vLLM does not follow its pinned state dtype."""

from __future__ import annotations

from kvcalc.models.hf_config.families.qwen3_next import layers
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers
from kvcalc.models.hf_config.states import draft_count, state_dtype

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers of the Qwen3.5 inside, the state in the model dtype."""
    if pinned := state_dtype(f, "mamba_ssm_dtype"):
        # vLLM 0.33 models/config.py follows the key for the Qwen3.5 classes only (measured).
        f.notes.append(
            f"mamba_ssm_dtype {pinned} is not followed: vLLM 0.33 keeps this class's state in"
            " the model dtype"
        )
    return layers(f, None, draft_count(f, "mtp_num_hidden_layers"))
