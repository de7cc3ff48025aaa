"""The entries under `layers` in a preset, and the runs of layers that they stand for.

{count: N, kind: KIND, ...fields of that kind, note: why}    N layers that keep one cache
{count: N, caches: [{kind: KIND, ...}, ...], note: why}      several caches, or none
{repeat: N, layers: [...entries without repeat]}             a pattern, N times
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kvcalc.core.layers import CACHE_KINDS, MAX_LAYERS, Cache, LayerRun, merge_runs
from kvcalc.core.values import Positive, Value
from kvcalc.models.documents import KeyPath, Plain
from kvcalc.models.faults import Faults, named, unknown
from kvcalc.models.text import shown

__all__ = ["read_layers"]


class _Run(Value, frozen=True, kw_only=True):
    """What every entry may say beside its caches."""

    count: Positive = 1
    note: str = ""


class _Repeat(Value, frozen=True, kw_only=True):
    """A pattern of entries."""

    repeat: Positive
    layers: list[object]


def read_layers(entries: Sequence[Plain], path: KeyPath, faults: Faults) -> tuple[LayerRun, ...]:
    """Return the runs that entries stand for, in order, equal neighbours merged.

    What cannot be read is noted in `faults`, and the result is then not to be used.
    """
    runs: list[LayerRun] = []
    total = 0
    for index, entry in enumerate(entries):
        at = (*path, index)
        read, times = _read_entry(entry, at, faults)
        total += times * sum(run.count for run in read)
        if total > MAX_LAYERS:
            faults.add(at, f"the layers up to here are {total}; at most {MAX_LAYERS} are read")
            return ()
        for _ in range(times):
            runs.extend(read)
    return merge_runs(runs)


def _read_entry(entry: Plain, path: KeyPath, faults: Faults) -> tuple[list[LayerRun], int]:
    """Return the runs of one entry and how often they follow one another."""
    if not isinstance(entry, dict) or not ("repeat" in entry or "layers" in entry):
        run = _read_run(entry, path, faults)
        return ([run] if run else []), 1
    repeat = faults.convert(entry, _Repeat, path)
    if repeat is None:
        return [], 1
    if not repeat.layers:
        faults.add((*path, "layers"), "a repeat of no layers")
    runs = []
    for index, inner in enumerate(repeat.layers):
        at = (*path, "layers", index)
        if isinstance(inner, dict) and "repeat" in inner:
            faults.add(at, "a repeat inside a repeat; write the inner entries out")
        elif run := _read_run(cast(Plain, inner), at, faults):
            runs.append(run)
    return runs, repeat.repeat


def _read_run(entry: Plain, path: KeyPath, faults: Faults) -> LayerRun | None:
    if not isinstance(entry, dict):
        faults.add(path, f"{named(path)} must be a mapping, not {shown(entry)}")
        return None
    before = len(faults)
    beside = {name: entry[name] for name in _Run.__struct_fields__ if name in entry}
    run = faults.convert(beside, _Run, path)
    rest = {name: item for name, item in entry.items() if name not in beside}
    caches: list[Cache | None] = []
    if "caches" in rest:
        caches = _read_caches(rest, path, faults)
        if not caches and len(faults) == before and run and not run.note:
            faults.add(path, "a layer that keeps nothing needs a note that says why")
    else:
        caches = [_read_cache(rest, path, faults, beside=_Run.__struct_fields__)]
    if run is None or len(faults) > before:
        return None
    kept = tuple(cache for cache in caches if cache is not None)
    return LayerRun(count=run.count, caches=kept, note=run.note)


def _read_caches(rest: dict[str, Plain], path: KeyPath, faults: Faults) -> list[Cache | None]:
    for name in rest:
        if name != "caches":
            message = "beside caches: the fields of a cache belong into an entry of them"
            faults.add((*path, name), f"{shown(name)} {message}")
    entries = rest["caches"]
    at = (*path, "caches")
    if not isinstance(entries, list):
        faults.add(at, f"caches must be a list, not {shown(entries)}")
        return []
    return [_read_cache(entry, (*at, index), faults) for index, entry in enumerate(entries)]


def _read_cache(
    entry: Plain, path: KeyPath, faults: Faults, beside: tuple[str, ...] = ()
) -> Cache | None:
    if not isinstance(entry, dict):
        faults.add(path, f"{named(path)} must be a mapping, not {shown(entry)}")
        return None
    if "kind" not in entry:
        known = ", ".join(sorted(CACHE_KINDS))
        faults.add(path, f"kind is missing; it is one of {known}, or give caches")
        return None
    kind = entry["kind"]
    if not isinstance(kind, str) or kind not in CACHE_KINDS:
        faults.add((*path, "kind"), unknown("kind", kind, CACHE_KINDS))
        return None
    fields = {name: item for name, item in entry.items() if name != "kind"}
    return faults.convert(fields, CACHE_KINDS[kind], path, ("kind", *beside))
