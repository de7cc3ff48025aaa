"""Operators with resources of their own: KubeAI, KAITO, AIBrix, Dynamo, LLMKube."""

from __future__ import annotations

from kvcalc.manifests.carriers.containers import (
    environment,
    image_of_node,
    of_pod,
)
from kvcalc.manifests.carriers.context import Context, as_flags
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, Invocation, Word
from kvcalc.manifests.gpus import find_card
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible

__all__ = [
    "of_dynamo",
    "of_kaito",
    "of_kubeai",
    "of_kubeai_catalog",
    "of_llmkube",
    "of_model_claim",
]

_KUBEAI = {"VLLM": "vllm", "OLlama": "ollama"}
_SCHEMES = ("hf://", "huggingface://")


def _model(node: Node, context: Context) -> Word:
    text = node.raw
    for scheme in _SCHEMES:
        text = text.removeprefix(scheme)
    return context.word(node, text)


def of_kubeai(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of a KubeAI Model."""
    return _kubeai(name_of(resource), "Model", resource.get("spec"), resource.line, context)


def of_kubeai_catalog(values: Node, context: Context) -> list[Invocation]:
    """Return the servers of KubeAI's catalogue: `catalog.<name>`."""
    found: list[Invocation] = []
    for name, spec in values.get("catalog").fields.items():
        line = values.get("catalog").key_lines[name]
        found += _kubeai(name, "helm values", spec, line, context)
    return found


def _kubeai(name: str, carrier: str, spec: Node, line: int, context: Context) -> list[Invocation]:
    engine = _KUBEAI.get(spec.get("engine").text)
    if engine is None:
        return []  # speech and embeddings: FasterWhisper, Infinity
    env = environment(spec, context)
    args = context.words(spec.get("args"))
    url = spec.get("url")
    words: list[Word] = []
    if engine == "vllm":
        words = [Word("vllm", line), Word("serve", line)]
        words += [_model(url, context)] if url.is_text else []
    profile = spec.get("resourceProfile")
    label, _, count = profile.text.rpartition(":")
    gpu = GpuRequest()
    if label:
        gpu = GpuRequest(line=profile.line)
        if not label.startswith("cpu"):
            gpu = gpu._replace(
                devices=int(count) if count.isdigit() and len(count) < 6 else None,  # noqa: PLR2004
                resource="resourceProfile",
                product=context.word(profile, label),
                product_key="resourceProfile",
            )
    copies = copies_of(spec.get("minReplicas"), spec.get("replicas"), least=1)
    return [
        Invocation(
            name=name,
            carrier=carrier,
            file=context.file,
            line=line,
            words=(*words, *args),
            env=env,
            gpu=gpu,
            replicas=copies.number,
            replicas_line=copies.line,
            engine=engine,
        )
    ]


def of_kaito(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of a KAITO Workspace: its preset, with the keys of its ConfigMap."""
    workspace = resource
    if resource.get("spec", "template", "inference").is_mapping:  # an InferenceSet
        workspace = resource.get("spec", "template")
    inference = workspace.get("inference")
    preset = inference.get("preset", "name")
    machine = workspace.get("resource")
    if not inference.is_mapping:
        return []
    line = inference.line
    words = [Word("vllm", line), Word("serve", line)]
    if preset.is_text:
        words.append(context.word(preset))
    config = context.config_maps.get(inference.get("config").text, {})
    keys: list[tuple[str, Node]] = []
    for node in config.values():
        for document in context.nested(node):
            keys += document.get("vllm").fields.items()
    words += as_flags(keys, context)
    kind, count = machine.get("instanceType"), machine.get("count").number or 1
    gpu, findings = GpuRequest(), []
    if kind.is_text:
        devices = find_card(kind.text).devices
        gpu = GpuRequest(
            devices=devices,
            resource="instanceType",
            product=context.word(kind),
            product_key="instanceType",
            line=kind.line,
        )
        if (
            devices
            and devices * count > 1
            and not any(key == "tensor-parallel-size" for key, _ in keys)
        ):
            findings.append(_derived(devices, count, kind.line))
            words += [Word(f"--tensor-parallel-size={devices}", kind.line)]
            words += [Word(f"--pipeline-parallel-size={count}", kind.line)]
    template = inference.get("template")
    if not preset.is_text and template.is_mapping:
        pods = of_pod(
            template.get("spec"), context, name=name_of(resource), carrier="Workspace", line=line
        )
        return [each._replace(gpu=gpu if kind.is_text else each.gpu) for each in pods]
    return [
        Invocation(
            name=name_of(resource),
            carrier="Workspace",
            file=context.file,
            line=resource.line,
            words=tuple(words),
            gpu=gpu,
            replicas=(copies := copies_of(resource.get("spec", "replicas"))).number,
            replicas_line=copies.line,
            nodes=count,
            findings=tuple(findings),
            engine="vllm",
        )
    ]


def _derived(devices: int, nodes: int, line: int) -> Finding:
    return Finding(
        "parallel-sizes-from-machine",
        "note",
        f"KAITO sets the parallel sizes itself: tensor {devices}, pipeline {nodes}",
        "give tensor-parallel-size in the ConfigMap to have another",
        line,
    )


def of_model_claim(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of an AIBrix ModelClaim: `engineConfig.args` maps flags to values."""
    spec = resource.get("spec")
    url, engine = spec.get("artifactURL"), spec.get("engine").text or "vllm"
    words: list[Word] = []
    if engine == "vllm":
        words = [Word("vllm", spec.line), Word("serve", spec.line)]
    words += [_model(url, context)] if url.is_text else []
    args = spec.get("engineConfig", "args")
    for flag, node in args.fields.items():
        words.append(Word(flag, args.key_lines[flag]))
        words += [context.word(node)] if node.is_text else []
    env = environment(spec.get("engineConfig"), context)
    return [
        Invocation(
            name=name_of(resource),
            carrier="ModelClaim",
            file=context.file,
            line=resource.line,
            words=(*words, *context.words(args)),
            env=env,
            replicas=(copies := copies_of(spec.get("replicas"))).number,
            replicas_line=copies.line,
            engine=engine,
        )
    ]


def of_dynamo(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of a DynamoGraphDeployment's services, or its components."""
    spec = resource.get("spec")
    parts = list(spec.get("services").fields.items())
    parts += [(c.get("name").text, c) for c in spec.get("components").items]
    found: list[Invocation] = []
    for name, part in parts:
        pod = part.get("extraPodSpec")
        container = pod.get("mainContainer")
        if not container.is_mapping:
            templates = part.get("podTemplate", "spec")
            found += of_pod(
                templates,
                context,
                name=f"{name_of(resource)}/{name}",
                carrier="DynamoGraphDeployment",
                line=part.line,
                replicas=copies_of(part.get("replicas")),
                nodes=part.get("multinode", "nodeCount").number or 1,
                bare=True,
                whole=False,
            )
            continue
        holder = Node({}, pod.line, pod.file)
        holder.fields.update(pod.fields)
        holder.fields["containers"] = Node([container], container.line, pod.file)
        extra = {**environment(_as_env(spec), context), **environment(_as_env(part), context)}
        servers = of_pod(
            holder,
            context,
            name=f"{name_of(resource)}/{name}",
            carrier="DynamoGraphDeployment",
            line=part.line,
            replicas=copies_of(part.get("replicas")),
            nodes=part.get("multinode", "nodeCount").number or 1,
            extra=extra,
            bare=True,
            whole=False,
        )
        gpu, findings = of_resources(part.get("resources"), bare=True)
        for each in servers:
            asked = with_product(with_visible(gpu, each.env), pod) if gpu.resource else each.gpu
            found.append(each._replace(gpu=asked, findings=(*findings, *each.findings)))
    return found


def _as_env(holder: Node) -> Node:
    """Return a node whose `envs` are called `env`."""
    node = Node({}, holder.line, holder.file)
    node.fields["env"] = holder.get("envs")
    return node


def of_llmkube(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of LLMKube's InferenceService; the model stands in a Model of its own."""
    spec = resource.get("spec")
    reference = spec.get("modelRef").text
    model = next(
        (
            each.get("spec")
            for each in context.documents
            if each.get("kind").text == "Model" and name_of(each) == reference
        ),
        Node("", resource.line, resource.file),
    )
    words = [Word("llama-server", spec.line)]
    source = model.get("source")
    if source.is_text:
        words += [Word("-m", source.line), context.word(source)]
    for node, flag in (
        (spec.get("contextSize"), "--ctx-size"),
        (spec.get("parallelSlots"), "--parallel"),
        (spec.get("cacheTypeK"), "--cache-type-k"),
        (spec.get("cacheTypeV"), "--cache-type-v"),
        (spec.get("batchSize"), "--batch-size"),
        (spec.get("uBatchSize"), "--ubatch-size"),
        (model.get("hardware", "gpu", "layers"), "--n-gpu-layers"),
    ):
        if node.is_text:
            words += [Word(flag, node.line), context.word(node)]
    extra = context.words(spec.get("extraArgs"))
    hardware = model.get("hardware", "gpu")
    gpu, findings = of_resources(spec.get("resources"))
    count = hardware.get("count")
    if gpu.resource is None and count.number is not None:
        name = hardware.get("resourceName").text or "gpu"
        gpu = GpuRequest(devices=count.number, resource=name, line=count.line)
    env = environment(spec, context)
    program = spec.get("runtime").text
    if program == "vllm":
        words = [Word("vllm", spec.line), Word("serve", spec.line), *words[2:3]]
    return [
        Invocation(
            name=name_of(resource),
            carrier="InferenceService",
            file=context.file,
            line=resource.line,
            words=(*words, *extra),
            image=image_of_node(spec, context),
            env=env,
            gpu=with_product(with_visible(gpu, env), spec),
            replicas=(copies := copies_of(spec.get("replicas"))).number,
            replicas_line=copies.line,
            findings=tuple(findings),
            engine="vllm" if program == "vllm" else "llama.cpp",
        )
    ]
