"""GPUs: what a file asks for against what its server uses, and what its ranks share.

Ranks of one node hand data on in /dev/shm: NCCL where GPUs cannot reach each other, and the queues
of the engines (vLLM: distributed/device_communicators/shm_broadcast.py). Their docs ask for more
than a container has by itself: vLLM "use the ipc=host flag or --shm-size", TGI `--shm-size 1g`,
SGLang `--shm-size 32g`, TensorRT-LLM `--ipc host`, LMDeploy `--ipc=host`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from kvcalc.checks.cards import devices_of
from kvcalc.checks.shares_of_cards import shares_that_pass
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import cdiv, format_bytes, format_number_of
from kvcalc.engines import engine_asked, plan
from kvcalc.engines.changes import Change
from kvcalc.manifests.found import Finding, GpuRequest, Server
from kvcalc.manifests.requests import DEFAULT_SHM
from kvcalc.sizing.sizes import sizes_asked

__all__ = ["on_requests", "on_shared_memory", "share_of"]


_BY_RANKS = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi", "vllm-ascend")
"""Engines that use as many devices as they are told; others take what they find."""
_MORE_SHM = {
    "compose": "add ipc: host, or shm_size: 16gb",
    "shell": "add --ipc=host, or --shm-size 16g",
    "command": "add --ipc=host, or --shm-size 16g",
    "systemd": "add --ipc=host, or --shm-size 16g",
    "quadlet": "add ShmSize=16g, or PodmanArgs=--ipc=host",
}
_MORE_SHM_OF_POD = "mount an emptyDir with medium: Memory at /dev/shm, of no sizeLimit or of 16Gi"
_OF_RANKS = ("_parallel_size", "tp_size", "pp_size", "dp_size", "nnodes")
"""How the names of settings end that say how many ranks there are."""


def on_requests(target: Target) -> Iterator[Finding]:
    """Yield what is wrong between the devices asked for and the ranks of the engine."""
    server = target.server
    if server is None or target.engine not in _BY_RANKS:
        return
    gpu = server.invocation.gpu
    deployment = _deployment(target, server)
    if deployment is None:
        return
    wanted, nodes = wanted_gpus(server, deployment)
    asked, how = _asked(gpu)
    line = gpu.line or server.invocation.line
    if asked is not None and wanted > asked * nodes:
        on_each = f" on each of {nodes} nodes" if nodes > 1 else ""
        yield Finding(
            "too-few-gpus",
            "error",
            f"{_layout(deployment)} needs {format_number_of(cdiv(wanted, nodes), 'GPU')}{on_each},"
            f" {how} gives {asked}",
            _or(f"ask for {cdiv(wanted, nodes)}", fewer(target, asked * nodes)),
            line,
            amount=wanted - asked * nodes,
        )
    elif asked is not None and asked and wanted < asked * nodes:
        idle = asked * nodes - wanted
        yield Finding(
            "idle-gpus",
            "warning",
            f"{format_number_of(idle, 'GPU')} of {asked * nodes} stay idle: {_layout(deployment)}"
            f" uses {wanted}",
            _or(*more(target, asked * nodes), f"ask for {cdiv(wanted, nodes)}"),
            line,
            amount=idle,
        )
    yield from _divided(target, gpu, line)


def on_shared_memory(target: Target) -> Iterator[Finding]:
    """Yield that the ranks of a container have no more of /dev/shm than it has by itself."""
    server = target.server
    if server is None or target.engine not in _BY_RANKS or server.invocation.shm_bytes is None:
        return
    size = server.invocation.shm_bytes
    deployment = _deployment(target, server)
    if deployment is None or size > DEFAULT_SHM:
        return
    wanted, nodes = wanted_gpus(server, deployment)
    ranks = cdiv(wanted, nodes)
    if ranks < 2:  # noqa: PLR2004 - one hands on nothing
        return
    carrier = server.invocation.carrier
    yield Finding(
        "small-shared-memory",
        "warning",
        f"{format_number_of(ranks, 'rank')} share data in /dev/shm, of which the container has"
        f" {format_bytes(size)}: NCCL and the engine's queues may not start, or die under load",
        _MORE_SHM.get(carrier, _MORE_SHM_OF_POD),
        server.invocation.line,
    )


def _deployment(target: Target, server: Server) -> Deployment | None:
    """Return what says how many ranks there are; None where nothing does."""
    if not _ranks_told(server, str(target.engine)):
        return None
    if target.question is not None:
        return target.question.deployment
    try:
        return _sizes_only(server, str(target.engine))
    except KvcalcError:
        return None


def _ranks_told(server: Server, engine: str) -> bool:
    """Whether the file says how many ranks there are: no variable does, nor the cards themselves.

    TGI without num-shard takes what it sees.
    """
    ranks = [s for s in server.settings if s.name.endswith(_OF_RANKS)]
    return all(s.value is not None for s in ranks) and (
        bool(ranks) or not engine_asked(engine).takes_all_gpus
    )


def _sizes_only(server: Server, engine: str) -> Deployment:
    """Return a deployment with the sizes alone that a command gives: it has no model, perhaps."""
    sizes = {
        s.name: s.value
        for s in server.settings
        if s.kind == "field" and s.name.endswith("_parallel_size") and isinstance(s.value, int)
    }
    args = {
        s.name: s.value
        for s in server.settings
        if s.kind == "arg" and ("dp" in s.name or "tp" in s.name or "pp" in s.name)
    }
    return Deployment(engine=engine, engine_args=args, **sizes)  # type: ignore[arg-type]  # ints


def _asked(gpu: GpuRequest) -> tuple[int | None, str]:
    """Return the devices that one copy is given on a node, and by what; None: nobody says."""
    if gpu.visible is not None:
        return len(gpu.visible), _visible(gpu.visible)
    if gpu.devices is not None:
        return gpu.devices, gpu.resource or "the file"
    if gpu.product is not None and gpu.resource is None:
        counted = devices_of(gpu.product.text)
        if counted is not None:
            return counted, gpu.product.shown
    return None, ""


def _layout(deployment: Deployment) -> str:
    sizes = sizes_asked(deployment)
    parts = [f"tensor parallel {sizes.tp}"]
    if sizes.pp > 1:
        parts.append(f"{sizes.pp} pipeline stages")
    if sizes.replicas > 1:
        parts.append(f"{sizes.replicas} replicas")
    return " x ".join(parts)


def _visible(devices: tuple[str, ...]) -> str:
    """Return how a list of devices is told: by their numbers; another text may be anything."""
    if not devices:
        return "the list of visible devices (none)"
    if all(device.isascii() and device.isdigit() for device in devices):
        return f"the list of visible devices ({', '.join(devices)})"
    return "the list of visible devices"


def _or(*cures: str) -> str:
    """Join cures: `a, b, or c`."""
    *others, last = [cure for cure in cures if cure]
    return f"{', '.join(others)}, or {last}" if others else last


def share_of(target: Target) -> float | None:
    """Return the share of the card that a vLLM server takes; None where bytes are given."""
    given = _sizes_given(target)
    if given is None or given["kv_cache_memory_bytes"] is not None:
        return None
    share = given["gpu_memory_utilization"]
    if share is not None:
        return float(share)
    engine = engine_asked(target.engine)
    try:
        return engine.default_share(target.engine_version)
    except KvcalcError:
        return engine.default_share(None)


def _sizes_given(target: Target) -> dict[str, Any] | None:
    """Return what sizes a server's part of the card; None where a variable leaves it open.

    A server whose model is not known takes its share all the same.
    """
    names = ("kv_cache_memory_bytes", "gpu_memory_utilization")
    if target.question is not None:
        return {name: getattr(target.question.deployment, name) for name in names}
    read = {s.name: s.value for s in target.server.settings} if target.server is not None else {}
    if any(name in read and read[name] is None for name in names):
        return None
    return {name: read.get(name) for name in names}


def _divided(target: Target, gpu: GpuRequest, line: int) -> Iterator[Finding]:
    """Yield what is wrong where a device is divided among servers that each take a share of it."""
    share = share_of(target) if engine_asked(target.engine).divides_gpu else None
    if share is None:
        return
    if gpu.fraction is not None:
        try:
            part = Fraction(gpu.fraction)
        except (ValueError, ZeroDivisionError):
            return
        if not 0 < part < 1:
            return
        servers = int(1 / part)
        if servers * Fraction(str(share)) > 1:
            yield Finding(
                "shares-over-card",
                "error",
                f"{servers} servers with {gpu.fraction} of a device each may share a card, and each"
                f" takes {share:g} of the whole card: {servers * share:g} in all",
                shares_that_pass([target] * servers, [share] * servers),
                line,
                amount=servers * share,
            )
    elif gpu.shared:
        yield Finding(
            "shares-over-card",
            "warning",
            f"others share the card, whose memory is not divided, and this server takes {share:g}"
            " of all of it",
            f"for two servers: {shares_that_pass([target] * 2, [max(share, 0.5)] * 2)}",
            line,
            amount=share,
        )


# How the ranks of an engine lie on so many GPUs: layouts that use them, each tried by a plan.

_FIELDS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_MOST_TRIED = 12


class _Layout(NamedTuple):
    """Sizes that differ from those of a deployment."""

    changes: dict[str, int]
    gpus: int


def wanted_gpus(server: Server, deployment: Deployment) -> tuple[int, int]:
    """Return the GPUs that the ranks of all nodes need, and the number of nodes."""
    other = {s.name: s.value for s in server.settings}
    sizes = sizes_asked(deployment)
    local = other.get("data_parallel_size_local")
    if isinstance(local, int) and local > 0:  # this server's part of the replicas
        return sizes.tp * sizes.pp * local, 1
    nodes = server.invocation.nodes
    given = other.get("nnodes")
    if isinstance(given, int) and given > nodes:
        nodes = given
    return sizes.num_gpus, nodes


def fewer(target: Target, gpus: int) -> str:
    """Return how to set a server for fewer GPUs than it uses; "" where nothing that was tried runs.

    As few sizes as can be are changed, and as many of the GPUs are used.
    """
    found = sorted(_smaller(target, gpus), key=_cost)
    for layout in found[:_MOST_TRIED]:
        words = _words(target, layout)
        if words and _runs(target, layout):
            return f"set {words}"
    return ""


def _cost(layout: _Layout) -> tuple[int, bool, int]:
    """Order layouts: few changes, replicas before what splits a model, many GPUs."""
    return len(layout.changes), "data_parallel_size" not in layout.changes, -layout.gpus


def more(target: Target, gpus: int) -> list[str]:
    """Return how to set a server for all of more GPUs than it uses: longer sequences, or more."""
    question = target.question
    if question is None or target.server is None:
        return []
    used, _ = wanted_gpus(target.server, question.deployment)
    if not used or gpus % used:
        return []
    found = []
    for field, what in (
        ("tensor_parallel_size", "for longer sequences"),
        ("data_parallel_size", "for more of them"),
    ):
        now = getattr(question.deployment, field)
        layout = _Layout({field: now * (gpus // used)}, gpus)
        words = _words(target, layout)
        if words and _runs(target, layout):
            found.append(f"{words} {what}")
    if len(found) == 1:
        found = [found[0].replace("for more of them", "for more sequences")]
    return found


def _smaller(target: Target, gpus: int) -> Iterator[_Layout]:
    question = target.question
    if question is None or target.server is None:
        return
    now = [getattr(question.deployment, field) for field in _FIELDS]
    ranges = [[n for n in range(1, most + 1) if n == most or most % n == 0] for most in now]
    for sizes in product(*ranges):
        changes = {
            field: size for field, size, was in zip(_FIELDS, sizes, now, strict=True) if size != was
        }
        if not changes:
            continue
        deployment = _changed(target, changes)
        if deployment is None:
            continue
        wanted, _ = wanted_gpus(target.server, deployment)
        if wanted <= gpus:
            yield _Layout(changes, wanted)


def _changed(target: Target, changes: dict[str, int]) -> Deployment | None:
    assert target.question is not None  # noqa: S101 - its callers have looked
    try:
        return Change("", dict(changes)).applied(target.question).deployment
    except KvcalcError:
        return None


def _words(target: Target, layout: _Layout) -> str:
    words = [said(target, field, size) for field, size in layout.changes.items()]
    return "" if None in words else " ".join(str(word) for word in words)


def _runs(target: Target, layout: _Layout) -> bool:
    """Whether the engine takes a layout on so many GPUs, and what is asked fits as far as known."""
    question = target.question
    assert question is not None  # noqa: S101 - its callers have looked
    deployment = _changed(target, layout.changes)
    if deployment is None or target.server is None:
        return False
    if wanted_gpus(target.server, deployment)[0] != layout.gpus:
        return False
    try:
        if target.no_card is not None or not engine_asked(deployment.engine).cache_in_bytes:
            return plan(question.model, deployment) is not None
        return Sized(question._replace(deployment=deployment)).fits
    except KvcalcError:
        return False
