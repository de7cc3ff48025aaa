"""Continuous batching: sectors of one flat tensor, blocks of the layers of one kind.

transformers 5.24 generation/continuous_batching/cache.py, PagedAttentionCache, and
cache_allocators/.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InvalidValueError, NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Grow, Rule, Window
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.transformers.settings import Settings

__all__ = ["plan_paged"]


_DEFAULT_PAGE_SIZE = 256
_SMALLEST_PAGE_SIZE = 4
_ALIGNMENT = 128
_TRASH_SECTORS = 2


def plan_paged(model: ModelSpec, settings: Settings, notes: list[str]) -> CachePlan:
    """Return the plan of continuous batching for one rank's model.

    Args:
        model: as one rank holds it.
        settings: page size, number of blocks.
        notes: lines on what was assumed so far; more are added.

    Raises:
        UnsupportedError: layers that PagedAttentionCache has no allocator for, or a release whose
            rules are not known.
    """
    if not settings.release.has_sectors:
        raise NotModelledError(
            f"continuous batching of transformers {settings.release} is not modelled",
            hint="5.23 and 5.24 are",
        )
    page = settings.page_size or _DEFAULT_PAGE_SIZE
    if page < _SMALLEST_PAGE_SIZE:
        raise InvalidValueError(f"page_size {page} is less than {_SMALLEST_PAGE_SIZE}")
    heads, head_dim, counts = _kinds(model)
    page_bytes = 2 * heads * head_dim * element_bytes(model.dtype) * page
    blocks = {window: count * page_bytes for window, count in counts.items()}
    sector = lcm(*blocks.values(), _ALIGNMENT)
    whole_block = model.num_hidden_layers * page_bytes
    shape = Shape(
        heads=heads,
        head_dim=head_dim,
        itemsize=element_bytes(model.dtype),
        kinds=len(counts),
        windows=any(window is not None for window in counts),
        sector_bytes=sector,
        sector_tokens=max(sector // size * page for size in blocks.values()),
    )
    sectors = _sectors(model, settings, shape, whole_block)
    notes.append(
        f"a sector is {format_count(sector)} B, the least common multiple of the kinds' blocks and"
        f" {_ALIGNMENT} B; two more are trash"
    )
    groups = tuple(_group(window, counts[window], size, page) for window, size in blocks.items())
    if len(groups) == 1:
        pools: tuple[Pool, ...] = (
            Pool(
                name="sectors",
                groups=groups,
                unit_bytes=sector,
                units=None if sectors is None else sectors + _TRASH_SECTORS,
                reserved_units=_TRASH_SECTORS,
            ),
        )
        fixed = 0
    else:
        if sectors is not None:
            notes.append(
                f"{format_count(sectors)} sectors,"
                f" {format_count((sectors + _TRASH_SECTORS) * sector)} B with the trash"
            )
        pools = tuple(Pool(name=g.name, groups=(g,), unit_bytes=g.unit_bytes) for g in groups)
        fixed = _TRASH_SECTORS * sector
    shares = settings.arguments.switch("allow_block_sharing") is not False
    return CachePlan(
        engine="transformers",
        engine_version=str(settings.release),
        model=model.name,
        kv_cache_dtype=model.dtype,
        model_dtype=model.dtype,
        block_size=page,
        ranks=(
            Rank(
                name="rank",
                share=model,
                pools=pools,
                multiplicity=settings.tp,
                fixed_bytes=fixed,
            ),
        ),
        split="one_pool" if len(pools) == 1 else "fungible",
        max_model_len=settings.max_model_len,
        start="never_checks",
        reuse_tokens=page if shares and set(counts) == {None} else None,
        notes=tuple(notes),
        unsupported=tuple(_not_modelled(groups, shape, sectors)),
        convention=(
            "The bytes given are those of the cache's tensor, its two trash sectors included.",
        ),
        source=f"transformers {settings.release}: generation/continuous_batching/cache.py",
    )


def _kinds(model: ModelSpec) -> tuple[int, int, dict[int | None, int]]:
    """Return heads, head size, and layers by window (None: every token)."""
    shapes = set()
    counts: dict[int | None, int] = {}
    for run in model.layers:
        cache = run.caches[0] if len(run.caches) == 1 else None
        if not isinstance(cache, (FullAttention, SlidingWindow)) or cache.v_head_dim not in (
            None,
            cache.head_dim,
        ):
            raise UnsupportedError(
                "continuous batching has allocators for full and sliding attention alone, and"
                f" {model.name} has layers that keep {run.label}",
                hint="use the dynamic or the static cache",
            )
        shapes.add((cache.num_kv_heads, cache.head_dim))
        window = cache.sliding_window if isinstance(cache, SlidingWindow) else None
        counts[window] = counts.get(window, 0) + run.count
    if len(shapes) > 1 or len([w for w in counts if w is not None]) > 1:
        raise UnsupportedError(
            "continuous batching takes one head size, one number of KV heads and one window for"
            f" all layers, and the layers of {model.name} differ",
            hint="use the dynamic or the static cache",
        )
    ((heads, head_dim),) = shapes
    return heads, head_dim, counts


def _group(window: int | None, layers: int, size: int, page: int) -> Group:
    rule: Rule = Grow(block_tokens=page)
    name = "full attention"
    if window is not None:
        rule = Window(block_tokens=page, window=window, in_flight=1, ring=True)
        name = f"window {window}"
    half = size // page // 2
    return Group(
        name=name,
        layers=layers,
        rule=rule,
        payload={"k": half, "v": half},
        unit_bytes=size,
        block_size=page,
    )


def _sectors(model: ModelSpec, settings: Settings, shape: Shape, block_bytes: int) -> int | None:
    """Return how many sectors the settings fix; None where a budget decides."""
    blocks = settings.arguments.number("num_blocks")
    available = settings.arguments.number("available_memory")
    if blocks is not None and available is not None:
        raise InvalidValueError(
            "num_blocks and available_memory both say how many sectors there are",
            hint="give one of them",
        )
    if blocks is not None:
        return max(1, cdiv(blocks * block_bytes, shape.sector_bytes))
    if available is not None:
        return sectors_in(available, memory_of(model, shape, settings))
    return None


def _not_modelled(groups: tuple[Group, ...], shape: Shape, sectors: int | None) -> list[str]:
    found = []
    if len(groups) > 1:
        found.append(
            "a sector belongs to one kind of layer at a time: blocks are counted here, and each"
            f" kind can leave up to one sector ({format_count(shape.sector_bytes)} B) partly empty"
        )
    if sectors is None:
        read = 2 * shape.heads * shape.head_dim * shape.itemsize + 8 * shape.kinds
        found.append(
            "what max_memory_percent leaves for the cache is told by available_memory, hidden_size"
            " and vocab_size in engine_args: with flash attention a sector takes at least"
            f" {format_count(shape.sector_tokens * read)} B more for reading it back"
        )
    return found


# How much of the free memory becomes sectors: transformers 5.24 PagedAttentionMemoryHandler.

_DEFAULT_BATCH_TOKENS = 8192
_DEFAULT_REQUESTS = 1024
_DEFAULT_BLOCKS_PER_REQUEST = 32
_INT32, _INT64, _FLOAT32 = 4, 8, 4
_INPUT_ROWS = 7
"""Rows of int32 of the tensor that carries a batch's inputs (input_outputs.py, bulk_input)."""


class Shape(NamedTuple):
    """What the cache's geometry is on one rank.

    Attributes:
        heads, head_dim, itemsize: KV heads, their size, bytes an element.
        kinds: kinds of layers (full, sliding).
        windows: one of them is sliding.
        sector_bytes, sector_tokens: a sector, and the most tokens that one can hold.
    """

    heads: int
    head_dim: int
    itemsize: int
    kinds: int
    windows: bool
    sector_bytes: int
    sector_tokens: int


class Memory(NamedTuple):
    """What competes with sectors, in bytes.

    Attributes:
        fixed: trash sectors, and rows of logits.
        batch: input and activation tensors of all batch tokens.
        sector: a sector with what reading it back takes.
        mask_fixed: attention masks of the batch's own tokens.
        mask_sector: what a sector adds to the masks.
    """

    fixed: int
    batch: int
    sector: int
    mask_fixed: int
    mask_sector: int


def memory_of(model: ModelSpec, shape: Shape, settings: Settings) -> Memory:
    """Return what sectors compete with.

    Raises:
        UnsupportedError: the hidden or vocabulary size was not given.
    """
    given = settings.arguments
    hidden, vocab = given.number("hidden_size"), given.number("vocab_size")
    query_heads = model.num_attention_heads
    if hidden is None or vocab is None or query_heads is None:
        raise NotModelledError(
            "available_memory pays for activations too, and the layers do not tell their width",
            hint="give hidden_size and vocab_size of config.json in engine_args",
        )
    query_heads //= settings.tp
    flash = (given.text("attn_implementation") or "flash_attention_2").startswith("flash")
    tokens = given.number("max_batch_tokens") or _DEFAULT_BATCH_TOKENS
    doubled = given.switch("use_async_batching")
    ios = 2 if (flash if doubled is None else doubled) else 1
    rows_out = 2 if given.switch("return_logprobs") else 1
    table = given.number("max_blocks_per_request", 0)
    if shape.windows or not flash:
        table = 0  # the fast decode path is not available
    elif table is None:
        table = _DEFAULT_BLOCKS_PER_REQUEST
    size = shape.itemsize
    at_peak = 2 * shape.heads if flash else 2 * query_heads + shape.heads
    sliced = given.switch("logits_to_keep") is not False
    logits_row = hidden * size + vocab * _FLOAT32
    attention = size * (hidden + (query_heads + 2 * shape.heads + at_peak) * shape.head_dim)
    peak = attention if sliced else max(logits_row, attention)
    inputs = ios * (
        (_INPUT_ROWS + rows_out) * _INT32 + shape.kinds * table * _INT32 + 2 * shape.kinds * _INT64
    )
    requests = given.number("max_requests_per_batch") or _DEFAULT_REQUESTS
    read_back = at_peak * shape.head_dim * size + ios * shape.kinds * _INT64
    masks = 0 if flash else ios * (2 if shape.windows else 1) * size * tokens
    return Memory(
        fixed=2 * shape.sector_bytes + (requests * logits_row if sliced else 0),
        batch=tokens * (peak + inputs),
        sector=shape.sector_bytes + shape.sector_tokens * read_back,
        mask_fixed=masks * tokens,
        mask_sector=masks * shape.sector_tokens,
    )


def sectors_in(available: int, memory: Memory) -> int:
    """Return the sectors that so many bytes leave room for.

    Raises:
        UnsupportedError: not one; transformers refuses to start.
    """
    count = (available - memory.fixed - memory.batch) // memory.sector
    masks = memory.mask_fixed + memory.mask_sector * count
    count -= cdiv(masks, memory.sector + memory.mask_sector)
    if count < 1:
        raise UnsupportedError(
            f"{available} B leave no room for a sector beside {memory.fixed + memory.batch} B of"
            " activations",
            hint="give more memory or fewer max_batch_tokens",
        )
    return count
