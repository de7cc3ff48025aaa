"""What the lines of each engine say of its deployment and devices, in the names of kvcalc.

A line is of one buffer, in hundredths of a MiB; the table of the memory's breakdown is of all
buffers of a device, in whole MiB: it counts where there is no such line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvcalc.answers.logs import Fact
from kvcalc.measure.logs.settings import Settings
from kvcalc.measure.logs.starts import Start

__all__ = [
    "DRAFTED",
    "Devices",
    "Told",
    "gpus_of",
    "is_host",
    "more_than_devices",
    "on_device",
    "settings_from",
    "stated_by",
]

Devices = Mapping[str, Mapping[str, list[int]]]
"""Device -> figure -> [least, most] bytes of its lines together."""

_FIGURES = {
    "weights": (("model_buffer",), "device_model"),
    "compute buffers": (("compute_buffer",), "device_compute"),
    "cache": (("kv_buffer", "state_buffer"), "device_context"),
    "other": ((), "device_other"),
}
"""Term -> the figures of its lines, and of the table."""

_HELD = [name for lines, table in _FIGURES.values() for name in (*lines, table)]
_WRAPPED = 2**60
"""A size below 0 is printed as one of 64 bits without a sign."""


class Told(NamedTuple):
    """A term, and where it is told."""

    span: tuple[int, int]
    source: str


def is_host(name: str) -> bool:
    """Whether a buffer of that name lies in the host's memory."""
    return name.startswith("CPU") or name.endswith("_Host") or name in ("BLAS", "AMX", "Host")


def gpus_of(devices: Devices) -> list[str]:
    """Return the GPUs that hold weights or caches."""
    kept = [name for name in _HELD if name not in ("compute_buffer", "device_compute")]
    return [
        name
        for name, figures in devices.items()
        if not is_host(name) and any(figures.get(figure, [0, 0])[1] for figure in kept)
    ]


def on_device(name: str, devices: Devices, facts: Mapping[str, Fact]) -> Told | None:
    """Return a term of the GPU with the most, or of all devices together; None: nothing tells it.

    A cache is all of its caches and states: each has a line of its own. What lies in the host's
    memory is on no GPU.
    """
    if name not in _FIGURES:
        return None
    lines, table = _FIGURES[name]
    device = _fullest(devices)
    if name == "cache" and (every := more_than_devices(facts)):
        return Told(every, "all devices together")
    told = {} if device is None else devices[device]
    parts, places = [], []
    for figure, whole in zip(lines, ("cache_size", "state_size"), strict=False):
        if figure in told:
            parts.append((told[figure][0], told[figure][1]))
            places.append(f"{device}" if name == "cache" else f"{device}: all of its lines")
        elif name == "cache" and not any(figure in found for found in devices.values()):
            sizes = _spans(facts, whole) if table not in told else []
            parts += sizes
            places += ["all devices together"] * bool(sizes)
    if not parts and table in told and told[table][1] < _WRAPPED:
        parts, places = [(told[table][0], told[table][1])], [f"{device}: the table"]
    if not parts:
        return None
    span = sum(low for low, _ in parts), sum(high for _, high in parts)
    return Told(span, "; ".join(dict.fromkeys(places)))


def more_than_devices(facts: Mapping[str, Fact]) -> tuple[int, int] | None:
    """Return what caches and states come to where lines of some devices are missing; None: none."""
    missing = False
    spans = []
    for figure, whole in zip(_FIGURES["cache"][0], ("cache_size", "state_size"), strict=True):
        held, every = facts.get(figure), _spans(facts, whole)
        spans += every
        if held is not None and isinstance(held.high, int):
            missing = missing or held.high < sum(low for low, _ in every)
    if not missing:
        return None
    return sum(low for low, _ in spans), sum(high for _, high in spans)


def _spans(facts: Mapping[str, Fact], name: str) -> list[tuple[int, int]]:
    """Return the sizes of all lines of a kind."""
    return [
        (fact.low, fact.high)
        for key, fact in facts.items()
        if (key == name or key.startswith(f"{name}_"))
        and isinstance(fact.low, int)
        and isinstance(fact.high, int)
    ]


def _fullest(devices: Devices) -> str | None:
    """Return the GPU of which the most is logged; the host where there is no GPU."""

    def held(name: str) -> int:
        return sum(devices[name].get(figure, [0, 0])[0] for figure in _HELD[:-1])

    return max(
        [name for name in devices if not is_host(name)] or [*devices], key=held, default=None
    )


# --------------------------------------------------------------------- engine settings
#
# What the lines of each engine say of its deployment, in kvcalc's own names.

_DTYPES = {
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "half": "float16", "float": "float32",
    "f16": "float16", "f32": "float32", "bf16": "bfloat16",
}  # fmt: skip
_CPU_BLOCK, _CPU_STEP = 128, 2048
"""Tokens a block and a step of vLLM's server on CPUs, whose steps do not overlap (platforms/cpu.py,
engine/arg_utils.py)."""

_Fields = dict[str, tuple[Any, str]]


def settings_from(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    """Return what a start's lines say of its deployment.

    Returns:
        fields of Deployment with their sources, None for what is not told; engine_args.
    """
    reader = _READERS.get(start.engine)
    return ({}, {}) if reader is None else reader(start, facts)


def stated_by(start: Start, fields: Mapping[str, tuple[Any, str]]) -> frozenset[str]:
    """Return the settings that a log states, those too that it states to be off."""
    found = {name for name, (value, _) in fields.items() if value is not None}
    speculation = start.settings.get("speculative_config")
    if speculation is not None and speculation.value in ("None", "null"):
        found |= {"speculative_method", "num_speculative_tokens"}
    return frozenset(found)


def _whole(facts: Mapping[str, Fact], name: str) -> int | None:
    fact = facts.get(name)
    return fact.low if fact is not None and isinstance(fact.low, int) and fact.low > 0 else None


def _dtype(text: str | None) -> str | None:
    if text is None:
        return None
    word = text.removeprefix("torch.").strip("'\" ").lower()
    return None if word == "auto" else _DTYPES.get(word, word)


def _vllm(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    s = start.settings
    share = s.part("gpu_memory_utilization")
    if share is None and (fact := facts.get("gpu_memory_utilization")) is not None:
        share = float(fact.printed)
    cache = s.text("kv_cache_dtype")
    if cache in (None, "auto") and (word := facts.get("kv_cache_dtype")) is not None:
        cache = word.printed
    if "fp8_ds_mla" in start.flags:
        cache = "fp8_ds_mla"
    found: dict[str, Any] = {
        "tensor_parallel_size": s.whole("tensor_parallel_size"),
        "pipeline_parallel_size": s.whole("pipeline_parallel_size"),
        "data_parallel_size": s.whole("data_parallel_size"),
        "decode_context_parallel_size": s.whole("decode_context_parallel_size"),
        "dtype": _dtype(s.text("dtype")),
        "kv_cache_dtype": "auto" if cache == "auto" else _dtype(cache),
        "max_model_len": _whole(facts, "max_model_len") or s.whole("max_model_len", "max_seq_len"),
        "block_size": s.whole("block_size"),
        "max_num_seqs": s.whole("max_num_seqs"),
        "max_num_batched_tokens": s.whole("max_num_batched_tokens")
        or _whole(facts, "max_num_batched_tokens"),
        "num_gpu_blocks_override": s.whole("num_gpu_blocks_override")
        or _whole(facts, "num_gpu_blocks_override"),
        "enable_prefix_caching": s.on("enable_prefix_caching"),
        "enforce_eager": s.on("enforce_eager"),
        "async_scheduling": s.on("async_scheduling"),
        "enable_expert_parallel": s.on("enable_expert_parallel"),
        "disable_hybrid_kv_cache_manager": True
        if "no_hybrid_manager" in start.flags
        else s.on("disable_hybrid_kv_cache_manager"),
        "gpu_memory_utilization": share if share and 0 < share <= 1 else None,
        "mamba_cache_dtype": _dtype(s.text("mamba_cache_dtype")),
        "mamba_ssm_cache_dtype": _dtype(s.text("mamba_ssm_cache_dtype")),
        "speculative_method": _method(s.text("method")),
        "num_speculative_tokens": s.whole("num_speculative_tokens", "num_spec_tokens"),
    }
    told = {name: (value, "the log") for name, value in found.items()}
    for name, (value, source) in _of_workers(start).items():
        if found[name] is None:
            found[name], told[name] = value, (value, source)
    if found["num_speculative_tokens"] is None or found["speculative_method"] is None:
        found["num_speculative_tokens"] = found["speculative_method"] = None
    if s.text("device_config") == "cpu":
        ranks = (found["tensor_parallel_size"] or 1) * (found["pipeline_parallel_size"] or 1)
        found["block_size"] = found["block_size"] or _CPU_BLOCK
        found["async_scheduling"] = found["async_scheduling"] or False
        found["max_num_batched_tokens"] = found["max_num_batched_tokens"] or _CPU_STEP * ranks
    dcp, tp = found["decode_context_parallel_size"], found["tensor_parallel_size"] or 1
    if dcp and tp % dcp:
        found["decode_context_parallel_size"] = None
    return {name: (value, told[name][1]) for name, value in found.items()}, {}


def _of_workers(start: Start) -> _Fields:
    """Return the parallel sizes that the names of a start's processes show."""
    shown = start.workers()
    source = "the names of its workers"
    sizes = {"tensor_parallel_size": "TP", "pipeline_parallel_size": "PP",
             "data_parallel_size": "DP"}  # fmt: skip
    found: _Fields = {
        name: (shown[kind], source) for name, kind in sizes.items() if shown.get(kind)
    }
    if "EP" in shown:
        found["enable_expert_parallel"] = True, source
    if shown.get("all") and not shown.keys() & {"TP", "PP"}:
        # Ranks of V0's names are of both dimensions; few have stages.
        found["tensor_parallel_size"] = shown["all"], source
    return found


def _method(text: str | None) -> str | None:
    if text is None:
        return None
    word = text.lower()
    return "mtp" if word.endswith("mtp") else word


def _sglang(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    s = start.settings
    cache = s.text("kv_cache_dtype")
    if cache in (None, "auto") and (word := facts.get("kv_cache_dtype")) is not None:
        cache = word.printed
    if cache == "fp8_e4m3fn":
        cache = "fp8_e4m3"
    found = {
        "tensor_parallel_size": s.whole("tp_size"),
        "pipeline_parallel_size": s.whole("pp_size"),
        "decode_context_parallel_size": s.whole("dcp_size"),
        "dtype": _dtype(s.text("dtype")),
        "kv_cache_dtype": "auto" if cache == "auto" else _dtype(cache),
        "max_model_len": _whole(facts, "context_length") or s.whole("context_length"),
        "max_num_seqs": s.whole("max_running_requests"),
        "block_size": s.whole("page_size"),
        "draft_model": None if _of_the_model(s) else s.text("speculative_draft_model_path"),
    }
    return {name: (value, "the log") for name, value in found.items()}, _sglang_args(start, facts)


def _of_the_model(s: Settings) -> bool:
    """Whether a draft's path is the model's own, which means its own layers."""
    return s.text("speculative_draft_model_path") == s.text("model_path")


def _sglang_args(start: Start, facts: Mapping[str, Fact]) -> dict[str, Any]:
    s = start.settings
    shares = ("mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio")
    args: dict[str, Any] = {name: s.part(name) for name in shares}
    # What was made stands for what was asked for.
    args["max_total_tokens"] = _whole(facts, "kv_cache_tokens")
    states = s.whole("max_mamba_cache_size") or _whole(facts, "state_slots")
    args["max_mamba_cache_size"] = states
    args["disable_radix_cache"] = s.on("disable_radix_cache") or None
    if s.on("enable_dp_attention"):
        args |= {"enable_dp_attention": True, "dp_size": s.whole("dp_size")}
    args["attn_dp_size"] = s.whole("attn_dp_size")
    args["mamba_ssm_dtype"] = s.text("mamba_ssm_dtype")
    args |= _tracking(s) | _speculation(s)
    return {name: value for name, value in args.items() if value is not None}


def _tracking(s: Settings) -> dict[str, Any]:
    """Return how states are tracked; without extra slots batches never overlap."""
    strategy = s.text("mamba_radix_cache_strategy", "mamba_scheduler_strategy")
    told = strategy if strategy != "auto" else None
    apart = told == "no_buffer" or s.on("disable_overlap_schedule")
    return {"mamba_radix_cache_strategy": told, "disable_overlap_schedule": apart or None}


def _speculation(s: Settings) -> dict[str, Any]:
    """Return what proposes tokens, with all of its numbers; nothing of a kind that is not known."""
    algorithm = (s.text("speculative_algorithm") or "").upper()
    if algorithm not in _PROPOSING:
        return {}
    found = {name: s.whole(name) for name in _PROPOSING[algorithm]}
    if found.get("speculative_num_steps") is not None:
        found["speculative_eagle_topk"] = found["speculative_eagle_topk"] or 1
    return {"speculative_algorithm": algorithm, **found}


_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
DRAFTED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""SGLang's kinds of speculation by a model's own layers or another model's."""

_PROPOSING = {
    **dict.fromkeys(DRAFTED, _NUMBERS),
    **dict.fromkeys(("NGRAM", "DFLASH"), _NUMBERS[-1:]),
}
"""SGLang's kinds of speculation that are planned -> the numbers that bear on their caches."""


def _llamacpp(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    seqs = _whole(facts, "n_seq_max") or _whole(facts, "cache_seqs") or _whole(facts, "n_slots")
    seqs = seqs or _whole(facts, "state_seqs") or _whole(facts, "state_cells")
    seqs = seqs or _whole(facts, "asked_slots")
    unified = _unified(facts) if seqs is not None and seqs > 1 else None
    args: dict[str, Any] = {
        "ctx_size": _context(facts, 1 if unified else seqs or 1),
        "parallel": seqs,
        "kv_unified": unified,
        "batch_size": _whole(facts, "n_batch"),
        "ubatch_size": _whole(facts, "n_ubatch"),
        "flash_attn": _flash(start, facts),
        "n_gpu_layers": _layers_on_gpu(facts),
    }
    for name, own in (("k_type", "cache_type_k"), ("v_type", "cache_type_v")):
        args[own] = facts[name].printed.lower() if name in facts else None
    copies = _whole(facts, "state_copies")
    source = "rs_seq in the log"
    fields: _Fields = {
        "num_speculative_tokens": (copies, source),
        "speculative_method": ("mtp" if copies else None, source),
    }
    gpus = len(gpus_of(start.devices))
    if gpus > 1:
        fields["pipeline_parallel_size"] = (gpus, "devices in the log")
    return fields, {name: value for name, value in args.items() if value is not None}


_FLASH = {"1": "on", "0": "off", "enabled": "on", "disabled": "off"}


def _flash(start: Start, facts: Mapping[str, Fact]) -> str | None:
    """Return whether flash attention is on: as it came out, else as it was asked for."""
    if "no_flash" in start.flags:
        return "off"
    if "flash" in start.flags:
        return "on"
    for name in ("flash_set", "flash_attn"):
        if name in facts and (word := _FLASH.get(facts[name].printed)):
            return word
    return None


def _layers_on_gpu(facts: Mapping[str, Fact]) -> int | None:
    """Return the layers that left the host, the output counted as one; None where none says."""
    fact = facts.get("layers_on_gpu")
    return fact.low if fact is not None and isinstance(fact.low, int) and fact.low >= 0 else None


def _context(facts: Mapping[str, Fact], streams: int) -> int | None:
    """Return n_ctx: logged, or the cells of all streams, or of a slot times the slots."""
    size, cells = _whole(facts, "n_ctx"), _whole(facts, "cells")
    if size is None and cells is not None:
        return cells * (_whole(facts, "cache_streams") or 1)
    slot = _whole(facts, "n_ctx_slot")
    if size is None and slot is not None:
        return slot * streams
    return size or _whole(facts, "asked_context")


def _unified(facts: Mapping[str, Fact]) -> bool | None:
    """Return whether sequences share their cells; None where no line tells it."""
    if "kv_unified" in facts:
        return facts["kv_unified"].printed == "true"
    streams = _whole(facts, "cache_streams")
    return None if streams is None else streams == 1


def _tensorrt(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    del start
    found = {
        "block_size": _whole(facts, "block_size"),
        "max_model_len": _whole(facts, "max_model_len"),
    }
    return {name: (value, "the log") for name, value in found.items()}, {}


def _lmdeploy(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    s = start.settings
    args: dict[str, Any] = {}
    if "pytorch" in start.flags:
        args["backend"] = "pytorch"
    elif "block_memory" in facts or "num_gpu_blocks" in facts:
        args["backend"] = "turbomind"
    length = s.whole("cache_block_seq_len") or _whole(facts, "block_size")
    fields: _Fields = {"tensor_parallel_size": (s.whole("tp"), "the log")}
    if "pytorch" in start.flags:
        fields["block_size"] = _whole(facts, "block_size"), "the log"
        fields["max_num_seqs"] = _whole(facts, "max_num_seqs"), "the log"
    elif length:
        args["cache_block_seq_len"] = length
    return fields, args


def _tgi(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    s = start.settings
    fields: _Fields = {
        "tensor_parallel_size": (s.whole("num_shard"), "the log"),
        "max_model_len": (s.whole("max_total_tokens"), "the log"),
        "block_size": (_whole(facts, "block_size"), "the log"),
    }
    return fields, {}


def _mlc(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    del start
    mode, seqs = facts.get("mode"), _whole(facts, "max_num_seqs")
    args: dict[str, Any] = {
        "mode": None if mode is None else mode.printed,
        "max_batch_size": seqs,
        "max_total_sequence_length": _whole(facts, "kv_cache_tokens"),
    }
    if args["mode"] == "server":  # the others take no more at once than the cache can hold
        args["prefill_chunk_size"] = _whole(facts, "prefill_chunk_size")
    args = {name: value for name, value in args.items() if value is not None}
    return {"max_num_seqs": (seqs, "the log")}, args


_Reader = Callable[[Start, Mapping[str, Fact]], tuple[_Fields, dict[str, Any]]]

_READERS: dict[str, _Reader] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
    "tgi": _tgi,
    "mlc-llm": _mlc,
}
"""Engine -> what of its lines is a setting."""
