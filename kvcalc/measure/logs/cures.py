"""What to change, in the engine's own flags, by what a start's log tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil

from kvcalc.core.logs import Fact, Predicted
from kvcalc.core.units import format_bytes, format_count
from kvcalc.measure.logs.accounting import graphs_given
from kvcalc.measure.logs.dated import no_older
from kvcalc.measure.logs.failure import highest_share, least_fraction
from kvcalc.measure.logs.fixes import share_by_figures

__all__ = ["ONE_BY_ONE", "after", "cures", "end_others"]

_Facts = Mapping[str, Fact]
_RANKS = (2, 4, 8, 16)

ONE_BY_ONE = (
    "start the servers of a GPU one after another, each when the one before is ready: what another"
    " takes while this one loads counts as this one's"
)
"""What to do about a neighbour that took memory between two snapshots."""

_MOST_SHARE = 0.98
"""Of a card: the driver's own part is never given."""

_GRAPHS_COUNTED = "0.20.0"
"""The first vLLM that takes an estimate of the graphs off the share (envs.py)."""

_WORTH = 2**28
"""Bytes given away that are worth a line."""


def cures(
    engine: str,
    flags: Mapping[str, int],
    facts: _Facts,
    found: Mapping[str, Predicted],
    bytes_per_token: int | None,
    *,
    version: str | None = None,
    planned: bool = False,
) -> Iterator[str]:
    """Yield what to change.

    Args:
        engine: whose log it is.
        flags: what its lines without figures say.
        facts: its figures.
        found: kvcalc's.
        bytes_per_token: on a GPU; None where the model is not known.
        version: the engine's release; None where it is not known.
        planned: what makes a refused start succeed is told by a plan.
    """
    if engine == "vllm":
        yield from _vllm(flags, facts, found, bytes_per_token, planned=planned)
        yield from _given_away(flags, facts, bytes_per_token, version)
    elif engine == "sglang":
        yield from _sglang(flags, facts)
    elif engine == "mlc-llm" and "nothing_left" in flags:
        yield "a smaller prefill_chunk_size (--overrides), or a higher gpu_memory_utilization"
    elif engine == "llama.cpp" and "allocation" in flags:
        yield "--model NAME --gpu NAME: kvcalc then says which -ub, -c, -ctk and -ngl fit"
    elif engine.startswith("exllama") and "allocation" in flags:
        yield "a smaller cache_size (max_seq_len), or cache_mode Q8, Q6 or Q4"
    elif engine == "tensorrt-llm" and "component-without-memory" in flags:
        yield from _component(facts)
    elif engine == "tgi" and "too_long" in flags:
        yield "a lower --max-total-tokens, or more GPUs (--num-shard)"


_DERIVED = re.compile(r"derived max_model_len \((?:\w{1,60}=)?(?P<most>\d{1,12})")
"""vLLM's refusal of a length beyond the model's own (config/model.py, _get_and_verify_max_len)."""


def after(error: str, *, killed: bool) -> Iterator[str]:
    """Yield what to change after an error that ended a start or a server.

    Args:
        error: its line; "" for none.
        killed: it was the signal that the host sends where its memory runs out.
    """
    if found := _DERIVED.search(error):
        yield f"--max-model-len {found['most']}: the longest of the model's own configuration"
    if killed:
        yield (
            "more of the host's memory, if nobody stopped it: a higher limit of the container"
            " (docker --memory, limits.memory of a pod), or less that is kept on the host"
        )


def end_others(facts: _Facts, *, some: bool) -> str:
    """Return what to do about others that hold memory.

    Args:
        facts: the log's figures.
        some: a share that passes the check may leave enough.
    """
    free, total = facts.get("free_memory"), facts.get("total_memory")
    size = ""
    if free is not None and total is not None and isinstance(free.high, int):
        size = f" ({format_bytes(max(0, int(total.low or 0) - free.high))})"
    told = f"end what holds the rest of the GPU{size}"
    return told if some else f"{told}: no share that passes this check leaves enough"


def _gained(size: int, bytes_per_token: int | None) -> str:
    if not bytes_per_token or size <= 0:
        return ""
    return f" (about {format_count(size // bytes_per_token)} tokens more)"


def _vllm(
    flags: Mapping[str, int],
    facts: _Facts,
    found: Mapping[str, Predicted],
    rate: int | None,
    *,
    planned: bool,
) -> Iterator[str]:
    if not planned:  # else what a plan confirms is told
        yield from _unplanned(flags, facts, found)
    current = facts.get("available_kv_cache")
    for name, what in (
        ("suggested_to_fill", "all that was free at the start, less 150 MiB"),
        ("suggested_to_fit", "what the utilisation allows, with the graphs inside"),
    ):
        suggested = facts.get(name)
        if suggested is not None and isinstance(suggested.low, int):
            more = suggested.low - int(current.high or 0) if current is not None else 0
            yield f"--kv-cache-memory-bytes {suggested.low}: {what}{_gained(more, rate)}"


def _unplanned(
    flags: Mapping[str, int], facts: _Facts, found: Mapping[str, Predicted]
) -> Iterator[str]:
    """Yield what the log's own figures tell, where no model is known to plan with."""
    if "others_hold" in flags and "free_memory" in facts and "total_memory" in facts:
        yield f"--gpu-memory-utilization {highest_share(facts)}: the most that passes this check"
        yield end_others(facts, some=True)
    if flags.keys() & {"too_long", "too_long_v0"}:
        share = facts.get("gpu_memory_utilization")
        now = None if share is None or share.high is None else Fraction(str(share.high))
        least = share_by_figures(facts, now)
        if least is not None:
            yield f"--gpu-memory-utilization {least[0]:g}: {least[1]} for the cache"
        if length := _longest(facts, found):
            yield f"--max-model-len {length}: the longest that fits in this memory"
    if "nothing_left" in flags:
        yield from _room(facts)


def _given_away(
    flags: Mapping[str, int], facts: _Facts, rate: int | None, version: str | None
) -> Iterator[str]:
    """Yield what an estimate of the graphs took and the graphs did not."""
    counted = no_older(version, _GRAPHS_COUNTED)
    given = graphs_given(facts, flags, counted=counted)
    if given > _WORTH:
        yield (
            f"the graphs took {facts['graph_memory'].printed} of an estimated"
            f" {facts['estimated_graph_memory'].printed}: {format_bytes(given)} of cache were given"
            f" away{_gained(given, rate)}; --kv-cache-memory-bytes takes them back"
        )


def _room(facts: _Facts) -> Iterator[str]:
    """Yield what makes room where weights and the rest leave none for the cache."""
    available, weights = facts.get("available_kv_cache"), facts.get("weights_memory")
    if available is None or not isinstance(available.low, int):
        return
    missing = max(0, -available.low)
    if weights is not None and isinstance(weights.low, int):
        ranks = next((n for n in _RANKS if weights.low * (n - 1) // n > missing), None)
        if ranks is None:  # they are not what is too much
            yield ONE_BY_ONE
            yield (
                "fewer tokens or sequences a step (--max-num-batched-tokens, --max-num-seqs), if"
                " nothing else is on the card"
            )
        else:
            yield (
                f"smaller weights than {weights.printed} (a quantised checkpoint), or"
                f" --tensor-parallel-size {ranks}: each GPU then holds 1/{ranks} of them"
            )
    else:
        yield (
            f"{format_bytes(missing)} are missing before the first block: smaller weights (a"
            " quantised checkpoint), --tensor-parallel-size 2 (half of the weights on each GPU), or"
            " a larger card"
        )
    total, share = facts.get("total_memory"), facts.get("gpu_memory_utilization")
    if total is None or share is None or not isinstance(total.low, int) or share.high is None:
        yield "a higher --gpu-memory-utilization, if the card has so much more to give"
        return
    least = ceil((float(share.high) + missing / max(1, total.low)) * 1000) / 1000
    if least < _MOST_SHARE:
        yield f"--gpu-memory-utilization above {least:.3f}, if nothing else is on the card"
    else:
        yield "no --gpu-memory-utilization gives so much of this card"


def _longest(facts: _Facts, found: Mapping[str, Predicted]) -> int:
    """Return the longest length that fits: as logged, else as predicted; 0 for none."""
    logged, fits = facts.get("max_model_len_that_fits"), found.get("max_model_len_that_fits")
    if logged is not None and isinstance(logged.low, int):
        return logged.low
    return int(fits.low) if fits is not None else 0


def _component(facts: _Facts) -> Iterator[str]:
    """Yield what TensorRT-LLM names for the part that could not be created."""
    part = facts["component"].printed.lower() if "component" in facts else ""
    if part.startswith("kv cache"):
        yield "a lower free_gpu_memory_fraction"
    else:
        yield "a lower max_num_tokens"
    if "model" in part:
        yield "more GPUs (tp_size, pp_size), or smaller weights"


def _sglang(flags: Mapping[str, int], facts: _Facts) -> Iterator[str]:
    given = facts.get("mem_fraction_static")
    if "nothing_left" in flags and (share := least_fraction(facts)):
        above = max(float(share), 0.0 if given is None else float(given.high or 0))
        yield f"--mem-fraction-static above {above:.4g}, more GPUs, or smaller weights"
    profiled = facts.get("profiled_tokens")
    if profiled is not None and isinstance(profiled.low, int) and profiled.low <= 0:
        yield (
            f"the profiled tokens are {profiled.printed}: the weights leave less than nothing"
            " under --mem-fraction-static; raise it, or use more GPUs"
        )
