"""GPUs: what a file asks for against what its server uses, and cards that several servers share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from kvcalc.checks.cards import devices_of
from kvcalc.checks.targets import Target
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import cdiv, format_number_of
from kvcalc.manifests.found import Finding, GpuRequest, Server
from kvcalc.sizing.commands import spelled
from kvcalc.sizing.sizes import sizes_of

__all__ = ["on_requests", "on_shared_cards", "share_of"]

_BY_RANKS = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi", "vllm-ascend")
"""Engines that use as many devices as they are told; others take what they find."""

_HOSTS = ("compose", "shell", "command", "systemd", "quadlet")
"""Carriers whose servers see the host's devices, the first of them where none is named."""

_OF_THE_CARD = ("vllm", "vllm-ascend")
_STEPS = 1000
_OF_RANKS = ("_parallel_size", "tp_size", "pp_size", "dp_size", "nnodes")
"""How the names of settings end that say how many ranks there are."""


def on_requests(target: Target) -> Iterator[Finding]:
    """Yield what is wrong between the devices asked for and the ranks of the engine."""
    server, question = target.server, target.question
    if server is None or target.engine not in _BY_RANKS:
        return
    gpu = server.invocation.gpu
    if not _ranks_told(server, str(target.engine)):
        return
    if question is not None:
        deployment = question.deployment
    else:
        try:
            deployment = _sizes_only(server, str(target.engine))
        except KvcalcError:
            return
    wanted, nodes = _wanted(server, deployment)
    asked, how = _asked(gpu)
    line = gpu.line or server.invocation.line
    if asked is not None and wanted > asked * nodes:
        on_each = f" on each of {nodes} nodes" if nodes > 1 else ""
        yield Finding(
            "too-few-gpus",
            "error",
            f"{_layout(deployment)} needs {format_number_of(cdiv(wanted, nodes), 'GPU')}{on_each},"
            f" {how} gives {asked}",
            f"ask for {cdiv(wanted, nodes)}, or {_fewer(target, asked * nodes)}",
            line,
        )
    elif asked is not None and asked and wanted < asked * nodes:
        idle = asked * nodes - wanted
        yield Finding(
            "idle-gpus",
            "warning",
            f"{format_number_of(idle, 'GPU')} of {asked * nodes} stay idle: {_layout(deployment)}"
            f" uses {wanted}",
            _more(target, deployment, wanted, asked * nodes),
            line,
        )
    yield from _divided(target, gpu, line)


def _ranks_told(server: Server, engine: str) -> bool:
    """Whether the file says how many ranks there are: no variable does, nor the cards themselves.

    TGI without num-shard takes what it sees.
    """
    ranks = [s for s in server.settings if s.name.endswith(_OF_RANKS)]
    return all(s.value is not None for s in ranks) and (engine != "tgi" or bool(ranks))


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


def _wanted(server: Server, deployment: Deployment) -> tuple[int, int]:
    """Return the GPUs that the ranks of all nodes need, and the number of nodes."""
    other = {s.name: s.value for s in server.settings}
    sizes = sizes_of(deployment)
    local = other.get("data_parallel_size_local")
    if isinstance(local, int) and local > 0:  # this server's part of the replicas
        return sizes.tp * sizes.pp * local, 1
    nodes = server.invocation.nodes
    given = other.get("nnodes")
    if isinstance(given, int) and given > nodes:
        nodes = given
    return sizes.num_gpus, nodes


def _asked(gpu: GpuRequest) -> tuple[int | None, str]:
    """Return the devices that one copy is given on a node, and by what; None: nobody says."""
    if gpu.visible is not None:
        return len(gpu.visible), f"the list of visible devices ({', '.join(gpu.visible) or 'none'})"
    if gpu.devices is not None:
        return gpu.devices, gpu.resource or "the file"
    if gpu.product is not None and gpu.resource is None:
        counted = devices_of(gpu.product.text)
        if counted is not None:
            return counted, gpu.product.shown
    return None, ""


def _layout(deployment: Deployment) -> str:
    sizes = sizes_of(deployment)
    parts = [f"tensor parallel {sizes.tp}"]
    if sizes.pp > 1:
        parts.append(f"{sizes.pp} pipeline stages")
    if sizes.replicas > 1:
        parts.append(f"{sizes.replicas} replicas")
    return " x ".join(parts)


def _flag(target: Target, field: str, value: int) -> str:
    told = spelled(str(target.engine), field, value) if target.flags else None
    return told or f"{field} {value}"


def _fewer(target: Target, asked: int) -> str:
    return f"set {_flag(target, 'tensor_parallel_size', max(1, asked))}"


def _more(target: Target, deployment: Deployment, wanted: int, asked: int) -> str:
    sizes = sizes_of(deployment)
    if asked % wanted:
        return f"ask for {wanted}"
    factor = asked // wanted
    tp = _flag(target, "tensor_parallel_size", sizes.tp * factor)
    dp = _flag(target, "data_parallel_size", sizes.replicas * factor)
    return f"{tp} for longer sequences, {dp} for more of them, or ask for {wanted}"


def share_of(target: Target) -> float | None:
    """Return the share of the card that a vLLM server takes; None where bytes are given."""
    from kvcalc.engines.vllm.rules import rules_of  # only shared cards ask for it
    from kvcalc.engines.vllm.version import release

    question = target.question
    if question is None or question.deployment.kv_cache_memory_bytes is not None:
        return None
    share = question.deployment.gpu_memory_utilization
    if share is not None:
        return share
    version = target.engine_version if target.engine == "vllm" else None
    try:
        return rules_of(release(version)).gpu_memory_utilization
    except KvcalcError:
        return rules_of(release(None)).gpu_memory_utilization


def _divided(target: Target, gpu: GpuRequest, line: int) -> Iterator[Finding]:
    """Yield what is wrong where a device is divided among servers that each take a share of it."""
    share = share_of(target) if target.engine in _OF_THE_CARD else None
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
            most = int(_STEPS / servers) / _STEPS
            yield Finding(
                "shares-over-card",
                "error",
                f"{servers} servers with {gpu.fraction} of a device each may share a card, and each"
                f" takes {share:g} of the whole card: {servers * share:g} in all",
                f"at most {_share(target, most)}",
                line,
            )
    elif gpu.shared:
        yield Finding(
            "shares-over-card",
            "warning",
            f"others share the card, whose memory is not divided, and this server takes {share:g}"
            " of all of it",
            f"give each of two servers at most {_share(target, 0.5)}",
            line,
        )


def _share(target: Target, value: float) -> str:
    told = spelled(str(target.engine), "gpu_memory_utilization", value) if target.flags else None
    return told or f"gpu_memory_utilization {value:g}"


def on_shared_cards(targets: Sequence[Target]) -> Iterator[tuple[Target, Finding]]:
    """Yield findings on servers of one file that run on the same device of the same machine."""
    by_device: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        for device in _devices(target):
            by_device.setdefault((target.file, device), []).append(target)
    told: set[tuple[str, ...]] = set()
    for (_, device), sharing in by_device.items():
        names = tuple(t.name for t in sharing)
        if len(sharing) < 2 or names in told:  # noqa: PLR2004 - one alone shares nothing
            continue
        told.add(names)
        yield from _sharing(device, sharing)


def _devices(target: Target) -> Iterable[str]:
    server = target.server
    if server is None or target.engine is None:
        return ()
    gpu = server.invocation.gpu
    if server.invocation.carrier not in _HOSTS:
        return ()  # devices are counted anew in each pod
    if gpu.visible is not None:
        return gpu.visible
    if gpu.devices is None and not gpu.every:
        return ()
    if gpu.resource is not None and "/" in gpu.resource:
        return ()  # a scheduler gives each its own
    ranks = 1 if target.question is None else sizes_of(target.question.deployment).num_gpus
    return [str(n) for n in range(ranks)]


def _sharing(device: str, sharing: list[Target]) -> Iterator[tuple[Target, Finding]]:
    last = sharing[-1]
    line = last.server.invocation.gpu.line if last.server is not None else 0
    others = ", ".join(t.name for t in sharing[:-1])
    shares = [share_of(t) for t in sharing if t.engine in _OF_THE_CARD]
    known = [share for share in shares if share is not None]
    if len(shares) == len(sharing) == len(known):
        total = sum(Fraction(str(share)) for share in known)
        if total > 1:
            most = int(_STEPS / len(known)) / _STEPS
            level = "error" if last.server and last.server.invocation.carrier == "compose" else None
            yield (
                last,
                Finding(
                    "shares-over-card",
                    level or "warning",  # type: ignore[arg-type]  # one of its words
                    f"on device {device} beside {others}: shares of"
                    f" {' + '.join(f'{s:g}' for s in known)} are {float(total):g} of the card",
                    f"at most {_share(last, most)} each, or another device; start them one after"
                    " another",
                    line or last.line,
                ),
            )
        return
    yield (
        last,
        Finding(
            "shared-card",
            "warning",
            f"on device {device} beside {others}: what each gets hangs on which starts first, as"
            " its share is one of what is free then",
            "give each a size of its own, or another device",
            line or last.line,
        ),
    )
