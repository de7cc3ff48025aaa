"""kvcalc.yaml: what it may hold, every fault at once with its line, and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from kvcalc.checks.file import is_check_file, read_check_file
from kvcalc.checks.keys import COMMAND_KEYS, DEPLOYMENT_KEYS, TOP_BESIDE
from kvcalc.cli.settings import SETTINGS
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InputError, InputFaults
from kvcalc.schema import text
from tests.checks.builders import by_code, checked

GOOD = """\
# everything that a file may hold
version: 1
engine: vllm
gpu: h100-80gb
max_model_len: 8192
lengths: 200,1200
price_per_gpu_hour: 2.5
figures: expected
models:
  /models/ours: {model: llama-3.1-8b, quantization: fp8}
  other/name: llama-3.1-70b
workloads:
  chat: {lengths: [180, 620, 90x410], over: clip}
  flat: 50x200,1200
  listed: [200, 1200]
  histogram: {histogram: [[200, 50], [1200, 3]]}
assert:
  fits: true
  min_max_concurrency: {limit: 1, level: warn}
findings:
  cache-duplicated: off
defaults:
  dtype: auto
deployments:
  - name: chat-prod
    model: /models/ours
    tensor_parallel_size: 2
    workload: [chat, flat]
    sequences: 4
    assert:
      max_paged_waste_ratio: 5 %
      min_concurrency_at_4096: 8
      max_kv_cache_bytes: 80GiB
    findings: {cache-duplicated: note}
  - name: cpp
    model: llama-3.1-8b
    engine: llama.cpp
    engine_args: {swa_full: false}
    ctx_size: 8192
    workload: histogram
  - name: short
    model: llama-3.1-8b
    tp: 2
    pp: 1
    dp: 2
    block: 16
    max: 131,072
    kv_memory: 15GiB
    gpu: l40s
    workload: listed
"""


def _validator() -> Draft7Validator:
    schema = json.loads(text("kvcalc-yaml"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


VALIDATOR = _validator()


def invalid(document: Any) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(document)]


def test_good() -> None:
    """A file may hold all of this, and editors that have the schema underline none of it."""
    found = read_check_file(GOOD, "kvcalc.yaml")

    assert [entry.name for entry in found.deployments] == ["chat-prod", "cpp", "short"]
    begins = [n for n, line in enumerate(GOOD.splitlines(), 1) if line.startswith("  - name")]
    assert [entry.line for entry in found.deployments] == begins
    assert found.deployments[2].settings["max_model_len"].value == 131072
    assert found.deployments[2].settings["kv_cache_memory_bytes"].value == 15 * 2**30
    assert found.deployments[1].args["ctx_size"].value == 8192
    assert found.defaults.settings["engine"].value == "vllm"
    assert found.price == 2.5
    assert found.models["/models/ours"].quantization == "fp8"
    assert found.workloads["flat"].lengths is not None
    assert found.workloads["flat"].lengths.pairs == ((200, 50), (1200, 1))
    assert invalid(_plain(GOOD)) == []


def _plain(source: str) -> Any:
    """Return a document as an editor sees it: `off` is text there (YAML 1.2)."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if first not in "oOyYnN"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return yaml.load(source, Loader)  # noqa: S506 - a safe one


def test_runs(tmp_path: Path) -> None:
    """Its deployments are checked, with the workloads and levels that it says."""
    made = checked(GOOD, tmp_path)

    assert made.ok
    assert made.summary.refused == 0
    wastes = [r for r in made.results if r.assertion == "max_paged_waste_ratio"]
    assert [r.workload for r in wastes] == ["chat", "flat"]
    lines = GOOD.splitlines()
    assert {lines[r.line - 1] for r in wastes} == {"      max_paged_waste_ratio: 5 %"}


FAULTS = {
    # what replaces the deployment's lines: (fault, hint), whether the schema finds it, too
    "    tensor_paralel_size: 2": ("unknown setting of a deployment", "tensor_parallel_size", True),
    "    tensor_parallel_size: 0": ("0 is not a whole number", "16", True),
    "    tensor_parallel_size: two": ("'two' is not a number", "8192", True),
    "    max_model_len: 32k": ("'32k' tokens has two readings", "32000 or 32768", True),
    "    kv_memory: 40G": ("'40G' has more than one reading", "40GiB", True),
    "    kv_memory: 0": ("0 B holds nothing", "size", True),
    "    gpu_memory_utilization: 1.5": ("no share above 0", "0.9", True),
    "    enforce_eager: maybe": ("neither true nor false", "true or false", True),
    "    engine_version: 0.10": ("is a number", 'engine_version: "0.10"', True),
    "    engine_args: 3": ("engine_args is not a mapping", "swa_full", True),
    "    engine_args: {swa_full: [1]}": ("no text or number", "swa_full: VALUE", True),
    "    workload: talk": ("unknown workload 'talk'", "chat", False),
    "    workload: {lengths: [1]}": ("workload is no text", "workload: NAME", True),
    "    assert: {min_max_concurency: 1}": ("unknown assertion", "min_max_concurrency", True),
    "    assert: {max_concurrency: 1}": ("which side", "min_max_concurrency", True),
    "    assert: {max_paged_waste_ratio: 4}": ("no ratio", "4 %", True),
    "    assert: {fits: {level: fatal}}": ("unknown level", "error", True),
    "    assert: 3": ("assert is not a mapping", "assert:", True),
    "    findings: {idle-gpus: loud}": ("unknown level 'loud'", "error", True),
    "    findings: {idle-gpu: warn}": ("unknown finding 'idle-gpu'", "idle-gpus", True),
    "    server: chat": ("server is of a file", "file: deploy.yaml", False),
    "    tp: 2\n    tensor_parallel_size: 2": ("is set twice", "leave out", False),
}


@pytest.mark.parametrize("lines", FAULTS, ids=[f"{i}" for i in range(len(FAULTS))])
def test_faults(lines: str) -> None:
    """A slip is refused with its line and what to write; editors underline it where they can."""
    message, hint, schema = FAULTS[lines]
    model = "" if "server" in lines else "    model: llama-3.1-8b\n"
    source = f"workloads: {{chat: [200]}}\ndeployments:\n  - name: x\n{model}{lines}\n"
    with pytest.raises(InputFaults) as caught:
        read_check_file(source, "kvcalc.yaml")
    (error,) = caught.value.errors

    assert message in error.message
    assert hint in error.hint
    last = source.count("\n")
    assert error.where in (f"kvcalc.yaml:{last}", f"kvcalc.yaml:{last - 1}")
    assert bool(invalid(_plain(source))) == schema


TOP_FAULTS = {
    "deployment: []": "deployments",
    "version: 2": "version is 1",
    "figures: middle": "expected",
    "models: {x: 3}": "NAME",
    "models: {x: {modle: y}}": "NAME",
    "workloads: {x: {}}": "lengths",
    "workloads: {x: {lengths: [1], trace: y}}": "lengths",
    "workloads: {x: {lengths: [1], overr: clip}}": "over",
    "workloads: {x: {lengths: [1], over: cut}}": "clip",
    "workloads: {x: {histogram: [[1]]}}": "[[200, 50]]",
    "workloads: {x: {histogram: 3}}": "[[200, 50]",
    "workloads: {x: {lengths: [0]}}": "",
    "workloads: {x: 3.5}": "lengths",
    "deployments: {name: x}": "dash",
    "deployments: [3]": "name",
    "deployments: [{model: llama-3.1-8b}]": "name",
    "deployments: [{name: 5, model: llama-3.1-8b}]": 'name: "5"',
    "findings: {fits: warn}": "known",
    "defaults: {tpp: 2}": "tp",
    "price_per_gpu_hour: free": "number",
}


@pytest.mark.parametrize("source", TOP_FAULTS)
def test_faults_at_the_top(source: str) -> None:
    """So is one at the top of the file, which the schema finds as well."""
    with pytest.raises(InputFaults) as caught:
        read_check_file(source + "\n", "kvcalc.yaml")

    assert TOP_FAULTS[source] in caught.value.errors[0].hint
    assert caught.value.errors[0].where == "kvcalc.yaml:1"
    assert invalid(_plain(source)) != []


def test_all_faults_at_once() -> None:
    """Every fault of a file is told in one go, in the order of its lines."""
    source = (
        "gpuu: l4\nassert: {min_x: 1}\ndeployments:\n  - name: a\n    modl: x\n    tp: 0\n"
        "  - name: a\n    model: llama-3.1-8b\n    max: 32k\n"
    )
    with pytest.raises(InputFaults) as caught:
        read_check_file(source, "kvcalc.yaml")

    assert [e.where for e in caught.value.errors] == [
        *(f"kvcalc.yaml:{n}" for n in (1, 2, 5, 6, 7, 9)),
    ]
    assert "(and 5 more faults)" in caught.value.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("- a\n", "mapping"),
        ("a: &x 1\nb: *x\n", "anchor"),
        ("gpu: l4\ngpu: l4\n", "twice"),
        ("gpu:\n\tx: 1\n", "tab"),
        ("gpu: [\n", "not valid YAML"),
    ],
)
def test_broken(source: str, said: str) -> None:
    """What is no such document at all is refused in one line."""
    with pytest.raises(InputError, match=said):
        read_check_file(source, "kvcalc.yaml")


def test_empty() -> None:
    """An empty file has nothing to check and nothing wrong."""
    assert read_check_file("# nothing\n\n", "kvcalc.yaml").deployments == ()


def test_is_check_file() -> None:
    """A kvcalc.yaml is known by its name, or by its keys."""
    assert is_check_file("a/kvcalc.yaml", "")
    assert is_check_file("prod.kvcalc.yml", "")
    assert is_check_file("sizes.yaml", "deployments:\n  - name: x\n")
    assert not is_check_file("deploy.yaml", "kind: Deployment\n")


def test_keys_of_commands() -> None:
    """Whatever kvcalc's commands take from a settings file, checks know, too."""
    assert set(SETTINGS) <= {*DEPLOYMENT_KEYS, *COMMAND_KEYS, *TOP_BESIDE, "model"}


def test_every_field_can_be_set() -> None:
    """Every setting of a deployment has a key of its own name."""
    fields = {field for field, _ in DEPLOYMENT_KEYS.values()}

    assert set(Deployment.__struct_fields__) - {"engine_args"} <= fields
    for name in set(Deployment.__struct_fields__) - {"engine_args"}:
        assert DEPLOYMENT_KEYS[name][0] == name


def test_defaults_of_the_file(tmp_path: Path) -> None:
    """What the top says of deployments holds for each, unless it says otherwise."""
    made = checked(
        "gpu: l40s\nmax: 4096\ndefaults: {kv_cache_dtype: fp8}\ndeployments:\n"
        "  - {name: a, model: llama-3.1-8b}\n  - {name: b, model: llama-3.1-8b, max: 8192}\n",
        tmp_path,
    )
    figures = {d.name: d.figures for d in made.deployments}

    assert figures["a"]["max_model_len"] == 4096
    assert figures["b"]["max_model_len"] == 8192
    assert figures["a"]["bytes_per_token"] == 65536
    assert made.deployments[0].gpu == "l40s"


def test_requests_beyond_the_maximum(tmp_path: Path) -> None:
    """A workload that the server would refuse in part is a finding, unless it says what then."""
    source = (
        "gpu: l40s\nworkloads: {chat: %s}\ndeployments:\n"
        "  - {name: a, model: llama-3.1-8b, max: 1024, workload: chat,"
        " assert: {max_paged_waste_ratio: 50 %%}}\n"
    )
    found = by_code(checked(source % "[200, 2000, 3000]", tmp_path), "requests-over-maximum")

    assert found.status == "fail"
    assert "2 of 3 requests of chat are longer than the maximum of 1,024" in found.message
    assert "max_model_len 3000" in found.hint
    clipped = checked(source % "{lengths: [200, 2000], over: clip}", tmp_path)
    assert clipped.ok


def test_figures(tmp_path: Path) -> None:
    """The surer end of an estimate can be asked for instead of what is expected."""
    source = (
        "figures: %s\ndeployments:\n  - {name: a, model: llama-3.1-8b, gpu: l40s, max: 8192,"
        " assert: {min_max_concurrency: 1}}\n"
    )
    found = {
        which: by_code(checked(source % which, tmp_path), "min_max_concurrency")
        for which in ("low", "expected", "high")
    }

    assert found["low"].actual == found["expected"].low
    assert found["high"].actual == found["expected"].high
    actual = [found[which].actual for which in ("low", "expected", "high")]
    assert actual == sorted(actual)  # type: ignore[type-var]
    assert actual[0] != actual[2]
