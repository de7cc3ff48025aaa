"""What to change, in the flags of the engine, by what the log of a start says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from kvcalc.answers.logs import Fact, Predicted
from kvcalc.core.capacity import holds, smallest_budget
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_count
from kvcalc.engines import plan
from kvcalc.engines.changes import Change, changed
from kvcalc.engines.llamacpp.budget import compute_of
from kvcalc.measure.logs.accounting import graphs_given
from kvcalc.measure.logs.fixes import highest_share, least_fraction, share_by_figures
from kvcalc.measure.logs.predict import cache_budget
from kvcalc.measure.logs.release_guess import no_older
from kvcalc.measure.logs.resolve import Given
from kvcalc.measure.logs.starts import Start
from kvcalc.sizing import Question
from kvcalc.sizing.solve import solve
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.weights import as_weighed
from kvcalc.weights.formats import weight_width

__all__ = [
    "ONE_BY_ONE",
    "after",
    "confirmed_cures",
    "cures",
    "end_others",
    "lifted",
    "on_gpu",
    "with_file",
]

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


# --------------------------------------------------------------------- refusals
#
# What lifts a refusal that a log tells: settings out of the line's own figures.
#
# Where the model is known a new plan is asked first: what it refuses again is not told.

_STEPS = 1000


class _Cure(NamedTuple):
    """A setting to change: to a figure of the log, or to nothing that a figure tells."""

    setting: str
    figure: str = ""
    why: str = ""


_CURES: dict[str, tuple[_Cure, ...]] = {
    "sequences-over-state-blocks": (
        _Cure("max_num_seqs", "num_gpu_blocks", "a block of the cache for the state of each"),
    ),
    "graphs-over-state-blocks": (
        _Cure("max_num_seqs", "num_gpu_blocks", "a block of the cache for the state of each"),
    ),
    "prompt-over-step": (
        _Cure("max_num_batched_tokens", "max_model_len", "a step that takes a whole prompt"),
        _Cure("max_model_len", "max_num_batched_tokens", "prompts that a step takes"),
    ),
    "step-below-sequences": (
        _Cure("max_num_seqs", "max_num_batched_tokens", "a token of a step for each"),
        _Cure("max_num_batched_tokens", "max_num_seqs", "a token of a step for each sequence"),
    ),
    "block-over-step": (
        _Cure("max_num_batched_tokens", "attention_block_size", "a step that fills a block"),
    ),
    "encoder-over-step": (
        _Cure("max_num_batched_tokens", "item_tokens", "a step that takes a whole input"),
    ),
    "length-over-model": (
        _Cure("max_model_len", "longest_of_model", "the longest of the model's own config"),
    ),
    "threshold-over-length": (_Cure("long_prefill_token_threshold", "max_model_len"),),
    "active-over-sequences": (_Cure("max_num_active_seqs", "max_num_seqs"),),
    "proposals-not-divided": (
        _Cure("num_speculative_tokens", "n_predict", "what the model's own layers propose"),
    ),
    "adapters-on-host": (_Cure("max_cpu_loras", "max_loras"),),
}
"""Refusal -> settings that lift it, the cheapest first."""

_WORDS: dict[str, str] = {
    "bfloat16-on-old-gpu": "--dtype half",
    "float16-refused": "--dtype bfloat16",
    "fp8-e5m2-checkpoint": "--kv-cache-dtype fp8_e4m3",
    "nvfp4-with-mla": "--kv-cache-dtype fp8",
    "experts-needed": "leave --enable-expert-parallel out",
    "hybrid-manager-needed": "leave --disable-hybrid-kv-cache-manager out",
    "async-with-stages": "leave --async-scheduling out",
    "async-with-proposals": "leave --async-scheduling out",
    "shared-kv-over-stages": "--pipeline-parallel-size 1, with tensor parallelism instead",
    "stages-not-served": "--pipeline-parallel-size 1, with tensor parallelism instead",
    "heads-over-ranks": "a --tensor-parallel-size that divides the heads",
    "width-over-ranks": "a --tensor-parallel-size that divides the width",
    "kernel-width-over-ranks": "a smaller --tensor-parallel-size",
    "quantised-width-over-ranks": "a smaller --tensor-parallel-size, or --enable-expert-parallel"
    " for experts",
    "context-parallel-over-heads": "a smaller --decode-context-parallel-size, or more tensor ranks",
    "prefixes-need-chunks": "--no-enable-prefix-caching, or prefills in chunks",
    "step-below-drafts": "a larger --max-num-batched-tokens",
    "step-below-adapter-drafts": "a larger --max-num-batched-tokens, or fewer --max-num-seqs",
    "graphs-below-proposals": "more --max-num-seqs, or fewer proposed tokens",
    "stage-partition": "a VLLM_PP_LAYER_PARTITION with a number for each stage that adds up to the"
    " model's layers",
    "partial-prefills": "as many --max-num-partial-prefills as --max-long-partial-prefills",
    "block-not-taken": "one of the block sizes that the line lists, or none",
    "adapter-rank": "the next larger --max-lora-rank of those that the line lists",
    "swap-over-host": "a smaller --swap-space (0 keeps none)",
    "no-attention-backend": "another --kv-cache-dtype, no --block-size, no --attention-backend",
    "cpu-offload-groups": "no --cpu-offload-gb, or vLLM 0.20.0 or later",
    "too-few-gpus": "a node with as many GPUs as ranks, or fewer ranks if the weights fit on them",
    "unserved-model": "a newer release of the engine, or another engine",
    "memory-freed-meanwhile": "start again once nothing else starts or ends on the GPU",
}
"""Refusal that no figure of the log lifts -> what to do."""


_OWN_CURES: dict[str, dict[str, tuple[_Cure, ...]]] = {
    "sglang": {
        "length-over-model": (
            _Cure("context_length", "longest_of_model", "the longest of the model's own config"),
        ),
    },
}
"""Engine -> refusal -> settings that lift it there, as _CURES."""

_OWN_WORDS: dict[str, dict[str, str]] = {
    "sglang": {
        "cache-dtype-refused": "--kv-cache-dtype auto or fp8_e4m3",
        "chunk-not-whole-pages": "a --chunked-prefill-size that is a multiple of --page-size",
        "contradiction": "leave --enable-hierarchical-cache or --disable-radix-cache out",
        "gpu-too-old": "a newer GPU",
        "no-attention-backend": "another --attention-backend, or none",
        "groups-over-ranks": "a --dp-size that divides --tp-size",
        "heads-over-ranks": "a --tp-size that divides the heads",
        "host-cache-too-large": "a smaller --hicache-ratio or --hicache-size, or more memory of the"
        " host",
        "host-cache-too-small": "--hicache-ratio 2, or a larger --hicache-size",
        "length-over-model": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets more pass",
        "no-room-for-requests": "a higher --mem-fraction-static, more GPUs, or, where one is given,"
        " a larger --max-mamba-cache-size or --max-running-requests",
        "no-room-for-states": "a higher --mem-fraction-static, --mamba-ssm-dtype bfloat16, or more"
        " GPUs",
        "speculation-settings": "--speculative-eagle-topk 1, without pipeline stages",
        "state-tracking": "--mamba-radix-cache-strategy extra_buffer, or --disable-radix-cache",
        "window-pool-too-small": "a higher --swa-full-tokens-ratio, or more memory for the cache",
    },
    "tensorrt-llm": {
        "chunk-not-whole-pages": "a --max_num_tokens that is a multiple of tokens_per_block",
        "experts-over-ranks": "an --ep_size that divides --tp_size",
        "heads-over-ranks": "a --tp_size that divides the heads",
        "length-over-cache": "a higher free_gpu_memory_fraction, or a shorter --max_seq_len",
        "prefixes-of-states": "enable_block_reuse false in kv_cache_config",
        "no-memory-for-blocks": "a higher free_gpu_memory_fraction, more GPUs, or smaller weights",
    },
}
"""Engine -> refusal -> what to do there, as _WORDS, which are vLLM's."""


def lifted(
    code: str,
    facts: _Facts,
    model: ModelSpec | None,
    deployment: Deployment,
    made: CachePlan | None,
) -> Iterator[str]:
    """Yield what lifts a refusal.

    Args:
        code: of the refusal; "" for none.
        facts: the log's figures.
        model: None where it is not known.
        deployment: as the log tells it.
        made: the plan of both; None where there is none.
    """
    own = deployment.engine in _OWN_WORDS
    for cure in (_OWN_CURES.get(deployment.engine, {}) if own else _CURES).get(code, ()):
        fact = facts.get(cure.figure)
        if fact is None or not isinstance(fact.low, int) or fact.low < 1:
            continue
        if _refused_again(code, cure.setting, fact.low, model, deployment):
            continue
        flag = f"--{cure.setting.replace('_', '-')} {fact.low}"
        yield f"{flag}: {cure.why}" if cure.why else flag
    words = _OWN_WORDS.get(deployment.engine, _WORDS)
    if code in words:
        yield words[code]
    if made is not None and made.floors:
        yield from _more_blocks(facts, deployment, made)


def _refused_again(
    code: str, setting: str, value: int, model: ModelSpec | None, deployment: Deployment
) -> bool:
    """Whether a plan with the setting is refused for the same reason."""
    if model is None or deployment.engine != "vllm":
        return False
    field = setting in Deployment.__struct_fields__
    given = {setting: value}
    try:
        plan(model, changed(deployment, given if field else {}, {} if field else given))
    except NotModelledError:
        return False
    except UnsupportedError as error:
        return error.code == code
    except KvcalcError:
        return False
    return False


def _more_blocks(facts: _Facts, deployment: Deployment, made: CachePlan) -> Iterator[str]:
    """Yield the share of the GPU with which there are as many blocks as the settings ask for."""
    span = cache_budget(made, facts)
    wanted = smallest_budget(made)
    total = facts.get("total_memory")
    gpu = deployment.gpu
    size = total.low if total is not None else None
    if size is None and isinstance(gpu, GpuSpec):
        size = gpu.memory_bytes
    if span is None or wanted is None or not isinstance(size, int) or wanted <= span.low:
        return
    logged = facts.get("gpu_memory_utilization")
    share = deployment.gpu_memory_utilization if logged is None else logged.high
    if share is None:
        return
    least = ceil((float(share) + (wanted - span.low) / size) * _STEPS) / _STEPS
    more = span.low + int((least - float(share)) * size)
    if least <= _MOST_SHARE and holds(made, more):
        yield (
            f"--gpu-memory-utilization {least:g}, if nothing else is on the GPU: the blocks that"
            f" {made.floors[0].setting} asks for"
        )


# --------------------------------------------------------------------- llamacpp memory
#
# What a plan of llama.cpp says of the memory of one GPU, with the weights that the log tells.

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


def confirmed_cures(model: ModelSpec, deployment: Deployment, given: Given) -> Iterator[str]:
    """Yield what to change where memory ran out, each confirmed by a plan, the cheapest first."""
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
