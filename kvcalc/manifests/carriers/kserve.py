"""KServe: InferenceService and ServingRuntime; LLMInferenceService is a row of `vendors.toml`.

A model of an InferenceService runs in the container of its runtime: one of the same file, or the
Hugging Face server that KServe brings.
"""

from __future__ import annotations

from kvcalc.manifests.carriers.containers import environment, mistyped, of_pod
from kvcalc.manifests.carriers.context import Context
from kvcalc.manifests.carriers.kubernetes import name_of
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Invocation, Word
from kvcalc.manifests.requests import copies_of, of_resources, with_product, with_visible
from kvcalc.manifests.substitution import kubelet, unexpanded

__all__ = ["of_inference_service", "of_runtime"]

_LLM_FORMATS = ("huggingface", "vllm", "sglang", "llama", "tgi", "trtllm")
_NAMES_MODEL = ("--model", "--model-id", "--model-dir")


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
        words += [Word("--model", uri.line), context.word(uri, uri.raw.removeprefix("hf://"))]
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
