"""The settings file: defaults for options, below flags and environment."""

from __future__ import annotations

import os
from typing import Any

import typer

__all__ = ["ALL_SWITCHES", "LISTED", "PLACES", "SETTINGS", "SWITCHES", "load_settings"]

_DEFAULT_FILE = "kvcalc.yaml"

SETTINGS = {
    "model": "preset",
    "engine": "engine",
    "engine_version": "engine_version",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "block_size": "block",
    "max_model_len": "max",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp",
    "gpu": "gpu",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "enable_prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "attention_backend": "attention_backend",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "speculative_method": "speculative_method",
    "num_speculative_tokens": "num_speculative_tokens",
    "draft_model": "draft_model",
    "ctx_size": "ctx_size",
    "parallel": "parallel",
    "n_gpu_layers": "n_gpu_layers",
    "kv_memory": "kv_memory",
    "kv_cache_memory_bytes": "kv_memory",
    "gpu_memory": "gpu_memory",
    "gpu_free": "gpu_free",
    "host_memory": "host_memory",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enforce_eager": "enforce_eager",
    "enable_expert_parallel": "enable_expert_parallel",
    "weights": "weights",
    "quantization": "quantization",
    "sequences": "sequences",
    "instances": "instances",
    "at": "at",
    "lengths": "lengths",
    "over": "over",
    "units": "units",
    "format": "format",
    # As the short flags say it.
    "preset": "preset",
    "block": "block",
    "max": "max",
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "dcp": "dcp",
}
"""Key of a settings file -> the option's parameter."""

_REPEATABLE = {"preset", "block", "kv_cache_dtype", "engine", "at"}

SWITCHES = ("enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager")
"""Options of engines that are on or off."""

ALL_SWITCHES = (*SWITCHES, "enforce_eager", "enable_expert_parallel")
"""The same, with those that bear on the card's memory alone."""

PLACES = "kvcalc.settings"
"""Key of the parsing context under which the places of settings are kept."""

LISTED = "kvcalc.listed"
"""Key of the parsing context under which all values of a setting are kept that takes one."""


def load_settings(ctx: typer.Context, value: str | None) -> str | None:
    """Make a settings file's values the defaults of the command being parsed.

    Runs before the other options are read. Without a value ./kvcalc.yaml is taken where it exists;
    the folders above are not searched.

    Raises:
        InputError: the file is missing, broken, or has a value that no option can take.
        UnknownNameError: a key that is no setting.
    """
    if value is None:
        # An empty variable means none, which typer takes for an absent one.
        value = os.environ.get("KVCALC_SETTINGS")
    path = _DEFAULT_FILE if value is None else value
    if not path or (value is None and not os.path.isfile(path)):
        return value
    defaults, places = _read(path)
    several = {name for name, given in defaults.items() if isinstance(given, tuple)}
    ctx.meta[LISTED] = {name: defaults[name] for name in several}
    defaults |= {name: defaults[name][-1] for name in several}
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    ctx.meta[PLACES] = places
    return path


_HINT = "write settings such as block_size: 32"


def _read(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by parameter, and the place in the file of each.

    Of a list for an option that takes one value there is a tuple.
    """
    # Only runs with a settings file need a YAML reader here.
    from kvcalc.checks.keys import CHECK_KEYS
    from kvcalc.core.errors import InputError, UnknownNameError
    from kvcalc.models.documents import read_document
    from kvcalc.models.text import printable, read_text

    file = printable(path)
    try:
        text = read_text(path)
    except InputError as error:
        error.hint = 'name a settings file that exists, or none: --settings ""'
        raise
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return {}, {}
    document = read_document(text, file)
    if not isinstance(document.value, dict):
        raise InputError("a settings file is a mapping", where=f"{file}:1", hint=_HINT)
    defaults: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, given in document.value.items():
        where = f"{file}:{document.line((key,))}"
        if key not in SETTINGS and key in CHECK_KEYS:
            continue  # of kvcalc check, which reads the file itself
        if key not in SETTINGS:
            raise UnknownNameError("setting", key, (*SETTINGS, *CHECK_KEYS), where=where)
        name = SETTINGS[key]
        if name in defaults:
            raise InputError(f"{key} is set twice", where=where, hint="leave out one of them")
        texts = _texts(key, given, where)
        if name in _REPEATABLE:
            defaults[name] = texts
        elif name == "lengths":
            defaults[name] = ",".join(texts)
        else:
            defaults[name] = tuple(texts) if len(texts) > 1 else texts[0]
        places[name] = where
    return defaults, places


def _texts(key: str, given: Any, where: str) -> list[str]:
    """Return a setting's value, or its values, as they would be typed."""
    from kvcalc.core.errors import InputError

    name = SETTINGS[key]
    switched = isinstance(given, bool) and name in ALL_SWITCHES
    told = str(given).lower() if switched else given
    values = told if isinstance(told, list) else [told]
    if not values or any(isinstance(v, (dict, list, bool)) or v is None for v in values):
        raise InputError(f"{key} takes a text or a number", where=where, hint=f"write {key}: VALUE")
    number = next((v for v in values if isinstance(v, float)), None)
    if name == "engine_version" and number is not None:
        raise InputError(
            f"{key} {number} is a number, in which 0.10 and 0.1 are the same",
            where=where,
            hint=f'quote it: {key}: "{number}0" or "{number}"',
        )
    return [str(v) for v in values]
