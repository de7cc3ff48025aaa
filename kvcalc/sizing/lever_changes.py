"""The settings of an engine that are worth a try where more is wanted."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change, share_change
from kvcalc.sizing.figured import figured
from kvcalc.sizing.question import Question
from kvcalc.sizing.sharing import largest_share
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve.cards import left_to_host
from kvcalc.sizing.solve.lengths import of_length, sequences_change
from kvcalc.sizing.solve.memory import share_of_card
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.stops import within_floor
from kvcalc.sizing.worked import Worked

__all__ = ["SURELY_STARTS", "lever_changes"]

SURELY_STARTS = "the largest share that surely starts"
"""What is told of such a share, where the goal is met with it."""

_UTILISATIONS = (0.95, 0.98)
_MOST_RANKS = 16
"""Tensor-parallel ranks of a layout that is usual: those of two nodes."""


def lever_changes(question: Question, worked: Worked) -> Iterator[Change]:
    """Yield the changes that an engine knows, whether or not they do anything here."""
    deployment, engine = question.deployment, engine_of(question.deployment.engine)
    card = bool(worked.memory)
    yield from _unbound(question, worked)
    if card or not worked.runs("low"):
        yield from _shares(question, worked)
        if question.weights_bytes is None:  # else nothing tells what they are kept in
            yield from _weights(question)
    yield from engine.cache_levers(worked.plan.kv_cache_dtype)
    if card and not worked.meets("middle") and worked.crowded is None:
        tries = Tries(question)
        yield from left_to_host(question, lambda change: tries.meet(change, "low"))
    if engine.tensor_parallel:
        yield from _parallel(question)
    if worked.plan.max_model_len > 1:
        half = worked.plan.max_model_len // 2
        yield of_length(question, half)._replace(caution="longer requests are refused")
        held = (
            0 if worked.meets("low") else figured(question, worked, "low").max_model_len_that_fits
        )
        if held not in (0, half):
            yield of_length(question, held)._replace(caution="longer requests are refused")
    yield from engine.levers(deployment, worked.plan, on_gpu=card)
    if deployment.speculative_method is not None:
        yield Change(
            "no speculation",
            {"speculative_method": None, "num_speculative_tokens": None, "draft_model": None},
            caution="tokens come one at a time",
        )


def _unbound(question: Question, worked: Worked) -> Iterator[Change]:
    """Yield what takes away a bound that the settings themselves set."""
    lifted = within_floor(question, worked)
    if lifted is not None:
        shorter = ", longer ones are refused" if "max_model_len" in lifted.settings else ""
        yield lifted._replace(caution=f"more requests wait{shorter}")
    shared = engine_of(question.deployment.engine).settings_fix_cache
    sized = shared and not worked.cache_holds("high")
    if worked.crowded is not None or sized:  # a server runs those of all its groups of ranks
        groups = sizes_of(question.deployment).groups
        yield sequences_change(question, worked.each * groups)
    if question.deployment.num_gpu_blocks_override is not None:
        yield Change("without num_gpu_blocks_override", {"num_gpu_blocks_override": None})


def _shares(question: Question, worked: Worked) -> Iterator[Change]:
    deployment = question.deployment
    setting = engine_of(deployment.engine).share
    if setting is None:
        return
    field = setting == "gpu_memory_utilization"
    now = deployment.gpu_memory_utilization if field else deployment.engine_args.get(setting)
    if not worked.meets("low"):
        sure = share_of_card(question).solution if worked.memory else None
        if worked.runs("low"):
            least = None if sure is None else sure.value
            if least is not None and least != now:
                yield share_change(setting, least, "the least share that surely holds it")
        else:
            most = (sure and sure.up_to) or _largest(worked)
            if most and most != now:
                yield share_change(setting, most, SURELY_STARTS)
    for share in _UTILISATIONS if worked.memory else ():  # a cache that is given is not larger
        if isinstance(now, float) and share <= now:
            continue
        yield share_change(setting, share, "what takes memory beside it must fit into the rest")


def _largest(worked: Worked) -> float:
    """Return the largest share of a card that surely starts; 0 where no start asks for one."""
    return min((largest_share(one) for one in worked.cards if one.checks_share), default=0.0)


def _weights(question: Question) -> Iterator[Change]:
    for word in engine_of(question.deployment.engine).weight_formats:
        if word != question.quantization:
            yield Change(
                f"weights in {word}",
                quantization=word,
                caution="another checkpoint; quality changes",
            )


def _parallel(question: Question) -> Iterator[Change]:
    deployment = question.deployment
    tp, dp = deployment.tensor_parallel_size, deployment.data_parallel_size
    gpus = deployment.num_gpus * 2
    if 2 * tp <= _MOST_RANKS:
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
