"""What a plan and its memory show to be wrong or worth knowing in a deployment's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcalc.checks.lengths import is_stretched, lets_longer
from kvcalc.checks.models import known_presets
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes, format_count
from kvcalc.engines import release_warning
from kvcalc.manifests.found import Finding, Level
from kvcalc.sizing.changes import Change
from kvcalc.sizing.shares import LONGER
from kvcalc.sizing.solve import solve

__all__ = ["on_plan"]

_FP8_FROM = (8, 9)  # compute capability: Ada and Hopper
_FP8_KERNELS = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi")
_WIDE = "bfloat16"
_WORTH = 1.01  # factors below say nothing


def on_plan(target: Target, sized: Sized) -> Iterator[Finding]:
    """Yield findings on a deployment that its engine accepts."""
    for look in (
        _newer_release,
        _length_over_model,
        _fp8_on_old_card,
        _unchunked,
        _bytes_and_share,
        _duplicated,
        _places_out_of_reach,
        _hybrid_off,
        _speculation,
        _fraction_interval,
        _two_limits,
    ):
        yield from look(target, sized)


def _line(target: Target, *names: str) -> tuple[int, str]:
    """Return the line and file of the first of these settings that was read."""
    server = target.server
    for name in names:
        for setting in server.settings if server is not None else ():
            if setting.name == name:
                return setting.line, setting.file
    return target.line, ""


def _finding(
    target: Target,
    code: str,
    level: Level,
    message: str,
    cure: str,
    *names: str,
    amount: float | None = None,
) -> Finding:
    line, file = _line(target, *names)
    return Finding(code, level, message, cure, line, file, amount)


def _set(target: Target, name: str, value: Any) -> str:
    """Return a setting in the engine's words; in kvcalc's where it has none."""
    word = str(value).lower() if isinstance(value, bool) else value
    return said(target, name, value) or f"{name} {word}"


def _other(target: Target, name: str) -> object:
    server = target.server
    for setting in server.settings if server is not None else ():
        if setting.name == name:
            return setting.value
    return None


def _newer_release(target: Target, sized: Sized) -> Iterator[Finding]:
    deployment = sized.question.deployment
    warning = release_warning(deployment.engine, deployment.engine_version)
    if warning:
        yield _finding(
            target,
            "newer-release",
            "warning",
            warning,
            "look for a newer kvcalc; --strict makes it a failure",
        )


def _length_over_model(target: Target, sized: Sized) -> Iterator[Finding]:
    model, length = sized.question.model, sized.plan.max_model_len
    own = model.max_position_embeddings if target.engine == "sglang" else model.longest
    if own is None or length <= own or target.engine == "none" or is_stretched(target.server):
        return
    switch = LONGER.get(str(target.engine))
    allowed = switch is None or lets_longer(target.server, switch)
    sure = sized.question.model.name in known_presets()  # one's own config may stretch positions
    if not allowed and not sure:
        cause = f": {target.engine} refuses it unless the model's config stretches its positions"
    else:
        cause = "" if allowed else f": {target.engine} refuses it"
    yield _finding(
        target,
        "length-over-model",
        "error" if sure and not allowed else "warning",
        f"a maximum of {format_count(length)} tokens is beyond the model's own"
        f" {format_count(own)}{cause}",
        f"{_set(target, 'max_model_len', own)} is the longest"
        + (f"; {switch}=1 lets more pass" if switch and not allowed else ""),
        "max_model_len",
        "context_length",
        "ctx_size",
        amount=length - own,
    )


def _fp8_on_old_card(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find a cache in fp8 on an NVIDIA card without it, which the engine takes all the same."""
    gpu = sized.question.deployment.gpu
    if not isinstance(gpu, GpuSpec) or gpu.compute_capability is None:
        return  # of another maker
    if target.engine not in _FP8_KERNELS or not sized.plan.kv_cache_dtype.startswith("fp8"):
        return
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    if (major, minor) >= _FP8_FROM:
        return
    wide = _changed(sized, {"kv_cache_dtype": "auto"}, {})
    if wide is not None and wide.plan.kv_cache_dtype.startswith("fp8"):  # the checkpoint says so
        wide = _changed(sized, {"kv_cache_dtype": _WIDE}, {})
    word = "auto" if wide is None or wide.question.deployment.kv_cache_dtype == "auto" else _WIDE
    cures = [] if wide is None or not wide.fits else [_set(target, "kv_cache_dtype", word)]
    yield _finding(
        target,
        "fp8-on-old-card",
        "warning",
        f"{gpu.name} (compute capability {gpu.compute_capability}) does not compute in fp8: the"
        " cache is stored in it and widened for every step, where the attention kernels can",
        ", or ".join([*cures, "a card from 8.9 on (l4, l40s, h100-80gb)"]),
        "kv_cache_dtype",
    )


def _unchunked(target: Target, sized: Sized) -> Iterator[Finding]:
    if target.engine != "vllm" or _other(target, "enable_chunked_prefill") is not False:
        return
    batched = sized.question.deployment.max_num_batched_tokens
    length = sized.plan.max_model_len
    if batched is None or batched >= length:
        return
    yield _finding(
        target,
        "prompt-over-step",
        "error",
        f"a step of {format_count(batched)} tokens cannot take a prompt of {format_count(length)},"
        " as prefills are not chunked",
        f"{_set(target, 'max_num_batched_tokens', length)}, or chunked prefill",
        "max_num_batched_tokens",
        amount=length - batched,
    )


def _bytes_and_share(target: Target, sized: Sized) -> Iterator[Finding]:
    deployment = sized.question.deployment
    if deployment.kv_cache_memory_bytes is None or deployment.gpu_memory_utilization is None:
        return
    yield _finding(
        target,
        "share-without-effect",
        "warning",
        f"gpu_memory_utilization {deployment.gpu_memory_utilization:g} sizes nothing beside a cache"
        f" of {format_bytes(deployment.kv_cache_memory_bytes)}",
        "leave out one of them",
        "gpu_memory_utilization",
    )


def _duplicated(target: Target, sized: Sized) -> Iterator[Finding]:
    factor = sized.totals.duplication_factor
    if factor <= _WORTH:
        return
    deployment = sized.question.deployment
    tp = deployment.tensor_parallel_size
    fewer = int(tp / factor)
    cure = "data-parallel attention or decode context parallelism keeps it once"
    if fewer >= 1 and tp % fewer == 0 and target.engine in ("vllm", "lmdeploy", "tensorrt-llm"):
        cure = f"{_set(target, 'tensor_parallel_size', fewer)} with {tp // fewer} replicas"
        if target.engine == "vllm":
            dcp = _set(target, "decode_context_parallel_size", tp // fewer)
            cure += f", or {dcp}, keeps it once"
        else:
            cure += " keeps it once"
    yield _finding(
        target,
        "cache-duplicated",
        "note",
        f"tensor parallel {tp} keeps each byte of the cache {factor:g} times: there are fewer KV"
        " heads than ranks",
        cure,
        "tensor_parallel_size",
        amount=factor,
    )


def _places_out_of_reach(target: Target, sized: Sized) -> Iterator[Finding]:
    wanted = sized.question.deployment.max_num_seqs
    if wanted is None or target.engine not in ("vllm", "sglang", "lmdeploy"):
        return
    room = sized.high.max_concurrency
    if not sized.fits or wanted <= room:
        return
    tokens = sized.middle.kv_cache_tokens // wanted
    yield _finding(
        target,
        "sequences-out-of-reach",
        "note",
        f"the cache holds {sized.middle.max_concurrency:,.2f} sequences of the maximum, not the"
        f" {format_count(wanted)} of max_num_seqs, which fit while they are of about"
        f" {format_count(tokens)} tokens",
        "longer ones wait or are preempted: see it for your own requests with a workload",
        "max_num_seqs",
        amount=wanted / room if room else None,
    )


def _changed(sized: Sized, settings: dict[str, Any], args: dict[str, Any]) -> Sized | None:
    """Return the same with other settings; None where the engine refuses them."""
    found = Sized(Change("", settings, args).applied(sized.question))
    try:
        return found if found.middle is not None else None
    except KvcalcError:
        return None


def _hybrid_off(target: Target, sized: Sized) -> Iterator[Finding]:
    deployment = sized.question.deployment
    if target.engine == "llama.cpp" and deployment.engine_args.get("swa_full"):
        change, cure = _changed(sized, {}, {"swa_full": False}), "leave out --swa-full"
        name = "swa_full"
    elif deployment.disable_hybrid_kv_cache_manager:
        change = _changed(sized, {"disable_hybrid_kv_cache_manager": False}, {})
        cure = "leave out --disable-hybrid-kv-cache-manager"
        name = "disable_hybrid_kv_cache_manager"
    else:
        return
    if change is None:
        return
    now = sized.plan.bytes_needed(sized.plan.max_model_len)
    then = change.plan.bytes_needed(sized.plan.max_model_len)
    if then and now / then > _WORTH:
        yield _finding(
            target,
            "windows-at-full-length",
            "warning",
            f"layers with a window keep every token: a sequence of the maximum takes"
            f" {format_bytes(now)}, not {format_bytes(then)}",
            cure,
            name,
            amount=now - then,
        )


def _speculation(target: Target, sized: Sized) -> Iterator[Finding]:
    if sized.question.deployment.speculative_method is None:
        return
    none = {"speculative_method": None, "num_speculative_tokens": None, "draft_model": None}
    change = _changed(sized, none, {})
    if change is None:
        return
    now, then = sized.middle.kv_cache_tokens, change.middle.kv_cache_tokens
    if then > now * _WORTH:
        yield _finding(
            target,
            "speculation-costs-cache",
            "note",
            f"speculation leaves {format_count(now)} tokens of cache instead of"
            f" {format_count(then)}: {100 * (then - now) / then:.1f} % less",
            "fewer proposed tokens or none, where the cache is what is short",
            "speculative_method",
            "num_speculative_tokens",
            amount=then - now,
        )


def _fraction_interval(target: Target, sized: Sized) -> Iterator[Finding]:
    share = sized.question.deployment.engine_args.get("mem_fraction_static")
    if target.engine != "sglang" or share is None or not sized.worked.memory:
        return
    if sized.fits:
        return
    found = solve(sized.question, "gpu-memory-utilization")
    if found.value is None:
        cure = f"no fraction is right: {found.reason}"
    else:
        cure = f"{_set(target, 'mem_fraction_static', found.value)} is the least; {found.reason}"
    held = sized.worked.cache_holds("low")
    what = "may leave too little beside the cache" if held else "leaves too little for the cache"
    yield _finding(
        target,
        "fraction-out-of-interval",
        "warning" if held else "error",
        f"mem_fraction_static {share} {what}",
        cure,
        "mem_fraction_static",
        amount=sized.worked.missing() or None,
    )


def _two_limits(target: Target, sized: Sized) -> Iterator[Finding]:
    args = sized.question.deployment.engine_args
    tokens, share = args.get("max_tokens"), args.get("free_gpu_memory_fraction")
    if target.engine != "tensorrt-llm" or tokens is None or share is None:
        return
    without = _changed(sized, {}, {"max_tokens": None})
    if without is None or not isinstance(tokens, int):
        return
    room = without.middle.kv_cache_tokens
    binds = "max_tokens" if tokens < room else "free_gpu_memory_fraction"
    yield _finding(
        target,
        "two-limits",
        "warning",
        f"max_tokens {format_count(tokens)} and free_gpu_memory_fraction {share} (about"
        f" {format_count(room)} tokens): the smaller pool wins, which is that of {binds}",
        "leave out the one that is not meant",
        "max_tokens",
        "free_gpu_memory_fraction",
    )
