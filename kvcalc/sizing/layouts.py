"""The same GPUs in other ways: tensor ranks, stages and replicas side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcalc.answers.capacity import Layout
from kvcalc.core.errors import InvalidValueError, KvcalcError
from kvcalc.core.model import stage_sizes
from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change, changed
from kvcalc.engines.engine import Sizes
from kvcalc.sizing.figured import figured
from kvcalc.sizing.figures import alone, figures, totals
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.sizes import OWN_SIZES

__all__ = ["layouts"]

_MOST_GPUS = 256
"""GPUs whose layouts are tried: each is planned anew."""
_MOST_MOVES = 8
"""Layers that are moved from stage to stage at most."""


def layouts(question: Question, num_gpus: int) -> tuple[Layout, ...]:
    """Return every way to serve a model on so many GPUs, the one with the most sequences first.

    Raises:
        InvalidValueError: more GPUs than are tried.
    """
    if num_gpus > _MOST_GPUS:
        raise InvalidValueError(
            f"layouts of {num_gpus} GPUs are too many to try",
            hint=f"ask for those of {_MOST_GPUS} GPUs at most: replicas are alike",
        )
    # Sizes in an engine's own words would stand beside those of each way.
    own = changed(question.deployment, {}, dict.fromkeys(OWN_SIZES))
    question = question._replace(deployment=own)
    found = [_layout(question, change) for change in _ways(question, num_gpus)]
    found += [
        _layout(question, better)
        for change in _ways(question, num_gpus)
        if (better := better_split(question, change)) is not None
    ]
    return tuple(sorted(found, key=lambda way: (way.figures is None, -way.max_concurrency)))


def _ways(question: Question, num_gpus: int) -> Iterator[Change]:
    engine = engine_of(question.deployment.engine)
    for tp in range(1, num_gpus + 1):
        if num_gpus % tp:
            continue
        for pp in range(1, num_gpus // tp + 1):
            if num_gpus // tp % pp:
                continue
            dp = num_gpus // tp // pp
            settings: dict[str, Any] = {
                "tensor_parallel_size": tp,
                "pipeline_parallel_size": pp,
                "data_parallel_size": dp,
            }
            layout = Change(_name(tp, pp, dp), settings)
            yield layout
            yield from engine.layouts(layout, Sizes(tp, pp, dp))


def better_split(question: Question, change: Change) -> Change | None:
    """Return a layout with its layers shared out better over its pipeline stages; None: none is.

    A layer at a time goes from the stage that binds to the one with the most room, as long as more
    sequences fit. The first stage has the embedding beside its layers, the last one the head.
    """
    asked = change.applied(question)
    pp = asked.deployment.pipeline_parallel_size
    layers = question.model.num_hidden_layers
    setting = engine_of(asked.deployment.engine).layer_partition
    if pp == 1 or setting is None or layers < 2 * pp:
        return None
    sizes = list(stage_sizes(layers, pp))
    best, found = -1.0, None
    for _ in range(_MOST_MOVES):
        told = Change(
            f"{change.name} in {'+'.join(map(str, sizes))} layers",
            change.settings,
            {setting: ",".join(map(str, sizes))},
        )
        try:
            done = work(told.applied(question))
            served = figures(done, "middle").max_concurrency
        except KvcalcError:
            return found
        if served <= best or not isinstance(done.middle, tuple):
            return found
        if best >= 0:  # the first is the split that the engine makes by itself
            found = told
        best = served
        room = [
            budget / max(1, rank.bytes_needed(done.plan.max_model_len))
            for budget, rank in zip(done.middle, done.plan.ranks, strict=True)
        ]
        sizes[room.index(min(room))] -= 1
        sizes[room.index(max(room))] += 1
        if min(sizes) < 1:
            return found
    return found


def _name(tp: int, pp: int, dp: int) -> str:
    each = "".join(f"{word}{size}" for word, size in (("TP", tp), ("PP", pp)) if size > 1)
    return f"{dp} x {each or '1 GPU'}"


def _layout(question: Question, change: Change) -> Layout:
    asked = change.applied(question)
    try:
        done = work(asked)
        refusal = done.refusal()
        if refusal is not None:
            return _refused(change, refusal.why)
        found = figured(asked, done, "middle")
        whole = totals(asked, done.plan, alone(asked, done.plan), found)
    except KvcalcError as error:
        return _refused(change, error.message)
    return Layout(
        name=change.name,
        flags=change.flags,
        figures=found,
        kv_cache_tokens=whole.kv_cache_tokens,
        max_concurrency=whole.max_concurrency,
        duplication_factor=whole.duplication_factor,
        why_not=None,
    )


def _refused(change: Change, why: str) -> Layout:
    return Layout(
        name=change.name,
        flags=change.flags,
        figures=None,
        kv_cache_tokens=0,
        max_concurrency=0.0,
        duplication_factor=None,
        why_not=why,
    )
