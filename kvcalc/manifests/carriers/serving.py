"""Ray Serve LLM, SkyPilot, llama-swap: files of their own that start servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from kvcalc.core.errors import InputError
from kvcalc.manifests.carriers.containers import environment
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node, read_documents
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.launches import of_script
from kvcalc.manifests.packages import installed_in
from kvcalc.manifests.requests import copies_of, with_visible
from kvcalc.manifests.templates import Piece

__all__ = ["of_llama_swap", "of_ray_serve", "of_ray_service", "of_sky_pilot"]

_MACRO = re.compile(r"\$\{([A-Za-z_][\w.-]*)\}")
_SUFFIXED = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kKmMgGtT])", re.ASCII)
_NUMBERS = {
    *("max_model_len", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_seqs"),
    *("kv_cache_memory_bytes", "block_size"),
}


def of_ray_service(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a RayService: `serveConfigV2` is a YAML text."""
    config = resource.get("spec", "serveConfigV2")
    found: list[Invocation] = []
    for document in context.nested(config) if config.is_text else [config]:
        found += of_ray_serve(document, context, name=name_of(resource))
    return found


def of_ray_serve(document: Node, context: Context, name: str = "") -> list[Invocation]:
    """Return the servers of a Ray Serve configuration's `llm_configs`."""
    found: list[Invocation] = []
    for application in document.get("applications").items:
        called = application.get("name").text or name
        args = application.get("args")
        found += [_ray_model(config, called, context) for config in _llm_args(args)]
        for each in args.get("llm_configs").items:
            if each.is_text:
                found += _llm_file(each.text, called, context)
    return found


def _llm_file(path: str, name: str, context: Context) -> list[Invocation]:
    """Return the server of a configuration that a Ray Serve file names by its path."""
    text = context.folder.read(path)
    if text is None:
        return []
    inner = context.of_file(path)
    try:
        documents = read_documents(text, inner.file, context.marks)
    except InputError:
        return []
    return [_ray_model(config, name, inner) for config in documents if config.is_mapping]


def _llm_args(args: Node) -> Iterator[Node]:
    for key in ("llm_configs", "llm_config", "prefill_config", "decode_config"):
        node = args.get(key)
        for each in node.items or ([node] if node.is_mapping else []):
            if each.is_mapping:
                yield each
    if "engine_kwargs" in args:
        yield args


def _ray_model(config: Node, name: str, context: Context) -> Invocation:
    loading = config.get("model_loading_config")
    source = loading.get("model_source")
    if not source.is_text:
        source = loading.get("model_id")
    words = [Word("vllm", config.line), Word("serve", config.line)]
    if source.is_text:
        words.append(context.word(source))
    kwargs = config.get("engine_kwargs")
    plain, findings = _python_numbers(kwargs)
    words += as_flags(plain, context)
    kind = config.get("accelerator_type")
    tensor = kwargs.get("tensor_parallel_size").number or 1
    pipeline = kwargs.get("pipeline_parallel_size").number or 1
    gpu = GpuRequest(line=kind.line)
    bundles = config.get("placement_group_config", "bundles")
    counted = [count for b in bundles.items if (count := b.get("GPU").number) is not None]
    if counted:
        gpu = gpu._replace(devices=sum(counted), resource="GPU", line=bundles.line)
    else:
        resource = "accelerator_type" if kind.is_text else "tensor_parallel_size"
        gpu = gpu._replace(devices=tensor * pipeline, resource=resource)
    if kind.is_text:
        gpu = gpu._replace(product=context.word(kind), product_key="accelerator_type")
    deployment = config.get("deployment_config")
    copies = copies_of(
        deployment.get("num_replicas"), deployment.get("autoscaling_config", "min_replicas")
    )
    env = {
        key: context.word(node)
        for key, node in config.get("runtime_env", "env_vars").fields.items()
    }
    return Invocation(
        name=loading.get("model_id").text or name or "llm",
        carrier="Ray Serve",
        file=context.file,
        line=config.line,
        words=tuple(words),
        env=env,
        gpu=with_visible(gpu, env),
        replicas=copies.number,
        replicas_line=copies.line,
        findings=tuple(findings),
        engine="vllm",
    )


def _python_numbers(kwargs: Node) -> tuple[list[tuple[str, Node]], list[Finding]]:
    """Return engine_kwargs without the numbers that Python does not read, and these.

    They go to the engine as they are, not through its command line, which reads 32k.
    """
    plain: list[tuple[str, Node]] = []
    findings: list[Finding] = []
    for key, node in kwargs.fields.items():
        found = _SUFFIXED.fullmatch(node.raw.strip())
        if key not in _NUMBERS or found is None:
            plain.append((key, node))
            continue
        by = 1000 if found[2].islower() else 1024
        number = int(Decimal(found[1]) * by ** (1 + "kmgt".index(found[2].lower())))
        message = f"{key} is no number here: engine_kwargs go to the engine as they are"
        findings.append(Finding("bad-value", "error", message, f"write {number}", node.line))
    return plain, findings


def of_sky_pilot(task: Node, context: Context) -> list[Invocation]:
    """Return the servers that a SkyPilot task's `run` starts."""
    env = {
        name: context.word(node)
        for key in ("envs", "secrets")
        for name, node in task.get(key).fields.items()
        if node.is_text
    }
    resources = task.get("resources")
    gpu = _accelerators(resources, context)
    nodes = task.get("num_nodes")
    count = nodes.number or 1
    env.setdefault("SKYPILOT_NUM_NODES", Word(str(count), nodes.line))
    env.setdefault("SKYPILOT_NODE_RANK", Word("0", nodes.line))
    if gpu.devices is not None:
        env.setdefault("SKYPILOT_NUM_GPUS_PER_NODE", Word(str(gpu.devices), gpu.line))
    run = task.get("run")
    image = resources.get("image_id").text.removeprefix("docker:") or None
    launches, _ = of_script(
        run.raw,
        run.lines(),
        env,
        context.place,
        image=image,
        closed=True,
        installed=installed_in(task.get("setup").text),
    )
    name = task.get("name").text or "task"
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


def _accelerators(resources: Node, context: Context) -> GpuRequest:
    """Return what `accelerators: H100:8`, a list of such, or a mapping of them asks for."""
    node = resources.get("accelerators")
    if not node.is_text and not node.is_list and not node.is_mapping:
        for each in (*resources.get("any_of").items, *resources.get("ordered").items):
            if each.get("accelerators").is_text:
                node = each.get("accelerators")
                break
    words: list[tuple[Word, int]] = []
    if node.is_mapping:
        for key, value in node.fields.items():
            name, _, number = key.partition(":")
            count = value.number or (int(number) if number.isdigit() else 1)
            words.append((Word(name, node.key_lines[key]), count))
    for each in node.items or ([node] if node.is_text else []):
        name, _, number = each.raw.partition(":")
        words.append((context.word(each, name.strip()), int(number) if number.isdigit() else 1))
    if not words:
        return GpuRequest()
    first, devices = words[0]
    return GpuRequest(
        devices=devices,
        resource="accelerators",
        product=first,
        product_key="accelerators",
        choices=tuple(word for word, _ in words[1:]),
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
