"""Which figures that agree could have disagreed: those alone speak for what kvcalc says.

A number of blocks that is read from a log and multiplied back agrees for any model. So the start is
planned once more with models that it is not: one of three times the layers (no size that is found
by trying powers of two makes up for that), one of twice the width of a head. Where each figure
agrees with those as well, nothing speaks for the model. Where some do not, those count, and so does
a figure that agrees with what the other lines of the log alone give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Fact, Predicted
from kvcalc.core.model import ModelSpec
from kvcalc.measure.logs.predict import agrees

__all__ = ["UNTOLD", "telling"]

UNTOLD = Fact(printed="", low=None, high=None, unit="text", line=0)
"""A figure that stands for one that is asked about and not known."""

_WIDTHS = ("head_dim", "v_head_dim", "kv_lora_rank")


Predict = Callable[[ModelSpec, Mapping[str, Fact]], Mapping[str, Predicted]]
"""Figures of another model, or of fewer facts, with what is derived from the log derived anew."""


def telling(
    model: ModelSpec,
    facts: Mapping[str, Fact],
    found: Mapping[str, Predicted],
    predict: Predict,
) -> frozenset[str]:
    """Return the names of figures that agree and could have disagreed.

    Args:
        model: of the start.
        facts: the log's figures.
        found: kvcalc's.
        predict: raises a KvcalcError where it cannot.
    """
    agreeing = {name for name, value in found.items() if name in facts
                and agrees(facts[name], value)}  # fmt: skip
    same = set(agreeing)
    for other in _others(model):
        if same:
            same &= _agreeing(predict, other, facts, facts)
    strong = agreeing - same
    if not strong:
        return frozenset()
    for line in {facts[name].line for name in same}:
        rest = {name: fact for name, fact in facts.items() if fact.line != line}
        mine = {name for name in same if facts[name].line == line}
        strong |= mine & _agreeing(predict, model, rest, facts)
    return frozenset(strong)


def _agreeing(
    predict: Predict, model: ModelSpec, known: Mapping[str, Fact], facts: Mapping[str, Fact]
) -> set[str]:
    """Return the names of figures that agree with those of a model by what is known of the log."""
    try:
        told = predict(model, {**known})
    except KvcalcError:
        return set(facts) if known is facts else set()
    return {name for name, value in told.items() if name in facts and agrees(facts[name], value)}


_MORE = 3


def _others(model: ModelSpec) -> Iterator[ModelSpec]:
    yield msgspec.structs.replace(
        model, layers=model.layers * _MORE, num_hidden_layers=model.num_hidden_layers * _MORE
    )
    wider = []
    for run in model.layers:
        caches = tuple(
            msgspec.structs.replace(
                cache,
                **{
                    name: 2 * size
                    for name in _WIDTHS
                    if isinstance(size := getattr(cache, name, None), int) and size
                },
            )
            for cache in run.caches
        )
        wider.append(msgspec.structs.replace(run, caches=caches))
    yield msgspec.structs.replace(model, layers=tuple(wider))
