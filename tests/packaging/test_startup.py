"""What a short command loads and reads."""

from __future__ import annotations

import json

import pytest

from tests.cli.harness import python

WATCHED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from kvcalc.cli.app import main
code = main({arguments!r})
found = {{"code": code, "modules": sorted(sys.modules), "opened": opened}}
print(json.dumps(found), file=sys.stderr)
"""

OF_EVERY_ENGINE = {"refusals", "releases", "served"}
"""Modules in the engines' room that are no engine: the readers of the engines' tables."""


def watched(*arguments: str) -> dict[str, list[str]]:
    """Return the modules that a command has loaded and the files that it has opened."""
    outcome = python("-c", WATCHED.format(arguments=list(arguments)))
    found = json.loads(outcome.err.splitlines()[-1])
    assert found["code"] == 0, outcome.err
    return {"modules": found["modules"], "opened": found["opened"]}


@pytest.fixture(scope="module")
def per_token() -> dict[str, list[str]]:
    """What the command of the README loads and reads."""
    return watched("per-token", "llama-3.1-8b")


@pytest.mark.parametrize(
    "module", ["numpy", "pydantic", "jsonschema", "rich.table", "rich.markdown", "asyncio"]
)
def test_modules(per_token: dict[str, list[str]], module: str) -> None:
    """`kvcalc per-token llama-3.1-8b` does without what takes long to import."""
    assert module not in per_token["modules"]


@pytest.fixture(scope="module")
def plan() -> dict[str, list[str]]:
    """What a plan of vLLM's loads."""
    engine = ("--engine", "vllm", "--gpu", "h100-80gb", "--max", "8192")
    return watched("plan", "qwen3.5-27b", *engine, "--kv-memory", "15GiB")


@pytest.mark.parametrize("module", ["numpy", "pydantic", "jsonschema", "rich.table", "asyncio"])
def test_modules_of_a_plan(plan: dict[str, list[str]], module: str) -> None:
    """So does `kvcalc plan`."""
    assert module not in plan["modules"]


def test_a_plan_loads_one_engine(plan: dict[str, list[str]]) -> None:
    """Of the engines it loads the one that was named, without V0 and DeepSeek-V4."""
    engines = {name.split(".")[2] for name in plan["modules"] if name.startswith("kvcalc.engines.")}

    assert engines - OF_EVERY_ENGINE == {"vllm"}
    for name in ("v0", "deepseek_v4"):
        assert f"kvcalc.engines.vllm.{name}" not in plan["modules"]


def test_files(per_token: dict[str, list[str]]) -> None:
    """It opens one preset, the one that was named."""
    presets = [path for path in per_token["opened"] if path.endswith((".yaml", ".yml"))]

    assert [path.replace("\\\\", "/").rsplit("/", 1)[-1] for path in presets] == [
        "llama-3.1-8b.yaml"
    ]


def test_other_commands_are_not_loaded(per_token: dict[str, list[str]]) -> None:
    """It loads no other command, no trace reader and no schema."""
    loaded = [name for name in per_token["modules"] if name.startswith("kvcalc")]

    for name in ("cli.compare", "cli.frag", "cli.gpus", "workload", "schema", "api"):
        assert f"kvcalc.{name}" not in loaded


def test_importing_is_cheap() -> None:
    """`import kvcalc` alone loads nothing but itself; the API comes with the first name."""
    outcome = python(
        "-c",
        "import sys, kvcalc\n"
        "print(sorted(n for n in sys.modules if n.startswith('kvcalc')))\n"
        "kvcalc.load_model\n"
        "print('kvcalc.api' in sys.modules, 'numpy' in sys.modules, 'typer' in sys.modules)\n",
    )

    assert outcome.out.splitlines() == ["['kvcalc']", "True False False"]


def test_warnings_are_errors() -> None:
    """Nothing deprecated is used on the way: the command runs with every warning an error."""
    outcome = python("-W", "error", "-X", "dev", "-m", "kvcalc", "compare", "llama-3.1-8b")

    assert outcome.code == 0, outcome.err
    assert all(line.startswith("note: ") for line in outcome.err.splitlines())


def test_the_version_loads_no_command() -> None:
    loaded = [name for name in watched("--version")["modules"] if name.startswith("kvcalc.")]

    for name in ("cli.capacity", "cli.inputs", "engines", "report", "sizing"):
        assert f"kvcalc.{name}" not in loaded
