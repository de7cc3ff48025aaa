"""How many window tokens a pool has where requests decide, and not a ratio.

SGLang 0.5.23 model_executor/pool_configurator.py: SWARequestCapPoolConfigurator,
compute_swa_request_cap.
"""

from __future__ import annotations

from kvcalc.core.units import round_up
from kvcalc.engines.sglang.settings import Settings

__all__ = ["request_cap", "window_tokens"]


def request_cap(
    *,
    window: int,
    page: int,
    requests: int,
    chunk: int,
    decode_tokens: int,
    eviction_interval: int,
    proposed: int = 0,
    overlap: bool = True,
    decode_role: bool = False,
    extra_slots: int = 0,
) -> int:
    """Return the most window tokens that so many requests can hold at once.

    Args:
        window: tokens of the window.
        page: tokens a page.
        requests: requests at once.
        chunk: tokens of a prompt computed at once.
        decode_tokens: tokens that a request may be given in one step of decoding.
        eviction_interval: steps after which tokens out of reach are given back.
        proposed: tokens verified at once; 0 without speculation.
        overlap: two batches are under way at once.
        decode_role: the server decodes what another has prefilled.
        extra_slots: requests that such a server receives ahead.

    >>> request_cap(window=8, page=4, requests=2, chunk=16, decode_tokens=4, eviction_interval=4)
    76
    """
    each = window + max(1, eviction_interval) * (proposed or 1) + page + decode_tokens
    if decode_role:
        return each * requests + (window + page) * extra_slots
    return each * requests + (2 if overlap else 1) * chunk + page


def window_tokens(window: int, settings: Settings) -> int | None:
    """Return the pool's window tokens, in whole pages; None where the ratio decides.

    Requests decide where no prefix is kept, their number is given and prompts are computed in
    chunks.
    """
    decoding = settings.role == "decode"
    if settings.max_requests is None or settings.radix or (not decoding and settings.chunk <= 0):
        return None
    spec, page = settings.speculation, settings.page
    decode_tokens = page
    if spec is not None:
        decode_tokens = spec.serial_alloc_len(page)
        if settings.overlap:
            decode_tokens = 2 * spec.alloc_len(page)
    cap = request_cap(
        window=window,
        page=page,
        requests=settings.max_requests,
        chunk=settings.chunk,
        decode_tokens=decode_tokens,
        eviction_interval=settings.eviction_interval,
        proposed=settings.proposed,
        overlap=settings.overlap,
        decode_role=decoding,
        extra_slots=settings.extra_slots,
    )
    return round_up(cap, page)
