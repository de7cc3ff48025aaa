"""What a reader of the figures is told: rules that moved them, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.llamacpp.buffers import buffer_notes, unknown_buffers
from kvcalc.engines.llamacpp.contexts import Context
from kvcalc.engines.llamacpp.host import host_notes
from kvcalc.engines.llamacpp.settings import Settings

__all__ = ["convention", "explain", "not_modelled"]


def explain(
    contexts: list[Context], ranks: tuple[Rank, ...], settings: Settings, deployment: Deployment
) -> Iterator[str]:
    """Yield a line for every rule that moved a number."""
    cells = settings.cells
    main = contexts[0]
    caches = {kept.cache for kept in main.kept}
    yield from _of_a_request(main, settings)
    if caches & {"csa", "hca", "lid"} and cells.unified and cells.sequences > 1:
        yield (
            "one pool was asked for, and each sequence gets the whole context all the same:"
            " llama_kv_cache_dsv4 keeps sequences apart"
        )
    if "swa" in caches:
        yield from _windows(main, settings)
    elif settings.swa_full:
        yield "swa_full without effect: the model has no sliding layers in llama.cpp"
    yield from _widened(main)
    if "state" in caches:
        yield from _states(main)
    for context in contexts[1:]:
        total = _bytes(ranks, context.sizes.names)
        yield f"{context.sizes.names}context: {format_count(total)} B beside the model's own"
    padding = sum(rank.fixed_bytes for rank in ranks)
    if padding:
        yield (
            f"CUDA adds {format_count(padding)} B to quantised tensors whose rows are no multiple"
            " of 512 elements"
        )
    if len(ranks) > 1 or ranks[0].on_host:
        yield "the cache by device: " + ", ".join(_device(rank) for rank in ranks)
    if deployment.data_parallel_size > 1:
        yield (
            f"{deployment.data_parallel_size} replicas hold requests of their own; the figures are"
            " those of one"
        )
    yield from buffer_notes(main, settings)
    yield from host_notes(contexts, settings)


def _of_a_request(main: Context, settings: Settings) -> Iterator[str]:
    """Yield what one request gets of the context, and where its length ends before."""
    cells = settings.cells
    if cells.sequences > 1 and not cells.unified:
        yield (
            f"a request gets {format_count(cells.longest)} tokens: {cells.sequences} sequences have"
            f" {format_count(cells.per_sequence)} cells each, reserved whole:"
            f" {format_count(cells.total)} in all"
        )
    elif cells.sequences > 1:
        each = cells.per_sequence // cells.sequences
        yield (
            f"{cells.sequences} slots share a cache of {format_count(cells.per_sequence)} cells: a"
            f" request gets up to {format_count(cells.longest)} tokens, {cells.sequences} at once"
            f" {format_count(each)} each"
        )
    trained = main.served.model.max_position_embeddings
    if settings.rules.server_slots and trained is not None and cells.longest > trained:
        yield (
            f"llama-server ends a request at the {format_count(trained)} tokens that the model was"
            " trained for, whatever its cells (n_ctx_slot), unless YaRN stretches them"
        )


def _bytes(ranks: tuple[Rank, ...], names: str) -> int:
    return sum(
        pool.total_bytes(pool.units or 0)
        for rank in ranks
        for pool in rank.pools
        if names and pool.name.startswith(names)
    )


def _device(rank: Rank) -> str:
    total = sum(pool.total_bytes(pool.units or 0) for pool in rank.pools) + rank.fixed_bytes
    layers = rank.share.num_hidden_layers if rank.share is not None else 0
    return f"{rank.name} {format_number_of(layers, 'layer')}, {format_count(total)} B"


def _windows(main: Context, settings: Settings) -> Iterator[str]:
    cells, window = settings.cells, main.sizes.window
    if main.sizes.swa_full:
        yield (
            f"sliding layers keep {format_count(cells.per_sequence)} cells as the others, of which"
            f" {format_count(window)} are ever read"
        )
        return
    seqs = cells.sequences if cells.unified and not main.sizes.per_sequence else 1
    windows = f"{seqs} x {format_count(window)}" if seqs > 1 else format_count(window)
    yield (
        f"sliding layers keep room for windows of {windows} tokens and a step of"
        f" {format_count(cells.ubatch)}, rounded up to {main.sizes.window_pad}, no more than the"
        " others"
    )


def _widened(main: Context) -> Iterator[str]:
    widened: dict[str, int] = {}
    for kept in main.kept:
        if kept.widened:
            widened[kept.cache] = widened.get(kept.cache, 0) + kept.widened
    for cache, size in widened.items():
        if cache == "indexer":
            yield f"the indexer's cache has a V that nothing reads: {format_count(size)} B a cell"
        elif not main.flash:
            yield (
                "without flash attention every V row is as wide as the widest layer's:"
                f" {format_count(size)} B a cell more ({cache})"
            )
        else:
            yield (
                "until February 2026 a V stood beside the MLA latent, which nothing reads:"
                f" {format_count(size)} B a cell"
            )


def _states(main: Context) -> Iterator[str]:
    if main.rs_seq:
        yield (
            f"each sequence keeps its state {main.rs_seq + 1} times: the live one and a snapshot"
            " for every proposed token"
        )
    state = sum(size for k in main.kept if k.cache == "state" for size in k.payload.values())
    yield f"a state of {format_count(state)} B is kept in 32 bits, whatever the cache types"


def convention(contexts: list[Context], settings: Settings) -> tuple[str, ...]:
    """Return what the rules take for granted, a sentence each."""
    del contexts
    said = [
        "K and V rows are kept in the cache types, f16 unless told; the model dtype decides none.",
        "All sizes are fixed when the context is made; no memory limit changes them.",
        (
            "A cell holds one token of every layer; a sequence alone or with a stream of its own"
            " has its cells reserved whole."
        ),
    ]
    if settings.placing.n_gpu_layers is None and not settings.placing.host:
        said.append("All layers leave the host (n_gpu_layers).")
    if len(settings.placing.shares) > 1:
        said.append("Devices get layers by tensor_split, else by free memory; as told, or alike.")
    return tuple(said)


def not_modelled(
    contexts: list[Context], settings: Settings, deployment: Deployment
) -> tuple[str, ...]:
    """Return what is left out, with its size where that is known."""
    said = unknown_buffers(contexts, settings)
    if deployment.gpu is not None and not settings.placing.padded:
        said.append("alignment and padding of tensors in this backend's buffers")
    if settings.rules.window_pad is None and any(c.sizes.window for c in contexts):
        said.append(
            f"sliding layers of {settings.build.text} are from the source of 2025, not measured:"
            f" up to {256} cells more or less"
        )
    return tuple(said)
