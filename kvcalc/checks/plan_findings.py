"""What a plan and its memory show to be wrong or worth knowing in a deployment's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcalc.checks.lengths import is_stretched, lets_longer
from kvcalc.checks.models import known_presets
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.capacity import allocated
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes, format_count
from kvcalc.engines import engine_asked, release_warning
from kvcalc.engines.changes import Change
from kvcalc.manifests.found import Finding, Level
from kvcalc.sizing.host import growing, host_cure, host_refusal, host_warning
from kvcalc.sizing.solve import solve
from kvcalc.sizing.stops import within_floor

__all__ = ["on_plan"]

_FP8_FROM = (8, 9)  # compute capability: Ada and Hopper
_FP8_KERNELS = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "tgi")
_WIDE = "bfloat16"
_ENDLESS = 2**60
_WORTH = 1.01  # factors below say nothing


def on_plan(target: Target, sized: Sized) -> Iterator[Finding]:
    """Yield findings on a deployment that its engine accepts."""
    for look in (
        _newer_release,
        _host_memory,
        _length_over_model,
        _fp8_on_old_card,
        _bytes_and_share,
        _duplicated,
        _places_out_of_reach,
        _hybrid_off,
        _speculation,
        _fraction_interval,
        _two_limits,
        _below_floor,
        _slots_share,
        _weights_on_host,
        _cut_by_engine,
    ):
        yield from look(target, sized)


def _below_floor(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find blocks that are too few for the engine to start, whatever one sequence needs."""
    sure, may = sized.worked.stopped("high"), sized.worked.stopped("low")
    stopped = sure or may
    if stopped is None:
        return
    floor, units = stopped
    if sure is None and not floor.lowers and floor.instead is None:
        return  # memory alone decides, of which `fits` and the share tell both ends
    lifted = within_floor(sized.question, sized.worked)
    given = {} if lifted is None else {**lifted.settings, **lifted.args}
    cures = [" ".join(_set(target, name, value) for name, value in given.items())] if given else []
    if floor.instead is None or not cures:
        cures.append("more memory for the cache")
    yield _finding(
        target,
        floor.code,
        "error" if sure else "warning",
        floor.told(units) + ("" if sure else ", if everything else takes its most"),
        ", or ".join(cures),
        floor.setting,
        amount=floor.units - units,
    )


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


def _host_memory(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find what a server takes of the host beyond its limit, now or as its caches fill."""
    host = sized.worked.host
    refusal = host_refusal(host)
    why = refusal.why if refusal is not None else host_warning(host)
    if not why:
        return
    part = growing(host)
    asked = part is not None and not part.is_default
    alone = part is not None and (part.high_bytes or _ENDLESS) > (host.limit_bytes or 0)
    limit = None if target.server is None else target.server.invocation.memory_limit
    yield Finding(
        "host-memory-over-limit",
        "error" if refusal is not None or (alone and asked) else "warning",
        why,
        host_cure(host),
        target.line if limit is None else limit.line,
        amount=(host.bounded_bytes or host.low_bytes) - (host.limit_bytes or 0),
    )


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
    engine = engine_asked(target.engine)
    own = model.longest if engine.counts_stretched else model.max_position_embeddings
    if own is None or length <= own or target.engine == "none" or is_stretched(target.server):
        return
    made = own
    switch = engine.longer
    allowed = switch is None or lets_longer(target.server, switch)
    sure = sized.question.model.name in known_presets()  # one's own config may stretch positions
    if not allowed and not sure:
        cause = f": {target.engine} refuses it unless the model's config stretches its positions"
    else:
        cause = "" if allowed else f": {target.engine} refuses it"
    fixed = engine.settings_fix_cache
    shorter = None if fixed else _changed(sized, {"max_model_len": own}, {})
    if shorter is not None and not shorter.fits:  # which the memory does not hold
        own = shorter.low.max_model_len_that_fits or own
    yield _finding(
        target,
        "length-over-model",
        "error" if sure and not allowed else "warning",
        f"a maximum of {format_count(length)} tokens is beyond the model's own"
        f" {format_count(made)}{cause}",
        f"{_set(target, 'max_model_len', own)} is the longest"
        + (f"; {switch}=1 lets more pass" if switch and not allowed else ""),
        "max_model_len",
        "context_length",
        "ctx_size",
        amount=length - made,
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
    tp = sized.question.deployment.tensor_parallel_size
    cures = list(_kept_once(target, sized, int(tp / factor)))
    cure = "no layout of these GPUs that holds what is asked keeps less"
    if cures:
        cure = f"{', or '.join(cures)}{',' if len(cures) > 1 else ''} keeps it once"
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


def _kept_once(target: Target, sized: Sized, fewer: int) -> Iterator[str]:
    """Yield layouts of the same GPUs that keep each byte once and hold what is asked for."""
    deployment = sized.question.deployment
    tp, dp = deployment.tensor_parallel_size, deployment.data_parallel_size
    if fewer < 1 or tp % fewer:
        return
    times = tp // fewer
    changes: list[tuple[dict[str, Any], dict[str, Any], str]] = []
    engine = engine_asked(target.engine)
    if engine.runs_replicas:
        apart = {"tensor_parallel_size": fewer, "data_parallel_size": dp * times}
        one = _set(target, "tensor_parallel_size", fewer)
        changes.append((apart, {}, f"{one} with {dp * times} replicas"))
    for settings, args in engine.keeping_once(times):
        given = {**settings, **args}
        words = " ".join(_set(target, name, value) for name, value in given.items())
        changes.append((settings, args, words))
    for settings, args, words in changes:
        tried = _changed(sized, settings, args)
        if tried is not None and tried.fits and tried.totals.duplication_factor <= _WORTH:
            yield words


def _places_out_of_reach(target: Target, sized: Sized) -> Iterator[Finding]:
    wanted = sized.question.deployment.max_num_seqs
    if wanted is None or not engine_asked(target.engine).queues_for_cache:
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
    if deployment.engine_args.get("swa_full"):
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
    if share is None or not sized.worked.memory:
        return
    if sized.fits:
        return
    may = sized.worked.meets("high")
    found = solve(sized.question, "gpu-memory-utilization")
    held = sized.worked.cache_holds("low" if may else "high")
    if found.value is not None:
        value, which = (found.up_to, "most") if held else (found.value, "least")
        cure = f"{_set(target, 'mem_fraction_static', value)} is the {which} that surely fits"
    elif found.possible is not None:
        cure = f"no fraction surely fits; {found.possible:g} is the least that may"
    else:
        cure = "no fraction fits"
    what = "too little beside the cache" if held else "too little for the cache"
    yield _finding(
        target,
        "fraction-out-of-interval",
        "warning" if may else "error",
        f"mem_fraction_static {share} {'may leave' if may else 'leaves'} {what}"
        + (f": {_left(sized)}" if may and not held else ""),
        f"{cure}: {found.reason}",
        "mem_fraction_static",
        amount=sized.worked.missing() or None,
    )


def _left(sized: Sized) -> str:
    """Return what the share leaves for the cache at either end, and what is needed of it."""
    ends = [min(one.cache_bytes[at] for one in sized.worked.memory) for at in (0, 1)]
    low, high = (format_bytes(max(0, end)) for end in ends)
    needed = sized.plan.bytes_needed(sized.plan.max_model_len)
    return f"{low} to {high}, and a sequence of the maximum needs {format_bytes(needed)}"


def _two_limits(target: Target, sized: Sized) -> Iterator[Finding]:
    args = sized.question.deployment.engine_args
    tokens, share = args.get("max_tokens"), args.get("free_gpu_memory_fraction")
    if tokens is None or share is None:
        return
    without = _changed(sized, {}, {"max_tokens": None})
    if without is None or not isinstance(tokens, int):
        return
    low, high = without.low.kv_cache_tokens, without.high.kv_cache_tokens
    binds = "max_tokens" if tokens <= low else "free_gpu_memory_fraction"
    wins = f", which is that of {binds}" if not low < tokens < high else ", and either may be"
    yield _finding(
        target,
        "two-limits",
        "warning",
        f"max_tokens {format_count(tokens)} and free_gpu_memory_fraction {share}"
        f" ({format_count(low)} to {format_count(high)} tokens): the smaller pool wins{wins}",
        "leave out the one that is not meant",
        "max_tokens",
        "free_gpu_memory_fraction",
    )


def _slots_share(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find a context that several slots share or have parts of: what one request gets."""
    plan, args = sized.plan, sized.question.deployment.engine_args
    context, slots = args.get("ctx_size"), plan.max_sequences
    if not isinstance(context, int) or isinstance(context, bool) or not slots or slots == 1:
        return
    each = plan.max_model_len
    if each >= context:
        message = (
            f"{format_count(slots)} slots share a context of {format_count(context)} tokens: a"
            f" request gets up to {format_count(each)}, and {format_count(slots)} at once"
            f" {format_count(each // slots)} each"
        )
    else:
        message = (
            f"a request gets {format_count(each)} tokens: a context of {format_count(context)} is"
            f" divided by {format_count(slots)} slots"
        )
    yield _finding(
        target,
        "context-of-all-slots",
        "note",
        message,
        f"{_set(target, 'ctx_size', context * slots)} is {format_count(context)} for each, where"
        " that is meant",
        "ctx_size",
        "parallel",
        amount=each,
    )


def _weights_on_host(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find weights in the host's memory: where the settings put them, or the engine to make room.

    The embedding, which is there always, is no finding.
    """
    plan = sized.plan
    parts = [part for part in plan.host if part.name == "weights"]
    held = sum(part.high_bytes or 0 for part in parts)
    args = sized.question.deployment.engine_args
    split = len({rank.on_host for rank in plan.ranks}) > 1  # layers on both sides
    if plan.moved_bytes:
        kept = sum(allocated(rank) for rank in plan.ranks if rank.on_host)
        cache = f", and {format_bytes(kept)} of the cache" if kept else ""
        yield _finding(
            target,
            "weights-on-host",
            "warning",
            f"up to {format_bytes(plan.moved_bytes)} of the weights do not fit on the GPU: the"
            f" engine moves them to the host's memory ({format_bytes(held)} there in all{cache}),"
            " which slows every token down",
            "smaller weights, or a larger GPU, if that is not meant",
            "n_gpu_layers",
            amount=plan.moved_bytes,
        )
    elif held and (split or _OFF_GPU & args.keys()):
        yield _finding(
            target,
            "weights-on-host",
            "note",
            f"up to {format_bytes(held)} of the weights stay in the host's memory, as the settings"
            " say",
            "see that the host has so much to spare",
            *sorted(_OFF_GPU),
            "n_gpu_layers",
            amount=held,
        )


_OFF_GPU = {"cpu_moe", "n_cpu_moe", "n_cpu_ffn", "override_tensor"}
"""Settings that keep weights off the GPU while their layers' caches stay there."""


def _cut_by_engine(target: Target, sized: Sized) -> Iterator[Finding]:
    """Find a context that the engine cuts to what there is room for, as nobody gave one."""
    plan, model, deployment = sized.plan, sized.question.model, sized.question.deployment
    settings = engine_asked(target.engine).sizes_context
    given = deployment.max_model_len is not None or deployment.engine_args.keys() & {*settings}
    if not settings or model.longest is None or given:
        return
    if plan.max_model_len < model.longest:
        yield _finding(
            target,
            "length-is-shortened",
            "note",
            f"an automatic maximum comes to {format_count(plan.max_model_len)} tokens of the"
            f" model's {format_count(model.longest)}: fit cuts the context to what there is room"
            " for",
            "name the length that you need, so that a start without room for it fails",
            "ctx_size",
        )
