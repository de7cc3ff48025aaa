"""The schemas that ship: equal to the values they describe, and fit to check files by."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from kvcalc.core.layers import CACHE_KINDS
from kvcalc.models.presets import preset_folder
from kvcalc.schema import FOLDER, names, text
from kvcalc.schema.generate import schemas
from tests.cli.harness import validate

MODELS = sorted((preset_folder() / "models").glob("*.yaml"))
GPUS = sorted((preset_folder() / "gpus").glob("*.yaml"))
OF_FILES = ("model-preset", "gpu-preset", "kvcalc-yaml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def without_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n")


def test_fresh() -> None:
    """The shipped files are what the values give now: `python -m kvcalc.schema` writes them."""
    made = schemas()

    assert sorted(made) == names()
    for name, content in made.items():
        assert without_line_ends(text(name)) == content, name


def test_no_other_file() -> None:
    """Nothing else lies among them."""
    files = {path.name for path in FOLDER.iterdir() if path.suffix == ".json"}

    assert files == {f"{name}.schema.json" for name in names()}


@pytest.mark.parametrize("name", names())
def test_draft_7(name: str) -> None:
    """Each is a valid schema of draft 7, and each of its references leads somewhere."""
    schema = json.loads(text(name))
    Draft7Validator.check_schema(schema)

    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    found = text(name)
    for part in found.split('"$ref": "#/definitions/')[1:]:
        assert part.split('"')[0] in schema["definitions"]
    for later in ("$defs", "prefixItems", "dependentRequired", "unevaluatedProperties"):
        assert f'"{later}"' not in found


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models(path: Path) -> None:
    """Every model preset that ships is valid."""
    assert validate("model-preset", read(path)) == []


@pytest.mark.parametrize("path", GPUS, ids=lambda path: path.stem)
def test_gpus(path: Path) -> None:
    """Every GPU preset that ships is valid."""
    assert validate("gpu-preset", read(path)) == []


def test_kinds() -> None:
    """Every kind of layer can be written in a model preset."""
    found = text("model-preset")

    for kind in CACHE_KINDS:
        tag = kind if isinstance(kind, str) else kind.__struct_config__.tag
        assert f'"{tag}"' in found


BAD_MODELS: dict[str, dict[str, Any]] = {
    "unknown key": {"titel": "x"},
    "no layers": {"layers": []},
    "layers no list": {"layers": 3},
    "empty title": {"title": ""},
    "text for a number": {"num_hidden_layers": "32"},
    "no layer at all": {"num_hidden_layers": 0},
    "fraction": {"num_hidden_layers": 1.5},
    "other kind": {"kind": "gpu"},
    "unknown kind of layer": {"layers": [{"kind": "full_atention", "num_kv_heads": 1}]},
    "unknown key of a layer": {
        "layers": [{"kind": "full_attention", "num_kv_heads": 1, "head_dim": 64, "heads": 1}]
    },
    "missing key of a layer": {"layers": [{"kind": "full_attention", "num_kv_heads": 1}]},
    "zero heads": {"layers": [{"kind": "full_attention", "num_kv_heads": 0, "head_dim": 64}]},
    "count 0": {
        "layers": [{"count": 0, "kind": "full_attention", "num_kv_heads": 1, "head_dim": 64}]
    },
    "no figures": {"expect": {"bytes_per_token": {}, "confirmed_by": ["x"]}},
    "unconfirmed": {"expect": {"bytes_per_token": {"bfloat16": 1}, "confirmed_by": []}},
    "negative figure": {"expect": {"bytes_per_token": {"bfloat16": -1}, "confirmed_by": ["x"]}},
    "no source file": {"source": {"repository": "x"}},
    "aliases no list": {"aliases": "x"},
}


@pytest.mark.parametrize("change", BAD_MODELS.values(), ids=list(BAD_MODELS))
def test_bad_models(change: dict[str, Any]) -> None:
    """A slip in a model preset is found by the schema too, so that editors underline it."""
    document = {**copy.deepcopy(read(MODELS[0])), **change}

    assert validate("model-preset", document) != []


@pytest.mark.parametrize("name", ["model-preset", "gpu-preset"])
def test_required(name: str) -> None:
    """A preset without one of the required keys is refused."""
    document = read(MODELS[0] if name == "model-preset" else GPUS[0])
    required = json.loads(text(name))["required"]

    assert len(required) > 2
    assert "kind" in required
    for key in required:
        less = {k: v for k, v in document.items() if k != key}
        assert validate(name, less) != [], key


@pytest.mark.parametrize(
    "change",
    [{"memory": 1}, {"memory_bytes": "80GB"}, {"memory_bytes": 0}, {"kind": "model"}],
    ids=str,
)
def test_bad_gpus(change: dict[str, Any]) -> None:
    """So is a slip in a GPU preset."""
    assert validate("gpu-preset", {**read(GPUS[0]), **change}) != []


@pytest.mark.parametrize("name", [n for n in names() if n not in OF_FILES])
def test_documents_may_grow(name: str) -> None:
    """A document may gain keys without a new version, and may lose none."""
    schema = json.loads(text(name))

    assert '"additionalProperties": false' not in text(name)
    assert schema["properties"]["schema"] == {"const": f"kvcalc.{name}/1"}
    assert validate(name, {}) != []
