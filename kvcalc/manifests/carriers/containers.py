"""A container of a pod: its command, environment, files and devices, as an Invocation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile

from kvcalc.core.errors import printable
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Attached, Finding, GpuRequest, Invocation, MemoryLimit, Word
from kvcalc.manifests.launched import SHELL, Launch
from kvcalc.manifests.launches import of_container
from kvcalc.manifests.requests import Copies, memory_limit, of_resources, shm_of_pod, with_product
from kvcalc.manifests.substitution import kubelet, kubelet_script, unexpanded

__all__ = ["environment", "image_of_node", "mistyped", "of_pod", "prepared"]

NO_COPIES = Copies()
_MOST_SHOWN = 40


def of_pod(
    pod: Node,
    context: Context,
    *,
    name: str,
    carrier: str,
    line: int,
    replicas: Copies = NO_COPIES,
    nodes: int = 1,
    extra: Mapping[str, Word] | None = None,
    bare: bool = False,
    closed: bool = True,
    typed: bool = True,
    whole: bool = True,
) -> list[Invocation]:
    """Return the servers of a pod's containers; its init containers are not looked at.

    Args:
        pod: its spec.
        context: the file.
        name: of the resource.
        carrier: its kind.
        line: where it begins.
        replicas: how many pods there are, and where that is said.
        nodes: pods that one copy of the server spans.
        extra: variables that its controller sets.
        bare: `gpu` without a domain is a resource here.
        closed: the pod's environment is all in the file.
        typed: the API server checks it: it takes lists of texts alone for commands.
        whole: its volumes are all in the file; a chart or an operator adds to them otherwise.
    """
    read: list[tuple[Node, Launch, list[Finding], GpuRequest]] = []
    asking: list[Node] = []
    for container in pod.get("containers").items:
        gpu, findings = of_resources(container.get("resources"), bare=bare)
        if gpu.resource is not None and (gpu.devices or gpu.every or gpu.fraction):
            asking.append(container)
        findings += list(mistyped(container)) if typed else []
        env = {**(extra or {}), **environment(container, context)}
        likely = bool(gpu.devices or gpu.every or gpu.fraction)
        files = _files(container, pod, context)
        launches, _ = prepared(container, context, env, likely=likely, closed=closed, files=files)
        read += [(container, each, [*findings, *each.findings], gpu) for each in launches]
    if len(asking) > 1:
        names = " and ".join(c.get("name").text or "one" for c in asking[:3])
        finding = Finding(
            "two-containers-with-gpus",
            "warning",
            f"{len(asking)} containers of the pod ask for devices: {names}",
            "each gets its own; give the devices to the server's container alone",
            asking[1].line,
        )
        read = [(c, launch, [*f, finding], g) for c, launch, f, g in read]
    invocations = []
    for container, launch, findings, gpu in read:
        own = container.get("name").text
        request = launch.gpu if gpu.resource is None else gpu
        called = name or own or carrier
        if len({id(c) for c, *_ in read}) > 1 and own:
            called = f"{name}/{own}" if name else own
        begins = line if len(read) == 1 else container.line
        server = launch._replace(gpu=request).started(called, carrier, context.file, begins)
        invocations.append(
            server._replace(
                gpu=with_product(server.gpu, pod),
                replicas=replicas.number,
                replicas_line=replicas.line,
                nodes=nodes,
                attached={**_files(container, pod, context), **launch.attached},
                findings=tuple(findings),
                shm_bytes=shm_of_pod(pod, container) if whole else None,
                memory_limit=_memory_limit(container),
            )
        )
    return invocations


def _memory_limit(container: Node) -> MemoryLimit | None:
    node = container.get("resources", "limits", "memory")
    return memory_limit(node.text, node.line, decimal=True)


def mistyped(container: Node) -> Iterator[Finding]:
    """Yield what the API server refuses of a container's command, arguments and variables."""
    for key in ("command", "args"):
        node = container.get(key)
        if node.is_text:
            message = f"{key} is one text: the API server takes a list of texts alone"
            cure = "write each word as an item of a list"
            yield Finding("mistyped", "error", message, cure, node.line, node.file.name)
        yield from (_no_text(f"a word of {key}", item) for item in node.items if item.is_typed)
    for each in container.get("env").items:
        if (value := each.get("value")).is_typed:
            yield _no_text(f"the value of {printable(each.get('name').text)[:_MOST_SHOWN]}", value)


def _no_text(what: str, node: Node) -> Finding:
    message = f"{what} is a number or a truth, not a text: the API server refuses it"
    return Finding("mistyped", "error", message, "put it in quotes", node.line, node.file.name)


def prepared(
    container: Node,
    context: Context,
    env: Mapping[str, Word],
    *,
    likely: bool,
    closed: bool = True,
    files: Mapping[str, Attached] | None = None,
) -> tuple[list[Launch], list[Word]]:
    """Return the servers that a container starts, and the words of its command.

    Args:
        container: with `command`, `args`, `image`.
        context: the file.
        env: its environment.
        likely: it asks for devices.
        closed: its environment is all in the file.
        files: what is mounted into it, by path: one of them may be the script that it runs.
    """
    raw = [*context.words(container.get("command")), *context.words(container.get("args"))]
    nodes = _nodes(container)
    script = _script_at(raw)
    words: list[Word] = []
    findings: list[Finding] = []
    for at, word in enumerate(raw):
        if at == script:
            words.append(word._replace(text=kubelet_script(word.text, env, context.marks)))
        else:
            words.append(kubelet(unexpanded(word, findings, "$({})") if script < 0 else word, env))
    node = nodes[script] if 0 <= script < len(nodes) else None
    mounted = _mounted(words, script, files or {})
    if mounted:
        node, script = None, 2
    launches = of_container(
        mounted or words,
        image_of_node(container, context),
        env,
        context.place,
        lines=node.lines(words[script].text) if node is not None else None,
        line=container.line,
        likely=likely,
        closed=closed,
        under_entry_point=not (container.get("command").items or container.get("command").is_text),
    )
    told = [each._replace(findings=(*each.findings, *findings)) for each in launches]
    return told, words if script < 0 else []


def _nodes(container: Node) -> list[Node]:
    found: list[Node] = []
    for key in ("command", "args"):
        node = container.get(key)
        found += [i for i in node.items if isinstance(i.value, str)] if node.is_list else []
    return found


def _script_at(words: Sequence[Word]) -> int:
    """Return which word is a shell's script; -1 where none is."""
    if not words or not SHELL.fullmatch(words[0].text):
        return -1
    for at, word in enumerate(words[1:], 1):
        if not word.text.startswith(("-", "+")):
            return at if any(re.fullmatch(r"-\w*c\w*", w.text) for w in words[1:at]) else -1
    return -1


def _mounted(words: Sequence[Word], script: int, files: Mapping[str, Attached]) -> list[Word]:
    """Return a command with the mounted script that it runs in its place, behind a shell's -c.

    It is run by a shell, by its path alone, or from a script of one command; [] where none is.
    """
    whole = list(words)
    if script >= 0:
        alone = words[script]
        whole = [alone._replace(text=text) for text in alone.text.split()]
    run = whole
    while run and (run[0].text in ("exec", "source", ".") or SHELL.fullmatch(run[0].text)):
        run = list(dropwhile(lambda word: word.text.startswith(("-", "+")), run[1:]))
    file = files.get(run[0].text) if run else None
    if file is None or (run is whole and not file.text.startswith("#!")):
        return []
    body = Word(file.text, file.line)
    return [Word("sh", run[0].line), Word("-c", run[0].line), body, *run]


def image_of_node(container: Node, context: Context) -> Word | None:
    """Return a container's image: a text, `{repository, tag}`, or `{registry, name}`."""
    for holder in (container.get("image"), container):
        for key in ("repository", "name"):
            repository, tag = holder.get(key), holder.get("tag")
            if repository.is_text and (key == "repository" or "registry" in holder):
                text = f"{repository.raw}:{tag.raw}" if tag.is_text else repository.raw
                return context.word(repository, text)
    image = container if container.is_text else container.get("image")
    return context.word(image) if image.is_text else None


def environment(container: Node, context: Context) -> dict[str, Word]:
    """Return a container's variables; those of Secrets and of the pod itself have no value."""
    env: dict[str, Word] = {}
    for source in container.get("envFrom").items:
        whole = context.config_maps.get(source.get("configMapRef", "name").text, {})
        prefix = source.get("prefix").text
        for key, node in whole.items():
            env[prefix + key] = context.word(node)
    given = container.get("env")
    for key, given_node in given.fields.items():
        node = given_node.get("value") if given_node.is_mapping else given_node
        env[key] = context.word(node) if node.is_text else _unknown(key, given_node)
    for each in given.items:
        key, value = each.get("name").text, each.get("value")
        if not key:
            continue
        reference = each.get("valueFrom", "configMapKeyRef")
        known = context.config_maps.get(reference.get("name").text, {})
        if (kept := known.get(reference.get("key").text)) is not None:
            env[key] = context.word(kept)
        elif "valueFrom" in each:
            env[key] = _unknown(key, each)
        else:
            env[key] = kubelet(context.word(value), env)
    return env


def _unknown(name: str, node: Node) -> Word:
    return Word(f"$({name})", node.line, (), (name,))


def _files(container: Node, pod: Node, context: Context) -> dict[str, Attached]:
    """Return the files of ConfigMaps of this file that a container mounts."""
    if not context.config_maps:
        return {}
    volumes = {volume.get("name").text: volume for volume in pod.get("volumes").items}
    found: dict[str, Attached] = {}
    for mount in container.get("volumeMounts").items:
        volume = volumes.get(mount.get("name").text)
        path, part = mount.get("mountPath").text, mount.get("subPath").text
        if volume is None or not path:
            continue
        source = volume.get("configMap")
        data = context.config_maps.get(source.get("name").text, {})
        renamed = {i.get("key").text: i.get("path").text for i in source.get("items").items}
        for key, node in data.items():
            if renamed and key not in renamed:
                continue
            name = renamed.get(key) or key
            if part and name != part:
                continue
            found[path if part else posixpath.join(path, name)] = context.attached(node)
    return found
