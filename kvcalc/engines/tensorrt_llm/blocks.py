"""Blocks of a sequence, of the memory, and of a dry run.

TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp;
_torch/pyexecutor/resource_manager.py (calculate_max_num_blocks, get_cache_size_per_token) and
_util.py (_get_token_num_for_estimation).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.units import cdiv

__all__ = [
    "blocks_in_memory",
    "context_bytes",
    "estimated_bytes_per_token",
    "estimation_tokens",
    "free_blocks",
    "offset_table_bytes",
    "sequence_blocks",
]

_BYTE = 8  # bits


def sequence_blocks(prompt: int, length: int, block: int, beams: int = 1) -> int:
    """Return the blocks of a sequence at its full length.

    Beams share the full blocks of the prompt and have the others each for itself.

    Args:
        prompt: tokens of the prompt.
        length: tokens of prompt and output.
        block: tokens a block.
        beams: beams of a search.

    >>> sequence_blocks(575, 640, 64, beams=4)
    16
    """
    shared = prompt // block if beams > 1 else 0
    return shared + (cdiv(length, block) - shared) * beams


def free_blocks(total: int, prompt: int, tokens: int, block: int, beams: int = 1) -> int:
    """Return the blocks left of `total` while one sequence has so many tokens.

    Args:
        total: blocks of the pool.
        prompt: tokens of the prompt.
        tokens: tokens that it has now.
        block: tokens a block.
        beams: beams of a search.
    """
    return total - sequence_blocks(prompt, tokens, block, beams)


def blocks_in_memory(
    free_bytes: int, fraction: float, token_bytes: int, block: int, max_tokens: int | None = None
) -> int:
    """Return the blocks of the pool, as KVCacheManager counts them.

    Args:
        free_bytes: free after loading and a profiling run.
        fraction: free_gpu_memory_fraction.
        token_bytes: bytes of a token on the rank.
        block: tokens a block.
        max_tokens: the most tokens; None without a limit.
    """
    tokens = fraction * free_bytes / token_bytes
    if max_tokens is not None:
        tokens = min(max_tokens, tokens)
    return int(tokens // block)


def estimated_bytes_per_token(
    *, heads: int, head_dim: int, layers: int, tp: int = 1, bits: int = 16, latent: bool = False
) -> int:
    """Return the bytes of a token as the static estimator has them, which the manager has not.

    The estimator divides all elements by the ranks and rounds down, where the manager gives every
    rank a whole head; it rounds 4-bit rows up, with a byte of scale for sixteen.

    Args:
        heads: KV heads of a layer.
        head_dim: elements of a head; of a latent and its rotary part.
        layers: layers with attention on the stage; one at least.
        tp: ranks that share the heads.
        bits: 16, 8 or 4.
        latent: the rows are latents, K and V at once, on every rank.
    """
    width = head_dim if latent else head_dim * heads // tp
    elements = (1 if latent else 2) * max(1, layers) * width
    if bits < _BYTE:
        return cdiv(elements, 2) + cdiv(elements, 16)
    return elements * bits // _BYTE


def estimation_tokens(
    prompts: Sequence[int], block: int, *, beams: int = 1, attention_dp: int = 1
) -> int:
    """Return the tokens of the dry run that measures a start.

    Args:
        prompts: tokens of each dummy request; a token more is generated.
        block: tokens a block.
        beams: beams of a search.
        attention_dp: ranks among which attention DP spreads the requests.
    """
    blocks = sum(cdiv(prompt + 1, block) * beams for prompt in prompts)
    return cdiv(blocks, attention_dp) * block


def context_bytes(
    tokens: int, window: int, *, full_bytes: int, window_bytes: Sequence[int], scratch: bool
) -> int:
    """Return the bytes that KVCacheManagerV2 asks for to compute a prompt.

    Args:
        tokens: tokens of the prompt.
        window: tokens of the windows.
        full_bytes: bytes of a token of the layers without a window.
        window_bytes: bytes of a token of each layer with one.
        scratch: one layer's room for the whole prompt serves all layers with a window.
    """
    if not scratch or not window_bytes:
        return tokens * (full_bytes + sum(window_bytes))
    widest = max(window_bytes)
    return tokens * (full_bytes + widest) + min(window, tokens) * (sum(window_bytes) - widest)


def offset_table_bytes(pools: int, batch: int, blocks: int, beams: int = 1) -> int:
    """Return the bytes of the table of block offsets, in pinned host memory.

    Args:
        pools: pools of the manager.
        batch: max_batch_size.
        blocks: blocks of the longest sequence.
        beams: beams of a search.

    >>> offset_table_bytes(1, 2048, 4096)
    67108864
    """
    return pools * batch * beams * 2 * blocks * 4
