"""Llama 3.2 Vision: some layers attend to an image instead of the text."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, full_attention, num_layers, runs

__all__ = ["read"]

_NOTE = "attends to images: nothing for text alone"


def read(f: Fields) -> Layers:
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
    notes = dict.fromkeys(crossing, _NOTE)
    return Layers(runs([() if i in notes else full for i in range(count)], notes))
