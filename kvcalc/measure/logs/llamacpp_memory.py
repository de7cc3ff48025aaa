"""What a plan of llama.cpp says of the memory of one GPU, with the weights that the log tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Fact
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.weight_dtypes import weight_width
from kvcalc.engines import plan
from kvcalc.engines.changes import Change
from kvcalc.engines.llamacpp.budget import compute_of
from kvcalc.measure.logs.resolve import Given
from kvcalc.measure.logs.starts import Start
from kvcalc.sizing import Question
from kvcalc.sizing.solve import solve
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.weights import as_weighed

__all__ = ["cures", "on_gpu", "with_file"]

_SMALL_STEP = 256

_TYPE = re.compile(r"(?P<name>\w{2,12})(?: - (?P<size>Small|Medium|Large))?", re.ASCII)
"""`Q4_K - Medium` (llama_model_ftype_name): what most tensors of a file are kept in."""


def with_file(given: Given, facts: Mapping[str, Fact]) -> Given:
    """Return what is given, with the size and type of the file as the log tells them."""
    size, kind = facts.get("file_size"), facts.get("ftype")
    if given.weights_bytes is None and size is not None and isinstance(size.low, int):
        given = given._replace(weights_bytes=(size.low + int(size.high or 0)) // 2)
    if given.quantization is None and kind is not None:
        given = given._replace(quantization=_format(kind.printed))
    return given


def _format(printed: str) -> str | None:
    """Return a format of weights by the name that llama.cpp prints; None where kvcalc has none."""
    match = _TYPE.match(printed)
    if match is None:
        return None
    name = match["name"] + (f"_{match['size'][0]}" if match["size"] else "")
    try:
        weight_width(name)
    except KvcalcError:
        return None
    return name.lower()


def on_gpu(
    start: Start, model: ModelSpec, deployment: Deployment, made: CachePlan, given: Given
) -> dict[str, tuple[int, int] | None]:
    """Return what a plan says of weights, compute buffers and caches of the one GPU that it has.

    Nothing is said of several: free memory shares the layers out over them; of weights, where
    nothing tells what the file keeps them in; of a cache that was not made whole; of a server with
    a draft that is not known; and of what is accounted for nowhere, which may be another process's.
    """
    said: dict[str, tuple[int, int] | None] = dict.fromkeys(
        ("weights", "compute buffers", "cache", "other")
    )
    gpus = [rank for rank in made.ranks if not rank.on_host]
    drafts = start.flags.keys() & {"draft", "mtp"} and deployment.speculative_method is None
    if len(gpus) != 1 or drafts:
        return said
    (rank,) = gpus
    held = rank.fixed_bytes + sum(pool.total_bytes(pool.units or 0) for pool in rank.pools)
    if "failed" not in start.flags or "cache_size" in start.facts():
        said["cache"] = held, held
    try:
        weighed = as_weighed(model, given.weights_bytes, given.quantization)
        placed = next(rank for rank in plan(weighed, deployment).ranks if not rank.on_host)
        compute = compute_of(weighed, deployment, made)
    except (KvcalcError, StopIteration):
        return said
    told = given.weights_bytes is not None or given.quantization is not None or model.weights
    if placed.weights_bytes is not None and told:
        said["weights"] = placed.weights_bytes, placed.weights_bytes + placed.weights_more
    said["compute buffers"] = compute.low_bytes, compute.high_bytes
    return said


def cures(model: ModelSpec, deployment: Deployment, given: Given) -> Iterator[str]:
    """Yield what to change where memory ran out, each confirmed by a plan, the cheapest first.

    Args:
        model: of the start.
        deployment: with the GPU; without it nothing is said.
        given: the weights, and what is free of the GPU.
    """
    if not isinstance(deployment.gpu, GpuSpec):
        return
    question = Question(
        model=model,
        deployment=deployment,
        weights_bytes=given.weights_bytes,
        quantization=given.quantization,
        may_move=0,
    )
    tries = Tries(question)
    if tries.meet(Change(""), "low"):
        yield f"end what else is on the {deployment.gpu.name}: by kvcalc the server fits on it"
        return
    step = deployment.engine_args.get("ubatch_size", 512)
    if isinstance(step, int) and step > _SMALL_STEP:
        smaller = Change("", {}, {"ubatch_size": _SMALL_STEP})
        if tries.meet(smaller, "low"):
            yield f"-ub {_SMALL_STEP}: a smaller compute buffer"
    longest = solve(question, "max-model-len").value
    if longest:
        slots = deployment.engine_args.get("parallel", 1)
        unified = deployment.engine_args.get("kv_unified", True)
        size = int(longest) * (1 if unified or not isinstance(slots, int) else slots)
        yield f"-c {size}: the longest that fits"
    packed = Change("", {}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"})
    if tries.meet(packed, "low"):
        yield "-ctk q8_0 -ctv q8_0: the same context in little more than half of the cache"
    layers = solve(question, "ngl").value
    if layers:
        yield f"-ngl {layers}: the most layers that fit, the output counted as one"
