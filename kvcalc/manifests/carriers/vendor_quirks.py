"""What a vendor does with its keys that no table says, by the name in `vendors.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from kvcalc.manifests.carriers.containers import environment, image_of_node, of_pod, prepared
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.gpus import find_card
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.requests import of_resources, with_product, with_visible
from kvcalc.manifests.splitting import split_words

__all__ = ["eks", "kaito", "kubeai", "llm", "ray", "stack"]

_DIGITS = 6
_DEVICES = "serving.kserve.io/exp-dra-device-count"
_SELECTOR = "serving.kserve.io/exp-dra-cel-selector"
_TYPE = re.compile(r"\['(?:type|productName)'\]\s*==\s*['\"]([\w .-]+)['\"]")
_SUFFIXED = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kKmMgGtT])", re.ASCII)
_NUMBERS = {
    *("max_model_len", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_seqs"),
    *("kv_cache_memory_bytes", "block_size"),
}
_STACK_KEYS = {
    *("maxModelLen", "dtype", "tensorParallelSize", "pipelineParallelSize", "maxNumSeqs"),
    *("gpuMemoryUtilization", "maxLoras", "enablePrefixCaching", "enableChunkedPrefill"),
    *("v0", "v1", "extraArgs", "enableLoRA", "logLevel"),
}


def kubeai(made: Invocation, part: Node, _: Node, context: Context) -> Iterator[Invocation]:
    """Read `resourceProfile`: a name of the profile, and how many of it."""
    profile = part.get("resourceProfile")
    label, _colon, count = profile.text.rpartition(":")
    if label and label.startswith("cpu"):
        made = made._replace(gpu=GpuRequest(line=profile.line))
    elif label:
        gpu = GpuRequest(
            devices=int(count) if count.isdigit() and len(count) < _DIGITS else None,
            resource="resourceProfile",
            product=context.word(profile, label),
            product_key="resourceProfile",
            line=profile.line,
        )
        made = made._replace(gpu=gpu)
    yield made


def kaito(made: Invocation, part: Node, _: Node, context: Context) -> Iterator[Invocation]:
    """Take the keys of the ConfigMap, and the parallel sizes that follow from the machines."""
    inference, machine = part.get("inference"), part.get("resource").get("instanceType")
    if not inference.is_mapping:
        return
    keys: list[tuple[str, Node]] = []
    for node in context.config_maps.get(inference.get("config").text, {}).values():
        for document in context.nested(node):
            keys += document.get("vllm").fields.items()
    words, findings, gpu = [*made.words, *as_flags(keys, context)], [], GpuRequest()
    if machine.is_text:
        devices = find_card(machine.text).devices
        gpu = GpuRequest(
            devices=devices,
            resource="instanceType",
            product=context.word(machine),
            product_key="instanceType",
            line=machine.line,
        )
        told = any(key == "tensor-parallel-size" for key, _node in keys)
        if devices and devices * made.nodes > 1 and not told:
            findings.append(_derived(devices, made.nodes, machine.line))
            words += [Word(f"--tensor-parallel-size={devices}", machine.line)]
            words += [Word(f"--pipeline-parallel-size={made.nodes}", machine.line)]
    template = inference.get("template")
    if not inference.get("preset", "name").is_text and template.is_mapping:
        pods = of_pod(
            template.get("spec"),
            context,
            name=made.name,
            carrier=made.carrier,
            line=inference.line,
            whole=False,
        )
        yield from (each._replace(gpu=gpu if machine.is_text else each.gpu) for each in pods)
        return
    yield made._replace(words=tuple(words), gpu=gpu, findings=tuple(findings))


def _derived(devices: int, nodes: int, line: int) -> Finding:
    return Finding(
        "parallel-sizes-from-machine",
        "note",
        f"KAITO sets the parallel sizes itself: tensor {devices}, pipeline {nodes}",
        "give tensor-parallel-size in the ConfigMap to have another",
        line,
    )


def stack(made: Invocation, part: Node, _: Node, context: Context) -> Iterator[Invocation]:
    """Read what the chart sets as variables, Ray's nodes, and tell keys that it does not read."""
    config, env = part.get("vllmConfig"), dict(made.env)
    cache = part.get("lmcacheConfig" if "lmcacheConfig" in part else "lmCacheConfig")
    if config.get("v0").is_text or config.get("v1").is_text:
        env["VLLM_USE_V1"] = Word("0" if config.get("v0").text == "1" else "1", config.line)
    for key, name in (
        ("cudaVisibleDevices", "CUDA_VISIBLE_DEVICES"),
        ("cpuOffloadingBufferSize", "LMCACHE_MAX_LOCAL_CPU_SIZE"),
    ):
        if cache.get(key).is_text:
            env[name] = context.word(cache.get(key))
    gpu, kind, count = made.gpu, part.get("requestGPUType"), part.get("requestGPU")
    if kind.is_text and kind.text != "nvidia.com/gpu" and count.is_text:
        limits = Node({kind.text: count}, count.line, count.file)
        asked, _findings = of_resources(Node({"limits": limits}, count.line, count.file))
        gpu = gpu._replace(memory_bytes=asked.memory_bytes, shared=asked.shared)
    ray = part.get("raySpec")
    on_ray = ray.is_mapping and not ray.get("enabled").is_false
    chart = () if "deploymentConfig" in part else _ignored(part, config)
    yield made._replace(
        env=env,
        gpu=with_visible(gpu, env),
        nodes=config.get("pipelineParallelSize").number or 1 if on_ray else 1,
        findings=(*chart, *made.findings),
    )


def _ignored(model: Node, config: Node) -> Iterator[Finding]:
    if (extra := model.get("extraArgs")).items:
        yield Finding(
            "ignored-extra-args",
            "error",
            "extraArgs stands outside vllmConfig: the chart does not read it",
            "move extraArgs into vllmConfig",
            model.key_lines.get("extraArgs", extra.line),
        )
    for key in config.fields:
        if key not in _STACK_KEYS:
            yield Finding(
                "ignored-key",
                "warning",
                f"vllmConfig.{key} is not read by the chart",
                "give the flag in vllmConfig.extraArgs",
                config.key_lines[key],
            )


def eks(made: Invocation, part: Node, _: Node, __: Context) -> Iterator[Invocation]:
    """Spread the pipeline over nodes where the chart makes a group of them."""
    framework = part.get("inference", "framework").text
    stages = part.get("modelParameters", "pipelineParallelSize").number or 1
    yield made._replace(nodes=stages if "lws" in framework or "ray" in framework else 1)


def ray(made: Invocation, part: Node, _: Node, context: Context) -> Iterator[Invocation]:
    """Read the devices of the placement, and keyword arguments, whose numbers Python reads."""
    kwargs, kind = part.get("engine_kwargs"), part.get("accelerator_type")
    bundles = part.get("placement_group_config", "bundles")
    counted = [count for b in bundles.items if (count := b.get("GPU").number) is not None]
    sizes = [kwargs.get(f"{each}_parallel_size").number or 1 for each in ("tensor", "pipeline")]
    resource = "accelerator_type" if kind.is_text else "tensor_parallel_size"
    gpu = made.gpu._replace(devices=sizes[0] * sizes[1], resource=resource, line=kind.line)
    if counted:
        gpu = gpu._replace(devices=sum(counted), resource="GPU", line=bundles.line)
    variables = part.get("runtime_env", "env_vars").fields.items()
    env = {key: context.word(node) for key, node in variables}
    plain, findings = _python_numbers(kwargs)
    yield made._replace(
        words=(*made.words, *as_flags(plain, context)),
        env=env,
        gpu=with_visible(gpu, env),
        findings=tuple(findings),
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


def llm(made: Invocation, part: Node, resource: Node, context: Context) -> Iterator[Invocation]:
    """Read the template's container: its args follow KServe's, its script is instead of them."""
    pod, parallelism = part.get("template"), part.get("parallelism")
    containers = pod.get("containers").items
    named = [each for each in containers if each.get("name").text == "main"]
    container = next(iter((*named, *containers, pod)))
    env = environment(container, context)
    launches, given = prepared(container, context, env, likely=False)
    words = [*made.words, *(word for word in given if word.text not in ("vllm", "serve"))]
    if launches and launches[0].words and "command" in container:
        words = list(launches[0].words)
    if (more := env.get("VLLM_ADDITIONAL_ARGS")) is not None:
        words += split_words(more.text, Lines(more.line, 0), context.marks)
    gpu, findings = of_resources(container.get("resources"))
    gpu = _claimed(resource) if gpu.resource is None else gpu
    nodes, data, local = 1, parallelism.get("data").number, parallelism.get("dataLocal").number
    if part.get("worker").is_mapping:
        stages = parallelism.get("pipeline").number or 1
        nodes = max(1, data // local) if data and local else stages
    yield made._replace(
        words=tuple(words),
        image=image_of_node(container, context),
        env=env,
        gpu=with_product(with_visible(gpu, env), pod),
        nodes=nodes,
        findings=tuple(findings),
    )


def _claimed(resource: Node) -> GpuRequest:
    """Return the devices that the annotations of a claim count, and the type that they select."""
    annotations = resource.get("metadata", "annotations")
    node, selector = annotations.get(_DEVICES), annotations.get(_SELECTOR)
    if node.number is None:
        return GpuRequest()
    request = GpuRequest(devices=node.number, resource=_DEVICES, line=node.line)
    kind = _TYPE.search(selector.text)
    if kind is None:
        return request
    return request._replace(product=Word(kind[1], selector.line), product_key=_SELECTOR)
