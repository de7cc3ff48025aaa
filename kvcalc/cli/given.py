"""All that a command was given, in one pass: no value is dropped, and every one can be read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kvcalc.cli.values import Origin, Values
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.lengths import OVER_POLICIES
from kvcalc.core.units import UNIT_SYSTEMS, parse_bytes, parse_tokens
from kvcalc.core.values import MAX_DIMENSION

__all__ = [
    "MAX_COMBINATIONS",
    "idle",
    "keep_repeated",
    "one_variable",
    "read_all",
    "share_of_gpu",
]

MAX_COMBINATIONS = 4096
"""Results of one command; more is a slip, and takes minutes."""


def keep_repeated(
    values: Values, every: Mapping[str, Sequence[Any]], compared: Iterable[str]
) -> None:
    """Keep every value of an option that takes one and was given several.

    Args:
        values: of the command; gains what is compared.
        every: all values of each option, in the order in which they were given.
        compared: the options of which the command answers for each value.

    Raises:
        UsageError: several values of another option, or too many combinations.
    """
    known = dict.fromkeys(compared)
    count = 1
    for name in sorted(every, key=[*known, *every].index):
        given = every[name]
        if isinstance(values[name], list):
            continue  # repeatable by itself
        several = list(dict.fromkeys(given))
        if len(several) < 2:  # noqa: PLR2004 - one is all there is
            continue
        if name not in known:
            shown = " and ".join(_shown(value) for value in several[:2])
            raise UsageError(
                f"{shown} are both given",
                hint="give one of them: this command takes one value of it",
                where=values.places[name],
            )
        values.repeated[name] = several
        count *= len(several)
    if count > MAX_COMBINATIONS:
        raise UsageError(
            f"{count} combinations of {', '.join(values.places[name] for name in values.repeated)}",
            hint=f"give fewer values: {MAX_COMBINATIONS} combinations at most",
        )


def _shown(value: Any) -> str:
    from kvcalc.cli.inputs.numbers import cut  # which imports what most commands need anyway

    return ("off", "on")[value] if isinstance(value, bool) else cut(str(value))


def one_variable(values: Values, variables: Mapping[str, Sequence[str]]) -> None:
    """Check that the variables of one option say the same.

    Raises:
        UsageError: KVCALC_MAX is another length than KVCALC_MAX_MODEL_LEN.
    """
    for name, names in variables.items():
        if values.origins.get(name) is not Origin.VARIABLE:
            continue
        told = [(variable, os.environ[variable]) for variable in names if os.environ.get(variable)]
        (first, value), *others = told
        for other, differs in others:
            if differs != value:
                raise UsageError(
                    f"{first} is {_shown(value)} and {other} is {_shown(differs)}",
                    hint="set one of the two: they are the same option",
                )


def idle(values: Values, names: Iterable[str], why: str) -> list[str]:
    """Return a note on the options that were given and have no effect; none where none was.

    Raises:
        KvcalcError: one that cannot be read, and that no engine reads here.
    """
    typed = (Origin.TYPED, Origin.VARIABLE)
    found = [name for name in names if values.origins.get(name) in typed]
    if not found:
        return []
    for name in found:
        _read(values, name)
    given = [values.places[name] for name in found]
    return [
        f"{', '.join(dict.fromkeys(given))} {'has' if len(given) == 1 else 'have'} no effect: {why}"
    ]


def read_all(values: Values, *, planned: bool = False) -> None:
    """Read every value that was given, whether or not the command goes on to need it.

    Args:
        values: what was given.
        planned: an engine plans with them, and says itself which words it knows.

    Raises:
        KvcalcError: the first that cannot be read, with its place.
    """
    for name in _READERS:
        if not (planned and name in _OF_ENGINES):
            _read(values, name)


def _read(values: Values, name: str) -> None:
    given = values.get(name)
    if name not in _READERS or given is None or values.origins.get(name) is Origin.DEFAULT:
        return
    texts = values.repeated.get(name) or (given if isinstance(given, list) else [given])
    for text in texts:
        values.at(name, partial(_READERS[name], str(text)))


_OF_ENGINES = ("engine_version", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
"""Options of whose words each engine knows others."""


def _count(text: str) -> object:
    from kvcalc.cli.inputs.numbers import whole

    return whole(text)


def _count_from_0(text: str) -> object:
    return 0 if text.strip() == "0" else _count(text)


def _of(*known: str) -> Callable[[str], object]:
    """Return what reads one of these words."""

    def read(text: str) -> object:
        from kvcalc.cli.inputs.numbers import one_of

        return one_of(text, known, "")

    return read


def _tokens(text: str) -> object:
    return parse_tokens(text, maximum=MAX_DIMENSION)


def _engine(text: str) -> object:
    from kvcalc.engines import known

    return known(text)


def _release(text: str) -> object:
    """Read a release: a version, a build or a day, whichever the engine counts in."""
    if _RELEASE.match(text.strip()) is None:
        raise InvalidValueError(f"{_shown(text)!r} is no release", hint="give one such as 0.33.0")
    return text


def _gpu(text: str) -> object:
    from kvcalc.cli.inputs.models import preset_folders
    from kvcalc.models.presets import load_gpu

    return load_gpu(text, preset_folders())


def _cache_dtype(text: str) -> object:
    from kvcalc.core.dtypes import kv_dtype

    return kv_dtype(text, "bfloat16")  # which `auto` stands for


def _dtype(text: str) -> object:
    from kvcalc.core.dtypes import element_bytes

    return text == "auto" or element_bytes(text)


def _weights_in(text: str) -> object:
    from kvcalc.weights.formats import weight_width

    return weight_width(text)


def share_of_gpu(text: str) -> float:
    """Read a share of a GPU's memory.

    Raises:
        InvalidValueError: none above 0 and up to 1.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise InvalidValueError(
            f"{text!r:.40} is no share above 0 and up to 1", hint="write a share such as 0.9"
        )
    return found


def _draft(text: str) -> object:
    from kvcalc.cli.inputs.models import preset_folders
    from kvcalc.models import load_model

    return load_model(text, folders=preset_folders())


def _lengths(text: str) -> object:
    from kvcalc.core.lengths import parse_lengths

    return parse_lengths(text)


_RELEASE = re.compile(r"[bv]?\d{1,8}(?:[.+-]|rc|post|$)", re.IGNORECASE)

_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(
        (
            *("layers", "kv_heads", "head_dim", "v_head_dim", "block", "tp", "pp", "dp", "dcp"),
            *("max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override"),
            *("num_speculative_tokens", "sequences", "instances", "repeat"),
        ),
        _count,
    ),
    **dict.fromkeys(("ctx_size", "parallel"), _count_from_0),
    **dict.fromkeys(("max", "at", "running_tokens"), _tokens),
    "tokens": parse_tokens,
    **dict.fromkeys(
        (
            *("kv_memory", "gpu_memory", "gpu_free", "host_memory", "weights", "limit"),
            *("free", "largest", "request", "device_free"),
        ),
        parse_bytes,
    ),
    "engine": _engine,
    "engine_version": _release,
    "gpu": _gpu,
    "kv_cache_dtype": _cache_dtype,
    **dict.fromkeys(("dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"), _dtype),
    "quantization": _weights_in,
    "gpu_memory_utilization": share_of_gpu,
    "draft_model": _draft,
    "lengths": _lengths,
    "over": _of(*OVER_POLICIES),
    "units": _of(*UNIT_SYSTEMS),
}
"""Option -> what reads a value of it, for any command that takes the option."""
