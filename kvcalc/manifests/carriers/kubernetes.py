"""Kubernetes resources: those that hold pods, whatever their kind, and those with their own rules.

A kind that is not known is looked through for pods: StormService, RayCluster, Rollout, Knative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvcalc.manifests.carriers.containers import environment, of_pod
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Invocation, Word
from kvcalc.manifests.launches import of_script
from kvcalc.manifests.requests import (
    Copies,
    copies_of,
    of_resources,
    with_product,
    with_visible,
)

__all__ = ["Pod", "name_of", "of_resource", "pods_of", "resources_of"]

_MAX_DEPTH = 24  # keys to a pod: a StormService has eight
_INIT = {"initContainers", "ephemeralContainers"}


class Pod(NamedTuple):
    """A pod within a resource.

    Attributes:
        spec: of it.
        role: the name of the part that it stands in; "" where the resource has one pod.
        replicas: pods, groups of pods or roles, multiplied, and the line of the innermost.
        size: pods that one copy spans (`podGroupSize`).
        path: keys from the resource to it.
    """

    spec: Node
    role: str
    replicas: Copies
    size: int
    path: tuple[str, ...]


def resources_of(documents: list[Node]) -> Iterator[Node]:
    """Yield the resources of a file's documents, those of a List one by one."""
    for document in documents:
        if document.get("kind").text.endswith("List") and document.get("items").is_list:
            yield from document.get("items").items
        elif document.is_list and any("kind" in item for item in document.items):
            yield from document.items
        else:
            yield document


def name_of(resource: Node) -> str:
    """Return a resource's own name."""
    metadata = resource.get("metadata")
    return metadata.get("name").text or metadata.get("generateName").text.rstrip("-")


def of_resource(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of the pods that a resource holds."""
    kind, name = resource.get("kind").text or "pod", name_of(resource)
    special: dict[str, Callable[[Node, Context], list[Invocation]]] = {
        "DynamoGraphDeployment": of_dynamo,
        "DynamoComponentDeployment": of_dynamo,
        "LeaderWorkerSet": of_group,
        "RayCluster": of_ray_cluster,
        "RayClusterFleet": of_ray_cluster,
        "RayClusterReplicaSet": of_ray_cluster,
        "RayJob": of_ray_cluster,
    }
    if kind in special:
        return special[kind](resource, context)
    found: list[Invocation] = []
    pods = list(pods_of(resource))
    for pod in pods:
        invocations = of_pod(
            pod.spec,
            context,
            name=f"{name}/{pod.role}" if pod.role and len(pods) > 1 else name or pod.role,
            carrier=kind,
            line=resource.line if len(pods) == 1 else pod.spec.line,
            replicas=pod.replicas,
            nodes=pod.size,
        )
        found += invocations
    return found


def pods_of(node: Node) -> Iterator[Pod]:
    """Yield the pods within a node: mappings with a list of containers."""
    stack: list[tuple[Node, str, Copies, int, tuple[str, ...]]] = [(node, "", Copies(), 1, ())]
    while stack:
        at, role, copies, size, path = stack.pop()
        if at.is_list:
            stack += [
                (item, item.get("name").text or role, copies, size, path)
                for item in reversed(at.items)
            ]
            continue
        containers = at.get("containers")
        if containers.is_list and any(item.is_mapping for item in containers.items):
            yield Pod(at, role, copies, size, path)
            continue
        count = copies_of(at.get("replicas"), at.get("minReplicas"))
        if count.number is not None:
            above = 1 if copies.number is None else copies.number
            copies = count._replace(number=above * count.number)
        size = at.get("podGroupSize").number or size
        for key, value in reversed(at.fields.items()):
            if key not in _INIT and not isinstance(value.value, str) and len(path) < _MAX_DEPTH:
                inner = role if key in ("spec", "template", "podTemplate", "jobTemplate") else key
                stack.append((value, role or inner, copies, size, (*path, key)))


def of_group(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a LeaderWorkerSet: the leader's, over all pods of the group."""
    template = resource.get("spec", "leaderWorkerTemplate")
    size = template.get("size").number or 1
    leader = template.get("leaderTemplate", "spec")
    worker = template.get("workerTemplate", "spec")
    extra = {
        "LWS_GROUP_SIZE": Word(str(size), template.get("size").line),
        "LWS_WORKER_INDEX": Word("0", template.line),
    }
    for pod in (leader, worker):
        found = of_pod(
            pod,
            context,
            name=name_of(resource),
            carrier="LeaderWorkerSet",
            line=resource.line,
            replicas=copies_of(resource.get("spec", "replicas")),
            nodes=size,
            extra=extra,
        )
        if found:
            return _with_devices(found, worker)
    return []


def _with_devices(found: list[Invocation], worker: Node) -> list[Invocation]:
    """Take the workers' devices where the leader asks for none of its own."""
    if any(each.gpu.resource for each in found):
        return found
    for container in worker.get("containers").items:
        gpu, _ = of_resources(container.get("resources"))
        if gpu.resource is not None:
            return [each._replace(gpu=with_product(gpu, worker)) for each in found]
    return found


def of_ray_cluster(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a Ray cluster: started on the head, over head and workers."""
    heads: list[Pod] = []
    workers: list[Pod] = []
    for pod in pods_of(resource):
        (workers if "workerGroupSpecs" in pod.path else heads).append(pod)
    groups = sum(pod.replicas.number or 1 for pod in workers)
    found: list[Invocation] = []
    for pod in heads or workers:
        found += of_pod(
            pod.spec,
            context,
            name=name_of(resource),
            carrier=resource.get("kind").text,
            line=resource.line,
            replicas=copies_of(resource.get("spec", "replicas")),
            nodes=1 + groups if heads else groups,
            whole=False,  # the operator mounts memory at /dev/shm
        )
    if found and workers:
        found = _with_devices(found, workers[0].spec)
    entry = resource.get("spec", "entrypoint")
    return _of_job(found, entry, resource, context) if entry.is_text else found


def _of_job(
    found: list[Invocation], entry: Node, resource: Node, context: Context
) -> list[Invocation]:
    """Return the servers that a RayJob's entry point starts on the cluster."""
    launches, _ = of_script(entry.raw, entry.lines(), {}, context.place)
    cluster = found[0] if found else Invocation(name_of(resource), "RayJob", context.file, 0)
    return [
        cluster._replace(
            line=entry.line,
            words=launch.words,
            env=launch.env,
            findings=launch.findings,
            installed=launch.installed,
            under_entry_point=False,  # a job runs its own command
        )
        for launch in launches
    ]


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
