"""From what was typed to models, deployments and requests; each fault names its option."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kvcalc.cli.options import Values
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    KvcalcError,
    UnknownNameError,
    UsageError,
)
from kvcalc.core.fragmentation import Memory
from kvcalc.core.lengths import EXAMPLE_LENGTHS, OVER_POLICIES, Lengths, Over
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import UNIT_SYSTEMS, UnitSystem, parse_bytes, parse_tokens
from kvcalc.models import load_model, shape_model

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_TOKENS",
    "Workload",
    "at",
    "choice",
    "deployments",
    "echo",
    "memory",
    "models",
    "number",
    "over_policy",
    "preset_folders",
    "size",
    "tokens",
    "unit_system",
    "workload",
]

DEFAULT_MODEL = "qwen3.5-27b-attention"
DEFAULT_TOKENS = 8192

_MAX_DIGITS = 20
_MAX_SHOWN = 40  # characters of a wrong value that a message repeats

_T = TypeVar("_T")


def at(option: str, read: Callable[[], _T]) -> _T:
    """Return read(), putting the option's name before the error it may raise."""
    try:
        return read()
    except KvcalcError as error:
        if not error.where:
            error.where = option
        raise


def number(option: str, text: str | None) -> int | None:
    """Read a whole number of at least 1; None when it was not given."""
    return None if text is None else at(option, lambda: _whole(text))


def _whole(text: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MAX_DIGITS or int(digits) < 1:
        shown = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
        raise InvalidValueError(
            f"{shown!r} is not a whole number of at least 1", hint="write a number such as 16"
        )
    return int(digits)


def tokens(option: str, text: str | None) -> int | None:
    """Read a number of tokens; None when it was not given."""
    return None if text is None else at(option, lambda: parse_tokens(text))


def size(option: str, text: str | None, *, up: bool = False) -> int | None:
    """Read a size in bytes; None when it was not given."""
    return None if text is None else at(option, lambda: parse_bytes(text, up=up))


def choice(option: str, text: str | None, known: Sequence[_T]) -> _T:
    """Return the known value of that spelling; the first when none was given."""
    if text is None:
        return known[0]
    for value in known:
        if value == text:
            return value
    raise UnknownNameError("value", text, [str(k) for k in known], where=option)


def unit_system(values: Values) -> UnitSystem:
    """Read --units."""
    return choice("--units", values["units"], UNIT_SYSTEMS)


def over_policy(values: Values) -> Over:
    """Read --over."""
    return choice("--over", values["over"], OVER_POLICIES)


def preset_folders() -> list[Path]:
    """Return the folders of presets that KVCALC_PRESETS names, which come first."""
    return [Path(p) for p in os.environ.get("KVCALC_PRESETS", "").split(os.pathsep) if p]


def models(values: Values, notes: list[str]) -> list[ModelSpec]:
    """Return the models asked for; the default one, with a note, when none is named.

    Raises:
        UsageError: a shape together with a named model, or half a shape.
    """
    named = [*(values["models"] or ()), *(values["preset"] or ())]
    shape = {
        "--layers": values["layers"],
        "--kv-heads": values["kv_heads"],
        "--head-dim": values["head_dim"],
    }
    if any(value is not None for value in [*shape.values(), values["v_head_dim"]]):
        return [_shape(named, shape, values)]
    if not named:
        notes.append(
            f"no model was named: {DEFAULT_MODEL} (16 layers, 4 KV heads, head_dim 256, bfloat16)"
        )
        named = [DEFAULT_MODEL]
    folders = preset_folders()
    found = [load_model(name, folders=folders) for name in named]
    notes.extend(f"{m.name}: {note}" for m in found for note in m.notes)
    return found


def _shape(named: Sequence[str], shape: dict[str, str | None], values: Values) -> ModelSpec:
    missing = [option for option, value in shape.items() if value is None]
    if named:
        raise UsageError(
            f"a shape and the model {named[0]!r} were both given",
            hint="leave out one of them",
            where=next(option for option, value in shape.items() if value is not None)
            if len(missing) < len(shape)
            else "--v-head-dim",
        )
    if missing:
        raise UsageError(
            f"a shape also needs {' and '.join(missing)}",
            hint="give --layers, --kv-heads and --head-dim together",
        )
    layers, kv_heads, head_dim = (number(option, value) for option, value in shape.items())
    v_head_dim = number("--v-head-dim", values["v_head_dim"])
    return at(
        "--layers/--kv-heads/--head-dim",
        lambda: shape_model(layers or 0, kv_heads or 0, head_dim or 0, v_head_dim),
    )


def deployments(
    values: Values, notes: list[str], *, default_max: int | None = None
) -> list[Deployment]:
    """Return one deployment a block size.

    Args:
        values: what was typed.
        notes: a line is added for a default that was taken.
        default_max: the longest sequence when none was given; None for the model's own.
    """
    longest = tokens("--max", values["max"])
    if longest is None and default_max is not None:
        longest = default_max
        notes.append(f"no maximum was given: {default_max:,} tokens (--max)")
    blocks = [number("--block", text) for text in values["block"] or ()] or [None]
    gpu = values["gpu"]
    if gpu is not None:
        from kvcalc.models.presets import load_gpu

        gpu = at("--gpu", lambda: load_gpu(gpu, preset_folders())).name
        notes.append(f"engine none does not depend on the card ({gpu})")
    return [
        at(
            "settings",
            lambda block=block: Deployment(  # type: ignore[misc]  # mypy cannot type a default
                engine=values["engine"] or "none",
                engine_version=values["engine_version"],
                gpu=gpu,
                dtype=values["dtype"] or "auto",
                tensor_parallel_size=number("--tp", values["tp"]) or 1,
                pipeline_parallel_size=number("--pp", values["pp"]) or 1,
                data_parallel_size=number("--dp", values["dp"]) or 1,
                decode_context_parallel_size=number("--dcp", values["dcp"]) or 1,
                kv_cache_dtype=values["kv_cache_dtype"] or "auto",
                block_size=block,
                max_model_len=longest,
            ),
        )
        for block in dict.fromkeys(blocks)
    ]


_SWAPPED = {"kB": "KiB", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
_SWAPPED |= {"KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}


def memory(values: Values, *, swapped: bool = False) -> Memory:
    """Return the free memory and the request as given.

    Args:
        values: what was typed.
        swapped: read GiB where GB was typed, and the other way round.
    """

    def read(option: str, text: str | None, *, up: bool = False) -> int | None:
        if text is not None and swapped:
            unit = text.lstrip("0123456789., ").strip()
            text = text.replace(unit, _SWAPPED[unit]) if unit in _SWAPPED else text
        return size(option, text, up=up)

    holes = None
    if values["holes"] is not None:
        holes = at("--holes", lambda: _holes(values["holes"], lambda t: read("--holes", t) or 0))
    return Memory(
        free_bytes=read("--free", values["free"]),
        largest_free_bytes=read("--largest", values["largest"]),
        holes=holes,
        request_bytes=read("--request", values["request"], up=True),
    )


def _holes(text: str, read: Callable[[str], int]) -> tuple[int, ...]:
    """Read `1.9GiB,29x512MiB`."""
    holes: list[int] = []
    for part in text.split(","):
        factor, times, hole = part.strip().partition("x")
        count = _whole(factor) if times else 1
        if len(holes) + count > _MAX_LISTED:
            raise InvalidValueError(
                f"more than {_MAX_LISTED} holes", hint="give --free and --largest instead"
            )
        holes.extend([read(hole if times else factor)] * count)
    return tuple(holes)


def echo(
    values: Values, models: Sequence[ModelSpec] = (), deployed: Sequence[Deployment] = ()
) -> dict[str, Any]:
    """Return the inputs of the JSON document: what was typed, by option, and what it came to."""
    given = {key: value for key, value in values.items() if value not in (None, False, [], ())}
    for key in ("format", "report", "settings"):
        given.pop(key, None)
    if not deployed:
        return given
    one = deployed[0]
    resolved = {
        "models": [model.name for model in models],
        "engine": one.engine,
        "kv_cache_dtype": one.kv_cache_dtype,
        "block_size": [d.block_size for d in deployed],
        "max_model_len": one.max_model_len,
        "tensor_parallel_size": one.tensor_parallel_size,
        "pipeline_parallel_size": one.pipeline_parallel_size,
        "data_parallel_size": one.data_parallel_size,
        "decode_context_parallel_size": one.decode_context_parallel_size,
    }
    return {**given, "resolved": resolved}


class Workload:
    """Requests and what to call them."""

    def __init__(self, name: str, lengths: Lengths) -> None:
        self.name = name
        self.lengths = lengths


def workload(values: Values, notes: list[str]) -> Workload:
    """Return the requests to compare: of a trace, as listed, or the example.

    Raises:
        UsageError: a list and a trace at once, or columns without a trace.
    """
    columns = (values["prompt_column"], values["output_column"])
    if values["trace"] is None:
        if any(columns):
            raise UsageError(
                "columns are named but no trace is given",
                hint="name the trace with --trace",
                where="--prompt-column" if columns[0] else "--output-column",
            )
        if values["lengths"] is None:
            return Workload("the example", Lengths.of(EXAMPLE_LENGTHS))
        return Workload("as listed", at("--lengths", lambda: _listed(values["lengths"])))
    if values["lengths"] is not None:
        raise UsageError(
            "requests were given twice: --lengths and --trace", hint="leave out one of them"
        )
    from kvcalc.workload.traces import read_trace  # only traces need it

    trace = read_trace(values["trace"], prompt_column=columns[0], output_column=columns[1])
    notes.append(
        f"{trace.name}: {trace.requests:,} requests, {trace.prompt_tokens:,} prompt tokens"
        f" ({trace.prompt_column}) and {trace.output_tokens:,} output tokens"
        f" ({trace.output_column})"
    )
    return Workload(trace.name, trace.lengths)


_MAX_LISTED = 100_000


def _listed(text: str) -> Lengths:
    """Read `200,1200,700` or `3x200,1200`: a request each, or as many as the factor says."""
    counts: dict[int, int] = {}
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MAX_LISTED:
        raise InvalidValueError(
            f"{len(parts)} lengths in one list", hint="write them to a file and use --trace"
        )
    for part in parts:
        factor, times, length = part.rpartition("x")
        n = parse_tokens(length)
        counts[n] = counts.get(n, 0) + (_whole(factor) if times else 1)
    return Lengths(counts)
