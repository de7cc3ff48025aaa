"""Ray Serve LLM, SkyPilot, llama-swap: files of their own that start servers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvcalc.core.errors import InputError
from kvcalc.manifests.carriers.containers import environment
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.carriers.vendors import Vendor, of_vendor, vendor_of
from kvcalc.manifests.documents import Node, read_documents
from kvcalc.manifests.found import GpuRequest, Invocation, Word
from kvcalc.manifests.launches import of_script
from kvcalc.manifests.packages import installed_in
from kvcalc.manifests.requests import copies_of
from kvcalc.manifests.templates import Piece

__all__ = ["of_llama_swap", "of_ray_serve", "of_ray_service", "of_sky_pilot"]

_DIGITS = 6
_MACRO = re.compile(r"\$\{([A-Za-z_][\w.-]*)\}")


def of_ray_service(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a RayService: `serveConfigV2` is a YAML text."""
    config = resource.get("spec", "serveConfigV2")
    found: list[Invocation] = []
    for document in context.nested(config) if config.is_text else [config]:
        found += of_ray_serve(document, context, name_of(resource))
    return found


def of_ray_serve(document: Node, context: Context, name: str = "llm") -> list[Invocation]:
    """Return the servers of a Ray Serve configuration's `llm_configs`, and of the files there."""
    vendor = vendor_of(document)
    if vendor is None:
        return []
    found = of_vendor(vendor, document, context)
    for application in document.get("applications").items:
        for each in application.get("args", "llm_configs").items:
            text = context.folder.read(each.text) if each.is_text else None
            if text is not None:
                found += _llm_file(text, vendor, context.of_file(each.text))
    return [each if each.name else each._replace(name=name) for each in found]


def _llm_file(text: str, vendor: Vendor, context: Context) -> list[Invocation]:
    """Return the servers of a configuration that a Ray Serve file names by its path."""
    try:
        documents = read_documents(text, context.file, context.marks)
    except InputError:
        return []
    found: list[Invocation] = []
    for config in documents:
        node = config
        for key in ("llm_config", "args"):
            node = Node({key: node}, config.line, config.file)
        items = Node([node], config.line, config.file)
        whole = Node({"applications": items}, config.line, config.file)
        found += of_vendor(vendor, whole, context)
    return found


def of_sky_pilot(task: Node, context: Context) -> list[Invocation]:
    """Return the servers that a SkyPilot task's `run` starts, for each number of accelerators."""
    asked = list(_accelerators(task.get("resources"), context)) or [GpuRequest()]
    found: list[Invocation] = []
    for gpu in asked:
        label = f"{gpu.product.text}:{gpu.devices}" if gpu.product and len(asked) > 1 else ""
        found += _task(task, gpu, label, context)
    return found


def _task(task: Node, gpu: GpuRequest, label: str, context: Context) -> list[Invocation]:
    env = {
        name: context.word(node)
        for key in ("envs", "secrets")
        for name, node in task.get(key).fields.items()
        if node.is_text
    }
    nodes, run = task.get("num_nodes"), task.get("run")
    count = nodes.number or 1
    env.setdefault("SKYPILOT_NUM_NODES", Word(str(count), nodes.line))
    env.setdefault("SKYPILOT_NODE_RANK", Word("0", nodes.line))
    if gpu.devices is not None:
        env.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", Word(str(gpu.devices), gpu.line))
    launches, _ = of_script(
        run.raw,
        run.lines(),
        env,
        context.place,
        image=task.get("resources", "image_id").text.removeprefix("docker:") or None,
        closed=True,
        installed=installed_in(task.get("setup").text),
    )
    name = "/".join(part for part in (task.get("name").text or "task", label) if part)
    service = task.get("service")
    copies = copies_of(
        service.get("replicas"), service.get("replica_policy", "min_replicas"), least=1
    )
    found = []
    for number, launch in enumerate(launches, 1):
        called = name if len(launches) == 1 else f"{name}/{number}"
        asked = launch._replace(gpu=launch.gpu if gpu.resource is None else gpu)
        server = asked.started(called, "SkyPilot", context.file, launch.line or run.line)
        found.append(
            server._replace(replicas=copies.number, replicas_line=copies.line, nodes=count)
        )
    return found


def _accelerators(resources: Node, context: Context) -> Iterator[GpuRequest]:
    """Yield what `accelerators` asks for, by the number of devices: any of several may be given.

    It is `H100:8`, a list of such, or a mapping; `any_of` and `ordered` are lists of resources.
    """
    others = (*resources.get("any_of").items, *resources.get("ordered").items)
    by_number: dict[int, list[Word]] = {}
    for node in (resources.get("accelerators"), *(each.get("accelerators") for each in others)):
        words = [context.word(each) for each in node.items or ([node] if node.is_text else [])]
        for key, value in node.fields.items():
            told = key if value.number is None else f"{key.partition(':')[0]}:{value.number}"
            words.append(Word(told, node.key_lines[key]))
        for word in words:
            name, _, number = word.text.partition(":")
            devices = int(number) if number.isdigit() and len(number) < _DIGITS else 1
            by_number.setdefault(devices, []).append(word._replace(text=name.strip()))
    for devices, (first, *more) in by_number.items():
        yield GpuRequest(
            devices=devices,
            resource="accelerators",
            product=first,
            product_key="accelerators",
            choices=tuple(more),
            line=first.line,
        )


def of_llama_swap(document: Node, context: Context) -> list[Invocation]:
    """Return the servers of a llama-swap configuration: `models.<name>.cmd`."""
    macros: dict[str, Node] = {}
    given = document.get("macros")
    macros.update(given.fields)
    for each in given.items:
        macros.update(each.fields)
    found: list[Invocation] = []
    models = document.get("models")
    for name, model in models.fields.items():
        cmd = model.get("cmd")
        own = {**macros, **model.get("macros").fields}
        text = _with_macros(cmd.raw, own, context, 0)
        text = "\n".join("" if row.lstrip().startswith("#") else row for row in text.split("\n"))
        if cmd.style == "|" and "\\\n" not in text:  # line breaks are blanks here
            text = text.rstrip("\n").replace("\n", " \\\n")
        env: dict[str, Word] = dict(environment(model, context))
        for item in model.get("env").items:
            key, equals, value = item.raw.partition("=")
            if equals:
                env[key] = context.word(item, value)
        launches, _ = of_script(text, cmd.lines(), env, context.place)
        line = models.key_lines[name]
        found += [each.started(name, "llama-swap", context.file, line) for each in launches]
    return found


def _with_macros(text: str, macros: dict[str, Node], context: Context, depth: int) -> str:
    """Put macros in; those that llama-swap itself sets (PORT) stay as written."""

    def put(found: re.Match[str]) -> str:
        node = macros.get(found[1])
        if node is None or depth > 4:  # noqa: PLR2004
            return context.marks.mark(Piece(found[0], found[1], None))
        return _with_macros(node.raw.strip(), macros, context, depth + 1).replace("\n", " ")

    return _MACRO.sub(put, text)[:200_000]
