"""From what was typed to deployments: one an engine, cache dtype and block size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvcalc.cli.engine_args import OWN_FLAGS, Argument, engine_arguments, own_lengths
from kvcalc.cli.inputs.models import preset_folders
from kvcalc.cli.inputs.numbers import cut, number, switched, tokens, whole, whole_from_0
from kvcalc.cli.settings import SWITCHES
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import InvalidValueError, UnsupportedError, UsageError
from kvcalc.engines import known as known_engine
from kvcalc.engines import release_warning
from kvcalc.models import load_model

__all__ = ["PARALLEL", "Combination", "cache_dtypes", "combinations", "deployments"]

PARALLEL = (
    ("tp", "tensor"),
    ("pp", "pipeline"),
    ("dp", "data"),
    ("dcp", "decode_context"),
)
_NUMBERS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks_override",
    "num_speculative_tokens",
)
_NO_SPECULATION = "none"
"""A word that undoes what a settings file, or an earlier option, says of speculation."""
_OF_SPECULATION = ("speculative_method", "num_speculative_tokens", "draft_model")
_ALL_LAYERS = ("auto", "all", "-1", "-2")
_WORDS = (
    "attention_backend",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "speculative_method",
)


class Combination(NamedTuple):
    """One of the deployments asked for.

    Attributes:
        values: those of it alone: one value of each option that is compared.
        deployment: what they come to.
    """

    values: Values
    deployment: Deployment

    @property
    def name(self) -> str:
        """What an error calls it: its engine, and what else sets it apart."""
        return " ".join((self.deployment.engine, *self.values.apart))


def combinations(
    values: Values, notes: list[str], *, default_max: int | None = None, several: bool = False
) -> list[Combination]:
    """Return every deployment asked for; see `deployments`.

    Raises:
        UsageError: several engines where one answers.
    """
    return [
        Combination(each, deployment)
        for each in values.each()
        for deployment in deployments(each, notes, default_max=default_max, several=several)
    ]


def deployments(
    values: Values,
    notes: list[str],
    *,
    default_max: int | None = None,
    several: bool = False,
    warn: bool = True,
) -> list[Deployment]:
    """Return one deployment an engine, KV cache dtype and block size.

    Args:
        values: what was given.
        notes: a line is added for a default that was taken.
        default_max: the longest sequence when none was given; None for the model's own.
        several: several engines may be named.
        warn: a release that is newer than those known is warned of, and one that is none refused.

    Raises:
        UsageError: several engines where one answers.
    """
    blocks: list[int | None] = [
        values.at("block", lambda given=given: whole(given))  # type: ignore[misc]  # its default
        for given in values["block"] or ()
    ]
    engines = _engines(values, several=several)
    flags: dict[str, int | str | None] = {
        name: _layers_or(values, name) if name == "n_gpu_layers" else whole_from_0(values, name)
        for name in OWN_FLAGS
    }
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
    for engine in engines if warn else ():
        warning = values.at(
            "engine_version",
            lambda engine=engine: release_warning(engine, values["engine_version"]),  # type: ignore[misc]  # its default
        )
        values.warnings += [warning] if warning else []
    tp, pp, dp, dcp = (number(values, short) or 1 for short, _ in PARALLEL)
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


def _gpu(values: Values) -> GpuSpec | None:
    name = values["gpu"]
    if name is None:
        return None
    from kvcalc.models.presets import load_gpu  # only runs with a card need it

    return values.at("gpu", lambda: load_gpu(name, preset_folders()))


def _engine_settings(values: Values) -> dict[str, Any]:
    """Return the settings that engines have and the model's arithmetic has not, as given."""
    given: dict[str, Any] = {name: number(values, name) for name in _NUMBERS}
    given |= {name: switched(values, name) for name in SWITCHES}
    given |= {name: values[name] for name in _WORDS}
    if given["speculative_method"] == _NO_SPECULATION:
        return {
            name: value
            for name, value in given.items()
            if value is not None and name not in _OF_SPECULATION
        }
    draft = values["draft_model"]
    if draft is not None:
        given["draft_model"] = values.at(
            "draft_model", lambda: load_model(draft, folders=preset_folders(), weights=True)
        )
    return {name: value for name, value in given.items() if value is not None}


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


def _layers_or(values: Values, name: str) -> int | str | None:
    """Read a number of layers, or one of llama.cpp's words for all of them: auto, all, -1, -2."""
    given = values[name]
    word = str(given if given is not None else "").strip().lower()
    if given is None or word in _ALL_LAYERS:
        return word or None
    try:
        return whole_from_0(values, name)
    except InvalidValueError:
        raise InvalidValueError(
            f"{cut(str(given))!r} is no number of layers",
            hint="write a number from 0 (the output counts as one), all, or auto",
            where=values.places[name],
        ) from None


def _or(values: Values, name: str, default: str) -> str:
    """Return a text, or the default when none was given; an empty text is no default."""
    return default if values[name] is None else str(values[name])
