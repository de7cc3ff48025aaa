"""How a cure is spelled: as the file says it where it does, else as the engine's own flag."""

from __future__ import annotations

from kvcalc.checks.targets import Target
from kvcalc.core.deployment import Deployment
from kvcalc.engines import engine_asked
from kvcalc.manifests.found import Setting

__all__ = ["said", "setting"]

_OWN = {
    "sglang": "--{dashed}",
    "lmdeploy": "--{dashed}",
    "tgi": "--{dashed}",
    "llama.cpp": "--{dashed}",
}
"""Engines whose own arguments are flags of their names."""

_OF_CONFIG = {
    "block_size": "kv_cache_config.tokens_per_block",
    "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
    "max_seq_len": "--max_seq_len",
    "max_batch_size": "--max_batch_size",
    "max_tokens": "kv_cache_config.max_tokens",
}
"""trtllm-serve's flags, and keys of its configuration, for what is no field of Deployment."""

_SAME = {
    "max_model_len": ("max_model_len", "context_length", "max_seq_len", "session_len"),
    "kv_cache_dtype": ("kv_cache_dtype", "quant_policy"),
}
"""Field -> the names that engines' own settings have for it."""


def setting(target: Target, *names: str) -> Setting | None:
    """Return the first of these settings that the file says."""
    server = target.server
    for name in names:
        for one in server.settings if server is not None else ():
            if one.name == name:
                return one
    return None


def said(target: Target, name: str, value: object) -> str | None:
    """Return a setting as it is to be written: a flag, a key or a variable.

    None where the engine has no word for it: such a cure is none.

    Args:
        target: that it is a cure of.
        name: a field of Deployment, or an argument of the engine's own.
        value: what it is to be.
    """
    if not target.flags:
        return f"{name} {_plain(value)}"
    engine = str(target.engine)
    if engine == "llama.cpp":
        return _llama(target, name, value)
    given = setting(target, *_SAME.get(name, (name,)))
    if given is not None and given.written and not isinstance(value, bool):
        return _as_written(given.written, _word(engine, value))
    told = engine_asked(engine).spelled(name, value)
    if told is not None:
        return told
    if engine == "tensorrt-llm":
        word = _OF_CONFIG.get(name)
        return None if word is None else _as_written(word, _plain(value))
    form = _OWN.get(engine)
    if form is None or name in Deployment.__struct_fields__ or value is False:
        return None
    if value is True:
        return form.format(dashed=name.replace("_", "-"))
    return f"{form.format(dashed=name.replace('_', '-'))} {_plain(value)}"


def _as_written(written: str, word: str) -> str:
    if written.startswith("-"):
        return f"{written} {word}"
    if written.upper() == written:  # a variable
        return f"{written}={word}"
    return f"{written}: {word}"


def _word(engine: str, value: object) -> str:
    return engine_asked(engine).values.get(str(value), _plain(value))


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _llama(target: Target, name: str, value: object) -> str | None:
    """Return a setting of llama-server; the length of a sequence is a part of its context."""
    if name == "kv_cache_dtype":
        return f"--cache-type-k {value} --cache-type-v {value}"
    if name == "max_model_len":
        return None if not isinstance(value, int) else _context(target, value)
    told = engine_asked(target.engine).spelled(name, value)
    if told is not None or name in Deployment.__struct_fields__:
        return told
    given = setting(target, name)
    written = given.written if given is not None else f"--{name.replace('_', '-')}"
    return _as_written(written, _plain(value))


def _context(target: Target, length: int) -> str | None:
    from kvcalc.engines.llamacpp.settings import resolve  # only its questions need it

    question = target.question
    if question is None:
        return None
    cells = resolve(question.model, question.deployment, []).cells
    streams = 1 if cells.unified else cells.sequences
    given = setting(target, "ctx_size", "ollama_context_length", "num_ctx")
    written = given.written if given is not None else "--ctx-size"
    whole = not (given is not None and given.name != "ctx_size")
    return _as_written(written, str(length * streams if whole else length))
