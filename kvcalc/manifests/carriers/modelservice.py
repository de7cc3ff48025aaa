"""Helm values of llm-d's modelservice chart: `decode` and `prefill`."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.manifests.carriers.containers import environment, image_of_node, prepared
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible

__all__ = ["of_modelservice"]

_SIZES = (
    ("tensor", "--tensor-parallel-size"),
    ("data", "--data-parallel-size"),
    ("dataLocal", "--data-parallel-size-local"),
)


def of_modelservice(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of the chart's two roles."""
    found: list[Invocation] = []
    for part in ("decode", "prefill"):
        role = values.get(part)
        if role.is_mapping and not role.get("create").is_false:
            for container in role.get("containers").items:
                found += _container(container, part, role, values, context)
    return found


def _container(
    container: Node, part: str, role: Node, values: Node, context: Context
) -> Iterator[Invocation]:
    command, name = container.get("modelCommand").text, values.get("modelArtifacts", "name")
    parallelism, env = role.get("parallelism"), environment(container, context)
    words: list[Word] = []
    if command == "vllmServe":
        words = [Word("vllm", container.line), Word("serve", container.line)]
        words += [context.word(name)] if name.is_text else []
        for key, flag in _SIZES:  # the chart writes what is above one
            if ((node := parallelism.get(key)).number or 1) > 1:
                words += [Word(flag, node.line), context.word(node)]
    elif command == "imageDefault" and name.is_text:
        words = [Word("--model", name.line), context.word(name)]
    elif not command and "command" not in container:
        return
    launches, _ = prepared(container, context, env, likely=False)
    if launches and launches[0].words and "command" in container and not words:
        words = list(launches[0].words)
    else:
        words += context.words(container.get("command")) + context.words(container.get("args"))
    gpu, findings = _devices(container, parallelism, values)
    gpu = with_product(with_visible(gpu, env), role)
    several = len(role.get("containers").items) > 1
    copies = copies_of(role.get("replicas"))
    yield Invocation(
        name=f"{part}/{container.get('name').text}" if several else part,
        carrier="modelservice values",
        file=context.file,
        line=role.line,
        words=tuple(words),
        image=image_of_node(container, context),
        env=env,
        gpu=gpu if gpu.product is not None else with_product(gpu, values),
        replicas=copies.number,
        replicas_line=copies.line,
        nodes=parallelism.get("workers").number or 1,
        findings=tuple(findings),
    )


def _devices(container: Node, parallelism: Node, values: Node) -> tuple[GpuRequest, list[Finding]]:
    """Return the devices that the chart writes: tensor x dataLocal, whatever the container says."""
    gpu, findings = of_resources(container.get("resources"))
    tensor, local = parallelism.get("tensor").number or 1, parallelism.get("dataLocal").number or 1
    counted = tensor * local
    if parallelism.is_mapping and gpu.devices not in (None, counted):
        finding = Finding(
            "overwritten-gpu-count",
            "warning",
            f"{gpu.devices} devices are asked for; the chart writes tensor x dataLocal = {counted}",
            "make parallelism and the devices agree",
            gpu.line,
        )
        findings = [*findings, finding]
    if parallelism.is_mapping or gpu.resource is None:
        line = gpu.line or parallelism.line
        resource = gpu.resource or values.get("accelerator", "type").text or "nvidia.com/gpu"
        gpu = gpu._replace(devices=counted, resource=resource, line=line)
    return gpu, findings
