"""Helm values of charts that nobody knows: parts that name an engine's image, or its flags."""

from __future__ import annotations

from kvcalc.manifests.carriers.containers import environment, image_of_node, of_pod
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Invocation, Word
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible

__all__ = ["of_other_values"]


def of_other_values(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of values of other charts: parts with an engine's image, or args."""
    found: list[Invocation] = []
    stack = [(values, "")]
    while stack:
        node, name = stack.pop()
        if node.is_list:
            stack += [(item, item.get("name").text or name) for item in reversed(node.items)]
            continue
        if node.get("containers").items:
            found += of_pod(
                node,
                context,
                name=name,
                carrier="helm values",
                line=node.line,
                typed=False,
                whole=False,
            )
            continue
        read = _other_part(node, name, context)
        if read is not None:
            found.append(read)
            continue
        stack += [(v, k) for k, v in reversed(node.fields.items()) if not isinstance(v.value, str)]
    return found


def _other_part(node: Node, name: str, context: Context) -> Invocation | None:
    """Return the server of one part of the values; None where it is none."""
    image = image_of_node(node, context)
    program = image_of(context.marks.restored(image.text) if image else None).program
    env = environment(node, context)
    given: list[Word] = []
    for key in ("command", "args", "extraArgs", "engineArgs"):
        given += context.words(node.get(key))
    flagged = [w for w in given if w.text.startswith("--")]
    if program is None and not flagged and not any(k.startswith("OLLAMA_") for k in env):
        return None
    uri = next(
        (
            node.get(*k)
            for k in (("model", "uri"), ("url",), ("model",), ("modelId",))
            if node.get(*k).is_text
        ),
        None,
    )
    if program is None and uri is None and not any(k.startswith("OLLAMA_") for k in env):
        return None
    words = list(given)
    if uri is not None and not any(w.text.startswith("--model") for w in given):
        words = [
            Word("--model", uri.line),
            context.word(uri, uri.raw.removeprefix("hf://")),
            *given,
        ]
    gpu, findings = of_resources(node.get("resources"))
    return Invocation(
        name=name or node.get("name").text or "values",
        carrier="helm values",
        file=context.file,
        line=node.line,
        words=tuple(words),
        image=image,
        env=env,
        gpu=with_product(with_visible(gpu, env), node),
        replicas=(
            copies := copies_of(node.get("replicas"), node.get("replicaCount"), least=1)
        ).number,
        replicas_line=copies.line,
        findings=tuple(findings),
        engine="ollama" if any(k.startswith("OLLAMA_") for k in env) else None,
    )
