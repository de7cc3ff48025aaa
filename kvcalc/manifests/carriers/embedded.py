"""Commands in the texts of YAML that no carrier knows: CI steps, playbooks, catalogues."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import GpuRequest, Invocation
from kvcalc.manifests.launches import of_script
from kvcalc.manifests.requests import Copies, copies_of

__all__ = ["of_texts"]

_STARTS = re.compile(
    r"vllm[ \t]+serve|vllm\.entrypoints|sglang\.launch_server|sglang[ \t]+serve|"
    r"llama-server[ \t\\\n]+-|"
    r"trtllm-serve|text-generation-launcher|lmdeploy[ \t]+serve|ollama[ \t]+serve|"
    r"dynamo\.(?:vllm|sglang|trtllm)|(?:docker|podman)[ \t]+run"
)
_GENERIC = {"vllm", "spec", "common", "command", "run", "script", "steps", "jobs", "env", "args"}
_MOST = 500  # scripts in a file


def of_texts(document: Node, context: Context) -> list[Invocation]:
    """Return the servers that the texts of a document start, each named by where it stands."""
    found: list[Invocation] = []
    stack: list[tuple[Node, str, _Around]] = [(document, "", _Around(Copies(), GpuRequest(), 1))]
    looked = 0
    while stack and looked < _MOST:
        node, name, around = stack.pop()
        if node.is_list:
            stack += [(i, i.get("name").text or name, around) for i in reversed(node.items)]
            continue
        if node.is_mapping:
            around = _within(node, around)
            for key, value in reversed(node.fields.items()):
                inner = name if key in _GENERIC or value.is_text else key
                stack.append((value, inner or name, around))
            continue
        if not _STARTS.search(node.raw):
            continue
        looked += 1
        try:
            launches, _ = of_script(node.raw, node.lines(), {}, context.place)
        except InputError:
            continue  # prose that mentions a command
        found += [
            launch._replace(gpu=launch.gpu if launch.gpu.resource else around.gpu)
            .started(name or "server", "script in YAML", context.file)
            ._replace(
                replicas=around.replicas.number,
                replicas_line=around.replicas.line,
                nodes=around.nodes,
            )
            for launch in launches
        ]
    return found


class _Around(NamedTuple):
    """What the mappings around a text say of its server."""

    replicas: Copies
    gpu: GpuRequest
    nodes: int


def _within(node: Node, around: _Around) -> _Around:
    """Return what is known inside a mapping: its replicas, llm-d's `parallelism`."""
    count = copies_of(node.get("replicas"))
    parallelism = node.get("parallelism")
    around = around if count.number is None else around._replace(replicas=count)
    if not parallelism.is_mapping:
        return around
    devices = (parallelism.get("tensor").number or 1) * (parallelism.get("dataLocal").number or 1)
    gpu = GpuRequest(devices=devices, resource="parallelism", line=parallelism.line)
    return around._replace(gpu=gpu, nodes=parallelism.get("workers").number or 1)
