"""Helm values: in files, in HelmReleases, Argo's Applications and k3s's HelmCharts.

Of charts that nobody knows those parts count that name an engine's image, or its flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvcalc.core.errors import InputError
from kvcalc.manifests.carriers import modelservice
from kvcalc.manifests.carriers.containers import environment, image_of_node, of_pod
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.carriers.vendors import of_vendor, vendor_of
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Invocation, Word
from kvcalc.manifests.requests import Copies, copies_of, of_resources, with_product, with_visible

__all__ = ["RELEASES", "of_other_values", "of_release", "of_values"]

RELEASES = {
    # kind -> where its values stand, each over those before it: texts of YAML, or mappings
    "HelmRelease": ("spec.values",),  # Flux; spec.valuesFrom before them
    "Application": ("source.helm.values", "source.helm.valuesObject", "source.helm.parameters"),
    "HelmChart": ("spec.valuesContent",),  # k3s
    "HelmChartConfig": ("spec.valuesContent",),
}
"""Resources that hold the values of a chart."""

_STEP = re.compile(r"([^.\[\]]{1,100})|\[(\d{1,3})\]")
_MOST_ITEMS = 100
_COMMANDS = ("image.command", "command", "args", "extraArgs", "engineArgs")
_MORE_ENV = ("extraEnv", "extraEnvVars", "environment")
_NOT_READ = ("initContainers", "ephemeralContainers")


def of_release(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a resource that installs a chart: of its values."""
    kind, name = resource.get("kind").text, name_of(resource)
    found: list[Invocation] = []
    for holder, label in _sources(resource):
        values = Node({}, resource.line, resource.file)
        for over, by_place in _given(kind, resource, holder, context):
            values = merged(values, over, by_place=by_place)
        servers = of_values(values, context)
        for each in servers:
            own = f"{name}/{each.name}" if name and len(servers) > 1 else name or each.name
            called = f"{own}/{label}" if label else own
            found.append(each._replace(name=called, carrier=kind, shm_bytes=None))
    return found


def _sources(resource: Node) -> Iterator[tuple[Node, str]]:
    """Yield what of a resource holds values, and what parts it from the others."""
    spec = resource.get("spec")
    if resource.get("kind").text == "ApplicationSet":
        spec = spec.get("template", "spec")
    sources = spec.get("sources").items
    if not sources:
        yield spec, ""
    for number, source in enumerate(sources, 1):
        holder = Node({"source": source}, source.line, source.file)
        yield holder, str(number) if len(sources) > 1 and "helm" in source else ""


def _given(kind: str, resource: Node, spec: Node, context: Context) -> Iterator[tuple[Node, bool]]:
    """Yield the values that a resource gives, each over those before it; the second: by `--set`."""
    for each in resource.get("spec", "valuesFrom").items:
        texts = context.config_maps.get(each.get("name").text, {})
        text = texts.get(each.get("valuesKey").text or "values.yaml", each.get("none"))
        yield from ((each, False) for each in _documents(text, context))
    for path in RELEASES["Application" if kind == "ApplicationSet" else kind]:
        node = spec.get(*path.removeprefix("spec.").split("."))
        if path.endswith("parameters"):
            for each in node.items:
                yield _at(each.get("name").text, each.get("value")), True
        else:
            found = _documents(node, context) if node.is_text else [node]
            yield from ((each, False) for each in found)


def _documents(node: Node, context: Context) -> list[Node]:
    try:
        return context.nested(node)
    except InputError:
        return []


def _at(path: str, value: Node) -> Node:
    """Return a value under the keys that `--set` takes: `a.b[0].c`."""
    node = value if _STEP.search(path) else Node({}, value.line, value.file)
    for step in reversed(list(_STEP.finditer(path))[:_MOST_ITEMS]):
        if step[1] is not None:
            above = Node({step[1]: node}, value.line, value.file)
        else:
            empty = Node({}, value.line, value.file)
            items = [empty] * min(int(step[2]), _MOST_ITEMS) + [node]
            above = Node(items, value.line, value.file)
        node = above
    return node


def merged(base: Node, over: Node, *, by_place: bool = False) -> Node:
    """Return values with others over them, as Helm merges them.

    Args:
        base: the values.
        over: those that win.
        by_place: an item of a list is merged with that of its place (`--set`); a list takes the
            place of the other else.
    """
    if over.is_mapping and base.is_mapping:
        whole = Node({**base.fields}, base.line, base.file)
        whole.key_lines = {**base.key_lines, **over.key_lines}
        for key, value in over.fields.items():
            own = base.fields.get(key)
            whole.fields[key] = value if own is None else merged(own, value, by_place=by_place)
        return whole
    if by_place and over.is_list and base.is_list:
        items = [merged(b, o, by_place=True) for b, o in zip(base.items, over.items, strict=False)]
        count = len(items)
        return Node([*items, *base.items[count:], *over.items[count:]], base.line, base.file)
    return base if over.is_null or (by_place and over.is_mapping and not over.fields) else over


def of_values(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of the values of a chart."""
    vendor = vendor_of(values)
    if vendor is not None:
        return of_vendor(vendor, values, context)
    if values.get("modelArtifacts").is_mapping:
        return modelservice.of_modelservice(values, context)
    return of_other_values(values, context)


def of_other_values(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of values of other charts: parts with an engine's image, or args."""
    found: list[Invocation] = []
    defaults = values.get("defaultPodOptions")  # of the charts by bjw-s
    stack = [(values, "", Copies(), values)]
    while stack:
        node, name, copies, above = stack.pop()
        if node.is_list:
            stack += [
                (item, item.get("name").text or name, copies, above)
                for item in reversed(node.items)
            ]
            continue
        if not node.is_mapping or node.get("enabled").is_false:
            continue
        own = copies_of(node.get("replicas"), node.get("replicaCount"), least=1)
        copies = copies if own.number is None else own
        above = node if any(k in node for k in ("pod", "nodeSelector", "affinity")) else above
        if node.get("containers").items:
            found += of_pod(
                node,
                context,
                name=name,
                carrier="helm values",
                line=node.line,
                replicas=copies,
                typed=False,
                whole=False,
            )
            continue
        read = _other_part(node, name, context, copies, (node, above, above.get("pod"), defaults))
        if read is not None:
            found.append(read)
            continue
        stack += [
            (value, name if key in ("containers", "image") and name else key, copies, above)
            for key, value in reversed(node.fields.items())
            if not isinstance(value.value, str) and key not in _NOT_READ
        ]
    return found


def _other_part(
    node: Node, name: str, context: Context, copies: Copies, pods: Sequence[Node]
) -> Invocation | None:
    """Return the server of one part of the values; None where it is none."""
    image = image_of_node(node, context)
    program = image_of(context.marks.restored(image.text) if image else None).program
    env = environment(node, context)
    for key in _MORE_ENV:
        env |= environment(Node({"env": node.get(key)}, node.line, node.file), context)
    ollama = any(key.startswith("OLLAMA_") for key in env)
    given: list[Word] = []
    for path in _COMMANDS:
        given += context.words(node.get(*path.split(".")))
    uris = [node.get(*path) for path in (("model", "uri"), ("url",), ("model",), ("modelId",))]
    uri = next((each for each in uris if each.is_text), None)
    flagged = any(word.text.startswith("--") for word in given)
    if program is None and not ollama and (uri is None or not flagged):
        return None
    words = list(given)
    if uri is not None and not any(w.text.startswith("--model") for w in given):
        words = [
            Word("--model", uri.line),
            context.word(uri, uri.raw.removeprefix("hf://")),
            *given,
        ]
    gpu, findings = of_resources(node.get("resources"))
    gpu = with_visible(gpu, env)
    for pod in pods:
        gpu = gpu if gpu.product else with_product(gpu, pod)
    return Invocation(
        name=name or node.get("name").text or "values",
        carrier="helm values",
        file=context.file,
        line=node.line,
        words=tuple(words),
        image=image,
        env=env,
        gpu=gpu,
        replicas=copies.number,
        replicas_line=copies.line,
        findings=tuple(findings),
        engine="ollama" if ollama else None,
    )
