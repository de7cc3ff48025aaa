"""Where what was read stands: the file as the user sees it, and the line in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvcalc.core.errors import InputError
from kvcalc.manifests import Folder, find, read_paths, read_source
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Server, Setting


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def setting(server: Server, name: str) -> Setting:
    (found,) = [each for each in server.settings if each.name == name]
    return found


def test_a_settings_file_is_named_from_where_the_user_is(here: Path) -> None:
    """Beside the script, and above it; what the user named stays as it is."""
    (here / "deploy").mkdir()
    (here / "deploy" / "cfg.yaml").write_text("max-model-len: 4096\nmax-num-seq: 1\n")
    (here / "up.yaml").write_text("max-model-len: 2048\n")
    (here / "deploy" / "a.sh").write_text("vllm serve a/b --config cfg.yaml\n")
    (here / "deploy" / "b.sh").write_text("vllm serve a/b --config ../up.yaml\n")

    one, two = read_paths(["deploy/a.sh", "deploy/b.sh"]).servers

    assert setting(one, "max_model_len").file == os.path.join("deploy", "cfg.yaml")
    assert [f.file for f in one.findings] == [os.path.join("deploy", "cfg.yaml")]
    assert setting(two, "max_model_len").file == "up.yaml"


@pytest.mark.parametrize("path", ["./a/x.sh", "a/../a/x.sh", "a//x.sh", "b/../a/x.sh"])
def test_paths_have_no_detours(here: Path, path: str) -> None:
    """One file has one name."""
    (here / "a").mkdir()
    (here / "b").mkdir()
    (here / "a" / "x.sh").write_text("vllm serve a/b\n")

    assert [s.name for s in find([path])] == [os.path.join("a", "x.sh")]
    assert [s.name for s in find(["."])] == [os.path.join("a", "x.sh")]


def test_a_detour_over_a_link_stays(here: Path) -> None:
    """`link/../x` is beside what the link means, not beside the link."""
    (here / "far" / "in").mkdir(parents=True)
    (here / "far" / "x.sh").write_text("vllm serve a/b\n")
    (here / "link").symlink_to(here / "far" / "in")

    assert [s.name for s in find(["link/../x.sh"])] == ["link/../x.sh"]


@pytest.mark.usefixtures("here")
def test_pipes_sockets_and_devices_are_refused_at_once() -> None:
    """A pipe that nobody writes never ends; what a shell hands on by its number is read."""
    os.mkfifo("pipe.sh")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("s.sh")
        for path, what in (("pipe.sh", "pipe"), ("s.sh", "socket"), ("/dev/zero", "device")):
            with pytest.raises(InputError, match=what):
                list(find([path]))
    assert all("pipe" in str(s.fault) or "socket" in str(s.fault) for s in find(["."]))
    out, into = os.pipe()
    os.write(into, b"vllm serve a/b\n")
    os.close(into)
    (source,) = find([f"/dev/fd/{out}"])
    os.close(out)
    assert source.text == b"vllm serve a/b\n"


CHART = {
    "Chart.yaml": "name: c\nversion: 0.1.0\n",
    "values.yaml": "image: {repository: vllm/vllm-openai, tag: v0.20.2}\nmodel: a/b\n",
    "values-prod.yaml": "image: {repository: vllm/vllm-openai, tag: v0.20.2}\nmodel: a/c\n",
    "templates/d.yaml": (
        "kind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n"
        "      containers:\n        - name: v\n"
        '          image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}" # vllm\n'
        "          args: [--model, {{ .Values.model | quote }}]\n"
    ),
}


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)


def test_a_chart_starts_its_servers_once(here: Path) -> None:
    """Its values are in what its templates start; alone, or without templates, they are read."""
    written(here / "c", CHART)
    written(here / "v", {"values.yaml": CHART["values.yaml"]})

    assert [s.invocation.file for s in read_paths(["c"]).servers] == ["c/templates/d.yaml"]
    assert [s.invocation.name for s in read_paths(["c/values.yaml"]).servers] == ["values"]
    assert [s.invocation.file for s in read_paths(["v"]).servers] == ["v/values.yaml"]


BASE = (
    "kind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: 1\n  template:\n    spec:\n"
    "      containers:\n        - name: v\n          image: vllm/vllm-openai:v0.11.0\n"
    "          args: [--model, a/b]\n          resources: {limits: {nvidia.com/gpu: 1}}\n"
)
PATCH = (
    "kind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n      containers:\n"
    "        - name: v\n\n\n\n\n          args:\n            - --model=a/b\n"
    "            - --max-model-len=1k\n            - --max-model-length=1\n"
    "          resources: {limits: {nvidia.com/gpu: 2}}\n"
)


def test_words_of_a_patch_stand_in_the_patch(here: Path) -> None:
    """The server stands in its resource, the patched words in the patch, a tag where it is set."""
    written(
        here,
        {
            "k/base/d.yaml": BASE,
            "k/base/kustomization.yaml": "resources: [d.yaml]\n",
            "k/p.yaml": PATCH,
            "k/kustomization.yaml": (
                "kind: Kustomization\nresources: [base]\npatches:\n  - path: p.yaml\n"
                "images:\n  - name: vllm/vllm-openai\n    newTag: v0.12.0\n"
            ),
        },
    )

    (server,) = read_paths(["k/kustomization.yaml"]).servers

    assert (server.invocation.file, server.invocation.line) == ("k/base/d.yaml", 1)
    length = setting(server, "max_model_len")
    assert (length.file, length.line) == ("k/p.yaml", 14)
    assert [(f.code, f.file, f.line) for f in server.findings] == [("unknown-flag", "k/p.yaml", 15)]
    gpu, image = server.invocation.gpu, server.invocation.image
    assert (gpu.devices, gpu.file, gpu.line) == (2, "k/p.yaml", 16)
    assert image is not None
    assert (image.text, image.file, image.line) == (
        "vllm/vllm-openai:v0.12.0",
        "k/kustomization.yaml",
        7,
    )
    assert (server.invocation.replicas, server.invocation.replicas_line) == (1, 4)


def test_what_a_sourced_file_sets_stands_where_it_is_sourced() -> None:
    """Its own lines are of another file."""
    env = "\n\n\n\nexport OLLAMA_NUM_PARALLEL=4\nARGS=(--max-model-len 4096)\n"
    text = 'source env.sh\nvllm serve a/b "${ARGS[@]}"\nollama serve\n'
    one, two = (read(s) for s in read_source("x.sh", text, Folder(None, {"env.sh": env})))
    assert setting(one, "max_model_len").line == 1
    assert setting(two, "ollama_num_parallel").line == 1


COPIES = {
    "Deployment": ("x.yaml", BASE, 4),
    "compose": (
        "compose.yaml",
        (
            "services:\n  v:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model a/b\n"
            "    deploy:\n      replicas: 1\n"
        ),
        6,
    ),
    "SkyPilot": (
        "x.yaml",
        "resources: {accelerators: L4:1}\nrun: vllm serve a/b\nservice:\n  replicas: 1\n",
        4,
    ),
    "production stack": (
        "values.yaml",
        (
            "servingEngineSpec:\n  modelSpec:\n    - name: a\n      modelURL: a/b\n"
            "      replicaCount: 1\n"
        ),
        5,
    ),
    "KServe": (
        "x.yaml",
        (
            "kind: InferenceService\nmetadata: {name: a}\nspec:\n  predictor:\n    minReplicas: 1\n"
            "    model:\n      modelFormat: {name: huggingface}\n      args: [--model_id=a/b]\n"
        ),
        5,
    ),
    "Ray Serve": (
        "x.yaml",
        (
            "applications:\n  - args:\n      llm_configs:\n"
            "        - model_loading_config: {model_id: a/b}\n          deployment_config:\n"
            "            autoscaling_config:\n              min_replicas: 1\n"
        ),
        7,
    ),
}


@pytest.mark.parametrize("carrier", COPIES)
def test_copies_stand_on_their_own_line(carrier: str) -> None:
    """Not where the document or the container begins."""
    name, text, line = COPIES[carrier]
    (found,) = read_source(name, text)
    assert (found.replicas, found.replicas_line) == (1, line)


def test_texts_of_to_yaml_are_known_as_variables() -> None:
    """What `toYaml .Values.x` puts in is a value of the chart's, whatever it holds."""
    text = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: v\n"
        "      image: vllm/vllm-openai:v0.11.0\n      args: {{ toYaml .Values.args }}\n"
        "      env: {{ toYaml .Values.env }}\n"
    )
    values = {
        "args": ["--model", "a/b", "--served-model-name", "S3CR3T"],
        "env": [{"name": "TOKEN", "value": "S3CR3T"}],
    }
    (found,) = read_source("t.yaml", text, values=values)
    assert [word.text for word in found.words] == values["args"]
    assert {name for word in found.words for name in word.variables} == {".Values.args"}
    assert found.env["TOKEN"].shown == "$.Values.env.value"


def test_llm_d_names_its_cards_by_their_labels() -> None:
    """The accelerator types of a part become an affinity of its pods; a maker alone is no card."""
    text = (
        "modelArtifacts: {uri: 'hf://a/b', name: a/b}\ndecode:\n  acceleratorTypes:\n"
        "    labelKey: nvidia.com/gpu.product\n    labelValues:\n      - %s\n"
        "  containers:\n    - {name: v, image: llm-d, modelCommand: vllmServe}\n"
    )
    (found,) = read_source("values.yaml", text % "NVIDIA-L40S")
    assert found.gpu.product is not None
    assert (found.gpu.product.text, found.gpu.product.line) == ("NVIDIA-L40S", 6)
    assert found.gpu.product_key == "nvidia.com/gpu.product"
    (none,) = read_source("values.yaml", text % "intel-xpu")
    assert none.gpu.product is None
