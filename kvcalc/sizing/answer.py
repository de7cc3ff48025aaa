"""The answer to a capacity question: the verdict first, then everything it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from kvcalc.answers.capacity import (
    At,
    CapacityAnswer,
    Figures,
    Layout,
    Lever,
    RefusedLever,
    Solution,
)
from kvcalc.answers.plan_summary import notes_without
from kvcalc.core.capacity import binding_rank
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.memory import End
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of, start_up_log
from kvcalc.sizing.figured import figured
from kvcalc.sizing.figures import alone, at_length, at_workload, rank_budgets, totals
from kvcalc.sizing.host import host_warning
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.sharing import notes_on_sharing, one_of_several
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve import solved
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.stops import start_refusals
from kvcalc.sizing.verdict import solved_verdict, verdict
from kvcalc.sizing.worked import Worked

if TYPE_CHECKING:
    from kvcalc.sizing.solve.searches import Solved

__all__ = ["answer"]


def answer(
    question: Question,
    *,
    with_levers: bool = False,
    solve_for: tuple[str, ...] = (),
    with_layouts: bool = False,
    suggest: bool = False,
    flags: tuple[str, ...] = (),
) -> CapacityAnswer:
    """Return the answer to a question.

    Args:
        question: what is asked.
        with_levers: also what every setting would buy.
        solve_for: settings to turn the question round for (see sizing.solve.SETTINGS).
        with_layouts: also the same GPUs in other ways.
        suggest: also the engine's own command, for what is asked and for what is solved for.
        flags: what sets it apart from other answers.

    Raises:
        UsageError: neither a card nor a cache is given.
        UnsupportedError: the engine refuses the question, or kvcalc does not model it.
    """
    asked = question
    question, shared = one_of_several(question)
    worked = work(question)
    found = worked.plan
    tries = Tries(question)
    low, middle, high = (figured(question, worked, end, tries) for end in get_args(End))
    missing = 0 if low.fits in (True, None) else worked.missing()
    host = worked.host
    rank = binding_rank(found, worked.middle)
    grown, period = rank.growth(windows_open=False)
    needed = rank.bytes_needed(found.max_model_len)
    deployment = question.deployment
    turned = tuple(solved(question, setting) for setting in solve_for)
    solutions = tuple(one.solution for one in turned)
    command: str | None = None
    told: tuple[str, ...] = ()
    if suggest:
        solutions, command, told = _suggested(question, (low, high), turned)
    said = verdict(question, worked, (low, middle, high), missing)
    if solutions:
        said = f"{solved_verdict(question, worked, solutions)} As asked: {said}"
    gaining, refused = _levers(question, worked, middle) if with_levers else ((), ())
    tried = gaining or refused
    return CapacityAnswer(
        flags=flags,
        model=found.model,
        engine=found.engine,
        engine_version=found.engine_version,
        gpu=_gpu(question),
        kv_cache_dtype=found.kv_cache_dtype,
        block_size=found.block_size,
        block_bytes=middle.block_bytes,
        max_model_len=found.max_model_len,
        sequences=question.sequences,
        verdict=said,
        fits=low.fits,
        may_fit=high.fits,
        kv_cache_bytes=middle.kv_cache_bytes,
        num_blocks=middle.num_blocks,
        kv_cache_tokens=middle.kv_cache_tokens,
        max_concurrency=middle.max_concurrency,
        max_sequences=middle.max_sequences,
        max_model_len_that_fits=middle.max_model_len_that_fits,
        needed_bytes=needed,
        missing_bytes=missing,
        bytes_per_token=grown if period == 1 else None,
        fixed_bytes=needed - grown * found.max_model_len // period,
        low=low,
        high=high,
        at=_at(question, worked),
        deployment=totals(question, found, alone(question, found), middle),
        budget=rank_budgets(worked),
        host=host.parts,
        host_limit_bytes=host.limit_bytes,
        host_fits=host.fits,
        host_may_fit=host.may_fit,
        levers=gaining,
        refused_levers=refused,
        solutions=solutions,
        layouts=_layouts(question, sizes_of(deployment).num_gpus) if with_layouts else (),
        suggested=command,
        suggested_notes=told,
        log=_log(worked, middle),
        notes=(
            *shared,
            *notes_on_sharing(question, worked),
            *filter(None, (host_warning(host),)),
            *without_effect(asked),
            *beyond_maximum(question, found.max_model_len),
            *(["no setting that was tried buys anything"] if with_levers and not tried else []),
            *([_NOT_ENOUGH] if gaining and high.fits is False and not _meets(gaining) else []),
            *notes_without(worked.stopped("high") or worked.stopped("low"), found.notes),
        ),
        unsupported=found.unsupported,
        convention=found.convention,
        source=found.source,
        refusals=start_refusals(worked),
    )


_NOT_ENOUGH = "no single setting that was tried is enough"


def _meets(gaining: tuple[Lever, ...]) -> bool:
    return any(lever.fits for lever in gaining)


def _levers(
    question: Question, worked: Worked, expected: Figures
) -> tuple[tuple[Lever, ...], tuple[RefusedLever, ...]]:
    from kvcalc.sizing.levers import levers

    return levers(question, worked, expected)


def _layouts(question: Question, num_gpus: int) -> tuple[Layout, ...]:
    from kvcalc.sizing.layouts import layouts

    return layouts(question, num_gpus)


def _suggested(
    question: Question, ends: tuple[Figures, Figures], turned: tuple[Solved, ...]
) -> tuple[tuple[Solution, ...], str | None, tuple[str, ...]]:
    from kvcalc.sizing.suggest import suggested

    return suggested(question, ends, turned)


def _gpu(question: Question) -> str | None:
    gpu = question.deployment.gpu
    return None if gpu is None else gpu if isinstance(gpu, str) else gpu.name


def _log(worked: Worked, middle: Figures) -> tuple[str, ...]:
    if middle.kv_cache_bytes == 0 or worked.refusal("middle") is not None:
        return ()  # it ends before it makes a cache
    return start_up_log(worked.plan, middle.kv_cache_bytes)


def _at(question: Question, worked: Worked) -> tuple[At, ...]:
    found = [at_length(worked, tokens) for tokens in question.lengths]
    if question.workload is not None:
        name, lengths = question.workload
        found.append(at_workload(worked, name, lengths))
    return tuple(found)


# What was asked and plays no part: settings that another one stands in the way of.


def beyond_maximum(question: Question, longest: int) -> Iterator[str]:
    """Yield a line for every length asked about that is longer than the maximum."""
    for tokens in question.lengths:
        if tokens > longest:
            yield (
                f"no request of {format_count(tokens)} tokens is served with a maximum of"
                f" {format_count(longest)}: it is told how many would have room"
            )


def without_effect(question: Question) -> Iterator[str]:
    """Yield a line for everything that was asked for and changes nothing."""
    deployment = question.deployment
    bytes_known = question.weights_bytes is not None
    if bytes_known and question.quantization is not None:
        yield (
            f"quantization {question.quantization} plays no part: the bytes of the weights are"
            " given"
        )
    given = deployment.kv_cache_memory_bytes is not None
    named = isinstance(deployment.gpu, GpuSpec)
    if given:
        share = engine_of(deployment.engine).share or ""
        own = deployment.engine_args.get(share)
        asked = deployment.gpu_memory_utilization if own is None else own
        if asked is not None:
            yield f"{share} {asked} plays no part in the cache, whose bytes are given"
        if question.instances > 1:
            yield "the cache is that of each server: its bytes are given"
    if given and not named and deployment.enforce_eager is not None:
        yield "enforce_eager plays no part: the bytes of the cache are given, and no GPU"
    if given and not named and (bytes_known or question.quantization is not None):
        yield "the weights play no part: the bytes of the cache are given, and no GPU"
    if question.free_bytes is not None and not named:
        yield "what is free of a card plays no part: none is named"
