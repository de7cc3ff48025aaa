"""How a cure is spelled: as the file says it where it does, else as the engine's own flag."""

from __future__ import annotations

from kvcalc.checks.targets import Target
from kvcalc.core.deployment import Deployment
from kvcalc.engines import engine_asked
from kvcalc.engines.engine import Engine
from kvcalc.manifests.found import Setting

__all__ = ["said", "setting"]

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
    engine = engine_asked(target.engine)
    if engine.settings_fix_cache:
        return _of_context(target, engine, name, value)
    given = setting(target, *_SAME.get(name, (name,)))
    if given is not None and given.written and not isinstance(value, bool):
        return _as_written(given.written, _word(engine, value))
    own = engine.spelled(name, value)
    if own is not None:
        return own
    if name in engine.config_keys:
        return _as_written(engine.config_keys[name], _plain(value))
    if not engine.own_flags or name in Deployment.__struct_fields__ or value is False:
        return None
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {_plain(value)}"


def _as_written(written: str, word: str) -> str:
    if written.startswith("-"):
        return f"{written} {word}"
    if written.upper() == written:  # a variable
        return f"{written}={word}"
    return f"{written}: {word}"


def _word(engine: Engine, value: object) -> str:
    return engine.values.get(str(value), _plain(value))


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_context(target: Target, engine: Engine, name: str, value: object) -> str | None:
    """Return a setting of a server whose sequences share one context, which their length sizes."""
    if name == "max_model_len":
        return None if not isinstance(value, int) else _context(target, engine, value)
    own = engine.spelled(name, value)
    if own is not None or name in Deployment.__struct_fields__:
        return own
    given = setting(target, name)
    written = given.written if given is not None else f"--{name.replace('_', '-')}"
    return _as_written(written, _plain(value))


def _context(target: Target, engine: Engine, length: int) -> str | None:
    question = target.question
    if question is None:
        return None
    given = setting(target, "ctx_size", "ollama_context_length", "num_ctx")
    written = given.written if given is not None else "--ctx-size"
    whole = not (given is not None and given.name != "ctx_size")
    context = engine.context_for(question.model, question.deployment, length)
    return _as_written(written, str(context if whole else length))
