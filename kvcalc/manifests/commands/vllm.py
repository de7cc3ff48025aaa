"""`vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `python -m dynamo.vllm`.

vLLM 0.33 engine/arg_utils.py and utils/argparse_utils.py (FlexibleArgumentParser).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcalc.engines.vllm.served import architecture_named
from kvcalc.manifests.commands.flags import number_of
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.commands.rules import model
from kvcalc.manifests.commands.speculative import propose
from kvcalc.manifests.commands.vllm_env import environment
from kvcalc.manifests.commands.vllm_flags import DYNAMO, GRAMMAR, HUGGINGFACE
from kvcalc.manifests.commands.vllm_rules import NOT_MODELLED, ON_HOST, RULES, SINCE
from kvcalc.manifests.commands.yaml_words import with_config
from kvcalc.manifests.found import Word

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
