"""What real systems say, as functions: holes, out-of-memory texts, logs, metrics pages, devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers import fragmentation as _fragmentation
from kvcalc.answers.logs import LogAnswer
from kvcalc.answers.probed import ProbeResult
from kvcalc.answers.results import Fragmentation
from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.api.given import MODEL, PLAN, given, resolved
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan as _plan
from kvcalc.models import load_model

__all__ = ["fragmentation", "probe", "read_log", "read_metrics", "read_oom"]

_EXAMPLE_MODEL = "qwen3.5-27b-attention"
_EXAMPLE_MAX = 8192


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
        plan = given(plan, CachePlan, "plan", PLAN)
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
    from kvcalc.answers.allocator_fit import snapshot_fragmentation
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

    return read(given(text, str, "text", "the text itself: Path(...).read_text()"))


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
    from kvcalc.measure.metrics.predicted import Asked, servers

    if isinstance(page, os.PathLike):
        page = os.fspath(page)
    asked = Asked(
        model=None if model is None else given(model, ModelSpec, "model", MODEL),
        deployment=None if deployment is None else resolved(deployment),
        running_tokens=running_tokens,
        kv_cache_bytes=kv_cache_bytes,
    )
    page = given(page, str, "page", "an address, a file, or the text of a page")
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
    from kvcalc.measure.probe import checked_names, open_device
    from kvcalc.measure.probe.findings import found
    from kvcalc.measure.probe.procedure import ask, measure

    plan = given(plan, CachePlan, "plan", PLAN)
    checked_names(device, kernel)
    histogram = lengths if isinstance(lengths, Lengths) else Lengths.of(lengths)
    if type(repetitions) is not int or repetitions < 1:
        raise InvalidValueError(f"repetitions is {repetitions!r:.40}", hint="give 1 or more")
    log = measure(
        open_device(device, kernel, dry_run=dry_run, memory_bytes=gpu_memory_bytes),
        ask(plan, histogram, kv_cache_bytes),
        backend="dry-run" if dry_run else "torch",
        version=version("kvcalc"),
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
    path = given(path, str, "path", "the log's file; - for stdin")
    if model is not None:
        model = given(model, ModelSpec, "model", MODEL)
    settings = {} if deployment is None else resolved(deployment).changed()
    args = settings.pop("engine_args", {})
    settings.pop("engine", None)
    said = Given(model=model, settings=settings, args=dict(args) if isinstance(args, dict) else {})
    return answered(read_start(path, said, start), said)
