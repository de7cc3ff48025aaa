"""SGLang's releases: which of them the rules here were read in, and what the older did otherwise.

Read in 0.5.10, 0.5.15 and 0.5.23; a release between two of them is taken to follow the later.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.engines.releases import Releases

__all__ = ["NEWEST", "OLDEST", "RELEASES", "Release", "release"]


class Release(NamedTuple):
    """A release: 0.5.23."""

    major: int
    minor: int
    patch: int

    @property
    def charges_padding(self) -> bool:
        """Whether the budget pays for the padding slot of states."""
        return self > _MIDDLE

    @property
    def pads_table(self) -> bool:
        """Whether the request table has a row more than requests."""
        return self > OLDEST

    @property
    def many_four_bits(self) -> bool:
        """Whether it tells nvfp4 from fp4_mx_block16, and has mxfp8."""
        return self > _MIDDLE

    @property
    def has_cutlass(self) -> bool:
        """Whether it still has the cutlass_mla backend."""
        return self <= _MIDDLE

    @property
    def loads_draft_first(self) -> bool:
        """Whether the draft's weights are there when the cache is sized.

        0.5.13 sized the cache before it loaded the draft (managers/scheduler.py,
        init_model_worker).
        """
        return self >= (0, 5, 14)

    @property
    def chooses_tracking(self) -> bool:
        """Whether it tracks states in extra slots by itself; before, only where it was asked to.

        server_args.py, _handle_mamba_radix_cache.
        """
        return self >= (0, 5, 14)

    @property
    def names_state_room(self) -> bool:
        """Whether states that find no room are refused by name (_handle_max_mamba_cache)."""
        return self >= (0, 5, 13)

    @property
    def checks_window_pool(self) -> bool:
        """Whether a pool of windows that holds no request is refused (validate_swa_pool_size)."""
        return self >= (0, 5, 16)

    @property
    def wants_larger_host(self) -> bool:
        """Whether a host's cache smaller than the GPU's is refused, and not only warned of."""
        return self <= (0, 5, 14)

    @property
    def overlaps_drafts(self) -> bool:
        """Whether batches of a draft overlap by default (SGLANG_ENABLE_SPEC_V2)."""
        return self > OLDEST

    @property
    def overlaps_trees(self) -> bool:
        """Whether they do where the draft proposes a tree."""
        return self >= (0, 5, 13)

    @property
    def drafts_over_stages(self) -> bool:
        """Whether a prefill server with pipeline stages may propose tokens (validation_hook.py)."""
        return self >= (0, 5, 21)

    @property
    def newest(self) -> bool:
        """Whether it is the newest release whose rules were read."""
        return self == NEWEST

    @property
    def first_read(self) -> bool:
        """Whether it is the oldest release whose rules were read."""
        return self == OLDEST

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


NEWEST = Release(0, 5, 23)
OLDEST = Release(0, 5, 10)
RELEASES = Releases("SGLang", (*OLDEST,), (*NEWEST,))

_MIDDLE = Release(0, 5, 15)
"""The release read between the two."""


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None, and for newer ones.

    Raises:
        UnknownReleaseError: no release, or one older than those that are known.

    >>> str(release("v0.5.18.post1"))
    '0.5.18'
    """
    return Release(*RELEASES.read(text).number)
