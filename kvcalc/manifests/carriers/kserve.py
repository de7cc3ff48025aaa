"""KServe: InferenceService, ServingRuntime, LLMInferenceService.

A model of an InferenceService runs in the container of its runtime: one of the same file, or the
Hugging Face server that KServe brings. An LLMInferenceService starts vLLM with flags from its
`parallelism` and its container's args; VLLM_ADDITIONAL_ARGS is read with the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvcalc.manifests.carriers.containers import (
    environment,
    image_of_node,
    mistyped,
    of_pod,
    prepared,
)
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
_NAMES_MODEL = ("--model", "--model-id", "--model-dir")
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
    model, workers = predictor.get("model"), predictor.get("workerSpec")
    name, line = name_of(resource), resource.line
    replicas = copies_of(predictor.get("minReplicas"), least=1)
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
    kind, runtime = model.get("modelFormat", "name").text.lower(), model.get("runtime").text
    if not any(each in kind or each in runtime for each in _LLM_FORMATS):
        return []
    env = environment(model, context)
    gpu, findings = of_resources(model.get("resources"))
    findings += mistyped(model)
    given = context.words(model.get("args"))
    words = [kubelet(unexpanded(word, findings, "$({})"), env) for word in given]
    container = _runtime_container(runtime, context)
    itself = container is not None and not ("command" in container or "args" in container)
    if container is None:
        command = [Word(text, model.line) for text in ("python", "-m", "huggingfaceserver")]
        words = [*command, *words]
    elif not itself:
        words = [*context.words(container.get("command")), *context.words(container.get("args")),
                 *words]  # fmt: skip
        env = {**environment(container, context), **env}
    uri = model.get("storageUri" if model.get("storageUri").is_text else "storage")
    uri = uri if uri.is_text else uri.get("path")
    named = any(w.text.replace("_", "-").split("=")[0] in _NAMES_MODEL for w in words)
    if uri.is_text and not named:
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
            under_entry_point=itself,
        )
    ]


def _runtime_container(runtime: str, context: Context) -> Node | None:
    """Return the container of a runtime that stands in the same file, or beside it."""
    for kind in ("ServingRuntime", "ClusterServingRuntime"):
        found = context.find(kind, runtime)
        if found is not None:
            return next(iter(found.get("spec", "containers").items), None)
    return None


def _model(uri: Node, context: Context) -> Word:
    return context.word(uri, uri.raw.removeprefix("hf://"))


def of_runtime(resource: Node, context: Context) -> list[Invocation]:
    """Return the server of a ServingRuntime, where no service of the same file uses it."""
    for each in context.documents:
        used = each.get("spec", "predictor", "model", "runtime").text
        if used and used == name_of(resource):
            return []
    spec, worker = resource.get("spec"), resource.get("spec", "workerSpec")
    extra = {
        f"{part.upper()}_PARALLEL_SIZE": context.word(worker.get(f"{part}ParallelSize"))
        for part in ("tensor", "pipeline")
        if worker.get(f"{part}ParallelSize").is_text
    }
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
    spec, name = resource.get("spec"), name_of(resource)
    found = []
    if spec.get("model").is_mapping or spec.get("template").is_mapping:
        found.append(_llm(spec, name, resource, context))
    if spec.get("prefill").is_mapping:
        found.append(_llm(spec.get("prefill"), f"{name}/prefill", resource, context))
    return found


def _llm(part: Node, name: str, resource: Node, context: Context) -> Invocation:
    pod, parallelism = part.get("template"), part.get("parallelism")
    containers = pod.get("containers").items
    named = [each for each in containers if each.get("name").text == "main"]
    container = next(iter((*named, *containers, pod)))
    env = environment(container, context)
    launches, given = prepared(container, context, env, likely=False)
    if launches and launches[0].words and "command" in container:
        words = list(launches[0].words)
    else:
        words = [*_served(parallelism, resource, container.line, context)]
        words += [word for word in given if word.text not in ("vllm", "serve")]
    if (more := env.get("VLLM_ADDITIONAL_ARGS")) is not None:
        words += split_words(more.text, Lines(more.line, 0), context.marks)
    gpu, findings = of_resources(container.get("resources"))
    gpu = _claimed(resource) if gpu.resource is None else gpu
    nodes, data, local = 1, parallelism.get("data").number, parallelism.get("dataLocal").number
    if part.get("worker").is_mapping:
        stages = parallelism.get("pipeline").number or 1
        nodes = max(1, data // local) if data and local else stages
    copies = copies_of(part.get("replicas"))
    return Invocation(
        name=name,
        carrier="LLMInferenceService",
        file=context.file,
        line=part.line if "/" in name else resource.line,
        words=tuple(words),
        image=image_of_node(container, context),
        env=env,
        gpu=with_product(with_visible(gpu, env), pod),
        replicas=copies.number,
        replicas_line=copies.line,
        nodes=nodes,
        findings=tuple(findings),
        engine="vllm",
    )


def _served(parallelism: Node, resource: Node, line: int, context: Context) -> Iterator[Word]:
    """Yield the command that KServe makes of a model and of its parallelism."""
    yield from (Word("vllm", line), Word("serve", line))
    model = resource.get("spec", "model", "uri")
    if model.is_text:
        yield _model(model, context)
    for key, flag in _PARALLELISM:
        if (node := parallelism.get(key)).is_text:
            yield from (Word(flag, node.line), context.word(node))
    if parallelism.get("expert").is_true:
        yield Word("--enable-expert-parallel", parallelism.get("expert").line)


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
