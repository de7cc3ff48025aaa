"""A kustomization: the resources beside it, with its patches put over them."""

from __future__ import annotations

import posixpath
import re

from kvcalc.core.errors import InputError
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of, resources_of
from kvcalc.manifests.documents import Node, read_documents
from kvcalc.manifests.found import Invocation
from kvcalc.manifests.sources import beside

__all__ = ["of_kustomization"]

_MERGED_BY = ("name", "mountPath", "containerPort", "key")
_STEP = re.compile(r"\d{1,4}")
_MOST_FILES = 60
_MAX_DEPTH = 6  # kustomizations inside one another
_MAX_INSIDE = 40  # keys of a resource inside one another
_LONGEST_NAME = 200


def of_kustomization(node: Node, context: Context) -> list[Invocation]:
    """Return the servers of the resources that a kustomization names, patched.

    Files that are not beside it (remote bases) are passed over.
    """
    from kvcalc.manifests.carriers.yaml_files import of_documents

    inner = Context(context.file, context.folder, context.marks)
    return of_documents(_resources(node, context, "", 0), inner)


def _resources(node: Node, context: Context, base: str, depth: int) -> list[Node]:
    found: list[Node] = []
    for key in ("resources", "bases", "components"):
        for item in node.get(key).items[:_MOST_FILES]:
            found += _read(posixpath.join(base, item.text), context, depth)
    patches: list[tuple[Node, list[Node]]] = []
    for item in (*node.get("patches").items, *node.get("patchesJson6902").items):
        target, inline = item.get("target"), item.get("patch")
        if inline.is_text:
            patches.append((target, context.nested(inline)))
        elif item.get("path").is_text:
            patches.append((target, _file(posixpath.join(base, item.get("path").text), context)))
    for item in node.get("patchesStrategicMerge").items:
        nested = "\n" in item.raw
        path = posixpath.join(base, item.text)
        patches.append(
            (
                Node("", item.line, item.file),
                context.nested(item) if nested else _file(path, context),
            )
        )
    for target, documents in patches:
        for patch in documents:
            found = [_patched(each, target, patch) for each in found]
    return [_with_images(each, node.get("images")) for each in found]


def _read(path: str, context: Context, depth: int) -> list[Node]:
    if depth > _MAX_DEPTH:
        return []
    for name in ("kustomization.yaml", "kustomization.yml", "Kustomization"):
        text = context.folder.read(posixpath.join(path, name))
        if text is not None:
            try:
                documents = read_documents(text, beside(context.file, posixpath.join(path, name)))
            except InputError:
                return []
            return [r for d in documents for r in _resources(d, context, path, depth + 1)]
    return _file(path, context)


def _file(path: str, context: Context) -> list[Node]:
    text = context.folder.read(path)
    if text is None:
        return []
    return list(resources_of(read_documents(text, beside(context.file, path))))


def _patched(resource: Node, target: Node, patch: Node) -> Node:
    """Return a resource with a patch put over it, where the patch is meant for it."""
    if patch.is_list or patch.get("op").is_text:
        if not _meant(resource, target):
            return resource
        for operation in patch.items or [patch]:
            resource = _operated(resource, operation)
        return resource
    if target.is_mapping and not _meant(resource, target):
        return resource
    same = patch.get("kind").text == resource.get("kind").text
    if not target.is_mapping and not (same and name_of(patch) == name_of(resource)):
        return resource
    merged = _merged(resource, patch)
    if target.is_mapping and "metadata" in resource:
        merged.fields["metadata"] = resource.get("metadata")
    return merged


def _meant(resource: Node, target: Node) -> bool:
    kind, name = target.get("kind").text, target.get("name").text
    fits = not name or name == name_of(resource)
    if not fits and len(name) < _LONGEST_NAME:  # a regular expression, by kustomize's rule
        fits = name.replace(".*", "") in name_of(resource) if ".*" in name else False
    return fits and kind in ("", resource.get("kind").text)


def _merged(one: Node, two: Node) -> Node:
    """Return a strategic merge: mappings by keys, lists of named things by name."""
    if one.is_mapping and two.is_mapping:
        whole = Node({}, one.line, one.file)
        whole.fields.update(one.fields)
        whole.key_lines = {**one.key_lines, **two.key_lines}
        for key, value in two.fields.items():
            if value.is_null:
                whole.fields.pop(key, None)
            else:
                whole.fields[key] = _merged(one.fields[key], value) if key in one else value
        return whole
    if one.is_list and two.is_list:
        for key in _MERGED_BY:
            if two.items and all(item.get(key).is_text for item in (*one.items, *two.items)):
                named = {item.get(key).text: item for item in one.items}
                for item in two.items:
                    name = item.get(key).text
                    named[name] = _merged(named[name], item) if name in named else item
                return Node(list(named.values()), one.line, one.file)
    return two


def _operated(resource: Node, operation: Node) -> Node:
    """Return a resource after one operation of a JSON patch."""
    path = [
        step.replace("~1", "/").replace("~0", "~")
        for step in operation.get("path").text.strip("/").split("/")
    ]
    return _at(resource, path, operation.get("op").text, operation.get("value"))


def _at(node: Node, path: list[str], operation: str, value: Node) -> Node:
    """Return a node after an operation at a path below it."""
    if node.is_mapping:
        return _at_key(node, path, operation, value)
    return _at_place(node, path, operation, value) if node.is_list else node


def _at_key(node: Node, path: list[str], operation: str, value: Node) -> Node:
    step, rest = path[0], path[1:]
    whole = Node({}, node.line, node.file)
    whole.fields.update(node.fields)
    whole.key_lines = {**node.key_lines, step: value.line}
    if rest and step in node:
        whole.fields[step] = _at(node.fields[step], rest, operation, value)
    elif not rest and operation == "remove":
        whole.fields.pop(step, None)
    elif not rest:
        whole.fields[step] = value
    return whole


def _at_place(node: Node, path: list[str], operation: str, value: Node) -> Node:
    step, rest = path[0], path[1:]
    items = list(node.items)
    if step == "-" and not rest and operation == "add":
        items.append(value)
    elif _STEP.fullmatch(step) and int(step) <= len(items):
        number = int(step)
        stands = items[number : number + 1]
        if rest and stands:
            items[number] = _at(stands[0], rest, operation, value)
        elif not rest and operation == "add":
            items.insert(number, value)
        elif stands and operation in ("remove", "replace"):
            items[number : number + 1] = [value] if operation == "replace" else []
    return Node(items, node.line, node.file)


def _with_images(resource: Node, images: Node) -> Node:
    """Put new names and tags of images into a resource's containers."""
    named = {image.get("name").text: image for image in images.items}
    if not named:
        return resource

    def walk(node: Node, depth: int) -> Node:
        if node.is_list and depth < _MAX_INSIDE:
            return Node([walk(item, depth + 1) for item in node.items], node.line, node.file)
        if not node.is_mapping or depth >= _MAX_INSIDE:
            return node
        whole = Node({}, node.line, node.file)
        whole.key_lines = node.key_lines
        for key, value in node.fields.items():
            whole.fields[key] = walk(value, depth + 1)
        image = node.get("image")
        base = image.raw.split("@")[0]
        name = base.rpartition(":")[0] if ":" in base.rsplit("/", 1)[-1] else base
        if image.is_text and (new := named.get(name)) is not None:
            tag = new.get("newTag").text or base[len(name) + 1 :]
            text = new.get("newName").text or name
            said = new.get("newTag") if new.get("newTag").is_text else new
            whole.fields["image"] = Node(f"{text}:{tag}" if tag else text, said.line, said.file)
        return whole

    return walk(resource, 0)
