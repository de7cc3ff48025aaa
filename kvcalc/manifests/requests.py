"""What a container asks for: devices, parts of them, the product, and which are visible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.deployment import MAX_BYTES
from kvcalc.manifests.documents import Node
from kvcalc.manifests.found import Finding, GpuRequest, MemoryLimit, Word
from kvcalc.manifests.gpu_tables import MIG_MIB

__all__ = [
    "DEFAULT_SHM",
    "PRODUCT_KEYS",
    "SHM",
    "Copies",
    "copies_of",
    "memory_limit",
    "of_count",
    "of_device",
    "of_gpus_option",
    "of_resources",
    "product_of",
    "shm_of_pod",
    "shm_size",
    "with_product",
    "with_visible",
    "word_of",
]

_DEVICES = (
    *("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/i915"),
    *("gpu.intel.com/xe", "habana.ai/gaudi", "huawei.com/Ascend910", "google.com/tpu"),
    *("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore"),
    *("squat.ai/dri", "cambricon.com/mlu", "metax-tech.com/gpu", "rngd.furiosa.ai"),
)
"""Resources that count devices (Kubernetes device plug-ins)."""

_DEVICE = re.compile(r"(?:huawei\.com/Ascend\w+|.+/(?:gpu|gpus|npu|tpu|gcu|dri|i915|xe|vgpu))")
_MIG = re.compile(r"nvidia\.com/mig-(?:[a-z]+-)?(\d+g\.\d+gb)(?:\..*)?")
_MIB = 2**20
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([bkmgt]?)(i?)b?", re.IGNORECASE)

SHM = "/dev/shm"  # noqa: S108 - where a container has its shared memory
DEFAULT_SHM = 64 * _MIB
"""Of a container that nobody gives more: Docker, Podman and the runtimes of Kubernetes alike."""

PRODUCT_KEYS = (
    *("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "accelerator"),
    *("amd.com/gpu.product-name", "gpu.nvidia.com/class", "gpu.nvidia.com/model"),
    *("karpenter.k8s.aws/instance-gpu-name", "cloud.google.com/gke-tpu-accelerator"),
    *("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    *("karpenter.k8s.aws/instance-type", "node.cloudprovider.kubernetes.io/instance-type"),
)
"""Labels that name a product, the surest first."""

_NO_PRODUCT = re.compile(r"(?i)true|false|present||(nvidia|amd|intel)[-_.]?(gpu|xpu)?|gpu|xpu")
"""Values of labels that name no card: a yes, a maker, a kind of device."""

_PRODUCT = re.compile(
    r"(?i).*(gpu[-_.]?(product|name|type|model|class|card)|accelerator|instance-?type|"
    r"gpu-name|vram-class)$"
)


class Copies(NamedTuple):
    """How many copies a file asks for, and the line that says so; 0 where none does."""

    number: int | None = None
    line: int = 0


def copies_of(*nodes: Node, least: int = 0) -> Copies:
    """Return the copies that the first of several nodes with a number says.

    Args:
        nodes: the surest first.
        least: fewer are no number of copies (`minReplicas: 0`).
    """
    for node in nodes:
        if node.number is not None and node.number >= least:
            return Copies(node.number, node.line)
    return Copies()


def word_of(node: Node) -> Word:
    """Return a scalar as a word, its marks still in it."""
    return Word(node.raw, node.line, file=node.file.name)


def of_resources(resources: Node, *, bare: bool = False) -> tuple[GpuRequest, list[Finding]]:
    """Return what `resources: {limits, requests}` asks for.

    Args:
        resources: of a container.
        bare: `gpu` without a domain is a resource here (Dynamo); in a pod nothing gives it.
    """
    findings: list[Finding] = []
    limits, requests = resources.get("limits"), resources.get("requests")
    found: GpuRequest | None = None
    for holder in (limits, requests):
        for key, node in holder.fields.items():
            if found is None:
                found = _resource(key.strip(), node, findings)
            if key == "gpu" and not bare:
                findings.append(_bare(node))
    if found is None:
        return GpuRequest(), _once(findings)
    name = found.resource or ""
    limit, request = limits.get(name), requests.get(name)
    if limit.is_text and request.is_text and limit.text != request.text:
        findings.append(
            Finding(
                "gpu-request-not-limit",
                "error",
                f"requests {request.text} and limits {limit.text} of {name} differ",
                f"a device is never overcommitted: give {name} in limits alone, or twice the same",
                request.line,
                request.file.name,
            )
        )
    elif request.is_text and not limit.is_text and "/" in name:
        findings.append(
            Finding(
                "gpu-request-without-limit",
                "error",
                f"{name} stands under requests, not under limits",
                f"give {name} under limits; the request follows it",
                request.line,
                request.file.name,
            )
        )
    return _hami(found, limits), _once(findings)


def _once(findings: Iterable[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _bare(node: Node) -> Finding:
    return Finding(
        "unqualified-gpu",
        "error",
        "a resource named gpu without a domain is given by nothing",
        "write nvidia.com/gpu (or amd.com/gpu)",
        node.line,
        node.file.name,
    )


def _resource(key: str, node: Node, findings: list[Finding]) -> GpuRequest | None:
    if mig := _MIG.fullmatch(key):
        mib = MIG_MIB.get(mig[1])
        memory = None if mib is None else mib * _MIB
        return of_count(node, key, findings)._replace(memory_bytes=memory)
    if key in _DEVICES or _DEVICE.fullmatch(key) or key == "gpu":
        request = of_count(node, key, findings)
        return request._replace(shared=key == "nvidia.com/gpu.shared")
    return None


def of_count(node: Node, resource: str, findings: list[Finding]) -> GpuRequest:
    """Return a request of a number of devices.

    Args:
        node: the number.
        resource: what it counts.
        findings: takes what is wrong with it.
    """
    text = node.text.strip()
    request = GpuRequest(resource=resource, line=node.line, file=node.file.name)
    if text.lower() in ("all", "-1"):
        return request._replace(every=True)
    if node.number is not None:
        return request._replace(devices=node.number)
    if re.fullmatch(r"[0-9]{0,6}\.[0-9]{1,6}", text):
        if float(text).is_integer():
            return request._replace(devices=int(float(text)))
        finding = Finding(
            "fractional-gpu",
            "error" if resource.endswith("/gpu") else "warning",
            f"{resource} {text} is no whole device: nvidia.com/gpu takes whole numbers",
            "ask for 1; copies share a card only through time-slicing, MIG or HAMi",
            node.line,
            node.file.name,
        )
        findings.append(finding)
        return request._replace(fraction=text)
    return request


def _hami(request: GpuRequest, limits: Node) -> GpuRequest:
    """Add HAMi's memory of each card: `gpumem` in MiB, `gpumem-percentage`."""
    memory, percent = limits.get("nvidia.com/gpumem"), limits.get("nvidia.com/gpumem-percentage")
    if memory.number:
        request = request._replace(memory_bytes=memory.number * _MIB)
    if percent.number and percent.number <= 100:  # noqa: PLR2004
        request = request._replace(memory_percent=percent.number)
    return request


def of_gpus_option(word: Word) -> GpuRequest:
    """Return what docker's `--gpus all`, `--gpus 2`, `--gpus '"device=0,1"'` asks for."""
    text = word.text.strip("\"' ")
    request = GpuRequest(resource="gpus", line=word.line)
    if text.isdigit() and len(text) < 6:  # noqa: PLR2004
        return request._replace(devices=int(text))
    found = re.search(r"device=([\w:.,-]+)", text)
    if found:
        visible = tuple(part for part in found[1].split(",") if part)
        return request._replace(devices=len(visible), visible=visible)
    if found := re.search(r"count=(\d{1,5})", text):
        return request._replace(devices=int(found[1]))
    return request._replace(every="all" in text.split(","))


def of_device(value: Word) -> GpuRequest:
    """Return what `--device` asks for: CDI names, or AMD's device files."""
    text = value.text
    if "nvidia.com/gpu=" in text:
        which = text.split("=", 1)[1]
        if which == "all":
            return GpuRequest(every=True, resource="nvidia.com/gpu", line=value.line)
        return GpuRequest(devices=1, resource="nvidia.com/gpu", visible=(which,), line=value.line)
    if text.startswith(("/dev/kfd", "/dev/dri")):
        return GpuRequest(every=True, resource=text.split(":", 1)[0], line=value.line)
    return GpuRequest()


def with_visible(request: GpuRequest, env: Mapping[str, Word]) -> GpuRequest:
    """Add the devices that CUDA_VISIBLE_DEVICES and its like name."""
    for name in (
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        *("ASCEND_RT_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"),
    ):
        word = env.get(name)
        if word is None or word.unresolved or "\ue000" in word.text:
            continue
        text = word.text.strip("\"' ")
        if text in ("all", "void", "none") or (not text and name.startswith(("NV", "HAB"))):
            if text == "all" and request.resource is None:
                request = request._replace(every=True, resource=name, line=word.line)
            continue
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not all(re.fullmatch(r"-?\d{1,3}|(GPU|MIG)-[\w-]{1,60}", part) for part in parts):
            continue
        visible = () if not parts or parts[0] == "-1" else parts
        line = request.line or word.line
        resource = request.resource or name
        return request._replace(visible=visible, resource=resource, line=line)
    return request


def product_of(pod: Node) -> tuple[Word | None, str | None, tuple[Word, ...]]:
    """Return the product that a pod's node selector, affinity or tolerations name.

    Returns:
        The product, the label that named it, and further ones that may be given instead.
    """
    found = _labels(pod)
    known = [key for key in PRODUCT_KEYS if key in found]
    known += [key for key in found if key not in PRODUCT_KEYS and _PRODUCT.match(key)]
    for key in known:
        words = [word for word in found[key] if not _NO_PRODUCT.fullmatch(word.text)]
        if words:
            return words[0], key, tuple(words[1:])
    return None, None, ()


def _labels(pod: Node) -> dict[str, list[Word]]:
    """Return the labels that a pod's node must have, and the values that each may have."""
    found: dict[str, list[Word]] = {}
    for key, node in pod.get("nodeSelector").fields.items():
        if node.is_text:
            found.setdefault(key, []).append(word_of(node))
    affinity = pod.get("affinity", "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = list(required.get("nodeSelectorTerms").items)
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution")
    terms += [p.get("preference") for p in preferred.items]
    for term in (*terms, *pod.get("nodeSelectorTerms").items):
        for rule in term.get("matchExpressions").items:
            if rule.get("operator").text in ("In", ""):
                words = [word_of(value) for value in rule.get("values").items if value.is_text]
                found.setdefault(rule.get("key").text, []).extend(words)
    kinds = pod.get("acceleratorTypes")  # llm-d's chart makes an affinity of them
    for value in kinds.get("labelValues").items:
        found.setdefault(kinds.get("labelKey").text, []).append(word_of(value))
    for each in pod.get("tolerations").items:
        if each.get("value").is_text:
            found.setdefault(each.get("key").text, []).append(word_of(each.get("value")))
    return found


def with_product(request: GpuRequest, pod: Node) -> GpuRequest:
    """Add the product that a pod asks for."""
    product, key, choices = product_of(pod)
    if product is None:
        return request
    if not request.line:
        request = request._replace(line=product.line, file=product.file)
    return request._replace(product=product, product_key=key, choices=choices)


def shm_size(text: str) -> int | None:
    """Return a size as Docker, Compose and Kubernetes take it; None where it is none.

    >>> shm_size("16gb"), shm_size("8Gi"), shm_size("67108864")
    (17179869184, 8589934592, 67108864)
    """
    found = _SIZE.fullmatch(text.strip().strip("\"'"))
    if found is None:
        return None
    return int(float(found[1]) * 1024 ** "bkmgt".index(found[2].lower() or "b"))


def memory_limit(text: str, line: int, *, decimal: bool = False) -> MemoryLimit | None:
    """Return a limit of host memory; None where the text is none, or no limit.

    Args:
        text: as Docker, Compose and systemd take it, or Kubernetes.
        line: where it stands.
        decimal: letters alone are powers of ten (Kubernetes: 16G, against 16Gi).

    >>> memory_limit("16Gi", 7).bytes, memory_limit("16G", 7, decimal=True).bytes
    (17179869184, 16000000000)
    """
    found = _SIZE.fullmatch(text.strip().strip("\"'"))
    if found is None:
        return None
    number, unit, binary = found.groups()
    base = 1000 if decimal and not binary else 1024
    power = "bkmgt".index((unit or "b").lower())
    size = int(Fraction(number) * base**power)
    return MemoryLimit(size, line) if 0 < size <= MAX_BYTES else None


def shm_of_pod(pod: Node, container: Node) -> int | None:
    """Return the size of a container's own /dev/shm, or of a small volume that is mounted there.

    None where the host gives it, or a volume whose size nobody limits.
    """
    mounts = [each for each in container.get("volumeMounts").items if "mountPath" in each]
    if pod.get("hostIPC").is_true or any(not each.get("mountPath").text for each in mounts):
        return None
    for each in mounts:
        if each.get("mountPath").text.rstrip("/") == SHM:
            volumes = pod.get("volumes").items
            named = (one for one in volumes if one.get("name").text == each.get("name").text)
            limit = next(named, each).get("emptyDir", "sizeLimit")
            found = memory_limit(limit.text, limit.line, decimal=True) if limit.is_text else None
            return None if found is None else found.bytes
    return DEFAULT_SHM
