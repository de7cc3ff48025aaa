"""YAML files by what they hold: Kubernetes resources, Compose, values of charts, tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvcalc.manifests.carriers import embedded, kserve, serving, values
from kvcalc.manifests.carriers.compose import of_compose
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of, of_resource, pods_of, resources_of
from kvcalc.manifests.carriers.kustomize import of_kustomization
from kvcalc.manifests.carriers.vendors import of_vendor, vendor_of
from kvcalc.manifests.documents import Node, read_documents
from kvcalc.manifests.found import Finding, Invocation, Level
from kvcalc.manifests.sources import Folder
from kvcalc.manifests.templates import Templates

__all__ = ["of_documents", "of_yaml"]

_Reader = Callable[[Node, Context], list[Invocation]]

_SILENT = ("ConfigMap", "Secret", "CustomResourceDefinition")
"""Kinds that start nothing, whatever they hold."""

_KINDS: dict[str, _Reader] = {
    "InferenceService": kserve.of_inference_service,
    "ServingRuntime": kserve.of_runtime,
    "ClusterServingRuntime": kserve.of_runtime,
    "RayService": serving.of_ray_service,
    **dict.fromkeys((*values.RELEASES, "ApplicationSet"), values.of_release),
}


def of_yaml(
    text: str, file: str, folder: Folder, marks: Templates, first: int = 1
) -> list[Invocation]:
    """Return the servers that a YAML or JSON text starts.

    Args:
        text: it, with marks for templates.
        file: as messages name it.
        folder: the files beside it.
        marks: what the marks stand for; takes further ones.
        first: the line of the file that it begins on.

    Raises:
        InputError: as `read_documents`; of a script in it, as `of_script`.
    """
    context = Context(file, folder, marks)
    documents = read_documents(text, file, marks, first)
    found = of_documents(documents, context)
    if found and documents[0].duplicates:
        findings = tuple(_duplicate(*each, found[0]) for each in documents[0].duplicates[:20])
        found[0] = found[0]._replace(findings=(*found[0].findings, *findings))
    return found


def _duplicate(key: str, line: int, first: int, owner: Invocation) -> Finding:
    """Return the finding of a key that stands twice."""
    level: Level = "warning" if "values" in owner.carrier else "error"
    message = f"{key} stands twice, first on line {first}: the last one counts, or it is refused"
    return Finding("duplicate-key", level, message, "remove one of the two", line)


def of_documents(documents: list[Node], context: Context) -> list[Invocation]:
    """Return the servers of a file's documents."""
    context.documents = list(resources_of(documents))
    for each in context.documents:
        if each.get("kind").text == "ConfigMap":
            context.config_maps[name_of(each)] = each.get("data").fields
    found: list[Invocation] = []
    for each in context.documents:
        reader = _reader(each)
        if reader is not None:
            found += reader(each, context.within(each.file.name))
    return found


def _reader(node: Node) -> _Reader | None:
    """Return what reads a document; None for what starts no server."""
    kind = node.get("kind").text
    if node.get("applications").is_list and not kind:
        return serving.of_ray_serve
    if node.is_mapping and not _is_compose(node) and (vendor := vendor_of(node)) is not None:
        return partial(of_vendor, vendor)
    if kind in _SILENT:
        return None
    if kind:
        return of_kustomization if kind == "Kustomization" else _KINDS.get(kind, _resource)
    if node.is_list:
        return embedded.of_texts
    return _by_keys(node) if node.is_mapping else None


def _by_keys(node: Node) -> _Reader:
    """Return what reads a file of no kind, by the keys that it holds."""
    return next((reader for fits, reader in _FILES if fits(node)), _other)


def _is_compose(node: Node) -> bool:
    return any(
        key in service
        for service in node.get("services").fields.values()
        for key in ("image", "build", "command", "extends")
    )


def _is_task(node: Node) -> bool:
    return node.get("run").is_text and any(key in node for key in ("resources", "envs", "setup"))


_FILES: tuple[tuple[Callable[[Node], bool], _Reader], ...] = (
    # whether it is such a file, and what reads it; the first that fits
    (_is_compose, of_compose),
    (lambda node: "serveConfigV2" in node, serving.of_ray_service),
    (_is_task, serving.of_sky_pilot),
    (
        lambda node: any("cmd" in model for model in node.get("models").fields.values()),
        serving.of_llama_swap,
    ),
    (lambda node: node.get("resources").is_list and "kind" not in node, of_kustomization),
)


def _other(node: Node, context: Context) -> list[Invocation]:
    return values.of_values(node, context) or embedded.of_texts(node, context)


def _resource(node: Node, context: Context) -> list[Invocation]:
    """Return the servers of a kind that nobody knows: its pods, its images and flags, its texts."""
    found = of_resource(node, context)
    if found or any(pods_of(node)):
        return found
    name = name_of(node)
    return [
        each._replace(name=name or each.name, carrier=node.get("kind").text)
        for each in values.of_other_values(node.get("spec"), context)
    ] or embedded.of_texts(node, context)
