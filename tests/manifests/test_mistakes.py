"""What people get wrong around a command: line breaks, types, variables, numbers."""

from __future__ import annotations

from textwrap import dedent

import pytest

from kvcalc.manifests import Folder, read_source
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Finding, Server


def servers(text: str, name: str = "x.yaml", **files: str) -> list[Server]:
    beside = {path.replace("_dot_", "."): body for path, body in files.items()}
    found = read_source(name, dedent(text).lstrip("\n"), Folder(None, beside))
    return [read(each) for each in found]


def told(text: str, name: str = "x.yaml") -> list[tuple[str, str, int]]:
    (server,) = servers(text, name)
    return [(f.code, f.level, f.line) for f in server.findings]


def only(text: str, code: str, name: str = "x.yaml") -> Finding:
    (server,) = servers(text, name)
    (finding,) = [f for f in server.findings if f.code == code]
    return finding


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("vllm serve a/b \\ \n  --max-model-len 8192\n", 2),
        ("vllm serve a/b \\\n  --port 1 \\\n# --enforce-eager \\\n  -tp 2 > log 2>&1 &\n", 4),
        ("vllm serve a/b\n  --max-model-len 8192\n", 2),
        ("vllm serve a/b \\\n\n  --max-model-len 8192\n  --port 1\n", 3),
    ],
)
def test_flags_that_a_line_break_drops(text: str, line: int) -> None:
    """A blank behind the backslash, a comment or an empty line between: one error, on its line."""
    found = only(text, "dropped-flags", "x.sh")
    assert (found.level, found.line) == ("error", line)
    assert "backslash" in found.cure


def test_a_command_that_is_whole_drops_nothing() -> None:
    """Continued as a shell continues; another command after it; flags of what starts no server."""
    text = "vllm serve a/b \\\n  --max-model-len 8192\nsleep 1\n--help\n"
    assert told(text, "x.sh") == []


POD = """
    kind: Deployment
    metadata: {name: d}
    spec:
      template:
        spec:
          containers:
            - name: v
              image: vllm/vllm-openai:v0.20.2
              %s
"""


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("args: [--model, a/b, --max-model-len, 8192]", True),
        ("args: [--model, a/b, --max-model-len, '8192']", False),
        ("args: [--model, a/b, --gpu-memory-utilization, 0.9]", True),
        ("args: --model a/b --max-model-len 8192", True),
        ("{args: [--model, a/b], env: [{name: X, value: 1}]}", True),
        ("{args: [--model, a/b], env: [{name: X, value: true}]}", True),
        ("{args: [--model, a/b], env: [{name: X, value: yes-it-is}]}", False),
        ("args: [--model, a/b, --max-model-len, '{{ .Values.x }}']", False),
    ],
)
def test_what_the_api_server_refuses(said: str, wrong: bool) -> None:
    """Commands are lists of texts, values of variables texts: a bare number is neither."""
    body = said.strip("{}").replace("], env", "]\n              env") if said[0] == "{" else said
    assert (("mistyped", "error", 10) in [(c, e, 10) for c, e, _ in told(POD % body)]) is wrong


def test_values_of_a_chart_are_not_typed() -> None:
    """A chart may take one text, and make a list of it."""
    text = "image: {repository: vllm/vllm-openai, tag: v0.20.2}\nargs: --model a/b\n"
    assert told(text, "values.yaml") == []


def test_a_shells_variable_without_a_shell() -> None:
    """It is told with the kubelet's spelling, and read as it was meant."""
    (server,) = servers(
        POD % 'command: [vllm, serve, $MODEL, "--max-model-len=${LEN}", --port, $(PORT)]\n'
        "              env: [{name: MODEL, value: a/b}, {name: LEN, value: '4096'},"
        " {name: PORT, value: '1'}]"
    )
    found = [f for f in server.findings if f.code == "not-expanded"]
    assert [(f.level, f.cure) for f in found] == [
        ("error", "write $(MODEL)"),
        ("error", "write $(LEN)"),
    ]
    assert server.model is not None
    assert server.model.value == "a/b"
    assert {s.name: s.value for s in server.settings}["max_model_len"] == 4096


def test_a_shells_variable_in_a_shell() -> None:
    """There it is put in."""
    text = (
        POD % "command: [sh, -c, 'vllm serve $MODEL']\n              env: [{name: MODEL, value: a}]"
    )
    assert told(text) == []


def test_a_dockerfile_in_exec_form_expands_nothing() -> None:
    """The shell form does."""
    exec_form = 'FROM vllm/vllm-openai:v0.20.2\nENV M=a/b\nENTRYPOINT ["vllm", "serve", "$M"]\n'
    found = only(exec_form, "not-expanded", "Dockerfile")
    assert (found.level, found.line) == ("error", 3)
    shell_form = "FROM vllm/vllm-openai:v0.20.2\nENV M=a/b\nENTRYPOINT vllm serve $M\n"
    assert told(shell_form, "Dockerfile") == []


RAY = """
    applications:
      - name: a
        args:
          llm_configs:
            - model_loading_config: {model_id: a/b}
              engine_kwargs: {max_model_len: %s, tensor_parallel_size: 2}
"""


def test_arguments_of_python_have_no_suffix() -> None:
    """32k of vLLM's command line is no number for its engine."""
    (server,) = servers(RAY % "32k")
    (found,) = server.findings
    assert (found.code, found.level, found.line) == ("bad-value", "error", 6)
    assert found.cure == "write 32000"
    assert "max_model_len" not in {s.name for s in server.settings}
    (right,) = servers(RAY % "32768")
    assert right.findings == ()


def test_a_ray_file_names_its_configurations() -> None:
    """Each in a file of its own, whose lines are told with its path."""
    text = "applications:\n  - {name: a, args: {llm_configs: [models/one.yaml]}}\n"
    one = "model_loading_config: {model_id: a/b}\nengine_kwargs:\n  max_model_len: 4096\n"
    found = read_source("deploy/serve.yaml", text, Folder(None, {"models/one.yaml": one}))
    (server,) = [read(each) for each in found]
    assert server.invocation.file == "deploy/models/one.yaml"
    assert [(s.value, s.line) for s in server.settings if s.name == "max_model_len"] == [(4096, 3)]


@pytest.mark.parametrize(("pool", "wrong"), [(4096, True), (8192, False)])
def test_tgis_pool_holds_one_request(pool: int, wrong: bool) -> None:
    """max-batch-total-tokens is at least max-total-tokens."""
    command = "text-generation-launcher --model-id a --max-total-tokens 8192"
    found = told(f"{command} --max-batch-total-tokens {pool}\n", "x.sh")
    assert [code for code, *_ in found] == (["contradiction"] if wrong else [])


@pytest.mark.parametrize(
    ("env", "wrong"),
    [
        ("OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=0", True),
        ("OLLAMA_KV_CACHE_TYPE=q8_0 OLLAMA_FLASH_ATTENTION=1", False),
        ("OLLAMA_KV_CACHE_TYPE=f16 OLLAMA_FLASH_ATTENTION=0", False),
    ],
)
def test_ollamas_quantised_cache_wants_flash_attention(env: str, wrong: bool) -> None:
    """Told though no model is named, whose plan would tell it."""
    found = told(f"{env} ollama serve\n", "x.sh")
    assert [code for code, *_ in found] == (["contradiction"] if wrong else [])


INSTALLED = {
    "script": ("x.sh", "pip install 'vllm[audio]==0.8.5'\nvllm serve a/b\n"),
    "uv": ("x.sh", "uv pip install --system vllm==0.8.5\nvllm serve a/b\n"),
    "uv run": ("x.sh", "uv run --with vllm==0.8.5 vllm serve a/b\n"),
    "SkyPilot": (
        "x.yaml",
        "resources: {accelerators: L4:1}\nsetup: pip install vllm==0.8.5\nrun: vllm serve a/b\n",
    ),
    "Dockerfile": (
        "Dockerfile",
        (
            "FROM vllm/vllm-openai:v0.11.0\nARG V=0.8.5\nRUN pip install -U vllm==$V\n"
            'ENTRYPOINT ["vllm", "serve", "a/b"]\n'
        ),
    ),
}


@pytest.mark.parametrize("carrier", INSTALLED)
def test_what_a_file_installs_is_the_release(carrier: str) -> None:
    """It counts above the image's tag."""
    name, text = INSTALLED[carrier]
    (server,) = servers(text, name)
    assert server.engine_version == "0.8.5"


def test_what_another_container_or_a_range_installs_is_not() -> None:
    """Only an exact release, where the server itself runs."""
    (server,) = servers("pip install 'vllm>=0.8.5'\nvllm serve a/b\n", "x.sh")
    assert server.engine_version is None
    text = "pip install vllm==0.8.5\ndocker run vllm/vllm-openai:v0.11.0 --model a/b\n"
    (server,) = servers(text, "x.sh")
    assert server.engine_version == "0.11.0"
