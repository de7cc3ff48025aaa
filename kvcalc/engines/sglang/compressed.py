"""DeepSeek-V4: pages of 256 tokens, of which windows, entries and waiting tokens each have a pool.

SGLang 0.5.23 model_executor/pool_configurator.py (DSV4PoolConfigurator) and
mem_cache/deepseek_v4_memory_pool.py, deepseek_v4_compress_state.py (the pools), asked on a CPU
(tests/engines/sglang/ask.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcalc.core.attention import CompressedAttention, Indexer, SlidingMla
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnknownReleaseError, UnsupportedError
from kvcalc.core.kind import CacheBase
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Group, Pool, Rank
from kvcalc.core.plan import Rows as RuleRows
from kvcalc.core.rules import Compressed, Slots, Window
from kvcalc.core.sizing import Sized, TokenBudget
from kvcalc.core.units import round_up
from kvcalc.engines.sglang.requests import table_bytes
from kvcalc.engines.sglang.settings import Settings

__all__ = ["RATIOS", "check_compressed", "compressed_ranks"]

RATIOS = (4, 128)
"""Tokens an entry stands for."""

_ALIGNMENT = 576
_RING = {4: 8, 128: 128}
"""Ratio -> tokens that wait to be folded; twice as many where tokens are proposed."""

_MOST_PROPOSED = 10
"""Tokens that a ring of 16 serves: get_compress_state_write_pad."""


def check_compressed(model: ModelSpec, settings: Settings) -> None:
    """Refuse what SGLang does not do for DeepSeek-V4, or what is not modelled here.

    Raises:
        UnsupportedError: naming the cache or the setting.
    """
    kinds = {cache.kind for _, cache in model.caches()}
    odd = kinds - {"sliding_mla", "compressed_attention", "indexer"}
    ratios = {
        cache.compress_ratio
        for _, cache in model.caches()
        if isinstance(cache, (CompressedAttention, Indexer))
    }
    if odd or not ratios <= set(RATIOS) or "sliding_mla" not in kinds:
        raise NotModelledError(
            f"SGLang's pools of compressed attention are not modelled for {model.name}:"
            f" {', '.join(sorted(odd)) or f'one entry in {max(ratios, default=1)} tokens'}",
            hint="use --engine none for the model's own arithmetic, or --engine vllm",
        )
    if not settings.release.newest:
        raise UnknownReleaseError(
            f"SGLang {settings.release}'s pools of compressed attention were not read",
            hint="leave the engine's version out",
        )
    if settings.dcp > 1:
        raise NotModelledError(
            "decode context parallelism of compressed attention is not modelled for SGLang",
            hint="use a decode context parallel size of 1",
        )
    spec = settings.speculation
    if spec is None:
        return
    if spec.algorithm != "EAGLE" or spec.topk != 1:
        raise UnsupportedError(
            f"SGLang proposes tokens for {model.name} by EAGLE with one branch alone",
            hint="use the model's own layers that propose (mtp)",
            code="speculation-settings",
            setting="speculative_algorithm",
        )
    if any(not isinstance(c, SlidingMla) for run in spec.layers for c in run.caches):
        raise NotModelledError(
            f"a draft model of another kind than {model.name} is not modelled for SGLang",
            hint="use the model's own layers that propose (mtp)",
        )
    if spec.tokens > _MOST_PROPOSED:
        raise UnsupportedError(
            f"{spec.tokens} tokens verified at once: SGLang keeps {_MOST_PROPOSED} of {model.name}"
            " at most",
            hint=f"propose at most {_MOST_PROPOSED - 1}",
            code="speculation-settings",
            setting="speculative_algorithm",
        )


class _Share:
    """What the layers of a stage keep, all of them together.

    Attributes:
        window: tokens of the window.
        rows: bytes of a window's token by role; `page` of a page of them.
        entries: ratio -> bytes of an entry by role; `entry_pages` of a page of them.
        waiting: ratio -> bytes of a token that waits to be folded.
        charged: bytes that a token is charged for entries; index keys as the fp8 ones that they
            are by default.
    """

    def __init__(self, runs: tuple[LayerRun, ...], settings: Settings) -> None:
        self.window, self.page, self.charged = 1, 0, 0.0
        self.rows: dict[str, int] = {}
        self.entries: dict[int, dict[str, int]] = {}
        self.entry_pages: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.layers: dict[int, int] = {}
        for run in runs:
            for cache in run.caches:
                self._add(cache, run.count, settings)

    def _add(self, cache: CacheBase, count: int, settings: Settings) -> None:
        size: dict[str, int] = {
            row.role: settings.layout.dtype.bytes_of(row) for row in cache.rows()
        }
        if isinstance(cache, SlidingMla):
            self.window = cache.sliding_window
            self.page += count * _page(sum(size.values()), settings.page, settings)
            self._pile(self.rows, size, count)
            self.layers[1] = self.layers.get(1, 0) + count
            return
        if not isinstance(cache, (CompressedAttention, Indexer)):
            return
        ratio = cache.compress_ratio
        places = settings.page // ratio
        if isinstance(cache, Indexer):
            self.charged += count * size["index"] / ratio
            if settings.fp4_indexer:
                # Four bits an element, and a byte of scale for 32 of them.
                size = {"index": cache.index_head_dim // 2 + cache.index_head_dim // 32}
            page = places * size["index"]
        else:
            self.layers[ratio] = self.layers.get(ratio, 0) + count
            page = _page(sum(size.values()), places, settings)
            self.charged += count * page / places / ratio
        self._pile(self.entries.setdefault(ratio, {}), size, count)
        self.entry_pages[ratio] = self.entry_pages.get(ratio, 0) + count * page
        (state,) = cache.states()
        token = state.elements // state.shape[1] * element_bytes(settings.waiting_dtype)
        self.waiting[ratio] = self.waiting.get(ratio, 0) + count * token

    @staticmethod
    def _pile(into: dict[str, int], size: dict[str, int], count: int) -> None:
        for role, one in size.items():
            into[role] = into.get(role, 0) + count * one


def _page(row: int, rows: int, settings: Settings) -> int:
    """Bytes of a page of one layer, which FlashMLA's kernels read in steps of 576 B."""
    return row * rows if settings.whole_fp8 else round_up(row * rows, _ALIGNMENT)


def _ring(ratio: int, settings: Settings) -> int:
    """Tokens of a ring of those that wait: resolve_compress_state_ring_size."""
    return _RING[ratio] * (2 if settings.proposed else 1)


def compressed_ranks(
    model: ModelSpec, settings: Settings, sizes: Callable[[int, int], tuple[int, ...]]
) -> tuple[Rank, ...]:
    """Return one rank a pipeline stage.

    Args:
        model: as SGLang runs it.
        settings: as resolved.
        sizes: (layers, stages) -> the layers of each stage.
    """
    stages = model.stages(settings.pp, sizes(model.num_hidden_layers, settings.pp))
    drafted = settings.speculation.layers if settings.speculation else ()
    return tuple(
        _rank(
            f"stage {number}" if len(stages) > 1 else "rank",
            stage,
            drafted if stage is stages[-1] else (),
            settings,
        )
        for number, stage in enumerate(stages)
    )


def _rank(name: str, stage: ModelSpec, drafted: tuple[LayerRun, ...], settings: Settings) -> Rank:
    share = _Share(stage.layers, settings)
    requests = settings.max_requests or 1
    waiting = list(_waiting_pools(share, settings))
    pools = [*_entry_pools(share, settings), _window_pool("window tokens", share, settings)]
    if drafted:
        pools.append(_window_pool("draft window tokens", _Share(drafted, settings), settings))
    # Rings of four are padded by four tokens beyond those of the page that no request gets.
    padding = 4 * share.waiting.get(4, 0)
    table = table_bytes(requests, settings.context + settings.row_extra)
    return Rank(
        name=name,
        share=stage,
        pools=(*pools, *waiting),
        multiplicity=settings.attn_tp,
        fixed_bytes=_RING[128] * share.waiting.get(128, 0),
        outside_bytes=table + padding,
        sizing=TokenBudget(
            page_tokens=settings.page,
            token_bytes=0,
            price=_price(share, settings),
            window_ratio=settings.window_ratio,
            max_tokens=settings.max_tokens,
            paid_bytes=sum(pool.total_bytes(requests) for pool in waiting),
            requests=requests,
        ),
    )


def _price(share: _Share, settings: Settings) -> float:
    """Bytes that a token is charged, in floating point: _get_bytes_per_full_token."""
    layers = share.layers[1]
    window = share.page / settings.page
    window += _ring(4, settings) / settings.page * share.waiting.get(4, 0)
    more = (layers + 1) / layers if settings.proposed else 1.0
    return (settings.window_ratio * window + share.charged) * more


def _entry_pools(share: _Share, settings: Settings) -> Iterator[Pool]:
    """Yield the pools of entries, which have a page of 256 entries that no request gets."""
    for ratio in RATIOS:
        if ratio not in share.entries:
            continue
        places = settings.page // ratio
        group = Group(
            name=f"entries of {ratio}",
            layers=share.layers[ratio],
            rule=Compressed(block_entries=places, ratio=ratio),
            payload=share.entries[ratio],
            unit_bytes=share.entry_pages[ratio],
            block_size=settings.page,
        )
        yield _pool(f"entries of {ratio} tokens", group, "tokens", ratio)


def _window_pool(name: str, share: _Share, settings: Settings) -> Pool:
    """Return the windows' pool; beside each page lies the ring of the entry of 4 in the making."""
    rule = Window(block_tokens=settings.page, window=share.window, extra_blocks=1)
    token, ring = share.waiting.get(4, 0), _ring(4, settings)
    beside = RuleRows(rule=Slots(beside=rule), payload={"compressor": _RING[4] * token})
    group = Group(
        name=f"window {share.window}",
        layers=share.layers[1],
        rule=rule,
        payload=share.rows,
        unit_bytes=share.page + ring * token,
        lookahead_bytes=(ring - _RING[4]) * token,
        also=(beside,) if token else (),
        block_size=settings.page,
    )
    return _pool(name, group, "window", 1)


def _waiting_pools(share: _Share, settings: Settings) -> Iterator[Pool]:
    """Yield the rings of the entries of 128 in the making: one a request, and two more."""
    token = share.waiting.get(128, 0)
    if not token:
        return
    ring = _ring(128, settings)
    group = Group(
        name="entry of 128 in the making",
        layers=share.layers[128],
        rule=Slots(),
        payload={"compressor": _RING[128] * token},
        unit_bytes=ring * token,
        lookahead_bytes=(ring - _RING[128]) * token,
    )
    yield _pool("states", group, "requests", 2)


def _pool(name: str, group: Group, sized: Sized, reserved: int) -> Pool:
    return Pool(
        name=name,
        groups=(group,),
        unit_bytes=group.unit_bytes,
        reserved_units=reserved,
        reserved_is_extra=True,
        sized=sized,
    )
