"""Blocks from the memory that a warm-up leaves, as TGI counts them.

server models/flash_causal_lm.py, warmup; utils/import_utils.py, get_cuda_free_memory; the batch
itself: backends/v3/src/client/grpc_client.rs, warmup. At db931fc.
"""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.tgi.settings import Settings

__all__ = ["num_blocks", "warm_up_blocks"]


def warm_up_blocks(settings: Settings) -> int:
    """Return the blocks of the largest batch that can be prefilled, which is run at the start.

    Raises:
        UnsupportedError: its size was not given; the launcher derives it from the card's compute.
    """
    left = settings.max_prefill_tokens
    if left is None:
        raise NotModelledError(
            "free_memory is what a warm-up batch leaves, and its size is not known",
            hint="give max_batch_prefill_tokens as TGI logs it",
        )
    blocks = requests = 0
    while left > 0:
        prompt = min(left, settings.max_input_tokens or left)
        # A request may grow to the maximum where one was given, and by one token otherwise; the
        # last token is never cached.
        tokens = settings.max_model_len - 1 if settings.length_given else prompt
        blocks += cdiv(tokens, settings.block)
        left -= prompt
        requests += 1
        if requests == settings.max_batch_size:
            break
    return blocks


def num_blocks(settings: Settings, block_bytes: int, notes: list[str]) -> int | None:
    """Return the blocks; None where the free memory was not told.

    Raises:
        UnsupportedError: what else the count needs was not given.
    """
    free, total = settings.free_memory, settings.total_memory
    if free is None:
        return None
    if total is None:
        raise NotModelledError(
            "a share of the whole card is kept free, and its size is not known",
            hint="give total_memory, in bytes",
        )
    warm = warm_up_blocks(settings)
    share = settings.memory_fraction * settings.wiggle_room
    usable = max(0, free - (1 - share) * total)  # floating point, as TGI computes it
    blocks = int(usable // block_bytes) + warm
    kept = format_count(int((1 - share) * total))
    notes.append(f"{kept} B of the card are kept free: 1 - {share:g} of all of it")
    notes.append(f"{format_count(warm)} blocks are those of the warm-up batch")
    return blocks
