"""Schemas from the values themselves, rewritten to draft 7, which editors understand."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec

from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers.assertions import LEVELS, Check, CheckSummary, assertion_names
from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.answers.changes import Changed
from kvcalc.answers.check_report import Deployed
from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.answers.logs import LogAnswer, LogComparison
from kvcalc.answers.metrics import METRICS, Kind
from kvcalc.answers.probed import ProbeResult
from kvcalc.answers.results import (
    Comparison,
    EngineSummary,
    FileFault,
    Fragmentation,
    LayerDiff,
    LayerMap,
    PerToken,
    PlanSummary,
    PresetDetail,
    PresetSummary,
)
from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.checks.keys import (
    BESIDE,
    CHECK_KEYS,
    COMMAND_KEYS,
    DEPLOYMENT_KEYS,
    FILE_VERSION,
    TOP_BESIDE,
    Form,
)
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.layers import MAX_LAYERS, Cache
from kvcalc.core.lengths import OVER_POLICIES
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.preset_files import ModelFile

__all__ = ["draft7", "schemas"]


_DRAFT = "http://json-schema.org/draft-07/schema#"
_RESULTS = {
    "per-token": PerToken,
    "compare": Comparison,
    "frag": Fragmentation,
    "frag-oom": OutOfMemory,
    "plan": PlanSummary,
    "capacity": CapacityAnswer,
    "check": Check,
    "diff": Changed,
    "log": LogAnswer,
    "log-diff": LogComparison,
    "metrics": ServerMetrics,
    "probe": ProbeResult,
    "layers": LayerMap,
    "layers-diff": LayerDiff,
    "gpus": GpuSpec,
    "engines": EngineSummary,
    "presets-list": PresetSummary,
    "presets-show": PresetDetail,
    "presets-validate": FileFault,
}


def schemas() -> dict[str, str]:
    """Return every schema's text by name."""
    made = {name: _document(name, result) for name, result in _RESULTS.items()}
    made["check"] = _check(made["check"])
    made["kvcalc-yaml"] = check_file_schema(_DRAFT)
    made["model-preset"] = _model_preset()
    made["gpu-preset"] = _gpu_preset()
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in made.items()}


def draft7(schema: Any, *, open_ended: bool) -> Any:
    """Rewrite a schema of msgspec's (2020-12) as draft 7.

    Args:
        schema: any part of a schema.
        open_ended: allow further keys: a document may gain some without a new version.
    """
    if isinstance(schema, list):
        return [draft7(part, open_ended=open_ended) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        part = draft7(value, open_ended=open_ended)
        if key == "$ref":
            out[key] = str(value).replace("#/$defs/", "#/definitions/")
        elif key == "prefixItems":
            out["items"] = part
        elif key == "items" and "prefixItems" in schema:
            out["additionalItems"] = part
        elif key == "discriminator":
            continue  # OpenAPI's; anyOf says the same
        elif key == "additionalProperties" and value is False and open_ended:
            continue
        else:
            out[key] = part
    return out


def _anything(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a type that msgspec has none for: `object`, which is any value."""
    if kind is not object:
        raise NotImplementedError
    return {"description": "any value"}


def _components(*types: Any, open_ended: bool) -> tuple[list[Any], dict[str, Any]]:
    found, definitions = msgspec.json.schema_components(
        types, ref_template="#/definitions/{name}", schema_hook=_anything
    )
    return (
        [draft7(part, open_ended=open_ended) for part in found],
        {name: draft7(part, open_ended=open_ended) for name, part in definitions.items()},
    )


def _document(command: str, result: type[Any]) -> dict[str, Any]:
    (item,), definitions = _components(result, open_ended=True)
    lines = {"type": "array", "items": {"type": "string"}}
    return {
        "$schema": _DRAFT,
        "title": f"the JSON of kvcalc {command.replace('presets-', 'presets ')}",
        "type": "object",
        "required": ["schema", "kvcalc_version", "inputs", "results", "notes", "warnings"],
        "properties": {
            "schema": {"const": f"kvcalc.{command}/1"},
            "kvcalc_version": {"type": "string"},
            "inputs": {"type": "object"},
            "results": {"type": "array", "items": item},
            "notes": lines,
            "warnings": lines,
        },
        "definitions": definitions,
    }


def _check(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of kvcalc check, which also counts and tells what was checked."""
    (count, deployed), definitions = _components(CheckSummary, Deployed, open_ended=True)
    members = {"summary": count, "deployments": {"type": "array", "items": deployed}}
    return {
        **document,
        "required": [*document["required"], *members],
        "properties": {**document["properties"], **members},
        "definitions": {**document["definitions"], **definitions},
    }


def _model_preset() -> dict[str, Any]:
    (file,), definitions = _components(ModelFile, open_ended=False)
    top = definitions.pop(file["$ref"].rsplit("/", 1)[1])
    # They come from a checkpoint's headers alone.
    definitions["ModelSize"]["properties"].pop("parts")
    definitions.pop("WeightPart")
    kinds, caches = _components(*get_args(Cache), open_ended=False)
    beside = {
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_LAYERS, "default": 1},
        "note": {"type": "string"},
    }
    cache = {"anyOf": kinds}
    runs: list[dict[str, Any]] = []
    for kind in caches.values():
        kind["required"] = ["kind", *(r for r in kind.get("required", []) if r != "kind")]
        runs.append({**kind, "properties": {**beside, **kind["properties"]}})
    runs.append(
        {
            "description": "Layers that keep several caches, or none.",
            "type": "object",
            "required": ["caches"],
            "properties": {**beside, "caches": {"type": "array", "items": cache}},
            "additionalProperties": False,
        }
    )
    entries: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": runs}}
    repeat = {
        "description": "A pattern of layers, several times.",
        "type": "object",
        "required": ["repeat", "layers"],
        "properties": {
            "repeat": {"type": "integer", "minimum": 1, "maximum": MAX_LAYERS},
            "layers": entries,
        },
        "additionalProperties": False,
    }
    layers = {"type": "array", "minItems": 1, "items": {"anyOf": [*runs, repeat]}}
    top["properties"] = {"kind": {"const": "model"}, **top["properties"], "layers": layers}
    top["properties"]["draft_layers"] = {**layers, "minItems": 0}
    top["required"] = ["kind", *top["required"]]
    return {"$schema": _DRAFT, **top, "definitions": {**definitions, **caches}}


def _gpu_preset() -> dict[str, Any]:
    (gpu,), definitions = _components(GpuSpec, open_ended=False)
    top = definitions.pop(gpu["$ref"].rsplit("/", 1)[1])
    top["properties"] = {"kind": {"const": "gpu"}, **top["properties"]}
    top["required"] = ["kind", *top["required"]]
    return {"$schema": _DRAFT, **top, "definitions": definitions}


# The schema of kvcalc.yaml, from the same tables by which kvcalc check reads it.

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
