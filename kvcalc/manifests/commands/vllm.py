"""`vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `python -m dynamo.vllm`.

vLLM 0.33 engine/arg_utils.py and utils/argparse_utils.py (FlexibleArgumentParser).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.model import PARTITION
from kvcalc.engines.vllm.arguments import GRAPH_MODES, counts_of
from kvcalc.engines.vllm.dtypes import KV_DTYPES
from kvcalc.engines.vllm.options import BACKEND_OPTION_SINCE, SINCE
from kvcalc.engines.vllm.served import architecture_named
from kvcalc.manifests.commands.flags import number_of
from kvcalc.manifests.commands.numbers import BadNumberError, decimal, short, whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading, Value
from kvcalc.manifests.commands.rules import (
    Rule,
    each,
    many,
    model,
    number,
    one_of,
    same,
    switch,
    text,
)
from kvcalc.manifests.commands.vllm_flags import DYNAMO, GRAMMAR, HUGGINGFACE
from kvcalc.manifests.commands.yaml_words import with_config
from kvcalc.manifests.found import Word
from kvcalc.models.documents import Plain

__all__ = ["read"]


_WORKER = {
    "MODEL_NAME": "model",
    "MODEL_ID": "model",
    "MODEL_REVISION": "revision",
    "TENSOR_PARALLEL_DEGREE": "tensor-parallel-size",
    "PIPELINE_PARALLEL_DEGREE": "pipeline-parallel-size",
    "MAX_ROLLING_BATCH_SIZE": "max-num-seqs",
    "MAX_ROLLING_BATCH_PREFILL_TOKENS": "max-num-batched-tokens",
    "QUANTIZE": "quantization",
}
"""Variables of RunPod's worker and of LMI that are named otherwise than their options.

djl-serving, engines/python/setup/djl_python/properties_manager/vllm_rb_properties.py.
"""
_LEVEL = re.compile(r"-O(?:=?([0-3]))?")
_NOTHING = ("0", "0.0")
_SLOTS = {"max_loras": 1, "max_lora_rank": 16}
_BY_KEY = ("limit_mm_per_prompt", "compilation_config")
"""Options whose keys may stand behind a dot, and count one by one."""
_SWAP_UNTIL = (0, 18)
_LOOKED_AT = (
    *((0, 6, 6), (0, 7, 3), (0, 8, 5), (0, 9, 2), (0, 10, 0), (0, 10, 2), (0, 11, 0), (0, 11, 2)),
    *((0, 12, 0), (0, 13, 0), (0, 16, 0), (0, 17, 1), (0, 18, 1), (0, 19, 1), (0, 20, 2)),
)
"""Releases whose wheels were looked at: what the last before an option's first one has not."""


def read(reading: Reading, start: Start) -> None:
    """Read a command of vLLM's."""
    grammar, rules = GRAMMAR, RULES
    if start.how.startswith("dynamo"):
        grammar = GRAMMAR._replace(flags={**DYNAMO, **GRAMMAR.flags})
    elif start.program == "huggingfaceserver":
        grammar = GRAMMAR._replace(flags={**HUGGINGFACE, **GRAMMAR.flags})
        rules = {**RULES, "model_id": model, "model_dir": model}
    words = _levels([*_from_worker(reading), *start.words])
    words = with_config(reading, words, grammar.flags, inline=False, endings=(".yaml", ".yml"))
    found = split(words, grammar, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        if (rule := rules.get(given.name)) is not None and (
            not given.path or given.name in _BY_KEY
        ):
            rule(reading, given)
        _bears_on(reading, given)
    _alone(reading, start, found.alone, found.passed)
    _adapters(reading)
    _on_host(reading)
    propose(reading, found.given)
    environment(reading)
    if start.how == "demo api_server":
        reading.find(
            "demo-server",
            "note",
            "vllm.entrypoints.api_server is vLLM's demo, not its OpenAI server",
            "start vllm serve",
            None,
        )


def _bears_on(reading: Reading, given: Given) -> None:
    """Tell an option that is not counted, or that the release had not yet."""
    first = SINCE.get(given.name)
    number, since = number_of(reading.version), number_of(first)
    if number and since and number < since:
        without = max(each for each in _LOOKED_AT if each < since)
        reading.find(
            "newer-flag",
            "error" if number <= without else "warning",  # not looked at: perhaps it has it
            f"{given.written} was not seen in vLLM before {first}, and this is {reading.version}",
            f"take vLLM {first} or later, or leave it out",
            given.word,
        )
    why = NOT_MODELLED.get(given.name)
    nothing = (*_NOTHING, "1") if given.name.endswith("parallel_size") else _NOTHING
    if given.name == "hf_overrides" and architecture_named(given.word.text):
        return
    if why is not None and given.on and given.word.text not in nothing:
        reading.not_modelled(given.written, given.word, why)
        if given.name in ON_HOST:
            reading.put(given.name, given.word.text, "arg", given.written, given.word)


def _alone(reading: Reading, start: Start, alone: list[Word], passed: list[Word]) -> None:
    """Read the model, which stands alone; a program that the image starts by itself is told."""
    if alone and alone[0].text == "serve" and start.how == "image":
        reading.find(
            "entrypoint-repeated",
            "error",
            "the image starts the server by itself: it takes `serve` for a model",
            "leave serve out",
            alone[0],
        )
        alone = alone[1:]
    if alone and (reading.model is None or start.how.endswith("serve")):
        reading.named("MODEL", alone[0])
        alone = alone[1:]
    elif reading.model is None and passed and start.how.endswith("serve"):
        reading.named("MODEL", passed[0])  # behind a flag that nobody knows
    cure = "join it with its flag by =, or quote the value that it is part of"
    reading.stray(alone, "vLLM", cure)


def _levels(words: Sequence[Word]) -> list[Word]:
    """Return words with --optimization-level for -O3, -O=3 and -O 3."""
    found: list[Word] = []
    for word in words:
        match = _LEVEL.fullmatch(word.text)
        if match is None:
            found.append(word)
        else:
            level = f"={match[1]}" if match[1] else ""
            found.append(word._replace(text=f"--optimization-level{level}"))
    return found


def _from_worker(reading: Reading) -> Iterator[Word]:
    """Yield the flags that an image makes of variables: RunPod's worker, AWS's containers."""
    prefix = reading.variables.rstrip("*")
    for name, word in reading.env.items() if reading.variables else ():
        if not name.startswith(prefix):
            continue
        key = name.removeprefix(prefix)
        flag = "--" + _WORKER.get(key, key.lower()).replace("_", "-")
        found = GRAMMAR.flags.get(flag)
        if found is None or not word.text:
            continue
        if found[0].takes in ("pair", "switch"):
            if word.text.lower() in ("true", "1"):
                yield word._replace(text=flag)
        else:
            yield word._replace(text=f"{flag}={word.text}")


def _on_host(reading: Reading) -> None:
    """Leave out what the release has not, which is told, and what another program keeps."""
    at = number_of(reading.version)
    swap, size = reading.settings.get("swap_space"), reading.settings.get("kv_offloading_size")
    if swap is not None and (at is None or at[:2] >= _SWAP_UNTIL):
        reading.settings["swap_space"] = swap._replace(kind="other")
    if size is None:
        return
    since = number_of(SINCE["kv_offloading_size"])
    early = at is not None and since is not None and at < since
    if reading.has("kv_offloading_backend") not in (None, "native"):
        what = "what another program keeps on the host is not counted"
        reading.not_modelled(size.written, Word("", size.line, file=size.file), what)
        early = True
    if early:
        reading.settings["kv_offloading_size"] = size._replace(kind="other")


def _adapters(reading: Reading) -> None:
    """Set the slots of adapters, which nothing makes without --enable-lora."""
    enabled = reading.settings.get("enable_lora")
    if enabled is None or not enabled.value:
        return
    sharded = reading.settings.get("fully_sharded_loras")
    if sharded is not None:
        reading.settings["fully_sharded_loras"] = sharded._replace(kind="arg")
    for name, default in _SLOTS.items():
        old = reading.settings.get(name, enabled._replace(name=name, value=default))
        reading.settings[name] = old._replace(kind="arg")
    host, slots = reading.settings.get("max_cpu_loras"), reading.has("max_loras")
    if host is None or not isinstance(host.value, int) or not isinstance(slots, int):
        return
    if host.value < slots:  # config/lora.py, LoRAConfig
        reading.find(
            "adapters-on-host",
            "error",
            f"max_cpu_loras {host.value} is less than max_loras {slots}",
            f"{host.written} {slots}, or leave it out",
            Word("", host.line, file=host.file),
        )


# Variables that vLLM reads, and those that people believe it reads.
#
# vLLM 0.33 envs.py.

_SHOWN = (
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "VLLM_KV_CACHE_LAYOUT",
)
_BELIEVED = (
    *("MAX_MODEL_LEN", "GPU_MEMORY_UTILIZATION", "TENSOR_PARALLEL_SIZE"),
    *("PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE", "MAX_NUM_SEQS"),
    *("MAX_NUM_BATCHED_TOKENS", "KV_CACHE_DTYPE", "ENFORCE_EAGER", "ENABLE_PREFIX_CACHING"),
)
_BELIEVED_OF_VLLM = (*_BELIEVED, "DTYPE", "QUANTIZATION", "MODEL", "BLOCK_SIZE", "SWAP_SPACE")
_TWO_ENGINES = ((0, 7), (0, 11))


def environment(reading: Reading) -> None:
    """Read the variables of vLLM's that bear on memory."""
    for name, word in reading.env.items():
        if name == "VLLM_USE_V1":
            _engine(reading, word)
        elif name == PARTITION and not reading.unresolved(name, word):
            reading.put(PARTITION, word.text.strip(), "arg", name, word)
        elif name == "VLLM_ATTENTION_BACKEND":
            _backend(reading, word)
        elif name == "VLLM_CPU_KVCACHE_SPACE":
            _cpu_space(reading, word)
        elif name in _SHOWN:
            reading.put(name.removeprefix("VLLM_").lower(), word.text, "other", name, word)
    _believed(reading)


def _engine(reading: Reading, word: Word) -> None:
    """Choose V0 or V1 of a release that has both."""
    number = number_of(reading.version)
    low, high = _TWO_ENGINES
    if number is not None and low <= number[:2] < high and word.text in ("0", "1"):
        reading.version = f"{reading.version}+v{word.text}"
    elif word.text == "0":
        reading.find(
            "ignored-variable",
            "note",
            "VLLM_USE_V1 means nothing since vLLM 0.11: there is no V0 any more",
            "leave it out",
            word,
        )


def _backend(reading: Reading, word: Word) -> None:
    number = number_of(reading.version)
    if number is not None and number[:2] < BACKEND_OPTION_SINCE:
        if "attention_backend" not in reading.settings:
            reading.text("attention_backend", "field", Given("", "VLLM_ATTENTION_BACKEND", (word,)))
        return
    reading.find(
        "ignored-variable",
        "warning",
        "vLLM 0.33 does not read VLLM_ATTENTION_BACKEND, as older releases did",
        "write --attention-backend",
        word,
    )


def _cpu_space(reading: Reading, word: Word) -> None:
    if reading.unresolved("VLLM_CPU_KVCACHE_SPACE", word):
        return
    try:
        value = decimal(word.text)
    except BadNumberError as fault:
        reading.bad("VLLM_CPU_KVCACHE_SPACE", word, fault.cure)
        return
    size = int(value) if value == int(value) else value
    reading.put("cpu_kvcache_space_gib", size, "other", "VLLM_CPU_KVCACHE_SPACE", word)


def _believed(reading: Reading) -> None:
    """Tell variables that vLLM does not read, and that no flag is given."""
    if reading.variables:
        return
    words = (*reading.invocation.words, *reading.env.values())
    used = {name for word in words for name in word.variables}
    for name, word in reading.env.items():
        short = name.removeprefix("VLLM_")
        own = short != name
        if name in used or short not in (_BELIEVED_OF_VLLM if own else _BELIEVED):
            continue
        flag = "--" + short.lower().replace("_", "-")
        reading.find(
            "ignored-variable",
            "warning" if own else "note",
            f"vLLM does not read {name}, and no flag is given it",
            f"write {flag} ${name}" if flag != "--model" else f"write vllm serve ${name}",
            word,
        )


# How tokens are proposed ahead, put together from vLLM's options of all releases.

_Config = dict[str, tuple[Plain, Given]]
"""Key of speculative_config -> its value, and the option that it came from."""
_OLD = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
_OTHER_VOCABULARY = "use_heterogeneous_vocab"
_FIELDS = {
    "method": "speculative_method",
    "num_speculative_tokens": "num_speculative_tokens",
    "model": "draft_model",
}


def propose(reading: Reading, given: Sequence[Given]) -> None:
    """Set speculative_method, num_speculative_tokens and draft_model from the options."""
    config: _Config = {}
    for one in given:
        if one.name == "speculative_config":
            _merge(reading, one, config)
        elif one.name in _OLD:
            if reading.unresolved(one.written, one.word):
                reading.put(_FIELDS[_OLD[one.name]], None, "field", one.written, one.word)
            else:
                config[_OLD[one.name]] = (one.word.text.strip(), one)
    _by_draft(reading, config)
    for key, field in _FIELDS.items():
        if key in config:
            _put(reading, field, *config[key])


def _by_draft(reading: Reading, config: _Config) -> None:
    """Tell the method by the draft where it is not said, and leave out what is no draft."""
    draft, method = _text(config, "model"), _text(config, "method")
    if draft is None:
        return
    at = config["model"][1]
    if draft.strip("[]").lower() == "ngram":
        config["method"] = ("ngram", at)
        del config["model"]
    elif _is_target(reading, draft, method):
        del config["model"]
    elif method is None:
        folded = draft.lower().replace("-", "")
        found = next(
            (name for name in ("eagle3", "eagle", "dflash", "dspark") if name in folded), None
        )
        if found is not None:
            config["method"] = (found, at)


def _merge(reading: Reading, given: Given, config: _Config) -> None:
    if given.path:
        if given.path[0] in _FIELDS and len(given.path) == 1:
            if reading.unresolved(given.written, given.word):
                field = _FIELDS[given.path[0]]
                reading.put(field, None, "field", given.written, given.word)
            else:
                config[given.path[0]] = (given.word.text.strip(), given)
        return
    value = reading.json(given)
    if value is None:
        if given.word.unresolved:
            reading.put("speculative_method", None, "field", given.written, given.word)
        return
    if not isinstance(value, dict):
        reading.refuse(f"{given.written} is no mapping", given.word, 'write {"method": ..., ...}')
        return
    if value.get(_OTHER_VOCABULARY) is True:
        reading.put(_OTHER_VOCABULARY, True, "arg", given.written, given.word)
    config.update({key: (value[key], given) for key in _FIELDS if value.get(key) is not None})


def _text(config: _Config, key: str) -> str | None:
    value = config[key][0] if key in config else None
    return value if isinstance(value, str) else None


def _is_target(reading: Reading, draft: str, method: str | None) -> bool:
    """Whether the draft is the model itself: its own layers propose."""
    model = reading.model.value if reading.model is not None else None
    return draft == model and (method is None or method.endswith("mtp"))


def _put(reading: Reading, field: str, value: Plain, given: Given) -> None:
    word: Word = given.word
    if field == "num_speculative_tokens":
        number = _number(value)
        if number is None:
            what = f"num_speculative_tokens of {given.written} is no number from 1 on"
            reading.refuse(what, word, "write a number such as 3")
            return
        reading.put(field, number, "field", given.written, word)
        return
    kept: Value = value if isinstance(value, str) else None
    if kept is None:
        reading.refuse(f"{field} of {given.written} is no text", word, "write its name")
        return
    reading.put(field, kept, "field", given.written, word)


def _number(value: Plain) -> int | None:
    if isinstance(value, str):
        try:
            value = short(value)
        except BadNumberError:
            return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    return value


# What becomes of each of vLLM's options, and since when there is which.
#
# vLLM 0.33 engine/arg_utils.py; the releases are those of the wheels that were looked at.


def _length(reading: Reading, given: Given) -> None:
    """Set the maximum; `auto` and -1 make it fit, which is no number yet."""
    if given.word.text.strip().lower() in ("auto", "-1"):
        reading.put("max_model_len", "auto", "other", given.written, given.word)
    else:
        reading.number("max_model_len", "field", given, short, 1)


def _devices(reading: Reading, given: Given) -> None:
    if not given.word.unresolved:
        devices = tuple(part.strip() for part in given.word.text.split(",") if part.strip())
        reading.show(devices)


def _load_format(reading: Reading, given: Given) -> None:
    if reading.text("load_format", "other", given) == "dummy":
        reading.find(
            "dummy-weights",
            "warning",
            "--load-format dummy makes weights up: no model is loaded",
            "leave it out",
            given.word,
        )


def _limits(reading: Reading, given: Given) -> None:
    """Set how many inputs a prompt may have: JSON, `image=2,video=0`, or a key behind a dot."""
    if reading.unresolved(given.written, given.word):
        reading.put("limit_mm_per_prompt", None, "arg", given.written, given.word)
        return
    text = given.word.text.strip()
    if given.path:
        before = reading.has("limit_mm_per_prompt")
        kinds = f"{before}," if isinstance(before, str) and before else ""
        text = f"{kinds}{given.path[0]}={text}"
    try:
        counts_of(text)
    except InvalidValueError as fault:
        reading.bad(given.written, given.word, fault.hint)
        return
    reading.put("limit_mm_per_prompt", text, "arg", given.written, given.word)


def _captured(reading: Reading, given: Given) -> None:
    """Set what is captured as CUDA graphs: by name, or by the number that it had at first."""
    if given.path:
        value: Plain = given.word.text if given.path == ("cudagraph_mode",) else None
    else:
        config = reading.json(given)
        value = config.get("cudagraph_mode") if isinstance(config, dict) else None
    word = str(value).strip().lower()
    mode = GRAPH_MODES[int(word)] if word in ("0", "1", "2") else word
    if mode in GRAPH_MODES:
        reading.put("cudagraph_mode", mode, "arg", given.written, given.word)


def _level(reading: Reading, given: Given) -> None:
    """Set what the level captures (config/vllm.py, OPTIMIZATION_LEVEL_00 and _01)."""
    level = reading.text("optimization_level", "other", given)
    at = number_of(reading.version)
    if level in ("0", "1") and (at is None or at >= _LEVELS) and not reading.has("cudagraph_mode"):
        mode = GRAPH_MODES[int(level)]
        reading.put("cudagraph_mode", mode, "arg", given.written, given.word)


def _overrides(reading: Reading, given: Given) -> None:
    """Set the architecture that a config is to be read as; other changes of it are told alone."""
    reading.text("hf_overrides", "arg" if architecture_named(given.word.text) else "other", given)


def _cache(reading: Reading, given: Given) -> None:
    """Set the cache's dtype; a fork's own words stay, and the engine tells what it has not."""
    known = reading.engine == "vllm" and not given.word.text.strip().startswith("octave_")
    (_KNOWN_CACHE if known else text("kv_cache_dtype", "field"))(reading, given)


_NUMBER_FIELDS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "block_size"),
    *("decode_context_parallel_size", "max_num_seqs", "num_gpu_blocks_override"),
)
_WORDS = ("attention_backend", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
_LEVELS = (0, 12)
"""--optimization-level; before, -O is the level of compilation alone."""
_MEANT = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32"}
_MEANT_CACHES = {
    **dict.fromkeys(("int8", "q8_0"), "fp8, or int8_per_token_head"),
    **dict.fromkeys(("int4", "q4_0", "fp4"), "nvfp4, or int4_per_token_head"),
    "fp8_e4m3fn": "fp8_e4m3",
    **_MEANT,
}
_KNOWN_CACHE = one_of(
    "kv_cache_dtype", "field", same((*KV_DTYPES, "ultraquant_4bit")), _MEANT_CACHES
)
DTYPES = {
    **same(("auto", "float16", "bfloat16", "float32")),
    "half": "float16",
    "float": "float32",
}
"""Choices of --dtype -> what they are called here."""
_SWITCHES = (
    *("enable_prefix_caching", "async_scheduling", "enforce_eager", "enable_expert_parallel"),
    "disable_hybrid_kv_cache_manager",
)
_SHOWN_WHOLE = (
    *("data_parallel_size_local", "data_parallel_rank", "data_parallel_start_rank", "nnodes"),
    *("prefill_context_parallel_size", "mamba_block_size", "max_cpu_loras", "node_rank"),
    *("max_seq_len_to_capture", "num_scheduler_steps", "max_cudagraph_capture_size"),
    *("max_loras", "max_lora_rank"),
)
_COUNTS = ("max_num_active_seqs", "max_num_partial_prefills", "max_long_partial_prefills")
_ARG_SWITCHES = (
    *("language_model_only", "enable_lora", "enable_chunked_prefill", "disable_chunked_mm_input"),
)
_GIB = ("cpu_offload_gb", "kv_offloading_size", "swap_space")
_SHOWN_TEXT = (
    *("quantization", "revision", "distributed_executor_backend", "runner", "task", "convert"),
    *("performance_mode", "kv_offloading_backend", "device"),
    "rope_scaling",
)
_SHOWN_SWITCH = (
    *("disable_sliding_window", "headless"),
    *("mm_encoder_only", "skip_mm_profiling", "fully_sharded_loras"),
    "data_parallel_hybrid_lb",
)
_SHOWN_MANY = ("served_model_name", "kv_cache_dtype_skip_layers", "cudagraph_capture_sizes")
RULES: dict[str, Rule] = {
    "model": model,
    "max_model_len": _length,
    "gpu_memory_utilization": number("gpu_memory_utilization", "field", decimal, 1e-9, 1),
    "max_num_batched_tokens": number("max_num_batched_tokens", "field", short, 1),
    "kv_cache_memory_bytes": number("kv_cache_memory_bytes", "field", short, 1),
    "dtype": one_of("dtype", "field", DTYPES, _MEANT),
    "kv_cache_dtype": _cache,
    "device_ids": _devices,
    "load_format": _load_format,
    "max_num_scheduled_tokens": number("max_num_scheduled_tokens", "other", short),
    **each(_NUMBER_FIELDS, lambda name: number(name, "field", whole, 1)),
    **each(_WORDS, lambda name: text(name, "field")),
    **each(_SWITCHES, lambda name: switch(name, "field")),
    **each(_SHOWN_WHOLE, lambda name: number(name, "other", whole)),
    **each(_GIB, lambda name: number(name, "arg", decimal, 0)),
    **each(_COUNTS, lambda name: number(name, "arg", whole, 1)),
    "long_prefill_token_threshold": number("long_prefill_token_threshold", "arg", whole),
    **each(_ARG_SWITCHES, lambda name: switch(name, "arg")),
    "limit_mm_per_prompt": _limits,
    "compilation_config": _captured,
    "optimization_level": _level,
    "hf_overrides": _overrides,
    **each(_SHOWN_TEXT, lambda name: text(name, "other")),
    **each(_SHOWN_SWITCH, lambda name: switch(name, "other")),
    **each(_SHOWN_MANY, lambda name: many(name, "other")),
}
"""Option -> what becomes of it; the others decide nothing that is read here."""
ON_HOST = ("offload_group_size", "cpu_offload_params")
"""Options that move weights to the host, so that what is left for the cache is not known."""
NOT_MODELLED = {
    "prefill_context_parallel_size": "ranks that share a prefill are not modelled",
    **dict.fromkeys(ON_HOST, "which weights leave the GPU is not known"),
    "hf_overrides": "changes of the model's config are not looked at",
    "rope_scaling": "a longer maximum by scaling is not looked at",
    "disable_sliding_window": "windows are counted as the model has them",
    "kv_cache_dtype_skip_layers": "every layer is counted in the one cache dtype",
    "mamba_block_size": "the block of states is taken to be vLLM's own",
    "kv_transfer_config": "buffers of a connector take memory beside the cache",
    "mm_encoder_only": "a server of the encoder alone is not modelled",
    "enable_sleep_mode": "its allocator is not modelled",
}
"""Option that bears on memory and is not counted -> why its figures may be off."""
