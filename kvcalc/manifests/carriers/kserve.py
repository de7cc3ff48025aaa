"""KServe: InferenceService, ServingRuntime, LLMInferenceService.

A model of an InferenceService runs in the container of its runtime: one of the same file, or the
Hugging Face server that KServe brings. An LLMInferenceService starts vLLM with flags from its
`parallelism` and its container's args; VLLM_ADDITIONAL_ARGS is read with the command.
"""

from __future__ import annotations

import re

from kvcalc.manifests.carriers.containers import environment, mistyped, of_pod, prepared
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import GpuRequest, Invocation, Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.substitution import kubelet, unexpanded

__all__ = ["of_inference_service", "of_llm_inference_service", "of_runtime"]

_LLM_FORMATS = ("huggingface", "vllm", "sglang", "llama", "tgi", "trtllm")
_DEVICES = "serving.kserve.io/exp-dra-device-count"
_SELECTOR = "serving.kserve.io/exp-dra-cel-selector"
_TYPE = re.compile(r"\['(?:type|productName)'\]\s*==\s*['\"]([\w .-]+)['\"]")
_PARALLELISM = (
    # key, flag
    ("tensor", "--tensor-parallel-size"),
    ("pipeline", "--pipeline-parallel-size"),
    ("data", "--data-parallel-size"),
    ("dataLocal", "--data-parallel-size-local"),
)


def of_inference_service(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of an InferenceService's predictor."""
    predictor = resource.get("spec", "predictor")
    model = predictor.get("model")
    name, line = name_of(resource), resource.line
    replicas = copies_of(predictor.get("minReplicas"), least=1)
    workers = predictor.get("workerSpec")
    nodes = 1 + (workers.get("size").number or 1) if workers.is_mapping else 1
    if not model.is_mapping:
        return of_pod(
            predictor,
            context,
            name=name,
            carrier="InferenceService",
            line=line,
            replicas=replicas,
            nodes=nodes,
        )
    kind = model.get("modelFormat", "name").text.lower()
    runtime = model.get("runtime").text
    if not any(each in kind or each in runtime for each in _LLM_FORMATS):
        return []
    env = environment(model, context)
    gpu, findings = of_resources(model.get("resources"))
    findings += mistyped(model)
    given = context.words(model.get("args"))
    args = [kubelet(unexpanded(word, findings, "$({})"), env) for word in given]
    container = _runtime_container(runtime, context)
    before: list[Word] = []
    if container is None:
        before = [Word(text, model.line) for text in ("python", "-m", "huggingfaceserver")]
    elif not _runs_itself(container):
        before = [*context.words(container.get("command")), *context.words(container.get("args"))]
        env = {**environment(container, context), **env}
    words = [*before, *args]
    uri = model.get("storageUri")
    if not uri.is_text:
        uri = model.get("storage", "path")
    if uri.is_text and not _names_model(words):
        words += [Word("--model", uri.line), _model(uri, context)]
    return [
        Invocation(
            name=name,
            carrier="InferenceService",
            file=context.file,
            line=line,
            words=tuple(words),
            image=None if container is None else context.word(container.get("image")),
            env=env,
            gpu=with_product(with_visible(gpu, env), predictor),
            replicas=replicas.number,
            replicas_line=replicas.line,
            nodes=nodes,
            findings=tuple(findings),
            under_entry_point=container is not None and _runs_itself(container),
        )
    ]


def _runs_itself(container: Node) -> bool:
    return container.get("command").is_null and container.get("args").is_null


def _runtime_container(runtime: str, context: Context) -> Node | None:
    """Return the container of a runtime that stands in the same file."""
    for each in context.documents:
        if each.get("kind").text.endswith("ServingRuntime") and name_of(each) == runtime:
            for container in each.get("spec", "containers").items:
                return container
    return None


def _names_model(words: list[Word]) -> bool:
    return any(
        word.text.replace("_", "-").split("=")[0] in ("--model", "--model-id", "--model-dir")
        for word in words
    )


def _model(uri: Node, context: Context) -> Word:
    return context.word(uri, uri.raw.removeprefix("hf://"))


def of_runtime(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of a ServingRuntime, where no service of the same file uses it."""
    for each in context.documents:
        used = each.get("spec", "predictor", "model", "runtime").text
        if used and used == name_of(resource):
            return []
    spec = resource.get("spec")
    worker = spec.get("workerSpec")
    extra = {}
    for key, variable in (
        ("tensorParallelSize", "TENSOR_PARALLEL_SIZE"),
        ("pipelineParallelSize", "PIPELINE_PARALLEL_SIZE"),
    ):
        if worker.get(key).is_text:
            extra[variable] = context.word(worker.get(key))
    return of_pod(
        spec,
        context,
        name=name_of(resource),
        carrier=resource.get("kind").text,
        line=resource.line,
        nodes=worker.get("pipelineParallelSize").number or 1,
        extra=extra,
        closed=False,  # the service that uses it adds to its environment
    )


def of_llm_inference_service(resource: Node, context: Context) -> list[Invocation]:
    """Return the servers of an LLMInferenceService: of its template, and of its prefill.

    A configuration of the router alone (LLMInferenceServiceConfig) has none.
    """
    spec = resource.get("spec")
    name = name_of(resource)
    found = []
    if spec.get("model").is_mapping or spec.get("template").is_mapping:
        found.append(_llm(spec, spec, name, resource, context))
    prefill = spec.get("prefill")
    if prefill.is_mapping:
        found.append(_llm(prefill, spec, f"{name}/prefill", resource, context))
    return found


def _llm(part: Node, spec: Node, name: str, resource: Node, context: Context) -> Invocation:
    pod = part.get("template")
    container = _main(pod)
    env = environment(container, context)
    model = spec.get("model", "uri")
    words = [Word("vllm", container.line), Word("serve", container.line)]
    if model.is_text:
        words.append(_model(model, context))
    parallelism = part.get("parallelism")
    for key, flag in _PARALLELISM:
        node = parallelism.get(key)
        if node.is_text:
            words += [Word(flag, node.line), context.word(node)]
    if parallelism.get("expert").is_true:
        words.append(Word("--enable-expert-parallel", parallelism.get("expert").line))
    launches, given = prepared(container, context, env, likely=False)
    whole = bool(launches and launches[0].words) and "command" in container
    if not whole:
        words += [word for word in given if word.text not in ("vllm", "serve")]
    more = env.get("VLLM_ADDITIONAL_ARGS")
    more_words = () if more is None else split_words(more.text, Lines(more.line, 0), context.marks)
    gpu, findings = of_resources(container.get("resources"))
    if gpu.resource is None:
        gpu = _claimed(resource)
    nodes = 1
    data, local = parallelism.get("data").number, parallelism.get("dataLocal").number
    if part.get("worker").is_mapping and data and local:
        nodes = max(1, data // local)
    elif part.get("worker").is_mapping:
        nodes = parallelism.get("pipeline").number or 1
    image = container.get("image")
    return Invocation(
        name=name,
        carrier="LLMInferenceService",
        file=context.file,
        line=part.line if part is not spec else resource.line,
        words=(*(launches[0].words if whole else words), *more_words),
        image=context.word(image) if image.is_text else None,
        env=env,
        gpu=with_product(with_visible(gpu, env), pod),
        replicas=(copies := copies_of(part.get("replicas"))).number,
        replicas_line=copies.line,
        nodes=nodes,
        findings=tuple(findings),
        engine="vllm",
    )


def _main(pod: Node) -> Node:
    containers = pod.get("containers").items
    for container in containers:
        if container.get("name").text == "main":
            return container
    return containers[0] if containers else pod


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
