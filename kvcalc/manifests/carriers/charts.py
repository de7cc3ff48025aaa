"""Helm values of charts that serve models: the vLLM production stack, llm-d, ai-on-eks, others.

A chart turns keys into flags; what a chart does not read is a finding, for it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.manifests.carriers.containers import (
    environment,
    image_of_node,
    prepared,
)
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.requests import copies_of, of_count, of_resources, with_product, with_visible

__all__ = ["of_ai_on_eks", "of_modelservice", "of_production_stack"]

_STACK_FLAGS = (
    # key of vllmConfig, flag; as the chart's template puts them, in its order
    ("maxModelLen", "--max-model-len"),
    ("dtype", "--dtype"),
    ("tensorParallelSize", "--tensor-parallel-size"),
    ("pipelineParallelSize", "--pipeline-parallel-size"),
    ("maxNumSeqs", "--max-num-seqs"),
    ("gpuMemoryUtilization", "--gpu-memory-utilization"),
    ("maxLoras", "--max_loras"),
)
_STACK_SWITCHES = (
    ("enablePrefixCaching", "enable-prefix-caching"),
    ("enableChunkedPrefill", "enable-chunked-prefill"),
)
_STACK_KEYS = {
    *(key for key, _ in (*_STACK_FLAGS, *_STACK_SWITCHES)),
    *("v0", "v1", "extraArgs", "enableLoRA", "logLevel"),
}


def of_production_stack(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of `servingEngineSpec.modelSpec[]`."""
    spec = values.get("servingEngineSpec")
    return [_stack_model(model, spec, context) for model in spec.get("modelSpec").items]


def _stack_model(model: Node, spec: Node, context: Context) -> Invocation:
    config = model.get("vllmConfig")
    findings = list(_ignored(model, config))
    gpu = _stack_devices(model, findings)
    gpu = with_product(gpu, model)
    gpu = gpu if gpu.product else with_product(gpu, spec)
    env = {**environment(model, context), **dict(_stack_environment(model, context))}
    ray = model.get("raySpec").is_mapping and model.get("raySpec", "enabled").text != "false"
    pipeline = config.get("pipelineParallelSize").number or 1
    copies = copies_of(model.get("replicaCount"))
    return Invocation(
        name=model.get("name").text or f"model on line {model.line}",
        carrier="helm values",
        file=context.file,
        line=model.line,
        words=tuple(_stack_words(model, context)),
        image=image_of_node(model, context),
        env=env,
        gpu=with_visible(gpu, env),
        replicas=copies.number,
        replicas_line=copies.line,
        nodes=pipeline if ray else 1,
        findings=tuple(findings),
        engine="vllm",
    )


def _stack_words(model: Node, context: Context) -> Iterator[Word]:
    """Yield the command that the chart's template makes of a model."""
    config = model.get("vllmConfig")
    yield from (Word("vllm", model.line), Word("serve", model.line))
    if (url := model.get("modelURL")).is_text:
        yield context.word(url)
    for key, name in _STACK_SWITCHES:
        node = config.get(key)
        if node.is_true or node.is_false:
            yield Word(f"--{name}" if node.is_true else f"--no-{name}", node.line)
    for key, flag in _STACK_FLAGS:
        if (node := config.get(key)).is_text:
            yield from (Word(flag, node.line), context.word(node))
    if model.get("enableLoRA").is_true or config.get("enableLoRA").is_true:
        yield Word("--enable-lora", model.get("enableLoRA").line)
    yield from context.words(config.get("extraArgs"))


def _stack_environment(model: Node, context: Context) -> Iterator[tuple[str, Word]]:
    """Yield the variables that the chart sets beside those of the model."""
    config, cache = model.get("vllmConfig"), model.get("lmcacheConfig")
    if config.get("v0").is_text or config.get("v1").is_text:
        yield "VLLM_USE_V1", Word("0" if config.get("v0").text == "1" else "1", config.line)
    if cache.get("cudaVisibleDevices").is_text:
        yield "CUDA_VISIBLE_DEVICES", context.word(cache.get("cudaVisibleDevices"))
    if cache.get("cpuOffloadingBufferSize").is_text:
        yield "LMCACHE_MAX_LOCAL_CPU_SIZE", context.word(cache.get("cpuOffloadingBufferSize"))


def _stack_devices(model: Node, findings: list[Finding]) -> GpuRequest:
    count, kind = model.get("requestGPU"), model.get("requestGPUType")
    if not count.is_text:
        return GpuRequest()
    gpu = of_count(count, "requestGPU", findings)
    if kind.is_text and kind.text != "nvidia.com/gpu":
        mig = of_resources_of(kind.text, count)
        gpu = gpu._replace(memory_bytes=mig.memory_bytes, shared=mig.shared)
    return gpu


def of_resources_of(kind: str, count: Node) -> GpuRequest:
    """Return a request of a resource by its name alone (`requestGPUType`)."""
    holder = Node({kind: count}, count.line, count.file)
    return of_resources(Node({"limits": holder}, count.line, count.file))[0]


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


def of_modelservice(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of llm-d's modelservice chart: `decode` and `prefill`."""
    found: list[Invocation] = []
    artifacts = values.get("modelArtifacts")
    for part in ("decode", "prefill"):
        role = values.get(part)
        if not role.is_mapping or role.get("create").is_false:
            continue
        found += _modelservice_role(part, role, artifacts, values, context)
    return found


def _modelservice_role(
    part: str, role: Node, artifacts: Node, values: Node, context: Context
) -> Iterator[Invocation]:
    parallelism = role.get("parallelism")
    tensor = parallelism.get("tensor").number or 1
    local = parallelism.get("dataLocal").number or 1
    workers = parallelism.get("workers").number or 1
    for container in role.get("containers").items:
        env = environment(container, context)
        given = [*context.words(container.get("command")), *context.words(container.get("args"))]
        command = container.get("modelCommand").text
        words: list[Word] = []
        name = artifacts.get("name")
        if command == "vllmServe":
            words = [Word("vllm", container.line), Word("serve", container.line)]
            if name.is_text:
                words.append(context.word(name))
        elif command == "imageDefault" and name.is_text:
            words = [Word("--model", name.line), context.word(name)]
        elif not command and "command" not in container:
            continue
        flags: list[Word] = []
        for key, flag in (
            ("tensor", "--tensor-parallel-size"),
            ("data", "--data-parallel-size"),
            ("dataLocal", "--data-parallel-size-local"),
        ):
            node = parallelism.get(key)
            if command == "vllmServe" and (node.number or 1) > 1:
                flags += [Word(flag, node.line), context.word(node)]
        gpu, findings = of_resources(container.get("resources"))
        counted = tensor * local
        if parallelism.is_mapping and gpu.devices not in (None, counted):
            findings = [*findings, _overwritten(gpu, counted)]
        if parallelism.is_mapping or gpu.resource is None:
            line = gpu.line or parallelism.line
            resource = gpu.resource or values.get("accelerator", "type").text or "nvidia.com/gpu"
            gpu = gpu._replace(devices=counted, resource=resource, line=line)
        launches, _ = prepared(container, context, env, likely=False)
        script = bool(launches and launches[0].words) and "command" in container
        yield Invocation(
            name=part
            if len(role.get("containers").items) == 1
            else (f"{part}/{container.get('name').text}"),
            carrier="modelservice values",
            file=context.file,
            line=role.line,
            words=launches[0].words if script and not words else (*words, *flags, *given),
            image=image_of_node(container, context),
            env=env,
            gpu=_of_role(with_visible(gpu, env), role, values),
            replicas=(copies := copies_of(role.get("replicas"))).number,
            replicas_line=copies.line,
            nodes=workers,
            findings=tuple(findings),
        )


def _of_role(gpu: GpuRequest, role: Node, values: Node) -> GpuRequest:
    """Add the product that a role asks for, or the whole chart."""
    own = with_product(gpu, role)
    return own if own.product is not None else with_product(gpu, values)


def _overwritten(gpu: GpuRequest, counted: int) -> Finding:
    return Finding(
        "overwritten-gpu-count",
        "warning",
        f"{gpu.devices} devices are asked for; the chart writes tensor x dataLocal = {counted}",
        "make parallelism and the devices agree",
        gpu.line,
    )


def of_ai_on_eks(values: Node, context: Context) -> list[Invocation]:
    """Return the server of ai-on-eks's inference charts: `modelParameters` become flags."""
    inference = values.get("inference")
    server = inference.get("modelServer")
    deployment = server.get("deployment")
    framework = inference.get("framework").text
    model = values.get("model")
    if not model.is_text:
        model = values.get("modelParameters", "modelId")
    words: list[Word] = []
    if "vllm" in framework or not framework:
        words = [Word("vllm", values.line), Word("serve", values.line)]
    if model.is_text:
        words.append(context.word(model))
    parameters = values.get("modelParameters")
    words += as_flags(
        ((k, n) for k, n in parameters.fields.items() if k not in ("modelId", "additionalArgs")),
        context,
    )
    words += context.words(parameters.get("additionalArgs"))
    gpu, findings = of_resources(deployment.get("resources", "gpu"))
    kind = deployment.get("instanceType")
    if kind.is_text:
        gpu = gpu._replace(
            product=context.word(kind), product_key="instanceType", line=gpu.line or kind.line
        )
    lws = "lws" in framework or "ray" in framework
    env = environment(server, context)
    return [
        Invocation(
            name=inference.get("serviceName").text or model.text or "inference",
            carrier="helm values",
            file=context.file,
            line=values.line,
            words=tuple(words),
            image=image_of_node(server, context),
            env=env,
            gpu=with_visible(gpu, env),
            replicas=(
                copies := copies_of(
                    deployment.get("replicas"), deployment.get("numReplicas"), least=1
                )
            ).number,
            replicas_line=copies.line,
            nodes=(parameters.get("pipelineParallelSize").number or 1) if lws else 1,
            findings=tuple(findings),
            engine="vllm" if "vllm" in framework else None,
        )
    ]
