"""Which layer of a model keeps what, and where two models differ."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from itertools import groupby, zip_longest

from kvcalc.answers.results import LayerDiff, LayerDifference, LayerMap, LayerSpan
from kvcalc.core.dtypes import KvDtype
from kvcalc.core.explain import keeps_in_all
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec

__all__ = ["layer_diff", "layer_map"]

_LETTERS = {
    "full_attention": "F",
    "sliding_window": "w",
    "chunked_attention": "c",
    "mla": "M",
    "mla+indexer": "I",
    "mamba1": "s",
    "mamba2": "s",
    "gated_delta_net": "s",
    "kimi_delta_attention": "s",
    "lightning_attention": "s",
    "rg_lru": "s",
    "short_conv": "s",
    "rwkv": "s",
    "shared_kv": "-",
    "none": ".",
}
"""Kind -> the letter it gets where nothing else has it; the first letters of a shape to come."""

_Kept = tuple[tuple[Cache, ...], str]


def layer_map(model: ModelSpec, kv_cache_dtype: str = "auto") -> LayerMap:
    """Return which layer keeps what, as a strip of letters and as spans of equal layers.

    Raises:
        UnknownNameError: no such dtype.
        UnsupportedError: the dtype cannot pack a row of the model.
    """
    dtype = model.resolve(kv_cache_dtype)
    letters: dict[_Kept, str] = {}
    spans = tuple(_spans(model, model.layers, letters, dtype))
    draft = tuple(_spans(model, model.draft_layers, letters, dtype))
    return LayerMap(
        model=model.name,
        architecture=model.architecture,
        num_hidden_layers=model.num_hidden_layers,
        kv_cache_dtype=dtype.name,
        bytes_per_token=model.bytes_per_token(dtype),
        state_bytes=model.state_bytes(),
        strip="".join(span.letter * (span.last - span.first + 1) for span in spans),
        spans=spans,
        draft_spans=draft,
        notes=model.notes,
    )


def _spans(
    model: ModelSpec, runs: Iterable[LayerRun], letters: dict[_Kept, str], dtype: KvDtype
) -> Iterator[LayerSpan]:
    first = 0
    for run in runs:
        key = (run.caches, run.note)
        if key not in letters:
            letters[key] = _letter(run.label, set(letters.values()))
        alone = model.with_layers(1, run.caches)
        yield LayerSpan(
            first=first,
            last=first + run.count - 1,
            letter=letters[key],
            kind=run.label,
            shape=run.shape,
            keeps=keeps_in_all(run.caches),
            bytes_per_token=alone.bytes_per_token(dtype),
            state_bytes=alone.state_bytes(),
            note=run.note,
        )
        first += run.count


def _letter(label: str, taken: set[str]) -> str:
    """Return a letter for a kind: its own, else its first letters, else the next one free."""
    wanted = [*_LETTERS.get(label, ""), *label.upper(), *string.ascii_letters, *string.digits]
    return next((c for c in wanted if c not in taken and c not in "+_ "), "?")


def layer_diff(left: ModelSpec, right: ModelSpec, *, kv_cache_dtype: str = "auto") -> LayerDiff:
    """Return where two models' layers keep different things.

    Args:
        left: one model.
        right: the other.
        kv_cache_dtype: for the bytes a token; each model's own by default.
    """
    pairs = list(zip_longest(_each(left), _each(right), fillvalue=""))
    differences = []
    first = 0
    for (a, b), group in groupby(pairs):
        count = len(list(group))
        if a != b:
            differences.append(
                LayerDifference(first=first, last=first + count - 1, left=a, right=b)
            )
        first += count
    return LayerDiff(
        left=left.name,
        right=right.name,
        kv_cache_dtype=(left.resolve(kv_cache_dtype).name, right.resolve(kv_cache_dtype).name),
        equal_layers=sum(a == b for a, b in pairs),
        differences=tuple(differences),
        bytes_per_token=(
            left.bytes_per_token(kv_cache_dtype),
            right.bytes_per_token(kv_cache_dtype),
        ),
        state_bytes=(left.state_bytes(), right.state_bytes()),
    )


def _each(model: ModelSpec) -> Iterator[str]:
    """Yield what every layer keeps, in words."""
    for run in model.layers:
        words = f"{run.label}: {run.shape}, {keeps_in_all(run.caches)}" if run.caches else "nothing"
        yield from [words] * run.count
