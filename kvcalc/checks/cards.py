"""From what a file calls a card to the card: node labels, accelerators, instance types.

A word that stands for several cards (A100: of 40 and of 80 GB) names none; all are told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import UnknownNameError, nearest
from kvcalc.models.presets import gpu_names, load_gpu

__all__ = ["Machine", "card_of", "machine_of"]


class Machine(NamedTuple):
    """A cloud's machine: its card, and how many it has."""

    gpu: str
    count: int


_MACHINES: tuple[tuple[str, str], ...] = (
    # Instance types as their vendors list them: pattern -> card; the count is in the table below.
    (r"p3\.(2x|8x|16x)large", "v100-16gb"),
    (r"p3dn\.(24x)large", "v100-32gb"),
    (r"p4d\.(24x)large", "a100-40gb"),
    (r"p4de\.(24x)large", "a100-80gb"),
    (r"p5\.(4x|48x)large", "h100-80gb"),
    (r"p5en?\.(48x)large", "h200"),
    (r"p6-b200\.(48x)large", "b200"),
    (r"g4dn\.(x|2x|4x|8x|12x|16x)large", "t4"),
    (r"g5\.(x|2x|4x|8x|12x|16x|24x|48x)large", "a10g"),
    (r"g6\.(x|2x|4x|8x|12x|16x|24x|48x)large", "l4"),
    (r"g6e\.(x|2x|4x|8x|12x|16x|24x|48x)large", "l40s"),
    (r"a2-highgpu-(\d+)g", "a100-40gb"),
    (r"a2-megagpu-(16)g", "a100-40gb"),
    (r"a2-ultragpu-(\d+)g", "a100-80gb"),
    (r"a3-(?:high|mega|edge)gpu-(\d+)g", "h100-80gb"),
    (r"a3-ultragpu-(\d+)g", "h200"),
    (r"a4-highgpu-(\d+)g", "b200"),
    (r"g2-standard-(4|8|12|16|24|32|48|96)", "l4"),
    (r"standard_nc(24|48|96)ads_a100_v4", "a100-80gb-pcie"),
    (r"standard_nc(40|80)adis_h100_v5", "h100-nvl"),
    (r"standard_nd(96)asr_v4", "a100-40gb"),
    (r"standard_nd(96)amsr_a100_v4", "a100-80gb"),
    (r"standard_nd(96)isr_h100_v5", "h100-80gb"),
    (r"standard_nd(96)isr_h200_v5", "h200"),
    (r"standard_nd(96)isr_mi300x_v5", "mi300x"),
    (r"standard_nv(36|72)ads_a10_v5", "a10"),
    (r"standard_nc(4|8|16|64)as_t4_v3", "t4"),
)
_OF_SIZE = {
    # size within a family -> cards, where it is not the number itself
    "p3": {"2x": 1, "8x": 4, "16x": 8},
    "p3dn": {"24x": 8},
    "p4d": {"24x": 8},
    "p4de": {"24x": 8},
    "p5": {"4x": 1, "48x": 8},
    "p5e": {"48x": 8},
    "p5en": {"48x": 8},
    "p6-b200": {"48x": 8},
    "g4dn": {"12x": 4},
    "g5": {"12x": 4, "24x": 4, "48x": 8},
    "g6": {"12x": 4, "24x": 4, "48x": 8},
    "g6e": {"12x": 4, "24x": 4, "48x": 8},
    "g2-standard": {"24": 2, "48": 4, "96": 8},
    "standard_nc": {"24": 1, "48": 2, "96": 4, "40": 1, "80": 2, "64": 4},
    "standard_nd": {"96": 8},
    "standard_nv": {"36": 1, "72": 2},
}
_FAMILY = re.compile(r"g2-standard|standard_n[cdv]|[a-z0-9-]+?(?=\.)")

_AMBIGUOUS = {
    "a100": ("a100-40gb", "a100-80gb"),
    "a100-sxm4": ("a100-40gb", "a100-80gb"),
    "a100-pcie": ("a100-40gb", "a100-80gb-pcie"),
    "v100": ("v100-16gb", "v100-32gb"),
    "v100-sxm2": ("v100-16gb", "v100-32gb"),
}
_SAID = {
    # (where it was read) -> the word there -> the card that is meant there
    "accelerators": {"a100": "a100-40gb", "v100": "v100-16gb", "gh200": "gh200-96gb"},
    "cloud.google.com/gke-accelerator": {
        "nvidia-tesla-a100": "a100-40gb",
        "nvidia-tesla-v100": "v100-16gb",
        "nvidia-h100-mega-80gb": "h100-80gb",
    },
}
_SPELLED = {
    "gh200": "gh200-96gb",
    "rtx-6000-ada-generation": "rtx-6000-ada",
    "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000",
    "rtx-pro-6000-blackwell-workstation-edition": "rtx-pro-6000",
    "h100-mega-80gb": "h100-80gb",
    "instinct-mi300x": "mi300x",
    "instinct-mi300x-oam": "mi300x",
    "a100-80gb-pcie": "a100-80gb-pcie",
    "h100-80gb-hbm3": "h100-80gb",
}
_BEFORE = re.compile(r"^(?:(?:nvidia|amd|tesla|geforce|instinct|gpu)[-_ ])+")
_BEHIND = re.compile(r"(?:-shared|-hbm\d\w?|:\d+(?:\.\d+)?)+$")
_SIZE = re.compile(r"(?<=-)(\d+)g$")
_SLICE = re.compile(r"-mig-\d+g\.(\d+)gb", re.IGNORECASE)


def machine_of(word: str) -> Machine | None:
    """Return the machine that an instance type is; None for another word.

    >>> machine_of("g5.12xlarge")
    Machine(gpu='a10g', count=4)
    """
    folded = word.strip().lower()
    for pattern, gpu in _MACHINES:
        match = re.fullmatch(pattern, folded)
        if match is None:
            continue
        family = _FAMILY.match(folded)
        sizes = _OF_SIZE.get(family[0]) if family else None
        if sizes is not None:
            return Machine(gpu, sizes.get(match[1], 1))
        return Machine(gpu, int(match[1]))
    return None


@cache
def card_of(word: str, key: str | None = None) -> GpuSpec:
    """Return the card that a word of a file names.

    Args:
        word: a label's value, an accelerator, an instance type.
        key: where it was read; there, some words have a meaning of their own.

    Raises:
        UnknownNameError: no card that kvcalc knows, or one of several.

    >>> card_of("NVIDIA-H100-80GB-HBM3").name, card_of("nvidia-l4").name
    ('h100-80gb', 'l4')
    """
    part = _SLICE.search(word)
    if part is not None:
        return card_of(word[: part.start()], key).with_memory(int(part[1]) * 2**30)
    machine = machine_of(word)
    if machine is not None:
        return load_gpu(machine.gpu)
    folded = word.strip().lower().replace(" ", "-").replace("_", "-")
    meant = _SAID.get(key or "", {}).get(_BEHIND.sub("", folded))
    if meant is not None:
        return load_gpu(meant)
    names = list(_spellings(folded))
    for name in names:
        if name in _AMBIGUOUS:
            one, other = _AMBIGUOUS[name]
            raise UnknownNameError(
                "GPU", word, (), hint=f"it is {one} or {other}: name one with --gpu"
            )
    known = set(gpu_names())
    for name in names:
        if name in known or name in _SPELLED:
            return load_gpu(_SPELLED.get(name, name))
    for name in names:
        try:
            return load_gpu(name)
        except UnknownNameError:
            continue
    close = nearest(names[-1], sorted(known))
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    raise UnknownNameError(
        "GPU", word, known, hint=f"{guess}name it with --gpu, or its memory with --gpu-memory"
    )


def _spellings(folded: str) -> Iterator[str]:
    """Yield a word in the forms that a preset or an alias may have, the fullest first."""
    bare = _BEHIND.sub("", folded)
    short = _BEFORE.sub("", bare)
    for name in (bare, short):
        yield name
        if _SIZE.search(name):
            yield f"{name}b"  # A100-80G
