"""The figures of a server against those that kvcalc computes for its model.

What is given counts, so that a question can be asked of another model or setting than the page's;
that it is another is a difference all the same. A block size alone does not count against the
page's: the page counts its cache in blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kvcalc.answers.server_metrics import MetricsDifference, PredictedCapacity, ServerMetrics
from kvcalc.core.capacity import Capacity, capacity
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, NotModelledError, UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of, plan
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.source import named_source, read_page
from kvcalc.models.presets import alias_index, load_model_preset
from kvcalc.models.text import printable

__all__ = ["Asked", "Stated", "compared", "known_dtype", "servers", "stated"]

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
    """Yield what is given and told as well, where it is the same and where it is not."""
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


# --------------------------------------------------------------------- comparing
#
# The deployment is what the caller says of it; what the page tells of the settings fills the rest.

_SWITCHES = {"True": True, "False": False}
_NEAR = 1e-9  # of a ratio that both compute from the same whole numbers


def compared(
    server: ServerMetrics,
    model: ModelSpec,
    deployment: Deployment,
    settings: Mapping[str, str],
    kv_cache_bytes: int | None = None,
) -> ServerMetrics:
    """Return the server with what is predicted of it and each difference."""
    given = deployment
    deployment = _own_blocks(server, model, given, settings)
    asked = _completed(server, deployment, settings)
    made = plan(model, asked)
    if _blocks_are_set(server, made, deployment):
        asked = msgspec.structs.replace(asked, block_size=server.block_size)
        made = plan(model, asked)
    budget = kv_cache_bytes if kv_cache_bytes is not None else server.kv_cache_bytes
    found, own = _capacity(model, asked, made, server, budget)
    if found is None:
        raise NotModelledError(
            f"nothing on the page says how large the cache of {made.engine} is",
            hint="give the bytes of each rank's cache (--kv-memory)",
        )
    block_bytes = made.block_bytes
    blocks = found.num_blocks
    predicted = PredictedCapacity(
        engine_version=made.engine_version,
        kv_cache_dtype=made.kv_cache_dtype,
        block_size=made.block_size,
        max_model_len=made.max_model_len,
        block_bytes=block_bytes,
        num_blocks=blocks,
        kv_cache_bytes=sum(pool.total_bytes for pool in found.pools) or None,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        num_cpu_blocks=None
        if not block_bytes or server.swap_space_bytes is None
        else server.swap_space_bytes // block_bytes,
        used_bytes=None
        if block_bytes is None or server.blocks_used is None
        else server.blocks_used * block_bytes,
    )
    agreed: list[str] = []
    differences: list[MetricsDifference] = []
    for told in stated(server, model, given, asked, settings, made.block_size):
        if isinstance(told, str):
            agreed.append(told)
        else:
            differences.append(told)
    contradicted = {difference.name for difference in differences}
    for name, reported, computed in _figures(server, predicted, own=own):
        if reported is None or computed is None or name in contradicted:
            continue
        if abs(reported - computed) <= _NEAR * abs(computed):
            agreed.append(name)
        else:
            differences.append(
                MetricsDifference(
                    name=name,
                    reported=reported,
                    predicted=computed,
                    explained_by=_cause(name, server, made, given=given.block_size is not None),
                )
            )
    server = _decided(server, made)
    return msgspec.structs.replace(
        server,
        predicted=predicted,
        agreed=tuple(agreed),
        differences=tuple(differences),
    )


def _own_blocks(
    server: ServerMetrics, model: ModelSpec, given: Deployment, settings: Mapping[str, str]
) -> Deployment:
    """Return the deployment without a block size that is not the one of the page.

    The page's blocks are counted in its own size: another would make another capacity of them.
    """
    if None in (given.block_size, server.block_size) or given.block_size == server.block_size:
        return given
    made = plan(model, _completed(server, given, settings))
    if server.block_size in {group.block_size for group in made.rank.groups()}:
        return given  # the page tells the smallest block of the groups
    return msgspec.structs.replace(given, block_size=None)


def _completed(
    server: ServerMetrics, deployment: Deployment, settings: Mapping[str, str]
) -> Deployment:
    """Return the deployment with what the page tells where the caller says nothing."""
    changes: dict[str, Any] = {"engine": server.engine}
    dtype = settings.get("cache_dtype")
    if dtype and deployment.kv_cache_dtype == "auto":
        changes["kv_cache_dtype"] = known_dtype(dtype)
    prefixes = _SWITCHES.get(settings.get("enable_prefix_caching", ""))
    if deployment.enable_prefix_caching is None and prefixes is not None:
        changes["enable_prefix_caching"] = prefixes
    if deployment.max_model_len is None and server.max_model_len is not None:
        changes["max_model_len"] = server.max_model_len
    if deployment.block_size is None and engine_of(server.engine).page_block_size:
        changes["block_size"] = server.block_size
    return msgspec.structs.replace(deployment, **changes)


def _blocks_are_set(server: ServerMetrics, made: CachePlan, deployment: Deployment) -> bool:
    """Whether a block size of one's own was set: with one group the page tells it truly."""
    return (
        not engine_of(server.engine).page_block_size
        and deployment.block_size is None
        and server.block_size is not None
        and server.block_size != made.block_size
        and len(made.rank.groups()) == 1
    )


def _capacity(
    model: ModelSpec,
    asked: Deployment,
    made: CachePlan,
    server: ServerMetrics,
    budget: int | None,
) -> tuple[Capacity | None, bool]:
    """Return what the cache holds, and whether its size was computed and not taken over.

    With bytes, the blocks are computed; else those of the page are taken, and what they hold is.
    """
    if budget is not None or made.sized:
        return capacity(made, budget), True
    if server.engine == "sglang" and server.kv_cache_tokens:
        arguments = {**asked.engine_args, "max_total_tokens": server.kv_cache_tokens}
        sized = plan(model, msgspec.structs.replace(asked, engine_args=arguments))
        return (capacity(sized, None), False) if sized.sized else (None, False)
    blocks = server.num_blocks
    if not blocks:
        return None, False
    if server.engine == "vllm":
        # The pool of every rank has so many, whatever its blocks weigh.
        fixed = msgspec.structs.replace(asked, num_gpu_blocks_override=blocks)
        try:
            return capacity(plan(model, fixed), None), False
        except KvcalcError:
            pass  # releases without such a setting
    pool = made.block_pool
    if pool is None or len(made.rank.pools) > 1:
        return None, False
    size = pool.check_unit_bytes or pool.unit_bytes
    found = capacity(made, blocks * size + made.rank.fixed_bytes)
    return (found, False) if found.num_blocks == blocks else (None, False)


def _figures(
    server: ServerMetrics, predicted: PredictedCapacity, *, own: bool
) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield each figure that both tell: name, as reported, as predicted."""
    yield "block_size", server.block_size, predicted.block_size
    if own:
        yield "num_blocks", server.num_blocks, predicted.num_blocks
    # Swap space over the bytes of a block (V0's worker/cache_engine.py): the one figure that tells
    # them where the page names no bytes of the cache.
    yield "num_cpu_blocks", server.num_cpu_blocks, predicted.num_cpu_blocks
    yield "kv_cache_tokens", server.kv_cache_tokens, predicted.kv_cache_tokens
    yield "max_concurrency", server.max_concurrency, predicted.max_concurrency


def _decided(server: ServerMetrics, made: CachePlan) -> ServerMetrics:
    """Return the server with whether block size x blocks is its capacity, which a plan decides."""
    groups = made.rank.groups()
    if server.block_tokens is None or server.block_tokens_are_capacity is not None:
        return server
    plain = len(groups) == 1 and made.growing_pool is not None
    if plain and server.block_size == made.block_size:
        return msgspec.structs.replace(
            server,
            block_tokens_are_capacity=True,
            why=f"all layers of {made.model} keep every token in blocks of that size",
        )
    names = ", ".join(group.name for group in groups)
    return msgspec.structs.replace(
        server,
        block_tokens_are_capacity=False,
        why=f"{made.model} has {len(groups)} groups of layers ({names}) that share the blocks"
        if len(groups) > 1
        else f"a block of {made.model} has {format_count(made.block_size or 0)} tokens",
    )


def _cause(name: str, server: ServerMetrics, made: CachePlan, *, given: bool) -> str:
    sizes = {group.block_size for group in made.rank.groups() if group.block_size}
    if name == "block_size":
        if server.block_size in sizes:
            return "the page tells the smallest block of the groups (vLLM issue 51163)"
        if len(made.rank.groups()) > 1:
            return (
                "the page tells what it was before the start raised it to cover a state's page"
                " (vLLM issue 42966)"
            )
        if given:
            return "the page tells what was set, and the start made another block of it"
        return "a block size that was set: give it with --block"
    if name == "num_cpu_blocks":
        return (
            "a block of other bytes: another model, another share of the layers or heads (--tp,"
            " --pp), or another cache dtype"
        )
    if name == "num_blocks":
        return (
            "another share of the layers or heads (--tp, --pp), another cache dtype, draft layers,"
            " or a cache of other bytes"
        )
    if server.block_size != made.block_size and len(made.rank.groups()) == 1:
        return "it follows from the block size"
    return (
        "another maximum (--max), release (--engine-version), or step (--max-num-batched-tokens):"
        " the figure counts sequences of the maximum"
    )


# --------------------------------------------------------------------- a page from wherever it is


class Asked(NamedTuple):
    """What a caller says of the server behind a page.

    Attributes:
        model: what it serves; None to read the page alone.
        deployment: how, as far as the caller says; an engine `none` is the page's.
        running_tokens: of the requests that run.
        kv_cache_bytes: of each rank.
    """

    model: ModelSpec | None = None
    deployment: Deployment | None = None
    running_tokens: int | None = None
    kv_cache_bytes: int | None = None


def servers(
    page: str, asked: Asked, *, timeout: float, strict: bool = False
) -> tuple[ServerMetrics, ...]:
    """Read a page and return each engine behind it.

    Args:
        page: an address, a file, - for stdin, or the page itself: a text of several lines.
        asked: what the caller says.
        timeout: seconds for a server's whole answer.
        strict: refuse a page with a line that is not in the format.

    Raises:
        InputError: no page, or none of an engine that is known.
        UnavailableError: the server does not answer.
        UsageError: a deployment without a model, or of another engine than the page's.
    """
    if asked.deployment is not None and asked.model is None:
        raise UsageError("a deployment of which model?", hint="give the model as well")
    itself = "\n" in page
    text = page if itself else read_page(page, timeout=timeout)
    reading = read_metrics(text, strict=strict, where="" if itself else named_source(page))
    found = []
    for server, settings in zip(reading.servers, reading.settings, strict=True):
        held = server
        if asked.model is not None:
            deployment = _of_engine(asked.deployment or Deployment(), server.engine)
            held = compared(server, asked.model, deployment, settings, asked.kv_cache_bytes)
        told = judged(held, asked.running_tokens)
        found.append(replace(told, notes=(*told.notes, *reading.warnings)))
    return tuple(found)


def _of_engine(deployment: Deployment, engine: str) -> Deployment:
    if deployment.engine == "none":
        return replace(deployment, engine=engine)
    if deployment.engine != engine:
        raise UsageError(
            f"the page is {engine}'s, not {deployment.engine}'s", hint="leave out engine"
        )
    return deployment
