"""What is still known after a condition that nobody can decide: what all of its ways agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kvcalc.manifests.shell.state import Segment, State, Value

__all__ = ["merge"]

_Each = TypeVar("_Each")


def merge(state: State, ends: Sequence[State]) -> None:
    """Keep of variables what the ways through a condition agree on."""
    going = [end for end in ends if not end.ended]
    if ends and not going:
        state.ended = ends[0].ended
    ends = going or ends
    if len(ends) == 1:
        state.values, state.arrays = ends[0].values, ends[0].arrays
        state.lines = ends[0].lines
        state.exported = ends[0].exported
        state.arguments = ends[0].arguments
        return
    for end in ends:
        state.lines.update(end.lines)
    names = {name for end in ends for name in (*end.values, *end.arrays)}
    for name in names:
        arrays = [end.arrays.get(name) for end in ends]
        if any(array is not None for array in arrays):
            common = _common([array or () for array in arrays])
            if any(array != common for array in arrays):
                written = f"${{{name}[@]}}"
                common = (*common, (Segment(written, (), (name,)),))
            state.arrays[name] = common
            state.values.pop(name, None)
            continue
        values = [end.values.get(name) for end in ends]
        if all(value == values[0] for value in values):
            state.values[name] = values[0] or ()
            continue
        begin = _beginning([value or () for value in values])
        if begin and begin[-1].unresolved == (name,):
            state.values[name] = begin
            continue
        blank = " " if begin else ""
        state.values[name] = (*begin, Segment(f"{blank}${{{name}}}", (), (name,)))
    state.exported = set().union(*(end.exported for end in ends))


def _beginning(values: Sequence[Value]) -> Value:
    """Return the shortest value where all others go on from it; nothing otherwise."""
    texts = ["".join(segment.text for segment in value) for value in values]
    shortest = min(range(len(texts)), key=lambda at: len(texts[at]))
    same = all(text.startswith(texts[shortest]) for text in texts)
    return values[shortest] if same else ()


def _common(values: Sequence[tuple[_Each, ...]]) -> tuple[_Each, ...]:
    """Return what all begin with."""
    count = 0
    for column in zip(*values, strict=False):
        if any(each != column[0] for each in column):
            break
        count += 1
    return values[0][:count]
