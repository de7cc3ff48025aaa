"""The schema of kvcalc.yaml, from the same tables by which kvcalc check reads it."""

from __future__ import annotations

from typing import Any

from kvcalc.answers.assertions import LEVELS, assertion_names
from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.answers.metrics import METRICS, Kind
from kvcalc.checks.keys import (
    BESIDE,
    CHECK_KEYS,
    COMMAND_KEYS,
    DEPLOYMENT_KEYS,
    FILE_VERSION,
    TOP_BESIDE,
    Form,
)
from kvcalc.core.lengths import OVER_POLICIES
from kvcalc.core.values import MAX_DIMENSION

__all__ = ["check_file_schema"]

_SIZE = r"^\s*[0-9][0-9,]*(\.[0-9]+)?\s*(B|bytes|[KMGTP]iB|kB|KB|MB|GB|TB|PB)?\s*$"
_WHOLE = r"^\s*[0-9][0-9,]*\s*$"
_NUMBER = r"^\s*[0-9]+(\.[0-9]+)?\s*$"
_RATIO = r"^\s*[0-9]+(\.[0-9]+)?\s*%?\s*$"
_TEXT = {"type": "string", "minLength": 1}
_LEVEL = {"enum": ["off", "note", "warn", "error"]}


def check_file_schema(draft: str) -> dict[str, Any]:
    """Return the schema.

    Args:
        draft: the address of the draft that it is written in.
    """
    settings = {key: _form(form) for key, (_, form) in DEPLOYMENT_KEYS.items()}
    beside = {key: _form(form) for key, form in BESIDE.items()}
    both = {**settings, **beside, "engine_args": _arguments()}
    entry = {
        "type": "object",
        "properties": {
            "name": _TEXT,
            "file": _one_or_more(_TEXT),
            "server": _TEXT,
            "workload": _one_or_more(_TEXT),
            "assert": {"$ref": "#/definitions/assertions"},
            "findings": {"$ref": "#/definitions/levels"},
            **both,
        },
        "additionalProperties": False,
        "anyOf": [{"required": ["name"]}, {"required": ["file"]}],
    }
    top: dict[str, Any] = {
        "version": {"const": FILE_VERSION},
        "defaults": {"type": "object", "properties": both, "additionalProperties": False},
        "models": {"type": "object", "additionalProperties": _named()},
        "workloads": {"type": "object", "additionalProperties": _workload()},
        "assert": {"$ref": "#/definitions/assertions"},
        "findings": {"$ref": "#/definitions/levels"},
        "deployments": {"type": "array", "items": entry},
        "figures": {
            "enum": ["expected", "low", "high"],
            "description": "Which figure of an estimate is compared.",
        },
        "price_per_gpu_hour": _form("number"),
    }
    top |= dict.fromkeys((*COMMAND_KEYS, "model"), True)
    # Defaults of other commands may be several at once.
    top |= {key: {"anyOf": [value, {"type": "array"}]} for key, value in settings.items()}
    top |= {key: beside[key] for key in TOP_BESIDE}
    return {
        "$schema": draft,
        "title": "kvcalc.yaml: deployments, what is asserted of them, and defaults of commands",
        "type": "object",
        "properties": {key: top[key] for key in (*CHECK_KEYS, *(k for k in top))},
        "additionalProperties": False,
        "definitions": {
            "assertions": _assertions(),
            "levels": {
                "type": "object",
                "properties": {
                    code: {**_LEVEL, "description": meaning}
                    for code, meaning in FINDING_CODES.items()
                },
                "additionalProperties": False,
            },
        },
    }


def _form(form: Form) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 1, "maximum": MAX_DIMENSION}
    match form:
        case "tokens" | "count":
            return {"anyOf": [whole, {"type": "string", "pattern": _WHOLE}]}
        case "bytes":
            return {"anyOf": [{"type": "integer", "minimum": 1}, _pattern(_SIZE)]}
        case "share":
            return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        case "switch":
            return {"type": "boolean"}
        case "number":
            return {"type": "number", "minimum": 0}
        case "version":
            return {"anyOf": [_TEXT, {"type": "integer"}]}
        case "text":
            return {"type": ["string", "number"]}


def _pattern(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _one_or_more(item: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [item, {"type": "array", "items": item}]}


def _arguments() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


def _named() -> dict[str, Any]:
    inner = {
        "type": "object",
        "properties": {"model": _TEXT, "quantization": _TEXT},
        "required": ["model"],
        "additionalProperties": False,
    }
    return {"anyOf": [_TEXT, inner]}


def _workload() -> dict[str, Any]:
    length = {"anyOf": [{"type": "integer", "minimum": 1}, _TEXT]}
    count = {"type": "integer", "minimum": 1}
    pair = {"type": "array", "items": [count, count], "minItems": 2, "maxItems": 2}
    properties = {
        "lengths": _one_or_more(length),
        "histogram": {
            "anyOf": [
                {"type": "array", "items": pair, "minItems": 1},
                {"type": "object", "additionalProperties": count, "minProperties": 1},
            ]
        },
        "trace": _TEXT,
        "prompt_column": _TEXT,
        "output_column": _TEXT,
        "over": {"enum": list(OVER_POLICIES)},
    }
    inner = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in ("lengths", "histogram", "trace")],
    }
    return {"anyOf": [inner, _TEXT, {"type": "array", "items": length, "minItems": 1}]}


def _assertions() -> dict[str, Any]:
    properties = {}
    for name in assertion_names():
        metric = METRICS.get(name) or METRICS[name.partition("_")[2]]
        made = _assertion(metric.kind)
        properties[name] = {"description": metric.meaning, **made}
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": {r"^(min|max)_concurrency_at_[1-9][0-9]*$": _assertion("number")},
        "additionalProperties": False,
    }


def _assertion(kind: Kind) -> dict[str, Any]:
    limit = _limit(kind)
    levels = list(LEVELS) if kind == "bool" else ["off"]
    both = {
        "type": "object",
        "properties": {"limit": limit, "level": {"enum": list(LEVELS)}},
        "additionalProperties": False,
    }
    return {"anyOf": [limit, {"enum": levels}, both]}


def _limit(kind: Kind) -> dict[str, Any]:
    match kind:
        case "bool":
            return {"type": "boolean"}
        case "bytes":
            return {"anyOf": [{"type": "integer", "minimum": 0}, _pattern(_SIZE)]}
        case "count":
            return {"anyOf": [{"type": "integer", "minimum": 0}, _pattern(_WHOLE)]}
        case "ratio":
            return {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, _pattern(_RATIO)]}
        case "number" | "price":
            return {"anyOf": [{"type": "number", "minimum": 0}, _pattern(_NUMBER)]}
