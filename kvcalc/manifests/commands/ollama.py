"""`ollama serve`, its variables, and what a Modelfile says.

ollama fb30760 envconfig/config.go, llm/llama_server.go, parser/parser.go: the server has no flags.
It starts a llama-server, so kvcalc plans it as llama.cpp with ollama's settings.
"""

from __future__ import annotations

import re

from kvcalc.core.errors import nearest, printable
from kvcalc.manifests.commands.flags import names
from kvcalc.manifests.commands.llama_server import variables
from kvcalc.manifests.commands.numbers import BadNumberError, whole
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.found import Word

__all__ = ["read"]

_WHOLE = {
    "OLLAMA_CONTEXT_LENGTH": "ollama_context_length",
    "OLLAMA_NUM_PARALLEL": "ollama_num_parallel",
    "OLLAMA_MAX_LOADED_MODELS": "ollama_max_loaded_models",
}
_SHOWN = ("OLLAMA_GPU_OVERHEAD", "OLLAMA_MAX_QUEUE")
_HARMLESS = names("""
    AUTH CLOUD_BASE_URL DEBUG DEBUG_LOG_REQUESTS EDITOR HOST KEEP_ALIVE LLM_LIBRARY LOAD_TIMEOUT
    MODELS MULTIUSER_CACHE NEW_ENGINE NEW_ESTIMATES NOHISTORY NOPRUNE NO_CLOUD ORIGINS REMOTES
    SCHED_SPREAD VULKAN INTEL_GPU EXPERIMENT API_KEY TMPDIR RUNNERS_DIR MAX_VRAM CONFIG VERSION
    USE_MLX IMAGE_GEN
    """)
_INSTEAD = {
    "OLLAMA_NUM_CTX": "OLLAMA_CONTEXT_LENGTH",
    "OLLAMA_CTX": "OLLAMA_CONTEXT_LENGTH",
    "OLLAMA_CONTEXT_SIZE": "OLLAMA_CONTEXT_LENGTH",
    "OLLAMA_MAX_CONTEXT": "OLLAMA_CONTEXT_LENGTH",
    "OLLAMA_GPU_LAYERS": "num_gpu in a Modelfile or a request",
    "OLLAMA_NUM_GPU": "num_gpu in a Modelfile or a request",
    "OLLAMA_NUM_THREADS": "num_thread in a Modelfile or a request",
    "OLLAMA_NUM_THREAD": "num_thread in a Modelfile or a request",
}
_TYPES = ("f16", "q8_0", "q4_0", "f32", "bf16", "q4_1", "q5_0", "q5_1", "iq4_nl")
_PLAIN = ("f16", "f32", "bf16")
_ON, _OFF = ("1", "t", "true"), ("0", "f", "false", "")
_PARAMETER = re.compile(r"\s*PARAMETER\s+(\w+)\s+(\S+)", re.IGNORECASE | re.ASCII)
_FROM = re.compile(r"\s*FROM\s+(\S+)", re.IGNORECASE | re.ASCII)
_CHILDS = frozenset(("ctx_size", "parallel", "cache_type_k", "cache_type_v", "kv_unified", "model"))


def read(reading: Reading, start: Start) -> None:
    """Read a command of ollama's, its variables, and a Modelfile that is at hand."""
    place = start.words[0] if start.words else Word("", reading.invocation.line)
    # Its own default, which also says that it is ollama who starts the llama-server.
    reading.put("ollama_num_parallel", 1, "arg", "ollama's default", place)
    _command(reading, start)
    for name, word in reading.env.items():
        if name.startswith("OLLAMA_"):
            _variable(reading, name, word)
    _together(reading)
    variables(reading, skip=_CHILDS)


def _together(reading: Reading) -> None:
    """Tell a quantised cache without flash attention, where no model's plan tells it."""
    kind, flash = reading.has("ollama_kv_cache_type"), reading.has("ollama_flash_attention")
    if reading.model is not None or flash is not False or not isinstance(kind, str):
        return
    if kind not in _PLAIN:
        setting = reading.settings["ollama_kv_cache_type"]
        reading.find(
            "contradiction",
            "error",
            f"{setting.written} wants flash attention, which OLLAMA_FLASH_ATTENTION puts off",
            "write OLLAMA_FLASH_ATTENTION=1, or leave the cache's type out",
            Word("", setting.line, file=setting.file),
        )


def _command(reading: Reading, start: Start) -> None:
    words = start.words
    if start.how == "ollama" and words and words[0].text == "ollama":
        reading.find(
            "entrypoint-repeated",
            "error",
            "the image starts ollama by itself: `ollama ollama` is no command",
            "leave the first word out",
            words[0],
        )
        words = words[1:]
    action = words[0].text if words else "serve"
    if action in ("run", "pull"):
        named = next((word for word in words[1:] if not word.text.startswith("-")), None)
        if named is not None:
            reading.named(f"ollama {action}", named)
    if action == "create":
        named = next((word for word in words[1:] if not word.text.startswith("-")), None)
        for at, word in enumerate(words[:-1]):
            if word.text in ("-f", "--file"):
                _modelfile(reading, words[at + 1])
                break
        if named is not None and reading.model is None:
            reading.named("ollama create", named)
    for path in reading.invocation.attached:
        if path.rsplit("/", 1)[-1].lower().startswith("modelfile"):
            _modelfile(reading, Word(path, reading.invocation.line))


def _modelfile(reading: Reading, named: Word) -> None:
    file = reading.file("-f", named)
    if file is None:
        return
    name = "" if file.file == reading.invocation.file else file.file
    for at, line in enumerate(file.text.splitlines()[:2000]):
        if (match := _FROM.match(line)) is not None:
            reading.named("FROM", Word(match[1], file.line + at, file=name))
        elif (match := _PARAMETER.match(line)) is not None:
            word = Word(match[2], file.line + at, file=name)
            given = Given(match[1], f"PARAMETER {match[1]}", (word,))
            if match[1] == "num_ctx":
                reading.number("num_ctx", "arg", given, whole, 1)
            elif match[1] == "num_gpu":
                reading.number("n_gpu_layers", "arg", given, whole, -1)
            elif match[1] == "num_batch":
                reading.number("batch_size", "arg", given, whole, 1)


def _variable(reading: Reading, name: str, word: Word) -> None:
    given = Given(name, name, (word,))
    if name in _WHOLE:
        _count(reading, name, given)
    elif name == "OLLAMA_KV_CACHE_TYPE":
        _cache_type(reading, given)
    elif name == "OLLAMA_FLASH_ATTENTION":
        said = word.text.strip("\"' ").lower()
        if not reading.unresolved(name, word) and said in (*_ON, *_OFF):
            reading.put("ollama_flash_attention", said in _ON, "arg", name, word)
    elif name in _SHOWN:
        reading.number(name.removeprefix("OLLAMA_").lower(), "other", given, whole, 0)
    elif name.removeprefix("OLLAMA_") not in _HARMLESS:
        _unread(reading, name, word)


def _count(reading: Reading, name: str, given: Given) -> None:
    """Set a number; 0 stands for ollama's own choice."""
    if reading.unresolved(name, given.word):
        reading.put(_WHOLE[name], None, "arg", name, given.word)
        return
    try:
        value = whole(given.word.text.strip("\"' "))
    except BadNumberError as fault:
        reading.find(
            "bad-value",
            "error",
            f"{name} is no number: ollama starts, and does not look at it",
            fault.cure,
            given.word,
        )
        return
    if value > 0:
        reading.put(_WHOLE[name], value, "arg", name, given.word)


def _cache_type(reading: Reading, given: Given) -> None:
    word = reading.text("ollama_kv_cache_type", "arg", given)
    if word is None:
        return
    kind = word.strip("\"' ").lower()
    if kind in _TYPES:
        reading.put("ollama_kv_cache_type", kind, "arg", given.written, given.word)
        return
    del reading.settings["ollama_kv_cache_type"]
    if kind:
        message = f"{given.written} is none of its cache types"
        reading.find("bad-value", "error", message, "write f16, q8_0 or q4_0", given.word)


def _unread(reading: Reading, name: str, word: Word) -> None:
    known = [*_WHOLE, *_SHOWN, "OLLAMA_KV_CACHE_TYPE", "OLLAMA_FLASH_ATTENTION"]
    instead = _INSTEAD.get(name) or next(iter(nearest(name, known, 1)), None)
    used = {each for other in reading.invocation.words for each in other.variables}
    if name in used:
        return
    reading.find(
        "ignored-variable",
        "warning" if instead else "note",
        f"ollama does not read {printable(name)[:60]}",
        f"write {instead}" if instead else "leave it out",
        word,
    )
