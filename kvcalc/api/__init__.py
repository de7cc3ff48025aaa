"""The public functions, in the form that a program wants them; `kvcalc` exports them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from kvcalc import sizing as _sizing
from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers import compare as _compare
from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.answers.check_report import CheckReport
from kvcalc.answers.logs import LogAnswer
from kvcalc.answers.per_token import per_token
from kvcalc.answers.probed import ProbeResult
from kvcalc.answers.results import Comparison, Fragmentation, PerToken
from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.api.given import MODEL, PLAN, given, resolved
from kvcalc.api.measured import fragmentation, probe, read_log, read_metrics, read_oom
from kvcalc.core.capacity import Capacity
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.lengths import Lengths, Over
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
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
    model = given(model, ModelSpec, "model", MODEL)
    return _plan(model, resolved(Deployment() if deployment is None else deployment))


def capacity(
    model: ModelSpec,
    deployment: Deployment,
    *,
    sequences: int = 1,
    at: Sequence[int] = (),
    weights_bytes: int | None = None,
    quantization: str | None = None,
    free_bytes: int | None = None,
    host_bytes: int | None = None,
    instances: int = 1,
    levers: bool = False,
    solve_for: Sequence[str] = (),
    layouts: bool = False,
    suggest: bool = False,
    all_layouts: bool = False,
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
        host_bytes: host memory that the servers may have: a container's limit.
        instances: servers of this kind on each card.
        levers: also what each setting would buy.
        solve_for: settings to turn the question round for: `max-model-len`, `max-num-seqs`,
            `gpus`, `tp`, `gpu-memory-utilization`, `kv-memory`, `ngl`.
        layouts: also the same GPUs in other ways.
        suggest: also the engine's own command.
        all_layouts: solve for GPUs among all splits over them, those that nobody deploys too.

    Raises:
        UsageError: neither a card nor a cache is given.
        InvalidValueError: a number that is none, or that cannot be meant.
        UnknownNameError: no such engine, dtype, GPU or setting.
        UnsupportedError: the engine refuses the combination, or kvcalc does not model it.
    """
    from kvcalc.sizing.valid import checked, settings_to_solve

    wanted = settings_to_solve(solve_for)
    question = _sizing.Question(
        model=given(model, ModelSpec, "model", MODEL),
        deployment=resolved(deployment),
        weights_bytes=weights_bytes,
        quantization=quantization,
        sequences=sequences,
        lengths=at,
        instances=instances,
        free_bytes=free_bytes,
        host_bytes=host_bytes,
        all_layouts=all_layouts,
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
    plan = given(plan, CachePlan, "plan", PLAN)
    histogram = lengths if isinstance(lengths, Lengths) else Lengths.of(lengths)
    return _compare.compare(
        plan, histogram, workload=workload, over=over, kv_cache_bytes=kv_cache_bytes
    )


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
    allow_skips: bool = False,
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
        allow_skips: that no assertion could be asked, of any deployment, is no failure.

    Raises:
        UsageError: there is nothing to check.
        InputError: nothing could be read, or kvcalc.yaml is broken.
        UnknownNameError: no such assertion or GPU.
    """
    import shlex

    from kvcalc.answers.assertions import parse_assertion
    from kvcalc.checks.gather import Options, gather, read_settings
    from kvcalc.checks.run import run

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
    targets = gather([os.fspath(path) for path in paths], words, options)
    return run(targets, figures=True, allow_skips=allow_skips)
