"""From what was typed to models, deployments and requests; each fault names its option."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kvcalc.cli.engine_args import OWN_FLAGS, Argument, engine_arguments, own_lengths
from kvcalc.cli.settings import SWITCHES
from kvcalc.cli.values import Origin, Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import (
    InvalidValueError,
    KvcalcError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from kvcalc.core.fragmentation import Memory
from kvcalc.core.lengths import EXAMPLE_LENGTHS, OVER_POLICIES, Lengths, Over
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import UNIT_SYSTEMS, UnitSystem, format_number_of, parse_bytes, parse_tokens
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.engines import known as known_engine
from kvcalc.engines import plan
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import preset_folder
from kvcalc.models.sources import SourceKind
from kvcalc.models.text import printable

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_TOKENS",
    "Workload",
    "cache_dtypes",
    "choice",
    "deployments",
    "echo",
    "memory",
    "models",
    "number",
    "one_of",
    "over_policy",
    "plans",
    "preset_folders",
    "size",
    "switched",
    "token_count",
    "tokens",
    "unit_system",
    "workload",
]

DEFAULT_MODEL = "qwen3.5-27b-attention"
DEFAULT_TOKENS = 8192

_MAX_DIGITS = 20
_MAX_SHOWN = 40  # characters of a wrong value that a message repeats

_T = TypeVar("_T")


def _whole(text: str, high: int = MAX_DIMENSION) -> int:
    digits = text.strip()
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > _MAX_DIGITS
        or not 1 <= int(digits) <= high
    ):
        raise InvalidValueError(
            f"{_cut(text)!r} is not a whole number from 1 to {high}",
            hint="write a number such as 16",
        )
    return int(digits)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def number(values: Values, name: str) -> int | None:
    """Read a whole number of at least 1; None when it was not given."""
    given = values[name]
    return None if given is None else values.at(name, lambda: _whole(given))


def tokens(values: Values, name: str) -> int | None:
    """Read a number of tokens; None when it was not given."""
    given = values[name]
    return (
        None
        if given is None
        else values.at(name, lambda: parse_tokens(given, maximum=MAX_DIMENSION))
    )


def token_count(text: str) -> int:
    """Read one number of tokens, such as 4096 or 32Ki."""
    return parse_tokens(text, maximum=MAX_DIMENSION)


def size(values: Values, name: str, *, up: bool = False) -> int | None:
    """Read a size in bytes; None when it was not given."""
    given = values[name]
    return None if given is None else values.at(name, lambda: parse_bytes(given, up=up))


def choice(values: Values, name: str, known: Sequence[_T]) -> _T:
    """Return the known value of that spelling; the first when none was given."""
    given = values[name]
    return known[0] if given is None else one_of(given, known, values.places.get(name, name))


def one_of(given: str, known: Sequence[_T], where: str) -> _T:
    """Return the known value of that spelling.

    Raises:
        UnknownNameError: there is none; the known ones are listed.
    """
    for value in known:
        if value == given:
            return value
    raise UnknownNameError("value", given, [str(k) for k in known], where=where)


def unit_system(values: Values) -> UnitSystem:
    """Read --units."""
    return choice(values, "units", UNIT_SYSTEMS)


def over_policy(values: Values) -> Over:
    """Read --over."""
    return choice(values, "over", OVER_POLICIES)


def preset_folders() -> list[Path]:
    """Return the folders of presets that KVCALC_PRESETS names, which come first."""
    return [Path(p) for p in os.environ.get("KVCALC_PRESETS", "").split(os.pathsep) if p]


def models(values: Values, notes: list[str]) -> list[ModelSpec]:
    """Return the models asked for; the default one, with a note, when none is named.

    Raises:
        UsageError: a shape together with a named model, or half a shape.
    """
    notes.extend(_from_settings(values))
    shape_given = any(values[name] is not None for name in _SHAPE)
    # What is typed replaces a model of the settings file or a variable, it does not join it.
    sources = ("models", "preset", "config", "gguf", "hf")
    replaced = not values.typed("preset") and values.typed(*sources, *_SHAPE)
    named: list[tuple[str, SourceKind | None]] = [(n, None) for n in values["models"] or ()]
    if not replaced:
        named += [(n, None) for n in values["preset"] or ()]
    kinds: tuple[SourceKind, ...] = ("config", "gguf", "hf")
    for kind in kinds:
        named += [(path, kind) for path in values[kind] or ()]
    if shape_given:
        return [_shape([name for name, _ in named], values)]
    if not named:
        notes.append(
            f"no model was named: {DEFAULT_MODEL} (16 layers, 4 KV heads, head_dim 256, bfloat16)"
        )
        named = [(DEFAULT_MODEL, None)]
    if sum(name == "-" for name, _ in named) + (values.get("trace") == "-") > 1:
        raise UsageError(
            "stdin is asked for twice", hint="it can be one model or the trace; name a file"
        )
    folders = preset_folders()
    found = [_load(name, kind, folders) for name, kind in dict.fromkeys(named)]
    notes.extend(_hidden([name for name, kind in named if kind is None], folders))
    notes.extend(f"{m.name}: {note}" for m in found for note in m.notes)
    return found


def _from_settings(values: Values) -> list[str]:
    """Say what a settings file has set: one that lies in the folder is taken without being named.

    Returns:
        one line, or none.
    """
    taken = [
        f"{name} ({values.places[name]})"
        for name, origin in values.origins.items()
        if origin is Origin.SETTINGS
    ]
    return [f"from the settings file: {', '.join(taken)}"] if taken else []


_SHAPE = ("layers", "kv_heads", "head_dim", "v_head_dim")


def _hidden(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Say which presets of one's own were taken though one of that name comes with kvcalc."""
    ours = os.path.join(preset_folder(), "models")
    notes = []
    for name in dict.fromkeys(name.strip().lower() for name in names):
        file = f"{name}.yaml"
        owner = next((f for f in folders if os.path.isfile(os.path.join(f, "models", file))), None)
        if owner is not None and os.path.isfile(os.path.join(ours, file)):
            folder = printable(str(owner))
            notes.append(f"{name}: the preset of {folder}, not the one that comes with kvcalc")
    return notes


def _load(name: str, kind: SourceKind | None, folders: Sequence[Path]) -> ModelSpec:
    try:
        return load_model(name, kind=kind, folders=folders)
    except KvcalcError as error:
        if kind == "config" and name.lower().endswith((".yaml", ".yml")):
            # A settings file is `--config` in many tools.
            error.hint = "--config takes a model's config.json; a settings file is --settings"
        raise


def _shape(named: Sequence[str], values: Values) -> ModelSpec:
    given = [name for name in _SHAPE if values[name] is not None]
    if named:
        raise UsageError(
            f"a shape and the model {named[0]!r} were both given",
            hint="leave out one of them",
            where=values.places[given[0]],
        )
    missing = [values.places[name] for name in _SHAPE[:3] if values[name] is None]
    if missing:
        raise UsageError(
            f"a shape also needs {' and '.join(missing)}",
            hint="give --layers, --kv-heads and --head-dim together",
            where=values.places[given[0]],
        )
    layers, kv_heads, head_dim, v_head_dim = (number(values, name) for name in _SHAPE)
    return shape_model(layers or 0, kv_heads or 0, head_dim or 0, v_head_dim)


def deployments(
    values: Values, notes: list[str], *, default_max: int | None = None, several: bool = False
) -> list[Deployment]:
    """Return one deployment an engine, KV cache dtype and block size.

    Args:
        values: what was given.
        notes: a line is added for a default that was taken.
        default_max: the longest sequence when none was given; None for the model's own.
        several: several engines may be named.

    Raises:
        UsageError: several engines where one answers.
    """
    blocks: list[int | None] = [
        values.at("block", lambda given=given: _whole(given))  # type: ignore[misc]  # its default
        for given in values["block"] or ()
    ]
    engines = _engines(values, several=several)
    flags = {name: _count(values, name) for name in OWN_FLAGS}
    arguments = {name: engine_arguments(values, name, engines, flags) for name in engines}
    longest = tokens(values, "max")
    if longest is None and default_max is not None:
        longest = _default_max(default_max, arguments.values(), notes)
    gpu = _gpu(values)
    if gpu is not None and engines == ["none"]:
        notes.append(f"engine none does not depend on the card ({gpu.name})")
    dtype = _or(values, "dtype", "auto")
    if dtype != "auto":
        values.at("dtype", lambda: element_bytes(dtype))
    if engines == ["none"] and values["engine_version"] is not None:
        raise UnsupportedError(
            "engine none has no engine_version",
            hint="leave it out, or name the engine it belongs to",
            where=values.places["engine_version"],
        )
    tp, pp, dp, dcp = (number(values, short) or 1 for short, _ in _PARALLEL)
    settings = _engine_settings(values)
    return [
        values.at(
            "dcp",  # the one setting whose value depends on another's
            lambda engine=engine, block=block, cache_dtype=cache_dtype: Deployment(  # type: ignore[misc]  # theirs
                engine=engine,
                engine_args=arguments[engine],
                engine_version=None if engine == "none" else values["engine_version"],
                gpu=gpu,
                dtype=dtype,
                kv_cache_dtype=cache_dtype,
                block_size=block,
                max_model_len=longest,
                tensor_parallel_size=tp,
                pipeline_parallel_size=pp,
                data_parallel_size=dp,
                decode_context_parallel_size=dcp,
                **settings,
            ),
        )
        for engine in engines
        for cache_dtype in cache_dtypes(values)
        for block in dict.fromkeys(blocks or [None])
    ]


def _default_max(
    default: int, arguments: Iterable[Mapping[str, Argument]], notes: list[str]
) -> int | None:
    """Return the maximum that is taken unasked; None where an engine's own settings tell one."""
    own = list(dict.fromkeys(name for given in arguments for name in own_lengths(given)))
    if own:
        notes.append(
            f"no maximum was given (--max): it is the engine's own, by {' and '.join(own)}"
        )
        return None
    notes.append(f"no maximum was given: {default:,} tokens (--max)")
    return default


def _engines(values: Values, *, several: bool) -> list[str]:
    """Return the engines asked for, each once."""
    given = values["engine"] or ("none",)
    found = [values.at("engine", lambda name=name: known_engine(name)) for name in given]  # type: ignore[misc]  # its default
    found = list(dict.fromkeys(found))
    if len(found) > 1 and not several:
        raise UsageError(
            f"several engines: {', '.join(found)}",
            hint="name one here; kvcalc plan puts several side by side",
            where=values.places["engine"],
        )
    return found


def _count(values: Values, name: str) -> int | None:
    """Read a whole number of at least 0; None when it was not given."""
    if values[name] is None:
        return None
    given = str(values[name])
    return 0 if given.strip() == "0" else values.at(name, lambda: _whole(given))


def _gpu(values: Values) -> GpuSpec | None:
    name = values["gpu"]
    if name is None:
        return None
    from kvcalc.models.presets import load_gpu  # only runs with a card need it

    return values.at("gpu", lambda: load_gpu(name, preset_folders()))


_NUMBERS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks_override",
    "num_speculative_tokens",
)
_WORDS = (
    "attention_backend",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "speculative_method",
)


def _engine_settings(values: Values) -> dict[str, Any]:
    """Return the settings that engines have and the model's arithmetic has not, as given."""
    given: dict[str, Any] = {name: number(values, name) for name in _NUMBERS}
    given |= {name: switched(values, name) for name in SWITCHES}
    given |= {name: values[name] for name in _WORDS}
    draft = values["draft_model"]
    if draft is not None:
        given["draft_model"] = values.at(
            "draft_model", lambda: load_model(draft, folders=preset_folders())
        )
    return {name: value for name, value in given.items() if value is not None}


_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


def switched(values: Values, name: str) -> bool | None:
    """Read a switch; None where it is left to the engine."""
    given = values[name]
    if given is None or isinstance(given, bool):
        return given
    word = str(given).strip().lower()
    if word in (*_ON, *_OFF):
        return word in _ON
    raise InvalidValueError(
        f"{_cut(str(given))!r} is neither true nor false",
        hint="write true or false",
        where=values.places[name],
    )


def cache_dtypes(values: Values) -> list[str]:
    """Return the KV cache dtypes asked for, each once; the model's own when none is.

    Raises:
        UnknownNameError: no such dtype.
    """
    wanted = list(dict.fromkeys(values["kv_cache_dtype"] or ("auto",)))
    for name in wanted:
        # `auto` stands for the model's own, which is known to be one.
        values.at("kv_cache_dtype", lambda name=name: kv_dtype(name, "bfloat16"))  # type: ignore[misc]  # its default
    return wanted


def plans(
    models: Sequence[ModelSpec],
    deployed: Sequence[Deployment],
    notes: list[str],
    *,
    tell: bool = True,
    refused: list[str] | None = None,
) -> list[CachePlan]:
    """Return the plan of every model under every deployment; an error names the model.

    Args:
        models: the models.
        deployed: the deployments.
        notes: the plans' own are added, and which stage is shown where stages differ.
        tell: add the plans' own notes (False: the command shows them itself).
        refused: where several engines are asked, a line for each that refuses is added, and those
            that do not are planned for; None to let every refusal be an error.

    Raises:
        UnsupportedError: a model and a deployment that do not go together (with `refused`: all).
    """
    made: list[CachePlan] = []
    faults: list[KvcalcError] = []
    beside = refused is not None and len({deployment.engine for deployment in deployed}) > 1
    for model in models:
        for deployment in deployed:
            try:
                made.append(plan(model, deployment))
            except KvcalcError as error:
                error.where = error.where or model.name
                if not beside:
                    raise
                faults.append(error)
                hint = f" ({error.hint})" if error.hint else ""
                _add(refused, f"{deployment.engine}: refused: {error}{hint}")
    if faults and not made:
        raise faults[0]
    if faults:
        _add(refused, "a setting for one engine alone: --engine-arg NAME:KEY=VALUE")
    _tell(made, notes, own=tell)
    return made


def _add(lines: list[str] | None, line: str) -> None:
    if lines is not None:
        lines.append(line)


def _tell(made: Sequence[CachePlan], notes: list[str], *, own: bool) -> None:
    for p in made:
        if own:
            notes.extend(f"{p.model}: {note}" for note in p.notes)
        if len(p.ranks) > 1:
            notes.append(
                f"{p.model}: figures of {p.rank.name} of {len(p.ranks)}, the fullest at"
                f" {p.max_model_len:,} tokens"
            )


_PARALLEL = (
    ("tp", "tensor"),
    ("pp", "pipeline"),
    ("dp", "data"),
    ("dcp", "decode_context"),
)


def _or(values: Values, name: str, default: str) -> str:
    """Return a text, or the default when none was given; an empty text is no default."""
    return default if values[name] is None else str(values[name])


_SWAPPED = {"kB": "KiB", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
_SWAPPED |= {"KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}


def memory(values: Values, *, swapped: bool = False) -> Memory:
    """Return the free memory and the request as given.

    Args:
        values: what was given.
        swapped: read GiB where GB was typed, and the other way round.
    """

    def swap(text: str) -> str:
        unit = text.lstrip("0123456789., ").strip()
        return text.replace(unit, _SWAPPED[unit]) if unit in _SWAPPED else text

    given = values
    if swapped:
        names = ("free", "largest", "request")
        other = {name: values[name] and swap(values[name]) for name in names}
        given = Values({**values, **other}, values.origins, values.places)
    holes = None
    if values["holes"] is not None:
        holes = values.at(
            "holes",
            lambda: _holes(values["holes"], lambda t: parse_bytes(swap(t) if swapped else t)),
        )
    return Memory(
        free_bytes=size(given, "free"),
        largest_free_bytes=size(given, "largest"),
        holes=holes,
        request_bytes=size(given, "request", up=True),
    )


def _holes(text: str, read: Callable[[str], int]) -> tuple[int, ...]:
    """Read `1.9GiB,29x512MiB`."""
    holes: list[int] = []
    for part in text.split(","):
        factor, times, hole = part.strip().partition("x")
        count = _whole(factor) if times and hole else 1
        if len(holes) + count > _MAX_LISTED:
            raise InvalidValueError(
                f"more than {_MAX_LISTED} holes", hint="give --free and --largest instead"
            )
        holes.extend([read(hole if times and hole else part.strip())] * count)
    bare = [part for part in text.split(",") if part.strip().isdigit()]
    if bare and len(bare) < len(text.split(",")):
        raise InvalidValueError(
            f"{text!r} mixes sizes with and without a unit",
            hint="a comma separates holes, not thousands; give every hole a unit",
        )
    return tuple(holes)


def echo(values: Values, plans: Sequence[CachePlan] = ()) -> dict[str, Any]:
    """Return the inputs of the JSON document: what was given, by option, and what it came to."""
    given = {
        key: _told(value)
        for key, value in values.items()
        if (value not in (None, False, [], ()) or (value is False and key in SWITCHES))
        and key not in ("format", "report", "settings")
    }
    if not plans:
        return given
    engines = list(dict.fromkeys(plan.engine for plan in plans))
    resolved: dict[str, Any] = {
        "models": list(dict.fromkeys(plan.model for plan in plans)),
        "engine": engines[0] if len(engines) == 1 else None,
        "engines": engines,
        "kv_cache_dtype": list(dict.fromkeys(plan.kv_cache_dtype for plan in plans)),
        "block_size": list(dict.fromkeys(plan.block_size for plan in plans)),
        "max_model_len": list(dict.fromkeys(plan.max_model_len for plan in plans)),
    }
    for short, long in _PARALLEL:
        resolved[f"{long}_parallel_size"] = number(values, short) or 1
    return {**given, "resolved": resolved}


def _told(value: Any) -> Any:
    """Return what was typed in characters that JSON can hold."""
    if isinstance(value, list):
        return [_told(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


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
            named = "prompt_column" if columns[0] else "output_column"
            raise UsageError(
                "columns are named but no trace is given",
                hint="name the trace with --trace",
                where=values.places[named],
            )
        if values["lengths"] is None:
            return Workload("the example", Lengths.of(EXAMPLE_LENGTHS))
        return Workload("as listed", values.at("lengths", lambda: _listed(values["lengths"])))
    if values.typed("lengths"):
        raise UsageError(
            "requests were given twice: --lengths and --trace", hint="leave out one of them"
        )
    if not values["trace"]:
        raise UsageError("no file is named", hint="name the trace", where=values.places["trace"])
    from kvcalc.workload.traces import read_trace  # only traces need it

    trace = read_trace(values["trace"], prompt_column=columns[0], output_column=columns[1])
    notes.append(
        f"{trace.name}: {format_number_of(trace.requests, 'request')}, {trace.tokens_told}"
    )
    return Workload(printable(trace.name), trace.lengths)


_MAX_LISTED = 100_000
_MOST_REQUESTS = 100_000_000_000_000_000_000  # of one length


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
        if not length or (times and not factor):
            raise InvalidValueError(
                f"{_cut(part)!r} is no length", hint="write lengths such as 200,1200 or 50x700"
            )
        n = parse_tokens(length)
        counts[n] = counts.get(n, 0) + (_whole(factor, _MOST_REQUESTS) if times else 1)
    return Lengths(counts)
