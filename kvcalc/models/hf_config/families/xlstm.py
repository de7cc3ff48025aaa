"""xLSTM: known, and refused: its matrix memory comes with a normaliser and a stabiliser."""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Refuse: no kind states this memory (transformers 5.24 modeling_xlstm.py, xLSTMCache).

    Raises:
        UnsupportedError: always.
    """
    raise NotModelledError(
        "xLSTM keeps a matrix, a vector and a number a head, a kind of state that is not modelled",
        hint="it has no KV cache: its state does not grow with the sequence",
        where=f.where,
    )
