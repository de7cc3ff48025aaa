"""--engine-arg: settings in an engine's own spelling, as `Deployment.engine_args` hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.units import parse_bytes
from kvcalc.engines import ALIASES
from kvcalc.models.text import printable

__all__ = ["OWN_FLAGS", "Argument", "engine_arguments", "own_lengths"]

Argument = str | int | float | bool | None

OWN_FLAGS = {"ctx_size": "llama.cpp", "parallel": "llama.cpp", "n_gpu_layers": "llama.cpp"}
"""Options that are settings of one engine, in its spelling."""

_LENGTHS = (
    "context_length",
    "ctx_size",
    "max_cache_len",
    "max_seq_len",
    "n_ctx",
    "num_ctx",
    "ollama_context_length",
    "parallel",
    "session_len",
)
"""Settings of engines that say how long a sequence is."""

_OF_BYTES = re.compile(r"memory|bytes", re.ASCII)
"""Settings of bytes, by what their names hold: free_memory, available_memory."""

_MOST_SHOWN = 60  # characters of a wrong value that a message repeats


def engine_arguments(
    values: Values, engine: str, engines: Sequence[str], flags: Mapping[str, int | str | None]
) -> dict[str, Argument]:
    """Return the settings of one engine, of KEY=VALUE or NAME:KEY=VALUE.

    A key may be spelled as the engine's flag: --mem-fraction-static for mem_fraction_static. A
    setting of bytes may have a unit.

    Args:
        values: what was given.
        engine: whose settings.
        engines: all that are asked.
        flags: values of OWN_FLAGS.

    Raises:
        InvalidValueError: something else, or a size that cannot be read.
        UsageError: a key without a name where several engines are asked, or one given twice.
    """
    found: dict[str, Argument] = {
        name: flags[name]
        for name, owner in OWN_FLAGS.items()
        if flags[name] is not None and (engine == owner or owner not in engines)
    }
    place = values.places.get("engine_arg", "")
    own: dict[str, str] = {}
    for given in values["engine_arg"] or ():
        key, equals, value = str(given).partition("=")
        owner, colon, rest = key.partition(":")
        if not equals or not key:
            raise InvalidValueError(
                f"{_cut(str(given))!r} is no KEY=VALUE",
                hint="write a setting such as page_size=64; a switch as enable_prefix_caching=true",
                where=place,
            )
        if not colon and len(engines) > 1:
            raise UsageError(
                f"{_cut(key)} of which engine?",
                hint=f"write {engines[0]}:{_cut(str(given))}",
                where=place,
            )
        owner = ALIASES.get(owner.lower(), owner)
        if colon and owner not in engines:
            raise UsageError(
                f"{_cut(owner)!r} is none of the engines asked: {', '.join(engines)}",
                hint="name one of them before the colon",
                where=place,
            )
        if not colon or owner == engine:
            name = _spelled(rest if colon else key)
            if own.setdefault(name, value) != value:
                raise UsageError(
                    f"{_cut(name)} is given as {_cut(own[name])} and as {_cut(value)}",
                    hint="give it once",
                    where=place,
                )
            typed = values.at("engine_arg", partial(_typed, name, value))
            if found.get(name, typed) != typed:  # and an option of its own says otherwise
                raise UsageError(
                    f"{_cut(name)} is {_cut(value)}, and {values.places[name]} says {found[name]}",
                    hint="give one of the two",
                    where=place,
                )
            found[name] = typed
    return found


def own_lengths(arguments: Mapping[str, Argument]) -> list[str]:
    """Return which of an engine's settings say how long a sequence is."""
    return [name for name in _LENGTHS if arguments.get(name) is not None]


def _spelled(key: str) -> str:
    """Return a flag's spelling as the setting's: dashes become underscores."""
    return key.strip().lstrip("-").replace("-", "_")


def _cut(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _MOST_SHOWN else shown[: _MOST_SHOWN - 1] + "…"


def _typed(name: str, text: str) -> Argument:
    """Return a value as the number, truth value, size or text that it reads as."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if _OF_BYTES.search(name) and text[:1].isdigit() and "," not in text:
        return parse_bytes(text)  # a list, one size a device, is the engine's to read
    return text
