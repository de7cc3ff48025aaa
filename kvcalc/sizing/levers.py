"""What each setting buys: a new plan for every lever, sorted by what it gains."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.answers import Figures, Lever
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_count
from kvcalc.sizing.changes import SHARES, Change, share_change
from kvcalc.sizing.figures import figures
from kvcalc.sizing.question import Question, Worked, work
from kvcalc.sizing.solve import of_length

__all__ = ["levers"]

_UTILISATIONS = (0.95, 0.98)
_FEWER_TOKENS = 2048
_BLOCKS = (16, 32, 64, 128)
_WEIGHTS = ("fp8", "int4")
_NOTHING = 0.002
"""What changes the sequences by less buys nothing."""
_WIDE = ("bfloat16", "float16", "float32")


def levers(question: Question, worked: Worked, expected: Figures) -> tuple[Lever, ...]:
    """Return every lever that changes anything, the one that gains the most first.

    Args:
        question: as it was asked.
        worked: the same, worked out.
        expected: its figures in the middle.
    """
    found = [_pulled(change, question, expected) for change in _changes(question, worked)]
    seen: dict[tuple[str, ...], Lever] = {}
    for lever in found:
        if lever is not None:
            seen.setdefault(lever.flags, lever)
    return tuple(sorted(seen.values(), key=_order))


def _order(lever: Lever) -> tuple[bool, float, int]:
    return lever.figures is None, -(lever.concurrency_gain or 0.0), -lever.tokens_gained


def _pulled(change: Change, question: Question, expected: Figures) -> Lever | None:
    """Return what a change comes to; None where it changes nothing."""
    asked = change.applied(question)
    if asked == question:
        return None
    try:
        done = work(asked)
        found = figures(done.plan, done.middle)
    except KvcalcError as error:
        return Lever(
            name=change.name,
            flags=change.flags,
            figures=None,
            tokens_gained=0,
            concurrency_gain=None,
            caution=f"refused: {error.message}",
        )
    before, after = question.deployment.data_parallel_size, asked.deployment.data_parallel_size
    gained = found.kv_cache_tokens * after - expected.kv_cache_tokens * before
    once = expected.max_concurrency * before
    now = found.max_concurrency * after
    if now == once or (once and abs(now / once - 1) < _NOTHING):
        return None
    return Lever(
        name=change.name,
        flags=change.flags,
        figures=found,
        tokens_gained=gained,
        concurrency_gain=now / once if once else None,
        caution=change.caution,
    )


def _changes(question: Question, worked: Worked) -> Iterator[Change]:
    """Yield the changes that an engine knows, whether or not they do anything here."""
    deployment, engine = question.deployment, question.deployment.engine
    card = bool(worked.memory)
    if card:
        yield from _shares(question)
        yield from _weights()
    yield from _cache_dtypes(question, worked)
    if engine == "llama.cpp":
        yield from _llamacpp(question)
    else:
        yield from _parallel(question)
    if worked.plan.max_model_len > 1:
        half = worked.plan.max_model_len // 2
        yield of_length(question, half)._replace(caution="longer requests are refused")
    if engine == "vllm":
        yield from _vllm(question, worked)
    elif engine == "sglang":
        yield Change(
            "no shared prefixes",
            {},
            {"disable_radix_cache": True},
            caution="prompts are recomputed",
        )
        if card:
            yield Change(
                "no CUDA graphs", {}, {"disable_cuda_graph": True}, caution="slower decoding"
            )
            yield Change(
                "chunks of 2,048 tokens",
                {},
                {"chunked_prefill_size": 2048},
                caution="slower prefill",
            )
    if deployment.speculative_method is not None:
        yield Change(
            "no speculation",
            {"speculative_method": None, "num_speculative_tokens": None, "draft_model": None},
            caution="tokens come one at a time",
        )


def _shares(question: Question) -> Iterator[Change]:
    deployment = question.deployment
    setting = SHARES.get(deployment.engine)
    if setting is None:
        return
    field = setting == "gpu_memory_utilization"
    now = deployment.gpu_memory_utilization if field else deployment.engine_args.get(setting)
    for share in _UTILISATIONS:
        if isinstance(now, float) and share <= now:
            continue
        yield share_change(setting, share, "what takes memory beside it must fit into the rest")


def _weights() -> Iterator[Change]:
    for word in _WEIGHTS:
        yield Change(
            f"weights in {word}", quantization=word, caution="another checkpoint; quality changes"
        )


def _cache_dtypes(question: Question, worked: Worked) -> Iterator[Change]:
    engine, now = question.deployment.engine, worked.plan.kv_cache_dtype
    if engine == "llama.cpp":
        for kind in ("q8_0", "q4_0"):
            if now != kind:
                yield Change(
                    f"cache in {kind}",
                    {"kv_cache_dtype": kind},
                    caution="needs flash attention; quality changes",
                )
        return
    if now in _WIDE and engine != "transformers":
        yield Change("cache in fp8", {"kv_cache_dtype": "fp8"}, caution="quality may change")


def _llamacpp(question: Question) -> Iterator[Change]:
    args = question.deployment.engine_args
    if args.get("swa_full"):
        yield Change("windows alone (no --swa-full)", {}, {"swa_full": False})
    yield Change("steps of 128 tokens", {}, {"ubatch_size": 128}, caution="slower prompts")
    yield Change(
        "cache in host memory", {}, {"no_kv_offload": True}, caution="much slower decoding"
    )
    if args.get("parallel") != 1:
        yield Change("one sequence", {}, {"parallel": 1}, caution="requests wait for one another")


def _parallel(question: Question) -> Iterator[Change]:
    deployment = question.deployment
    tp, dp = deployment.tensor_parallel_size, deployment.data_parallel_size
    gpus = deployment.num_gpus * 2
    yield Change(
        f"tensor parallel {2 * tp}", {"tensor_parallel_size": 2 * tp}, caution=f"{gpus} GPUs"
    )
    yield Change(f"{2 * dp} replicas", {"data_parallel_size": 2 * dp}, caution=f"{gpus} GPUs")
    if tp > 1 and tp % 2 == 0:
        yield Change(
            f"{2 * dp} replicas of half the ranks",
            {"tensor_parallel_size": tp // 2, "data_parallel_size": 2 * dp},
            caution="the same GPUs; each holds more of the weights",
        )


def _vllm(question: Question, worked: Worked) -> Iterator[Change]:
    deployment = question.deployment
    for size in range(2, deployment.tensor_parallel_size + 1):
        if deployment.tensor_parallel_size % size == 0:
            yield Change(
                f"decode context parallel {size}",
                {"decode_context_parallel_size": size},
                caution="the same GPUs; ranks share a sequence's tokens",
            )
    if worked.plan.reuse_tokens is not None:
        yield Change(
            "no prefix caching", {"enable_prefix_caching": False}, caution="prompts are recomputed"
        )
    if deployment.disable_hybrid_kv_cache_manager:
        yield Change("windows alone (hybrid manager)", {"disable_hybrid_kv_cache_manager": False})
    for block in _BLOCKS:
        yield Change(f"blocks of {block}", {"block_size": block})
    yield Change(
        f"steps of {format_count(_FEWER_TOKENS)} tokens",
        {"max_num_batched_tokens": _FEWER_TOKENS},
        caution="slower prefill",
    )
    if worked.memory:
        yield Change("no CUDA graphs", {"enforce_eager": True}, caution="slower decoding")
