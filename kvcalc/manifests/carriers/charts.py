"""Helm values of charts that serve models: the vLLM production stack, llm-d, ai-on-eks, others.

A chart turns keys into flags; what a chart does not read is a finding, for it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.manifests.carriers.containers import (
    environment,
    image_of_node,
    of_pod,
    prepared,
)
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.commands.images import image_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.requests import copies_of, of_count, of_resources, with_product, with_visible

__all__ = ["of_ai_on_eks", "of_modelservice", "of_other_values", "of_production_stack"]

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


def _stack_model(model: Node, spec: Node, context: Context) -> Invocation:  # noqa: C901 - one branch a key of the chart
    config, cache = model.get("vllmConfig"), model.get("lmcacheConfig")
    env = environment(model, context)
    findings: list[Finding] = []
    words = [Word("vllm", model.line), Word("serve", model.line)]
    if (url := model.get("modelURL")).is_text:
        words.append(context.word(url))
    for key, name in _STACK_SWITCHES:
        node = config.get(key)
        if node.is_true:
            words.append(Word(f"--{name}", node.line))
        elif node.is_false:
            words.append(Word(f"--no-{name}", node.line))
    for key, flag in _STACK_FLAGS:
        if (node := config.get(key)).is_text:
            words += [Word(flag, node.line), context.word(node)]
    if model.get("enableLoRA").is_true or config.get("enableLoRA").is_true:
        words.append(Word("--enable-lora", model.get("enableLoRA").line))
    extra = context.words(config.get("extraArgs"))
    words += extra
    if config.get("v0").is_text or config.get("v1").is_text:
        old = config.get("v0").text == "1"
        env["VLLM_USE_V1"] = Word("0" if old else "1", config.line)
    if cache.get("cudaVisibleDevices").is_text:
        env["CUDA_VISIBLE_DEVICES"] = context.word(cache.get("cudaVisibleDevices"))
    if cache.get("cpuOffloadingBufferSize").is_text:
        env["LMCACHE_MAX_LOCAL_CPU_SIZE"] = context.word(cache.get("cpuOffloadingBufferSize"))
    findings += _ignored(model, config)
    gpu = GpuRequest()
    if (count := model.get("requestGPU")).is_text:
        gpu = of_count(count, "requestGPU", findings)
        kind = model.get("requestGPUType")
        if kind.is_text and kind.text != "nvidia.com/gpu":
            mig = of_resources_of(kind.text, count)
            gpu = gpu._replace(memory_bytes=mig.memory_bytes, shared=mig.shared)
    ray = model.get("raySpec").is_mapping and model.get("raySpec", "enabled").text != "false"
    pipeline = config.get("pipelineParallelSize").number or 1
    gpu = with_product(gpu, model)
    gpu = gpu if gpu.product else with_product(gpu, spec)
    return Invocation(
        name=model.get("name").text or f"model on line {model.line}",
        carrier="helm values",
        file=context.file,
        line=model.line,
        words=tuple(words),
        image=image_of_node(model, context),
        env=env,
        gpu=with_visible(gpu, env),
        replicas=(copies := copies_of(model.get("replicaCount"))).number,
        replicas_line=copies.line,
        nodes=pipeline if ray else 1,
        findings=tuple(findings),
        engine="vllm",
    )


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
                node, context, name=name, carrier="helm values", line=node.line, typed=False
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
