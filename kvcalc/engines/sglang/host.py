"""Host memory of SGLang: its processes, and HiCache's copies of prefixes.

SGLang 0.5.23 mem_cache/pool_host/base.py (HostKVCache), arg_groups/hicache_hook.py and
mem_cache/hicache_auto_size.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError, WithoutEffectError
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.plan import Rank
from kvcalc.engines.sglang.arguments import Arguments
from kvcalc.engines.sglang.version import Release

__all__ = ["Host", "host_of", "host_parts", "host_tokens"]

_RATIO, _BUFFER_RATIO = 2.0, 1.2
_GB = 1e9


class Host(NamedTuple):
    """What is asked for.

    Attributes:
        ratio: tokens of the host's pool for every token of the GPU's.
        size: GB (10^9) of the host's pool of one rank; None where the ratio decides.
        fits: neither was asked for, so that the ratio is lowered until the host has room.
    """

    ratio: float
    size: int | None
    fits: bool


def host_of(arguments: Arguments, at: Release, *, role: str | None, radix: bool) -> Host | None:
    """Return what is kept on the host; None where nothing is.

    Raises:
        WithoutEffectError: sizes without the cache.
        NotModelledError: a decoding server, which has rules of its own.
        UnsupportedError: a cache that SGLang does not start with.
    """
    ratio, size = arguments.number("hicache_ratio"), arguments.integer("hicache_size")
    mode = arguments.word("hicache_host_memory_mode")
    if not arguments.flag("enable_hierarchical_cache"):
        given = {"hicache_ratio": ratio, "hicache_size": size, "hicache_host_memory_mode": mode}
        for name in (name for name, value in given.items() if value is not None):
            raise WithoutEffectError(
                f"{name} has no effect without enable_hierarchical_cache",
                settings=(name,),
                hint="set enable_hierarchical_cache",
            )
        return None
    if role == "decode":
        raise NotModelledError(
            "host memory of a decoding server is not modelled for SGLang",
            hint="leave enable_hierarchical_cache out",
        )
    if not radix:
        raise UnsupportedError(
            "SGLang keeps no prefixes on the host (enable_hierarchical_cache) where it keeps none"
            " at all (disable_radix_cache)",
            hint="leave one of them out",
            code="contradiction",
            setting="enable_hierarchical_cache",
        )
    if ratio is not None and size is None and ratio < 1 and at.wants_larger_host:
        raise UnsupportedError(
            f"SGLang {at} wants a larger cache on the host than on the GPU: hicache_ratio"
            f" {ratio:g}",
            hint="set hicache_ratio 1 or more",
            code="host-cache-too-small",
            setting="hicache_ratio",
        )
    default = _BUFFER_RATIO if mode == "buffer_only" else _RATIO
    return Host(ratio or default, size, fits=ratio is None and size is None)


def host_tokens(host: Host, device_tokens: int, token_bytes: int, page: int) -> int:
    """Return the tokens of the host's pool: whole pages, and one more.

    Args:
        host: what is asked for.
        device_tokens: tokens of the GPU's pool.
        token_bytes: bytes of a token on one rank.
        page: tokens a page.
    """
    tokens = int(device_tokens * host.ratio)
    if host.size is not None:
        tokens = int(host.size * _GB // token_bytes)
    return (tokens // page + 1) * page


def host_parts(host: Host | None, ranks: tuple[Rank, ...]) -> tuple[HostPart, ...]:
    """Return the host memory of one server: its processes, and HiCache's pools.

    Args:
        host: what is asked of HiCache.
        ranks: of the plan.
    """
    gpus = sum(rank.multiplicity for rank in ranks)
    parts = [processes(gpus)]
    if host is not None and host.size is not None:
        parts.append(
            HostPart(
                name="HiCache",
                low_bytes=int(host.size * _GB) * gpus,
                high_bytes=int(host.size * _GB) * gpus,
                source=f"hicache_size {host.size} GB for each of {gpus} ranks",
                setting="--hicache-size",
                unit_bytes=int(_GB) * gpus,
            )
        )
    elif host is not None:
        ratio = Fraction(str(host.ratio)) * gpus
        parts.append(
            HostPart(
                name="HiCache",
                low_bytes=0,
                high_bytes=0,
                source=f"{host.ratio:g} tokens for every token of each GPU's cache"
                + (", fewer where the host has no room" if host.fits else ""),
                setting="--hicache-ratio",
                is_default=host.fits,
                per_cache=(ratio.numerator, ratio.denominator),
            )
        )
    return tuple(parts)
