"""NVIDIA Dynamo: DynamoGraphDeployment's services, or its components."""

from __future__ import annotations

from kvcalc.manifests.carriers.containers import environment, of_pod
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Invocation
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible

__all__ = ["of_dynamo"]


def of_dynamo(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a DynamoGraphDeployment's services, or its components."""
    spec = resource.get("spec")
    parts = list(spec.get("services").fields.items())
    parts += [(each.get("name").text, each) for each in spec.get("components").items]
    found: list[Invocation] = []
    for name, part in parts:
        pod, container = part.get("extraPodSpec"), part.get("extraPodSpec", "mainContainer")
        holder, extra = part.get("podTemplate", "spec"), {}
        if container.is_mapping:
            containers = Node([container], container.line, pod.file)
            holder = Node({**pod.fields, "containers": containers}, pod.line, pod.file)
            extra = {**environment(_as_env(spec), context), **environment(_as_env(part), context)}
        gpu, findings = of_resources(part.get("resources"), bare=True)
        for each in of_pod(
            holder,
            context,
            name=f"{name_of(resource)}/{name}",
            carrier="DynamoGraphDeployment",
            line=part.line,
            replicas=copies_of(part.get("replicas")),
            nodes=part.get("multinode", "nodeCount").number or 1,
            extra=extra,
            bare=True,
            whole=False,  # the operator mounts memory at /dev/shm
        ):
            asked = with_product(with_visible(gpu, each.env), pod) if gpu.resource else each.gpu
            found.append(each._replace(gpu=asked, findings=(*findings, *each.findings)))
    return found


def _as_env(holder: Node) -> Node:
    """Return a node whose `envs` are called `env`."""
    return Node({"env": holder.get("envs")}, holder.line, holder.file)
