"""Which layers share block ids: vLLM's groups, and the pages that it widens to make them.

vLLM 0.33 v1/core/kv_cache_planning.py: get_kv_cache_groups and what it calls. The first of these
that applies decides: equal specs, one type of spec, packed groups, pages made equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import cdiv, format_count
from kvcalc.engines.vllm.rules import Rules
from kvcalc.engines.vllm.specs import Placed, Spec

__all__ = ["Grouping", "group_layers"]


class Grouping(NamedTuple):
    """Groups of layers, and what was done to make them.

    Attributes:
        groups: per group, specs with the layers that have them.
        padding_layers: places of layers that the groups lack.
        padded: pages of an attention layer were widened to another's.
        fallback: windows are given blocks for every token, as their pages cannot be made equal.
        packed: blocks hold pages of several sizes side by side.
    """

    groups: list[list[Placed]]
    padding_layers: int = 0
    group_size: int | None = None
    padded: bool = False
    fallback: bool = False
    packed: bool = False


def group_layers(
    placed: Sequence[Placed], *, packed: bool, hybrid_manager: bool, rules: Rules
) -> Grouping:
    """Return the groups of a model's layers.

    Args:
        placed: specs in the order of the layers that first have them.
        packed: blocks hold pages of several sizes side by side.
        hybrid_manager: windows and chunks are freed; otherwise every layer keeps every token.
        rules: those of the release.

    Raises:
        UnsupportedError: vLLM refuses the combination.
    """
    specs = list(placed)
    if packed and not hybrid_manager:
        raise UnsupportedError(
            "vLLM cannot turn the hybrid cache manager off for DeepSeek-V4",
            hint="leave disable_hybrid_kv_cache_manager out",
            code="hybrid-manager-needed",
            setting="disable_hybrid_kv_cache_manager",
        )
    if not hybrid_manager or (
        not rules.local_chunks and any(p.spec.kind == "chunk" for p in specs)
    ):
        specs = _promoted(specs)
    if not specs:
        return Grouping([])
    if len({p.spec.one_group for p in specs}) == 1:
        return Grouping([specs])
    if _one_type(specs):
        return _of_one_type(specs, rules)
    if packed and len({p.spec.page for p in specs}) > 1:
        groups = _packed(_padded_windows(specs) if rules.pads_windows else specs)
        if not rules.spares_null_block:  # the order of the groups changed with the check: 0.29
            groups.sort(key=lambda members: members[0].spec.kind != "mla")
        return Grouping(groups, packed=True)
    return _of_equal_pages(specs, rules)


def _one_type(specs: Sequence[Placed]) -> bool:
    """UniformTypeKVCacheSpecs.is_uniform_type."""
    return len({p.spec.family for p in specs}) == 1


def _of_one_type(specs: list[Placed], rules: Rules) -> Grouping:
    """Return the one group of layers that hold equal tokens, whatever their pages.

    Raises:
        UnsupportedError: pages of several sizes, where the release does not take them.
    """
    if not rules.uniform_type and len({p.spec.page for p in specs}) > 1:
        raise UnsupportedError(
            "this release of vLLM wants pages of one size, and this model's differ by layer",
            hint="give a later version (0.11.0 or newer)",
            code="pages-not-equal",
        )
    return Grouping([specs])


def _promoted(specs: list[Placed]) -> list[Placed]:
    """Give windows and chunks blocks for every token: _promote_local_kv_cache_specs.

    Raises:
        UnsupportedError: states are among the layers.
    """
    if len({p.spec.one_group for p in specs}) == 1 or _one_type(specs):
        return specs
    full = {p.spec.block for p in specs if p.spec.kind in ("full", "mla")}
    local = ("window", "window_mla", "chunk")
    promoted = specs
    if full:
        promoted = []
        for p in specs:
            spec = p.spec
            if spec.kind in local:
                block = next(iter(full)) if len(full) == 1 else spec.block
                spec = spec.with_block(block)._replace(keeps_all=True)
            promoted.append(p._replace(spec=spec))
    if not _one_type(promoted):
        raise UnsupportedError(
            "vLLM cannot turn the hybrid cache manager off for this model: its layers cannot all"
            " keep every token",
            hint="leave disable_hybrid_kv_cache_manager out",
            code="hybrid-manager-needed",
            setting="disable_hybrid_kv_cache_manager",
        )
    return promoted


def _of_equal_pages(specs: list[Placed], rules: Rules) -> Grouping:
    """Return groups whose pages were made equal, or all layers in one if they cannot be.

    Raises:
        UnsupportedError: they cannot, and the release or the model has no such fallback.
    """
    try:
        equal, padded = _with_equal_pages(specs, rules)
    except UnsupportedError:
        promoted = _full_fallback(specs) if rules.full_fallback else None
        if promoted is None:
            raise
        return Grouping([promoted], fallback=True)
    return _of_equal_size(equal, rules, padded=padded)


def _full_fallback(specs: list[Placed]) -> list[Placed] | None:
    """_try_get_full_allocation_fallback_groups: MLA beside plain windows."""
    kinds = {p.spec.kind for p in specs}
    if kinds & {"window_mla", "chunk"} or not {"mla", "window"} <= kinds:
        return None
    try:
        return _promoted(specs)
    except UnsupportedError:
        return None


def _with_equal_pages(specs: list[Placed], rules: Rules) -> tuple[list[Placed], bool]:
    """Return specs of one page size: unify_kv_cache_spec_page_size.

    Raises:
        UnsupportedError: pages that no whole number of times fit the largest, where the release
            does not widen them.
    """
    largest = max(p.spec.page for p in specs)
    if not rules.page_unification and any(p.spec.page != largest for p in specs):
        raise UnsupportedError(
            "this release of vLLM wants pages of one size, and this model's differ by layer",
            hint="give a later version (0.12.0 or newer)",
            code="pages-not-equal",
        )
    equal, padded = [], False
    for p in specs:
        spec = p.spec
        if spec.page == largest:
            pass
        elif spec.kind == "state" and "state" in rules.pads_pages:
            spec = spec._replace(page=largest)
        elif largest % spec.page == 0:
            spec = spec.with_block(spec.block * (largest // spec.page))._replace(page=largest)
        elif _page_kind(spec) not in rules.pads_pages:
            raise UnsupportedError(
                f"pages of {format_count(spec.page)} B cannot be made {format_count(largest)} B,"
                " another layer's",
                hint="choose another block size or KV cache dtype",
                code="pages-not-equal",
            )
        else:
            spec, padded = spec._replace(page=largest), True
        equal.append(p._replace(spec=spec))
    return equal, padded


def _page_kind(spec: Spec) -> str:
    """Name a spec as rules.pads_pages does."""
    if spec.kind == "state":
        return "state"
    return "mla" if spec.kind in ("mla", "window_mla") else "heads"


def _of_equal_size(specs: list[Placed], rules: Rules, *, padded: bool) -> Grouping:
    """Deal the layers of each kind into groups of one size: _get_kv_cache_groups_uniform_page_size.

    Layers are dealt out in turn, so that a pipeline stage has its part of every group.
    """
    buckets: dict[tuple[object, ...], list[Placed]] = {}
    for p in specs:
        buckets.setdefault(p.spec.one_group, []).append(p)
    counts = {key: sum(len(p.layers) for p in bucket) for key, bucket in buckets.items()}
    size = rules.group_size(list(counts.values()))
    groups, missing = [], 0
    for key, bucket in buckets.items():
        number = cdiv(counts[key], size)
        missing += number * size - counts[key]
        each = [(layer, p) for p in bucket for layer in p.layers]
        for i in range(number):
            dealt = each[i::number]
            first = dealt[0][1]
            groups.append([first._replace(layers=[layer for layer, _ in dealt])])
    return Grouping(groups, padding_layers=missing, group_size=size, padded=padded)


def _padded_windows(specs: list[Placed]) -> list[Placed]:
    """Widen window pages to the next page of the compressed caches (until 0.26).

    group_and_unify_kv_cache_specs.
    """
    pages = sorted({p.spec.page for p in specs if p.spec.kind == "mla"})
    found = []
    for p in specs:
        wider = [page for page in pages if page >= p.spec.page]
        page = wider[0] if p.spec.kind == "window_mla" and wider else p.spec.page
        found.append(p._replace(spec=p.spec._replace(page=page)))
    return found


def _packed(specs: list[Placed]) -> list[list[Placed]]:
    """Groups whose pages of several sizes lie side by side: _get_packed_kv_cache_groups."""
    buckets: list[list[Placed]] = []
    for p in specs:
        for bucket in buckets:
            if bucket[0].spec.family == p.spec.family:
                bucket.append(p)
                break
        else:
            buckets.append([p])
    pages = [_layers_by_page(bucket) for bucket in buckets]
    balanced = [len({len(layers) for layers in by_page.values()}) == 1 for by_page in pages]
    most = [max(len(layers) for layers in by_page.values()) for by_page in pages]
    floor = max(
        (n for n, even, by_page in zip(most, balanced, pages, strict=True)
         if even and len(by_page) > 1),
        default=0,
    )  # fmt: skip
    repeats = None
    if floor:
        repeats = _closest_divisor(
            [n for n, even in zip(most, balanced, strict=True) if even], floor
        )
    numbers = [
        cdiv(n, repeats) if even and repeats is not None else 1
        for n, even in zip(most, balanced, strict=True)
    ]
    groups: list[list[Placed]] = []
    for bucket, number in zip(buckets, numbers, strict=True):
        for i in range(number):
            dealt = [p._replace(layers=p.layers[i::number]) for p in bucket]
            groups.append([p for p in dealt if p.layers])
    return groups


def _layers_by_page(bucket: list[Placed]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for p in bucket:
        found.setdefault(p.spec.page, []).extend(p.layers)
    return found


def _closest_divisor(values: list[int], least: int) -> int:
    """Return d of at least `least` for which rounding all values up to multiples adds the least.

    The largest of equals: _approximate_gcd.
    """
    best, fewest = least, None
    for d in range(least, max(values) + 1):
        added = sum(-value % d for value in values)
        if fewest is None or added <= fewest:
            best, fewest = d, added
    return best
