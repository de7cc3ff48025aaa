"""From what a file calls a card to the card: node labels, accelerators, instance types.

A word that stands for several cards (A100: of 40 and of 80 GB) names none, but where the place
that it stands at says which is meant there.
"""

from __future__ import annotations

import re
from functools import cache

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import UnknownNameError, nearest
from kvcalc.manifests.gpu_tables import MIG_MIB
from kvcalc.manifests.gpus import find_card
from kvcalc.models.presets import gpu_names, load_gpu

__all__ = ["card_of", "devices_of", "memory_only"]

_SAID = {
    # (where it was read) -> the word there -> the card that is meant there
    "accelerators": {"a100": "a100-40gb", "v100": "v100-16gb"},  # SkyPilot's catalogue
    "cloud.google.com/gke-accelerator": {
        "nvidia-tesla-a100": "a100-40gb",
        "nvidia-tesla-v100": "v100-16gb",
    },
}
_COUNT = re.compile(r":\d+(?:\.\d+)?$")
_MAKER = re.compile(r"^(?:(?:nvidia|amd|tesla|geforce)[-_ ])+", re.IGNORECASE)
_SLICE = re.compile(r"-?mig-(\d+g\.\d+gb)", re.IGNORECASE)
_MIB = 2**20


def devices_of(word: str) -> int | None:
    """Return how many cards a word counts itself: an instance type, `H200:8`.

    >>> devices_of("g5.12xlarge")
    4
    """
    return find_card(word).devices


@cache
def card_of(word: str, key: str | None = None) -> GpuSpec:
    """Return the card that a word of a file names.

    Args:
        word: a label's value, an accelerator, an instance type.
        key: where it was read; there, some words have a meaning of their own.

    Raises:
        UnknownNameError: no card that kvcalc knows, or one of several.

    >>> card_of("NVIDIA-H100-80GB-HBM3").name, card_of("A100", "accelerators").name
    ('h100-80gb', 'a100-40gb')
    """
    part = _SLICE.search(word)
    if part is not None and part[1].lower() in MIG_MIB:
        return card_of(word[: part.start()], key).with_memory(MIG_MIB[part[1].lower()] * _MIB)
    meant = _SAID.get(key or "", {}).get(_COUNT.sub("", word.strip().lower()))
    found = find_card(word)
    name = meant or found.name
    if name is not None:
        return load_gpu(name)
    if not found.known:
        try:
            return load_gpu(word)  # a preset's alias, or a preset of one's own
        except UnknownNameError:
            pass
    known = gpu_names()
    letters = re.sub(r"[^a-z0-9]", "", word.lower())
    if found.known:
        close = [name for name in known if name.split("-")[0] in letters]
        hint = f"it is {' or '.join(close)}: name one with --gpu"
    else:
        close = nearest(_MAKER.sub("", word), known)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        hint = f"{guess}name it with --gpu, or its memory with --gpu-memory"
    raise UnknownNameError("GPU", word[:80], (), hint=hint)


def memory_only(memory_bytes: int) -> GpuSpec:
    """Return a card of which the memory alone is known; kernels are chosen as on an H100."""
    from kvcalc.core.units import format_bytes

    text = f"a card of {format_bytes(memory_bytes)}"
    return GpuSpec(name=text, title=text, memory_bytes=memory_bytes, compute_capability="9.0")
