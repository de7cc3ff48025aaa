"""What a caller says of a server against what its page says: the model's name, and settings.

What is given counts, so that a question can be asked of another model or setting than the page's;
that it is another is a difference all the same. A block size alone does not count against the
page's: the page counts its cache in blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.server_metrics import MetricsDifference, ServerMetrics
from kvcalc.core.units import format_count
from kvcalc.engines import plan
from kvcalc.models.presets import alias_index, load_model_preset
from kvcalc.models.text import printable

__all__ = ["Stated", "known_dtype", "stated"]

Stated = MetricsDifference | str
"""A difference, or the name of what is the same."""

_DTYPES = {"fp8_inc": "fp8", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""vLLM's names of cache dtypes that kvcalc spells otherwise."""

_PLAIN = ("enable_prefix_caching", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
"""Settings that a page tells as they are given."""

_LONGEST_NAME = 200
_LENGTHS = (1, 4_096, 131_072)
"""Sequences that two models which are the same keep as many bytes of."""


def known_dtype(told: str) -> str:
    """Return kvcalc's name of a cache dtype that a page tells."""
    return _DTYPES.get(told, told)


def stated(
    server: ServerMetrics,
    model: ModelSpec,
    given: Deployment,
    asked: Deployment,
    settings: Mapping[str, str],
    block_size: int | None = None,
) -> Iterator[Stated]:
    """Yield what is given and told as well, where it is the same and where it is not.

    Args:
        server: as its page was read.
        model: what it serves, as the caller says.
        given: how, as the caller says.
        asked: the same with what the page tells of the rest.
        settings: what the page tells of the settings.
        block_size: what the page's blocks come to; one that is given may be it as well.
    """
    yield from _model(server, model)
    told = settings.get("cache_dtype")
    if told and given.kv_cache_dtype != "auto":
        own = _resolved(model, asked, known_dtype(told)) or told
        other = _resolved(model, asked, given.kv_cache_dtype) or given.kv_cache_dtype
        yield from _setting("kv_cache_dtype", told, given.kv_cache_dtype, same=own == other)
    for name in _PLAIN:
        value, told = getattr(given, name), settings.get(name)
        if told and value not in (None, "auto"):
            yield from _setting(name, told, str(value), same=str(value) == told)
    if given.max_model_len is not None and server.max_model_len is not None:
        first, second = server.max_model_len, given.max_model_len
        if first != second:
            yield _differs("max_model_len", first, second)
    if given.block_size is not None and asked.block_size != given.block_size != block_size:
        yield MetricsDifference(
            name="block_size",
            reported=server.block_size,
            predicted=given.block_size,
            explained_by="the page tells the server's own blocks, which are counted, and blocks of"
            f" {format_count(given.block_size)} were given: leave it out (--block)",
        )


def _setting(name: str, told: str, given: str, *, same: bool) -> Iterator[Stated]:
    yield name if same else _differs(name, printable(told)[:40], given)


def _differs(name: str, told: float | str, given: float | str) -> MetricsDifference:
    return MetricsDifference(
        name=name,
        reported=told,
        predicted=given,
        explained_by="the page tells the server's own setting, and another was given: leave it out",
    )


def _resolved(model: ModelSpec, asked: Deployment, dtype: str) -> str | None:
    """Return what a cache dtype comes to, `auto` above all; None where a plan is refused."""
    try:
        return plan(model, msgspec.structs.replace(asked, kv_cache_dtype=dtype)).kv_cache_dtype
    except KvcalcError:
        return None


def _model(server: ServerMetrics, model: ModelSpec) -> Iterator[Stated]:
    """Compare the page's name with the model, where that name is one that kvcalc has.

    A server may go by any name: one that is not known says nothing. No file is opened by it.
    """
    named = None if server.model is None else _preset(server.model[:_LONGEST_NAME])
    if named is None:
        return
    if named.name == model.name or _keeps(named) == _keeps(model):
        yield "model"
        return
    yield MetricsDifference(
        name="model",
        reported=server.model,
        predicted=model.name,
        explained_by=f"the page names {named.name}: is {model.name} what this server serves?",
    )


def _preset(name: str) -> ModelSpec | None:
    """Return the preset of a name, of its last part where it is a path or in another's account."""
    for spelling in (name, name.rstrip("/").rpartition("/")[2]):
        preset = _index().get(spelling.lower())
        if preset is not None:
            return load_model_preset(preset).spec
    return None


@cache
def _index() -> dict[str, str]:
    """Return names and aliases, read once: a page of many replicas asks for each."""
    return alias_index()


def _keeps(model: ModelSpec) -> tuple[int, ...]:
    return tuple(model.sequence_bytes(n, "bfloat16") for n in _LENGTHS)
