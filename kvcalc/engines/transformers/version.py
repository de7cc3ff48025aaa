"""transformers' releases: how a version is spelled, and what they hold otherwise.

Read in the released wheels themselves (4.57.1, 5.0.0, 5.12 to 5.15, 5.18, 5.20 to 5.24).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError
from kvcalc.engines.releases import Releases

__all__ = ["LATENT_SINCE", "NEWEST", "RELEASES", "Release", "release"]


class Release(NamedTuple):
    """A release: 5.24.0."""

    major: int
    minor: int
    patch: int = 0

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor alone."""
        return self.major, self.minor

    @property
    def keeps_latents(self) -> bool:
        """MLA models keep the latent; before, K and V of every head."""
        return self.line >= LATENT_SINCE

    @property
    def reads_max_cache_len(self) -> bool:
        """`generate` makes a static cache of max_cache_len, where that is more (5.13 on)."""
        return self.line >= (5, 13)

    @property
    def keeps_states(self) -> bool:
        """Recurrent and convolution states are layers of the cache (LinearAttentionLayer)."""
        return self.line >= (5, 12)

    @property
    def quantizes_fp8(self) -> bool:
        """Quantised caches have the backend fp8 (Fp8QuantizedLayer)."""
        return self.line >= (5, 21)

    @property
    def has_sectors(self) -> bool:
        """Continuous batching hands out sectors, as read and compared in 5.23 and 5.24."""
        return self.line >= (5, 23)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


NEWEST = Release(5, 24)
LATENT_SINCE = (5, 15)
"""First line whose MLA models cache the latent: models/deepseek_v3/modeling_deepseek_v3.py of
5.14.0 passes key_states and value_states to the cache, that of 5.15.0 kv_nope and k_rot."""
_OLDEST, _FIRST_OF_5 = (4, 57), (5, 0)
RELEASES = Releases("transformers", (*_OLDEST, 0), (NEWEST.major, NEWEST.minor, NEWEST.patch))


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None, and for newer ones.

    Raises:
        UnknownReleaseError: no release, or one whose rules are not known.

    >>> str(release("v4.57.1")), str(release("5.24"))
    ('4.57.1', '5.24.0')
    """
    found = Release(*RELEASES.read(text).number)
    if _OLDEST < found.line < _FIRST_OF_5:
        raise UnknownReleaseError(
            f"transformers {found} is not known: 4.57 and 5.0 to {NEWEST} are",
            hint=f"give a version of that range, such as {NEWEST}",
        )
    return found
