"""The public functions, in the form that a program wants them; `kvcalc` exports them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from kvcalc import sizing as _sizing
from kvcalc.core import compare as _compare
from kvcalc.core import fragmentation as _fragmentation
from kvcalc.core.answers import CapacityAnswer
from kvcalc.core.capacity import Capacity
from kvcalc.core.check_report import CheckReport
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, KvcalcError, UsageError
from kvcalc.core.lengths import Lengths, Over
from kvcalc.core.logs import LogAnswer
from kvcalc.core.model import ModelSpec
from kvcalc.core.oom_values import OutOfMemory
from kvcalc.core.per_token import per_token
from kvcalc.core.plan import CachePlan
from kvcalc.core.probed import ProbeResult
from kvcalc.core.results import Comparison, Fragmentation, PerToken
from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.core.waste import Wastes
from kvcalc.engines import plan as _plan
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import load_gpu
from kvcalc.workload.traces import Trace, read_trace

__all__ = [
    "CachePlan",
    "Capacity",
    "CapacityAnswer",
    "CheckReport",
    "Comparison",
    "Deployment",
    "Fragmentation",
    "GpuSpec",
    "KvcalcError",
    "Lengths",
    "LogAnswer",
    "ModelSpec",
    "OutOfMemory",
    "PerToken",
    "ProbeResult",
    "ServerMetrics",
    "Trace",
    "Wastes",
    "capacity",
    "check",
    "compare",
    "fragmentation",
    "load_gpu",
    "load_model",
    "per_token",
    "plan",
    "probe",
    "read_log",
    "read_metrics",
    "read_oom",
    "read_trace",
    "shape_model",
]

_EXAMPLE_MODEL = "qwen3.5-27b-attention"
_EXAMPLE_MAX = 8192

_MODEL = 'a model: kvcalc.load_model("llama-3.1-8b") or kvcalc.shape_model(32, 8, 128)'
_DEPLOYMENT = "a deployment: kvcalc.Deployment(max_model_len=8192)"
_PLAN = "a plan: kvcalc.plan(model, deployment)"

_T = TypeVar("_T")


def plan(model: ModelSpec, deployment: Deployment | None = None) -> CachePlan:
    """Return what an engine allocates and holds for a model.

    Args:
        model: as `load_model` or `shape_model` returns it.
        deployment: how it is served; engine `none` on one GPU when left out. A GPU may be given
            by name.

    Raises:
        InvalidValueError: a model's name instead of the model, or the like.
        UnknownNameError: no such engine, dtype or GPU.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    model = _given(model, ModelSpec, "model", _MODEL)
    return _plan(model, _resolved(Deployment() if deployment is None else deployment))


def _resolved(deployment: Deployment) -> Deployment:
    """Return a deployment with the names in it looked up."""
    deployment = _given(deployment, Deployment, "deployment", _DEPLOYMENT)
    if isinstance(deployment.gpu, str):
        deployment = msgspec.structs.replace(deployment, gpu=load_gpu(deployment.gpu))
    if isinstance(deployment.draft_model, str):
        draft = load_model(deployment.draft_model)
        deployment = msgspec.structs.replace(deployment, draft_model=draft)
    return deployment


def capacity(
    model: ModelSpec,
    deployment: Deployment,
    *,
    sequences: int = 1,
    at: Sequence[int] = (),
    weights_bytes: int | None = None,
    quantization: str | None = None,
    free_bytes: int | None = None,
    instances: int = 1,
    levers: bool = False,
    solve_for: Sequence[str] = (),
    layouts: bool = False,
    suggest: bool = False,
) -> CapacityAnswer:
    """Say whether a model fits on a card, how much there will be, and what would change it.

    Args:
        model: as `load_model` returns it.
        deployment: how it is served; `gpu` is the card, or `kv_cache_memory_bytes` the cache of
            each rank, with which all figures are exact.
        sequences: the goal: so many sequences of the maximum at once.
        at: further lengths to tell the concurrency of.
        weights_bytes: of the whole model, instead of what is known of it.
        quantization: what the weights are kept in, instead of the checkpoint's own.
        free_bytes: of the card before this server starts, where others hold some of it.
        instances: servers of this kind on each card.
        levers: also what each setting would buy.
        solve_for: settings to turn the question round for: `max-model-len`, `max-num-seqs`,
            `gpus`, `tp`, `gpu-memory-utilization`, `kv-memory`, `ngl`.
        layouts: also the same GPUs in other ways.
        suggest: also the engine's own command.

    Raises:
        UsageError: neither a card nor a cache is given.
        InvalidValueError: a number that is none, or that cannot be meant.
        UnknownNameError: no such engine, dtype, GPU or setting.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    from kvcalc.sizing.valid import checked, settings_to_solve

    wanted = settings_to_solve(solve_for)
    question = _sizing.Question(
        model=_given(model, ModelSpec, "model", _MODEL),
        deployment=_resolved(deployment),
        weights_bytes=weights_bytes,
        quantization=quantization,
        sequences=sequences,
        lengths=at,
        instances=instances,
        free_bytes=free_bytes,
    )
    return _sizing.answer(
        checked(question),
        with_levers=levers,
        solve_for=wanted,
        with_layouts=layouts,
        suggest=suggest,
    )


def compare(
    plan: CachePlan,
    lengths: Lengths | Iterable[int],
    *,
    workload: str = "requests",
    over: Over = "clip",
    kv_cache_bytes: int | None = None,
) -> Comparison:
    """Compare paging under a plan with contiguous reservation of plan.max_model_len tokens.

    Args:
        plan: the engine's plan.
        lengths: total tokens of each request (ints, or an array of an integer dtype), or a
            histogram of them (`read_trace(...).lengths`, `Lengths({tokens: requests})`).
        workload: what to call the requests.
        over: what happens to requests longer than the maximum: clip, exclude or keep.
        kv_cache_bytes: a cache on each rank, to say how many requests fit each way.

    Raises:
        InvalidValueError: no request is left to compare; lengths or bytes that are not whole
            numbers; no plan.
    """
    plan = _given(plan, CachePlan, "plan", _PLAN)
    histogram = lengths if isinstance(lengths, Lengths) else Lengths.of(lengths)
    return _compare.compare(
        plan, histogram, workload=workload, over=over, kv_cache_bytes=kv_cache_bytes
    )


def fragmentation(
    *,
    request_bytes: int | None = None,
    free_bytes: int | None = None,
    largest_free_bytes: int | None = None,
    holes: Sequence[int] | None = None,
    snapshot: str | os.PathLike[str] | Mapping[str, object] | Sequence[object] | None = None,
    device: int | None = None,
    device_free_bytes: int | None = None,
    plan: CachePlan | None = None,
) -> Fragmentation:
    """Say whether a request fits into free memory in one piece, in blocks, and what else would.

    Args:
        request_bytes: the allocation asked for; one sequence of the plan's maximum when left out.
        free_bytes: free memory, all holes together.
        largest_free_bytes: the largest hole.
        holes: every hole, instead of the two.
        snapshot: PyTorch's memory snapshot instead: the file, or what `torch.cuda.memory`'s
            `_snapshot()` or `memory_snapshot()` returned.
        device: which of the snapshot's devices, where it has several.
        device_free_bytes: what that device has free beside the snapshot.
        plan: whose sequences are counted; the example model's, of 8,192 tokens, when left out.

    Raises:
        UsageError: neither holes nor free and largest, or holes that contradict them; a snapshot
            of several devices, or sizes beside one.
        InvalidValueError: a size below zero, a request of nothing, largest beyond free; no plan.
        InputError: not a snapshot, or one that contradicts itself.
    """
    if plan is not None:
        plan = _given(plan, CachePlan, "plan", _PLAN)
    else:
        plan = _plan(load_model(_EXAMPLE_MODEL), Deployment(max_model_len=_EXAMPLE_MAX))
    if snapshot is not None:
        if any(value is not None for value in (free_bytes, largest_free_bytes, holes)):
            raise UsageError("a snapshot tells its holes itself", hint="give one of the two")
        return _of_snapshot(plan, snapshot, device, request_bytes, device_free_bytes)
    if device is not None or device_free_bytes is not None:
        raise UsageError("a device is one of a snapshot's", hint="give the snapshot as well")
    memory = _fragmentation.Memory(
        free_bytes=free_bytes,
        largest_free_bytes=largest_free_bytes,
        holes=None if holes is None else tuple(holes),
        request_bytes=request_bytes,
    )
    return _fragmentation.fragmentation(plan, memory)


def _of_snapshot(
    plan: CachePlan,
    snapshot: str | os.PathLike[str] | Mapping[str, object] | Sequence[object],
    device: int | None,
    request_bytes: int | None,
    device_free_bytes: int | None,
) -> Fragmentation:
    """Judge one device of a snapshot, a file's or one at hand."""
    from kvcalc.core.allocator_fit import snapshot_fragmentation
    from kvcalc.measure.snapshot import read_snapshot, snapshot_of

    if isinstance(snapshot, (str, os.PathLike)):
        read = read_snapshot(os.fspath(snapshot))
    else:
        read = snapshot_of(snapshot)
    if device is None:
        if len(read.devices) > 1:
            known = ", ".join(map(str, read.devices))
            raise UsageError(f"the snapshot's devices are {known}", hint="say which: device=0")
        (device,) = read.devices or (0,)  # an allocator that took nothing has none
    return snapshot_fragmentation(
        plan,
        read,
        device,
        request_bytes=request_bytes,
        device_free_bytes=device_free_bytes,
    )


def read_oom(text: str) -> OutOfMemory | None:
    """Say what an out-of-memory text means: fragmentation, shortage, another process, a limit.

    Args:
        text: the message of PyTorch (CUDA, HIP, NPU, XPU, MPS), vLLM, llama.cpp, XLA or
            TensorFlow, or a log that holds it; of several the first counts.

    Returns:
        the figures with their rounding, and the verdict; None where there is no such text.

    Raises:
        InvalidValueError: no text.
    """
    from kvcalc.measure.oom import read_oom as read

    return read(_given(text, str, "text", "the text itself: Path(...).read_text()"))


def read_metrics(
    page: str | os.PathLike[str],
    model: ModelSpec | None = None,
    deployment: Deployment | None = None,
    *,
    running_tokens: int | None = None,
    kv_cache_bytes: int | None = None,
    timeout: float = 5.0,
    strict: bool = False,
) -> tuple[ServerMetrics, ...]:
    """Say what a running server tells of its cache, and with a model whether that is so.

    Args:
        page: `http://HOST:PORT`, which is asked once and read-only; a saved page's file (`-` for
            stdin); or the page itself, which is a text of several lines.
        model: what the server serves, to compare its figures with those that are computed.
        deployment: how, as far as the page does not tell it.
        running_tokens: of the requests that run, to tell what of their blocks is empty.
        kv_cache_bytes: of each rank, where the page does not tell the size of its cache.
        timeout: seconds for a server's whole answer.
        strict: refuse a page with a line that is not in the format.

    Returns:
        one entry for each engine behind the page; what could not be read of it is in their notes.

    Raises:
        InputError: no page of metrics, or none of an engine that is known.
        UnavailableError: the server does not answer.
        InvalidValueError: no page, model or deployment.
        UsageError: a deployment without a model, or of another engine than the page's.
    """
    from kvcalc.measure.metrics.ask import Asked, servers

    if isinstance(page, os.PathLike):
        page = os.fspath(page)
    asked = Asked(
        model=None if model is None else _given(model, ModelSpec, "model", _MODEL),
        deployment=None if deployment is None else _resolved(deployment),
        running_tokens=running_tokens,
        kv_cache_bytes=kv_cache_bytes,
    )
    page = _given(page, str, "page", "an address, a file, or the text of a page")
    return servers(page, asked, timeout=timeout, strict=strict)


def probe(
    plan: CachePlan,
    lengths: Lengths | Iterable[int],
    *,
    device: str = "auto",
    kernel: str = "auto",
    kv_cache_bytes: int | None = None,
    limit_bytes: int | None = None,
    repetitions: int = 3,
    dry_run: bool = False,
    gpu_memory_bytes: int | None = None,
) -> ProbeResult:
    """Allocate a plan's cache on a device, run a decode step over it, and compare with the plan.

    `kvcalc.probe(plan, [200, 1200], device="cpu")` needs nothing but kvcalc; a GPU needs torch.

    Args:
        plan: whose pool.
        lengths: tokens of each request that is laid into it.
        device: auto (the first GPU), cuda, rocm, xpu, mps or cpu.
        kernel: auto, flashinfer, flash-attn, flex or sdpa.
        kv_cache_bytes: of the whole pool; what the requests need when left out.
        limit_bytes: the most that is held at once; half of what is free when left out.
        repetitions: how often it is measured.
        dry_run: no device, but PyTorch's allocation rules of one.
        gpu_memory_bytes: of the card of a dry run; 80 GiB when left out.

    Raises:
        UnavailableError: no such device or kernel here, or no room.
        InvalidValueError: no plan; requests that the pool does not hold, or more than the limit.
        UnknownNameError: no such kind of device, or kernel.
    """
    from kvcalc import __version__
    from kvcalc.measure.probe import checked_names, open_device
    from kvcalc.measure.probe.findings import found
    from kvcalc.measure.probe.procedure import ask, measure

    plan = _given(plan, CachePlan, "plan", _PLAN)
    checked_names(device, kernel)
    histogram = lengths if isinstance(lengths, Lengths) else Lengths.of(lengths)
    if type(repetitions) is not int or repetitions < 1:
        raise InvalidValueError(f"repetitions is {repetitions!r:.40}", hint="give 1 or more")
    log = measure(
        open_device(device, kernel, dry_run=dry_run, memory_bytes=gpu_memory_bytes),
        ask(plan, histogram, kv_cache_bytes),
        backend="dry-run" if dry_run else "torch",
        version=__version__,
        repetitions=repetitions,
        limit=limit_bytes,
    )
    return found(log)


def read_log(
    path: str | os.PathLike[str],
    *,
    start: int | None = None,
    model: ModelSpec | None = None,
    deployment: Deployment | None = None,
) -> LogAnswer:
    """Read a server's start-up log and hold it against kvcalc's plan of the same start.

    Args:
        path: the log, plain or gzip; `-` for stdin.
        start: which start of a log that holds several, from 1; the last when left out.
        model: instead of the one that the log names.
        deployment: settings that the log does not tell, or that are known better; those that are
            not its defaults come before the log's.

    Raises:
        InputError: the log cannot be read, or no engine is recognised in it.
        InvalidValueError: it has no such start; no model or deployment.
    """
    from kvcalc.measure.logs import Given, answered, read_start  # few programs read logs

    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    path = _given(path, str, "path", "the log's file; - for stdin")
    if model is not None:
        model = _given(model, ModelSpec, "model", _MODEL)
    settings = {} if deployment is None else _resolved(deployment).changed()
    args = settings.pop("engine_args", {})
    settings.pop("engine", None)
    given = Given(model=model, settings=settings, args=dict(args) if isinstance(args, dict) else {})
    return answered(read_start(path, given, start), given)


def check(
    *paths: str | os.PathLike[str],
    command: str | Sequence[str] = (),
    gpu: str | None = None,
    gpu_memory: int | None = None,
    engine_version: str | None = None,
    models: Mapping[str, str] | None = None,
    asserts: Mapping[str, object] | None = None,
    sequences: int | None = None,
    settings: str | os.PathLike[str] | None = None,
) -> CheckReport:
    """Check what will be deployed, as `kvcalc check` does.

    One line in a test: `kvcalc.check("deploy.yaml", gpu="h100-80gb").raise_for_failures()`.

    Args:
        paths: manifests, scripts, kvcalc.yaml, folders; kvcalc.yaml in the current folder where
            neither a path nor a command is given.
        command: a serve command, as a text or as its words.
        gpu: the card, whatever the files say.
        gpu_memory: bytes of each card, instead of the card's own.
        engine_version: whose rules, whatever the files say.
        models: served names -> a preset, a config.json or a GGUF file.
        asserts: assertions for every deployment: {"min_max_concurrency": 32}.
        sequences: the goal of `fits`: so many sequences of the maximum at once.
        settings: a kvcalc.yaml whose assertions and models hold for every path.

    Raises:
        UsageError: there is nothing to check.
        InputError: nothing could be read, or kvcalc.yaml is broken.
        UnknownNameError: no such assertion or GPU.
    """
    import shlex

    from kvcalc.checks.gather import Options, gather, read_settings
    from kvcalc.checks.run import run
    from kvcalc.core.checks import parse_assertion

    words = shlex.split(command) if isinstance(command, str) else list(command)
    options = Options(
        settings=None if settings is None else read_settings(os.fspath(settings)),
        gpu=None if gpu is None else load_gpu(gpu).name,
        gpu_memory=gpu_memory,
        engine_version=engine_version,
        sequences=sequences,
        models=tuple(f"{name}={source}" for name, source in (models or {}).items()),
        assertions=tuple(parse_assertion(n, limit) for n, limit in (asserts or {}).items()),
    )
    return run(gather([os.fspath(path) for path in paths], words, options), figures=True)


def _given(value: object, kind: type[_T], name: str, hint: str) -> _T:
    """Return an argument that must be one of kvcalc's own values.

    Raises:
        InvalidValueError: it is something else; a name, most often.
    """
    if isinstance(value, kind):
        return value
    named = isinstance(value, str) or value is None
    told = f"{value!r:.60}" if named else f"a {type(value).__name__}"
    raise InvalidValueError(f"{name} is {told}, not a {kind.__name__}", hint=f"give {hint}")
