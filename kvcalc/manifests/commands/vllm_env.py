"""Variables that vLLM reads, and those that people believe it reads.

vLLM 0.33 envs.py.
"""

from __future__ import annotations

from kvcalc.core.model import PARTITION
from kvcalc.engines.vllm.options import BACKEND_OPTION_SINCE
from kvcalc.manifests.commands.flags import number_of
from kvcalc.manifests.commands.numbers import BadNumberError, decimal
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.found import Word

__all__ = ["environment"]

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
