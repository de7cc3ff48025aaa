"""Which format the weights of a target are in: by whoever says it most plainly.

In this order: the deployment's own entry, one's map of models, `--quantization` or its variable,
the server's flags, what the checkpoint itself says, the top of kvcalc.yaml, and last what the model
is called, which is an assumption and is printed as one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from kvcalc.checks.models import Found
from kvcalc.checks.targets import Target
from kvcalc.core.errors import KvcalcError
from kvcalc.core.weight_dtypes import UNKNOWN_FORMAT, WIDTHS, weight_width
from kvcalc.manifests.found import Finding, Setting
from kvcalc.models.hf_config.weight_formats import format_of_section

__all__ = ["Said", "format_of_weights"]


class Said(NamedTuple):
    """What a user says of the weights.

    Attributes:
        entry: of the deployment itself.
        option: of the run: `--quantization`, or its variable.
        default: at the top of kvcalc.yaml, for what nothing else says.
        sized: their bytes are given, so that no format matters.
    """

    entry: str | None = None
    option: str | None = None
    default: str | None = None
    sized: bool = False


_ON_LOADING = (
    *("fp8", "ptpc_fp8", "fp8_per_tensor", "fp8_per_block", "mxfp8", "mxfp4", "int8_per_channel"),
    *("experts_int8", "bitsandbytes", "eetq", "bitsandbytes-nf4", "bitsandbytes-fp4", "w8a8_fp8"),
)
"""Words with which an engine brings plain weights into a format; all others only say what the
checkpoint is in (vLLM layers/quantization/__init__.py, SGLang layers/quantization)."""


def format_of_weights(made: Target, found: Found, said: Said) -> tuple[Target, str | None]:
    """Return the format of a target's weights; None: as published. Assumptions become findings."""
    told = said.entry or found.quantization or said.option
    if told is not None:
        return made, told
    stored = None if found.model.size is None else found.model.size.weights_dtype
    plain = stored in (None, UNKNOWN_FORMAT, *WIDTHS)
    setting = _flag(made)
    if setting is not None and (plain or str(setting.value) in _ON_LOADING):
        return _by_flag(made, found, setting)
    if not plain:
        return made, None
    if said.default is not None:
        return made, said.default
    return _by_name(made, found, sized=said.sized)


def _flag(made: Target) -> Setting | None:
    """Return the setting that says what the weights are in, or are brought into."""
    settings = () if made.server is None else made.server.settings
    read = {setting.name: setting for setting in settings if setting.value is not None}
    overrides = read.get("hf_overrides")
    if overrides is not None:
        inner = format_of_section(_section(overrides.value))
        if inner is not None:
            return overrides._replace(value=inner)
    word = read.get("quantization")
    if word is not None and str(word.value).lower() not in ("", "none", "null"):
        return word
    load = read.get("load_format")
    return load if load is not None and load.value == "bitsandbytes" else None


def _section(value: object) -> dict[str, Any]:
    try:
        found = json.loads(str(value))
    except ValueError:
        return {}
    inner = found.get("quantization_config") if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _by_flag(made: Target, found: Found, setting: Setting) -> tuple[Target, str | None]:
    """Return the format that a flag says; what only declares a kind is refined by the name."""
    word = str(setting.value)
    if found.by_name is not None and word not in _ON_LOADING:
        return _by_name(made, found, sized=False)
    try:
        weight_width(word)
    except KvcalcError:
        note = Finding(
            "weights-format",
            "note",
            f"{setting.written} names a format of weights whose size is not known: they are"
            " counted as published",
            "give their size: weights: 40GiB in kvcalc.yaml",
            setting.line,
            setting.file,
        )
        return made._replace(findings=(*made.findings, note)), None
    return made, word


def _by_name(made: Target, found: Found, *, sized: bool) -> tuple[Target, str | None]:
    """Return what the served name says, and a note that it was taken for granted."""
    if found.by_name is None or sized:
        return made, None
    at = None if made.server is None else made.server.model
    note = Finding(
        "weights-format-by-name",
        "note",
        found.by_name.assumption(),
        "say what it is: quantization: of the model in kvcalc.yaml, or name its config.json",
        *((0, "") if at is None else (at.line, at.file)),
    )
    return made._replace(findings=(*made.findings, note)), found.by_name.format
