"""Memory: what a start leaves for the cache, and the fraction that decides it.

SGLang 0.5.23 arg_groups/memory_hook.py (handle_gpu_memory_settings, reserve_for_graph_mb) and
mem_cache/kv_cache_configurator.py (_profile_available_bytes).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import InvalidValueError
from kvcalc.engines.sglang.card import Card

__all__ = [
    "Reserve",
    "cache_bytes",
    "default_chunk",
    "default_fraction",
    "default_graph_batch",
    "graphs_mib",
    "minimum_fraction",
    "prefill_graphs",
    "reserved_mib",
]

_GIB = 2**30

_BY_MEMORY = (
    # MiB below which, tokens of a chunk, batch of the largest graph with fewer than 4 ranks, else
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16384, 512, 512)
_MANY_RANKS = 4
_FLOOR_FROM = 60 * 1024
_FLOOR = 10 * 1024
_LATENT_GRAPH_TOKENS = 8192
_LATENT_GRAPHS_MIB = 1.5 * 1024
_MIB_A_GRAPH = 8
_CROWDED = 300


def _by_memory(card: Card) -> tuple[int, int, int]:
    for below, chunk, few, many in _BY_MEMORY:
        if card.memory_mib < below:
            return chunk, few, many
    return _LARGEST


def default_chunk(card: Card) -> int:
    """Return chunked_prefill_size: tokens of a prompt computed at once."""
    return _by_memory(card)[0]


def default_graph_batch(card: Card, tp: int) -> int:
    """Return the batch of the largest CUDA graph of decoding."""
    _, few, many = _by_memory(card)
    return few if tp < _MANY_RANKS else many


def prefill_graphs(tokens: int) -> int:
    """Return how many CUDA graphs of prefill there are up to so many tokens.

    arg_groups/cuda_graph_hook.py, generate_prefill_cuda_graph_batch_sizes.
    """
    sizes = (
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, tokens + 1, 512),
    )
    return sum(1 for size in sizes if size <= tokens)


class Reserve(NamedTuple):
    """What decides how much is kept back for steps and CUDA graphs.

    Attributes:
        tp: tensor parallel size.
        pp: pipeline parallel size.
        chunk: chunked_prefill_size.
        attn_dp: groups of DP attention.
        graph_batch: the largest batch of a decoding graph; None for the card's own.
        max_requests: max_running_requests, which bounds that batch.
        latent: the model is MLA.
        graphs: CUDA graphs are captured.
    """

    tp: int
    pp: int
    chunk: int
    attn_dp: int = 1
    graph_batch: int | None = None
    max_requests: int | None = None
    latent: bool = False
    graphs: bool = True


def reserved_mib(card: Card, asked: Reserve) -> float:
    """Return the MiB that steps and graphs are reckoned to take.

    512 MiB, 1.5 MiB for each token of a chunk (at least 2,048 of them), 1 GiB for eight ranks, and
    what CUDA graphs take.
    """
    steps = 512 + max(asked.chunk, 2048) * 1.5 + asked.tp * asked.pp / 8 * 1024
    return steps + graphs_mib(card, asked)


def graphs_mib(card: Card, asked: Reserve) -> float:
    """Return the MiB that CUDA graphs are reckoned to take: of decoding, and of prefill or MLA."""
    if not asked.graphs:
        return 0
    batch, attn_dp = asked.graph_batch, asked.attn_dp
    if batch is None:
        batch = default_graph_batch(card, asked.tp)
        if asked.max_requests is not None:
            batch = min(batch, asked.max_requests)
    taken = batch * 2.0
    if attn_dp > 1:
        taken += batch * attn_dp * 3
        if batch > _CROWDED:
            taken += batch * attn_dp * 1.5
    prefill = prefill_graphs(asked.chunk) * _MIB_A_GRAPH
    return taken + (_LATENT_GRAPHS_MIB if asked.latent else prefill)


def default_fraction(card: Card, asked: Reserve) -> float:
    """Return mem_fraction_static where nothing is said: memory for weights and cache.

    What is kept back is `reserved_mib`; at least 10 GiB on a card of more than 60 GiB.
    """
    reserved = reserved_mib(card, asked)
    if card.memory_mib > _FLOOR_FROM:
        reserved = max(reserved, _FLOOR)
    return round((card.memory_mib - reserved) / card.memory_mib, 3)


def cache_bytes(
    free_bytes: int, total_bytes: int, fraction: float, *, multimodal_mib: int = 0
) -> int:
    """Return what is left for the cache once the weights are loaded.

    Args:
        free_bytes: free on the rank with the least, after loading.
        total_bytes: free before loading.
        fraction: mem_fraction_static.
        multimodal_mib: kept back for a multimodal model (100; 1,124 where features travel by CUDA
            IPC).

    Returns:
        Bytes; 0 or less where the weights leave nothing.
    """
    # In floating GiB, as the engine computes it.
    slack = total_bytes / _GIB * (1 - fraction)
    return int((free_bytes / _GIB - slack - multimodal_mib / 1024) * _GIB)


def minimum_fraction(free_bytes: int, total_bytes: int) -> float:
    """Return the fraction at which nothing is left: SGLang's refusal names it.

    Raises:
        InvalidValueError: a card without memory.
    """
    if total_bytes < 1:
        raise InvalidValueError(f"{total_bytes} B is no memory")
    return 1 - free_bytes / total_bytes
