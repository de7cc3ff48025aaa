"""From a start's lines to the model and deployment that it was: what is given comes first.

A log's model is looked up among the presets by its name; a path in a log is of another machine
and is never opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Fact, Named
from kvcalc.core.model import ModelSpec
from kvcalc.measure.logs.dated import release_of
from kvcalc.measure.logs.gguf_lines import model_of
from kvcalc.measure.logs.starts import Start
from kvcalc.models.presets import load_gpu, load_model_preset

__all__ = ["Given", "Resolved", "resolved"]


class Given(NamedTuple):
    """What a user says of the server, whatever its log says.

    Attributes:
        model: instead of the log's.
        settings: fields of Deployment by name.
        args: engine_args.
        weights_bytes, quantization: of the model's weights.
        folders: folders of presets that come before kvcalc's.
    """

    model: ModelSpec | None = None
    settings: Mapping[str, Any] = {}
    args: Mapping[str, Any] = {}
    weights_bytes: int | None = None
    quantization: str | None = None
    folders: Sequence[Path] = ()


class Resolved(NamedTuple):
    """A start's model and deployment.

    Attributes:
        model: None where neither the log nor the user names one that kvcalc has.
        deployment: as far as it is known.
        named: what it was made of, each with its source.
        version_told: the log or the user says which release it is.
        notes: what was assumed or could not be read.
    """

    model: ModelSpec | None
    deployment: Deployment
    named: tuple[Named, ...]
    version_told: bool
    notes: tuple[str, ...]


_DTYPES = {
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "half": "float16", "float": "float32",
    "f16": "float16", "f32": "float32", "bf16": "bfloat16",
}  # fmt: skip
_WEIGHTS_ONLY = re.compile(
    r"[-_.](?:awq|gptq|int4|int8|w4a16|w8a8|w8a16|w4a8|autoround|auto[-_]round|bnb|4bit|8bit|gguf"
    r"|fp8|fp8[-_]dynamic|quantized|mxfp4|marlin|q\d(?:_\w{1,4}){0,3}|iq\d\w{0,6}|unsloth|dynamic"
    r"|bf16|f16|fp16|exl2|exl3|hqq|nvfp4)$"
)
"""Endings of a repository's name that tell how its weights are kept, which its cache is not."""


def resolved(start: Start, facts: Mapping[str, Fact], given: Given) -> Resolved:
    """Return what a start was of, as its log and the user say."""
    named: list[Named] = []
    notes: list[str] = []
    model = _model(start, given, named, notes)
    fields, args = _READERS.get(start.engine, _nothing)(start, facts)
    told = True
    if "engine_version" not in given.settings:
        dated = release_of(start, dict(facts))
        told = dated.told
        if dated.version is not None:
            fields["engine_version"] = (dated.version, dated.source)
            if not told:
                notes.append(
                    f"the log does not say its version: taken as {dated.version}"
                    f" ({dated.source}); --engine-version says another"
                )
    deployment = Deployment(engine=_engine(start))
    for name, (value, source) in fields.items():
        if name in given.settings or value is None:
            continue
        try:
            deployment = msgspec.structs.replace(deployment, **{name: value})
        except KvcalcError as error:
            notes.append(f"{source} says {name} {value!r:.40}, which is left out: {error.message}")
            continue
        named.append(Named(name=name, value=str(value), source=source))
    own = {name: value for name, value in args.items() if name not in given.args}
    named += [Named(name=n, value=str(v), source="the log") for n, v in own.items()]
    for name, value in {**given.settings, **given.args}.items():
        shown = value.name if isinstance(value, (ModelSpec, GpuSpec)) else str(value)
        named.append(Named(name=name, value=shown, source="given"))
    own.update(given.args)
    deployment = msgspec.structs.replace(deployment, **{**given.settings, "engine_args": own})
    if isinstance(deployment.gpu, str):
        deployment = msgspec.structs.replace(deployment, gpu=load_gpu(deployment.gpu, given.folders))
    return Resolved(model, deployment, tuple(named), told, tuple(notes))


def _engine(start: Start) -> str:
    for flag, engine in (("ascend", "vllm-ascend"), ("tpu", "vllm-tpu")):
        if flag in start.flags:
            return engine
    return "none" if start.engine == "pytorch" else start.engine


# ------------------------------------------------------------------------- the model


def _model(
    start: Start, given: Given, named: list[Named], notes: list[str]
) -> ModelSpec | None:
    if given.model is not None:
        named.append(Named(name="model", value=given.model.name, source="given"))
        return given.model
    if start.engine == "llama.cpp":
        found = model_of(start, notes)
        if found is not None:
            named.append(Named(name="model", value=found.name, source="the log's key-values"))
            return found
    name = start.settings.text(
        "model", "model_path", "model_id", "general.name", "str general.name", "served_model_name"
    )
    if name is None:
        notes.append("the log names no model: --model NAME says which it is")
        return None
    preset, why = _preset(name, given.folders)
    if preset is None:
        notes.append(
            f"the log's model {name!r:.80} is no preset: --model NAME or --config FILE says what it"
            " is"
        )
        return None
    if why:
        notes.append(why)
    named.append(Named(name="model", value=preset.name, source=f"the log: {name:.80}"))
    return preset


def _preset(name: str, folders: Sequence[Path]) -> tuple[ModelSpec | None, str]:
    """Return the preset of a repository or path, and what was assumed to find it."""
    short = name.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1]
    short = re.sub(r"\.gguf$", "", short, flags=re.IGNORECASE)
    short = re.sub(r"-\d{5}-of-\d{5}$", "", short)
    if short.startswith("models--"):
        short = short.split("--")[-1]
    tries = [name, short, short.replace(" ", "-"), short.replace("_", "-")]
    if "/snapshots/" in name and "models--" in name:
        inside = name.split("models--", 1)[1].split("/", 1)[0]
        tries += [inside.replace("--", "/", 1), inside.split("--")[-1]]
    cut, bare = "", short.lower()
    for _ in range(5):
        match = _WEIGHTS_ONLY.search(bare)
        if match is None:
            break
        bare = bare[: match.start()]
        cut = short[len(bare) :]
        tries.append(bare)
    for text in dict.fromkeys(tries):
        try:
            found = load_model_preset(text, folders).spec
        except KvcalcError:
            continue
        shorter = text == bare and bare != short.lower()
        why = f"{short:.60} is taken as {found.name}: {cut[:40]} is about weights" if shorter else ""
        return found, why
    return None, ""


# ------------------------------------------------------------------- the deployment

_Fields = dict[str, tuple[Any, str]]


def _nothing(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    del start, facts
    return {}, {}


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
    found = {
        "tensor_parallel_size": s.whole("tensor_parallel_size"),
        "pipeline_parallel_size": s.whole("pipeline_parallel_size"),
        "data_parallel_size": s.whole("data_parallel_size"),
        "decode_context_parallel_size": s.whole("decode_context_parallel_size"),
        "dtype": _dtype(s.text("dtype")),
        "kv_cache_dtype": None if cache == "auto" else _dtype(cache),
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
    if found["num_speculative_tokens"] is None or found["speculative_method"] is None:
        found["num_speculative_tokens"] = found["speculative_method"] = None
    dcp, tp = found["decode_context_parallel_size"], found["tensor_parallel_size"] or 1
    if isinstance(dcp, int) and isinstance(tp, int) and tp % dcp:
        found["decode_context_parallel_size"] = None
    return {name: (value, "the log") for name, value in found.items()}, {}


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
        "dtype": _dtype(s.text("dtype")),
        "kv_cache_dtype": None if cache == "auto" else _dtype(cache),
        "max_model_len": _whole(facts, "context_length") or s.whole("context_length"),
        "max_num_seqs": s.whole("max_running_requests"),
        "block_size": s.whole("page_size"),
    }
    args: dict[str, Any] = {}
    for name in ("mem_fraction_static", "swa_full_tokens_ratio", "mamba_full_memory_ratio"):
        if (part := s.part(name)) is not None:
            args[name] = part
    if (states := s.whole("max_mamba_cache_size") or _whole(facts, "state_slots")) is not None:
        args["max_mamba_cache_size"] = states
    if s.on("disable_radix_cache"):
        args["disable_radix_cache"] = True
    if s.on("enable_dp_attention") and (dp := s.whole("dp_size")):
        args |= {"enable_dp_attention": True, "dp_size": dp}
    algorithm = s.text("speculative_algorithm")
    if algorithm is not None:
        args["speculative_algorithm"] = algorithm.upper()
        steps = s.whole("speculative_num_draft_tokens")
        if steps:
            args["speculative_num_draft_tokens"] = steps
    return {name: (value, "the log") for name, value in found.items()}, args


def _llamacpp(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    args: dict[str, Any] = {}
    size = _whole(facts, "n_ctx")
    seqs = _whole(facts, "n_seq_max") or _whole(facts, "cache_seqs")
    streams = _whole(facts, "cache_streams")
    unified = facts.get("kv_unified")
    shared = unified.printed == "true" if unified is not None else None
    if shared is None and streams is not None and seqs is not None and seqs > 1:
        shared = streams == 1
    if size is None and (cells := _whole(facts, "cells")) is not None:
        size = cells * (streams or 1)
    if size is not None:
        args["ctx_size"] = size
    if seqs is not None:
        args["parallel"] = seqs
        if shared is not None and seqs > 1:
            args["kv_unified"] = shared
    for name, own in (("n_batch", "batch_size"), ("n_ubatch", "ubatch_size")):
        if (value := _whole(facts, name)) is not None:
            args[own] = value
    for name, own in (("k_type", "cache_type_k"), ("v_type", "cache_type_v")):
        if (fact := facts.get(name)) is not None:
            args[own] = fact.printed.lower()
    fields: _Fields = {}
    copies = _whole(facts, "state_copies")
    if copies:
        fields["num_speculative_tokens"] = (copies, "rs_seq in the log")
        fields["speculative_method"] = ("mtp", "rs_seq in the log")
    return fields, args


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
    if "block_memory" in facts or "num_gpu_blocks" in facts:
        args["backend"] = "turbomind"
    length = s.whole("cache_block_seq_len") or _whole(facts, "block_size")
    if length:
        args["cache_block_seq_len"] = length
    return {"tensor_parallel_size": (s.whole("tp"), "the log")}, args


def _tgi(start: Start, facts: Mapping[str, Fact]) -> tuple[_Fields, dict[str, Any]]:
    s = start.settings
    fields: _Fields = {
        "tensor_parallel_size": (s.whole("num_shard"), "the log"),
        "max_model_len": (s.whole("max_total_tokens"), "the log"),
        "block_size": (_whole(facts, "block_size"), "the log"),
    }
    return fields, {}


_Reader = Callable[[Start, Mapping[str, Fact]], tuple[_Fields, dict[str, Any]]]

_READERS: dict[str, _Reader] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llamacpp,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
    "tgi": _tgi,
}
"""Engine -> what of its lines is a setting."""
