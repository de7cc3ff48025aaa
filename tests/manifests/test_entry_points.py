"""A program that is given to an image which starts it by itself: told in every carrier, or not."""

from __future__ import annotations

from textwrap import dedent

import pytest

from kvcalc.manifests import read_source
from kvcalc.manifests.commands import read

POD = """
    kind: Pod
    metadata: {name: p}
    spec:
      containers:
        - name: v
          image: vllm/vllm-openai:v0.20.2
          %s
"""
REPEATED = {
    "args of a container": (
        "x.yaml",
        POD % "args: [vllm, serve, org/name, --max-model-len, '8192']",
    ),
    "args beside an empty command": (
        "x.yaml",
        POD % "command: []\n          args: [vllm, serve, org/name]",
    ),
    "a shell under the entry point": (
        "x.yaml",
        POD % "args: [bash, -c, 'vllm serve org/name']",
    ),
    "compose": (
        "compose.yaml",
        "services: {v: {image: 'vllm/vllm-openai:v0.11.0', command: vllm serve org/name}}",
    ),
    "compose, a module": (
        "compose.yaml",
        (
            "services: {v: {image: 'vllm/vllm-openai:v0.8.5', command: [python3, -m,"
            " vllm.entrypoints.openai.api_server, --model, org/name]}}"
        ),
    ),
    "compose, TGI": (
        "compose.yaml",
        (
            "services: {v: {image: 'ghcr.io/huggingface/text-generation-inference:3.3.5',"
            " command: text-generation-launcher --model-id org/name}}"
        ),
    ),
    "compose, ollama": (
        "compose.yaml",
        "services: {v: {image: 'ollama/ollama:latest', command: ollama serve}}",
    ),
    "docker run": ("x.sh", "docker run --gpus all vllm/vllm-openai:v0.11.0 vllm serve org/name"),
    "docker run, llama.cpp": (
        "x.sh",
        "docker run --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda /app/llama-server -m x.gguf",
    ),
    "Dockerfile": (
        "Dockerfile",
        'FROM vllm/vllm-openai:v0.10.0\nCMD ["vllm", "serve", "org/name"]\n',
    ),
    "Dockerfile, shell form": (
        "Dockerfile",
        "FROM vllm/vllm-openai:v0.10.0\nCMD vllm serve org/name\n",
    ),
    "quadlet": (
        "x.container",
        (
            "[Container]\nImage=docker.io/vllm/vllm-openai:v0.11.0\nExec=vllm serve org/name\n"
            "AddDevice=nvidia.com/gpu=all\n"
        ),
    ),
}
RIGHT = {
    "flags alone": ("x.yaml", POD % "args: [--model, org/name]"),
    "a command of its own": ("x.yaml", POD % "command: [vllm, serve, org/name]"),
    "compose with an entry point": (
        "compose.yaml",
        (
            "services: {v: {image: 'vllm/vllm-openai:v0.11.0', entrypoint: vllm,"
            " command: serve org/name}}"
        ),
    ),
    "compose without the image's": (
        "compose.yaml",
        (
            "services: {v: {image: 'vllm/vllm-openai:v0.11.0', entrypoint: [],"
            " command: vllm serve org/name}}"
        ),
    ),
    "compose that builds its image": (
        "compose.yaml",
        "services: {v: {image: 'vllm-openai:mine', build: ., command: vllm serve org/name}}",
    ),
    "docker run with an entry point": (
        "x.sh",
        "docker run --gpus all --entrypoint vllm vllm/vllm-openai:v0.11.0 serve org/name",
    ),
    "docker run without the image's": (
        "x.sh",
        "docker run --gpus all --entrypoint '' vllm/vllm-openai:v0.11.0 vllm serve org/name",
    ),
    "an image that starts nothing": ("x.sh", "docker run lmsysorg/sglang:v0.5.20 sglang serve m"),
    "Dockerfile with an entry point": (
        "Dockerfile",
        'FROM vllm/vllm-openai:v0.10.0\nENTRYPOINT ["vllm"]\nCMD ["serve", "org/name"]\n',
    ),
    "Dockerfile without the image's": (
        "Dockerfile",
        'FROM vllm/vllm-openai:v0.10.0\nENTRYPOINT []\nCMD ["vllm", "serve", "org/name"]\n',
    ),
    "a job on a cluster": (
        "x.yaml",
        """
        kind: RayJob
        metadata: {name: j}
        spec:
          entrypoint: vllm serve org/name
          rayClusterSpec:
            headGroupSpec:
              template:
                spec: {containers: [{name: h, image: 'vllm/vllm-openai:v0.11.0'}]}
        """,
    ),
}


def told(name: str, text: str) -> list[str]:
    (found,) = read_source(name, dedent(text).lstrip("\n"))
    return [f.message for f in read(found).findings if f.code == "entrypoint-repeated"]


@pytest.mark.parametrize("carrier", REPEATED)
def test_a_program_that_is_started_twice_is_told_once(carrier: str) -> None:
    """One finding, which names what the image starts."""
    (message,) = told(*REPEATED[carrier])
    assert "by itself" in message


@pytest.mark.parametrize("carrier", RIGHT)
def test_what_replaces_the_entry_point_is_right(carrier: str) -> None:
    """Flags alone, an entry point of its own, an image that starts nothing."""
    assert told(*RIGHT[carrier]) == []
