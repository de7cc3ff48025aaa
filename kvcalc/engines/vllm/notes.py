"""Why each number is what it is: a line for every rule that moved one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count, format_number_of, format_ratio
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers, Placed
from kvcalc.engines.vllm.settings import DEFAULT_BLOCK_SIZE, Settings

__all__ = ["convention", "explain"]


def explain(
    model: ModelSpec,
    layers: Layers,
    grouping: Grouping,
    ranks: tuple[Rank, ...],
    settings: Settings,
) -> list[str]:
    """Return the notes of a plan.

    Args:
        model: as vLLM runs it, draft layers apart.
        layers: its specs.
        grouping: its groups.
        ranks: its pools.
        settings: as resolved.
    """
    return [
        *_asked(model, settings),
        *_dtype(layers, settings),
        *_block(layers, settings),
        *_states(layers, settings),
        *_windows(grouping, settings),
        *_groups(grouping),
        *_speculation(settings),
        *_split(model, layers, ranks, settings),
        *_encoder(layers, settings),
    ]


def _asked(model: ModelSpec, settings: Settings) -> Iterator[str]:
    if model.kv_cache_dtype is not None and settings.kv_dtype == "auto":
        yield (
            f"the checkpoint asks for a KV cache in {model.kv_cache_dtype}"
            f" ({model.kv_cache_method or 'modelopt'}), which vLLM {settings.release} does not"
            f" follow here: it is kept in {model.dtype}"
        )


def _dtype(layers: Layers, settings: Settings) -> Iterator[str]:
    if layers.kv_dtype == settings.kv_dtype:
        return
    backend = next((name for name in layers.backends if "SPARSE" in name), layers.backends[0])
    if layers.kv_dtype == "fp8_ds_mla":
        yield f"the cache is kept as fp8_ds_mla, the layout of {backend}"


def _block(layers: Layers, settings: Settings) -> Iterator[str]:
    start = settings.block_size or DEFAULT_BLOCK_SIZE
    block = layers.block_size
    state = layers.state_page
    pages = [p.spec for p in layers.placed if p.spec.kind in ("full", "mla")]
    if state is not None and pages and block != start:
        step = (
            f", in steps of {layers.state_alignment} where FlashInfer's kernels leave checkpoints"
            if layers.state_alignment > 1
            else ""
        )
        yield (
            f"attention block raised from {start} to {format_count(block)} tokens so that its page"
            f" of one layer ({format_count(pages[0].page)} B) covers one state"
            f" ({format_count(state)} B){step}"
        )
    elif block != start and settings.block_size is None and layers.backends:
        yield f"blocks of {block} tokens: no smaller ones suit {' and '.join(layers.backends)}"


def _states(layers: Layers, settings: Settings) -> Iterator[str]:
    states = [p for p in layers.placed if p.spec.kind == "state"]
    if not states:
        return
    for spec in dict.fromkeys(p.spec for p in states):
        padding = spec.page - spec.entry
        if padding:
            yield (
                f"a state's page is widened from {format_count(spec.entry)} to"
                f" {format_count(spec.page)} B, the attention page"
                f" ({format_ratio(padding / spec.page)} of it is padding)"
            )
    slots = max(p.spec.slots for p in states)
    every = max(p.spec.every for p in states)
    if every:
        yield (
            "prefixes are cached with a state at every block (mamba_cache_mode all): a request"
            " takes as many blocks of every group of state layers as of attention"
        )
        return
    why = ["the running one"]
    if settings.prefix_caching:
        why.append("the last one at a block's end, as prefixes are cached")
        if slots > 2 + settings.proposed:
            why.append("one for a checkpoint inside a prefill")
    if settings.proposed:
        why.append(f"{settings.proposed} for proposed tokens")
    blocks = f"{format_number_of(slots, 'block')} a request in every group of state layers"
    yield f"{blocks}: {', '.join(why)}"
    if settings.prefix_caching:
        left = format_number_of(1 + settings.proposed, "block")
        yield f"without prefix caching (--no-enable-prefix-caching) it would be {left}"


def _windows(grouping: Grouping, settings: Settings) -> Iterator[str]:
    limits: dict[tuple[str, int, int], None] = {}
    for members in grouping.groups:
        spec = next((p.spec for p in members if p.spec.keeps_all), members[0].spec)
        if spec.keeps_all:
            yield (
                f"layers with a {'chunk' if spec.kind == 'chunk' else 'window'} of"
                f" {format_count(spec.limit)} tokens are given blocks for every token"
                + (" (pages cannot be made equal)" if grouping.fallback else "")
            )
        elif spec.kind in ("window", "chunk"):
            limits[spec.kind, spec.limit, spec.block] = None
    flight = settings.in_flight_tokens
    for kind, limit, _ in limits:
        room = limit + flight - (1 if kind == "window" else 0)
        if room >= settings.max_model_len:
            saves = f"at {format_count(settings.max_model_len)} tokens that saves nothing"
        else:
            saves = f"no more than {format_count(room)} tokens' blocks"
        yield (
            f"a {kind} of {format_count(limit)} keeps room for {format_count(flight)} tokens in"
            f" flight beside it ({_flight(settings)}): {saves}"
        )


def _flight(settings: Settings) -> str:
    """Say where the tokens in flight come from."""
    steps = settings.in_flight_tokens // settings.max_num_batched_tokens
    if steps == 1:
        return "max_num_batched_tokens"
    return f"{steps} steps of max_num_batched_tokens"


def _groups(grouping: Grouping) -> Iterator[str]:
    number = len(grouping.groups)
    if number == 1:
        return
    if grouping.group_size is not None:
        yield (
            f"{number} groups of {grouping.group_size} layers share block ids: a request takes its"
            " own blocks for each of them"
        )
    else:
        yield f"{number} groups of several page sizes share block ids, each as wide as the widest"
    if grouping.padding_layers:
        places = number * (grouping.group_size or 0)
        share = grouping.padding_layers / places
        yield (
            f"{grouping.padding_layers} of {places} places for layers are empty"
            f" ({format_ratio(share)} of the pool)"
        )
    blocks = {members[0].spec.block for members in grouping.groups if not _is_state(members)}
    if len(blocks) > 1 and grouping.group_size is not None:
        told = ", ".join(format_count(block) for block in sorted(blocks))
        yield f"blocks of {told} tokens make the pages of all layers equal"
    if grouping.padded:
        yield "pages of some attention layers are widened to the largest"


def _is_state(members: list[Placed]) -> bool:
    return members[0].spec.kind == "state"


def _speculation(settings: Settings) -> Iterator[str]:
    spec = settings.speculation
    if spec is None:
        return
    count = sum(run.count for run in spec.layers)
    if count:
        kept = "is" if count == 1 else "are"
        yield f"{format_number_of(count, 'draft layer')} {kept} kept too ({spec.method})"
    if spec.unweighed:
        yield f"the weights of what proposes tokens ({spec.method}) are not known, and not counted"
    if spec.lookahead:
        yield (
            f"a running request holds {format_number_of(spec.lookahead, 'slot')} beyond its tokens"
            " for those proposed; admission does not count them"
        )


def _split(
    model: ModelSpec, layers: Layers, ranks: tuple[Rank, ...], settings: Settings
) -> Iterator[str]:
    tp, dcp = settings.tp, settings.dcp
    replicas = {cache.replicas(tp) for _, cache in model.caches() if cache.rows()}
    copies = max(replicas, default=1) // dcp
    if copies > 1:
        part = " in part of the layers" if len(replicas) > 1 else ""
        yield f"{copies} of {tp} tensor-parallel ranks keep the same rows{part}"
    if dcp > 1:
        yield (
            f"{dcp} ranks share a sequence's tokens: a block of {format_count(layers.block_size)}"
            f" spans {format_count(layers.block_size * dcp)} of them"
        )
    if len(ranks) > 1:
        sizes = settings.partition or stage_sizes(model.num_hidden_layers, settings.pp)
        widths = [rank.pools[0].unit_bytes if rank.pools else 0 for rank in ranks]
        if len(set(widths)) == 1:
            yield f"{len(sizes)} stages have blocks of {format_count(widths[0])} B each"
        else:
            yield (
                f"{len(sizes)} stages of {_span(sizes)} layers have blocks of {_span(widths)} B;"
                " the widest decides how many there are, and the others leave memory unused"
            )
    if settings.num_gpu_blocks_override is not None:
        yield (
            f"num_gpu_blocks_override: {format_count(settings.num_gpu_blocks_override)} blocks,"
            " whatever memory there is"
        )


def _span(values: Sequence[int]) -> str:
    """Name every value of a few, else the least and the most."""
    if len(values) <= _FEW_STAGES:
        return " / ".join(format_count(value) for value in values)
    return f"{format_count(min(values))} to {format_count(max(values))}"


_FEW_STAGES = 4


def _encoder(layers: Layers, settings: Settings) -> Iterator[str]:
    cross = any(p.spec.kind == "cross" for p in layers.placed)
    if cross and settings.rules.declares_step:
        yield (
            "cross-attention layers are given blocks for"
            f" {format_count(settings.max_num_batched_tokens)} tokens, the largest step, whatever"
            " the encoder's own length"
        )


def convention(settings: Settings) -> tuple[str, ...]:
    """Return what the plan takes for granted."""
    step = (
        f"A step has {format_count(settings.max_num_batched_tokens)} tokens and"
        f" {format_count(settings.max_num_seqs)} sequences (`vllm serve` on {settings.card.name},"
        " unless given)."
    )
    kernels = (
        "FlashAttention, FlashInfer, FlashMLA and DeepGEMM are installed, as in vLLM's images."
    )
    null = "Block 0 is the null block: it is logged and allocated, and never handed out."
    return (step, kernels, null)
