"""Why each number is what it is, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.core.attention import ChunkedAttention, FullAttention, SlidingWindow
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.core.units import cdiv, format_count, format_number_of
from kvcalc.engines.tensorrt_llm.layers import PER_HEAD, Kept
from kvcalc.engines.tensorrt_llm.settings import Settings

__all__ = [
    "CONVENTION",
    "blocks_in_memory",
    "context_bytes",
    "estimated_bytes_per_token",
    "estimation_tokens",
    "explain",
    "free_blocks",
    "host_parts",
    "not_modelled",
    "offset_table_bytes",
    "sequence_blocks",
]


CONVENTION = (
    (
        "The budget is the pool itself: free_gpu_memory_fraction (0.9 by default) of what is free"
        " once the weights are loaded and a profiling run has taken its peak."
    ),
)
_BITS = {"fp8_e4m3": 8, "nvfp4": 4}


def explain(model: ModelSpec, stages: list[list[Kept]], settings: Settings) -> list[str]:
    """Return the notes of a plan."""
    return [
        *_heads(model, settings),
        *_ranks_apart(settings),
        *_estimator(model, stages[0], settings),
        *_windows(model, stages[0], settings),
        *_limits(stages, settings),
        *_host(stages, settings),
        *_table(stages[0], settings),
    ]


def _per_head(model: ModelSpec) -> list[FullAttention | SlidingWindow | ChunkedAttention]:
    return [c for _, c in model.caches() if isinstance(c, PER_HEAD)]


def _heads(model: ModelSpec, settings: Settings) -> Iterator[str]:
    for heads in sorted({cache.num_kv_heads for cache in _per_head(model)}):
        if heads % settings.tp:
            each = cdiv(heads, settings.tp)
            yield (
                f"{format_number_of(heads, 'KV head')} over {settings.tp} ranks: rounded up to"
                f" {each} a rank"
            )


def _estimator(model: ModelSpec, kept: list[Kept], settings: Settings) -> Iterator[str]:
    """Say by how much the static estimator is off, where it is."""
    caches = _per_head(model)
    shapes = {(cache.num_kv_heads, cache.head_dim) for cache in caches}
    if len(shapes) != 1:
        return
    ((heads, width),) = shapes
    estimated = estimated_bytes_per_token(
        heads=heads,
        head_dim=width,
        layers=sum(part.layers for part in kept),
        tp=settings.tp,
        bits=_BITS.get(settings.dtype.name, 16),
    )
    manager = sum(part.cell for part in kept)
    if estimated != manager:
        yield (
            f"a token takes {format_count(manager)} B of the cache; the engine's own estimate, made"
            f" before it allocates, says {format_count(estimated)} B (get_cache_size_per_token)"
        )


def _windows(model: ModelSpec, kept: list[Kept], settings: Settings) -> Iterator[str]:
    unread = sum(count for count, cache in model.caches() if isinstance(cache, SlidingWindow))
    if unread and settings.windows is None:
        yield (
            f"{format_number_of(unread, 'layer')} with a window keep every token: without"
            " max_attention_window each layer keeps the whole sequence"
        )
    chunked = sum(count for count, cache in model.caches() if isinstance(cache, ChunkedAttention))
    if chunked:
        yield (
            f"{format_number_of(chunked, 'layer')} with a chunk keep every token: chunks bound what"
            " is read, and divide no pool"
        )
    if len(kept) > 1:
        yield f"{len(kept)} windows: each gets the same memory, whatever its layers need"
    if len(kept) > 1 and settings.max_tokens is not None and not settings.v2:
        yield (
            "max_tokens bounds no pool's tokens where windows differ: the engine turns it into"
            " bytes of all windows before it starts (configure_kv_cache_capacity)"
        )
    if any(part.priced != part.cell for part in kept) and len(kept) > 1:
        yield "scales of nvfp4 are not counted where windows differ: pools outgrow their memory"


def _ranks_apart(settings: Settings) -> Iterator[str]:
    if settings.shared_ranks > 1:
        yield (
            f"attention data parallelism: each of {settings.shared_ranks} ranks holds all KV heads,"
            " for requests of its own; the figures, max_batch_size too, are those of one rank"
        )


def _limits(stages: list[list[Kept]], settings: Settings) -> Iterator[str]:
    """Say what bounds the pool, and where that shortens the longest sequence."""
    if settings.fraction_asked:
        yield (
            f"free_gpu_memory_fraction {settings.fraction} decides what a card leaves for the"
            " cache, and plays no part where the cache's bytes are given"
        )
    limit = settings.max_tokens
    if limit is None or settings.v2 or any(len(kept) > 1 for kept in stages):
        return
    held = limit if settings.rounds_up else limit // settings.block * settings.block
    yield (
        f"max_tokens {format_count(limit)} bounds the pool: {format_count(held)} tokens in blocks"
        f" of {settings.block}, however much the memory holds"
    )
    if held < settings.length:
        yield (
            f"a sequence of max_seq_len {format_count(settings.length)} does not fit max_tokens:"
            " the engine lowers max_seq_len to what the pool holds"
        )


def host_parts(settings: Settings, ranks: tuple[Rank, ...]) -> tuple[HostPart, ...]:
    """Return the host memory of one server: its processes, and blocks that are out of use."""
    gpus = sum(rank.multiplicity for rank in ranks)
    parts = [processes(gpus)]
    if settings.host_bytes:
        parts.append(
            HostPart(
                name="offloaded blocks",
                low_bytes=settings.host_bytes * gpus,
                high_bytes=settings.host_bytes * gpus,
                source=f"host_cache_size {format_count(settings.host_bytes)} B for each of {gpus}"
                " ranks",
                setting="kv_cache_config.host_cache_size",
                unit_bytes=gpus,
            )
        )
    return tuple(parts)


def _host(stages: list[list[Kept]], settings: Settings) -> Iterator[str]:
    """Say what host_cache_size holds (calculate_max_num_blocks)."""
    if not settings.host_bytes:
        return
    given = f"host_cache_size {format_count(settings.host_bytes)} B"
    if settings.v2 or any(len(kept) > 1 for kept in stages):
        yield f"{given} on the host of each rank holds blocks that are out of use"
        return
    cell = max(part.cell for kept in stages for part in kept)
    blocks = settings.host_bytes // cell // settings.block
    yield (
        f"{given} on the host of each rank holds {format_number_of(blocks, 'block')} that are out"
        " of use: no sequence that runs can have them"
    )


def _table(kept: list[Kept], settings: Settings) -> Iterator[str]:
    """Say what the offsets take: for a token more than the maximum, which overlapping needs."""
    pools = sum(len(part.widths) for part in kept)
    blocks, places = cdiv(settings.length + 1, settings.block), settings.batch
    if settings.v2:
        blocks, places = cdiv(blocks, 4) * 4, places + 1
        pools = len(kept)
    size = offset_table_bytes(pools, places, blocks)
    yield f"the table of block offsets takes {format_count(size)} B of pinned host memory"


def not_modelled(settings: Settings, *, several: bool) -> tuple[str, ...]:
    """Return what the plan leaves out, with its size where that is known."""
    told = []
    if several and settings.v2:
        told.append("how KVCacheManagerV2 shares its quota at first among the windows' pools")
    if settings.v2:
        told.append(
            "max_util_for_resume: a V2 cache too small for max_seq_len serves 0.95 of what it holds"
            " in some releases"
        )
    if settings.v2 and settings.max_tokens is not None:
        told.append("max_tokens as a bound of KVCacheManagerV2's quota")
    if several and not settings.v2 and settings.max_tokens is not None:
        told.append("max_tokens as a bound of the bytes of all windows")
    if several and not settings.v2:
        told.append("windows cut down where the memory does not hold one sequence")
    if settings.windows is not None:
        told.append("blocks held for a chunk of the prompt beyond the window")
    return tuple(told)


# Blocks of a sequence, of the memory, and of a dry run.
#
# TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp;
# _torch/pyexecutor/resource_manager.py (calculate_max_num_blocks, get_cache_size_per_token) and
# _util.py (_get_token_num_for_estimation).

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
