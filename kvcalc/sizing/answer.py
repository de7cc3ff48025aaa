"""The answer to a capacity question: the verdict first, then everything it rests on."""

from __future__ import annotations

import msgspec

from kvcalc.core.answers import At, CapacityAnswer, Figures, Layout, Lever
from kvcalc.core.capacity import holds, least_of, smallest_budget
from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.engines import start_up_log
from kvcalc.sizing.figures import alone, at_length, at_workload, figures, rank_budgets, totals
from kvcalc.sizing.question import Question, Worked, work
from kvcalc.sizing.sharing import held_by_others, one_of_several
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve import solve

__all__ = ["answer"]


def answer(
    question: Question,
    *,
    with_levers: bool = False,
    solve_for: tuple[str, ...] = (),
    with_layouts: bool = False,
    suggest: bool = False,
) -> CapacityAnswer:
    """Return the answer to a question.

    Args:
        question: what is asked.
        with_levers: also what every setting would buy.
        solve_for: settings to turn the question round for (see sizing.solve.SETTINGS).
        with_layouts: also the same GPUs in other ways.
        suggest: also the engine's own command.

    Raises:
        UsageError: neither a card nor a cache is given.
        UnsupportedError: the engine refuses the question, or kvcalc does not model it.
    """
    question, shared = one_of_several(question)
    worked = work(question)
    found = worked.plan
    blocked = None
    if question.free_bytes is not None and worked.memory:
        starts, told = held_by_others(worked.memory[0], question.free_bytes)
        if starts:
            shared = (*shared, told)
        else:
            blocked = f"No: {told}."
            nothing = (0,) * len(worked.memory)
            worked = worked._replace(low=nothing, middle=nothing, high=nothing)
    low, middle, high = (figures(found, b) for b in (worked.low, worked.middle, worked.high))
    fits = holds(found, worked.low, question.sequences)
    if found.split == "fixed" and not fits and worked.memory:
        low, middle, high = _shortened(question, (low, middle, high))
    may_fit = holds(found, worked.high, question.sequences)
    missing = _missing(worked, question.sequences, fits=fits)
    grown, period = found.growth(windows_open=False)
    longest = found.max_model_len
    needed = found.bytes_needed(longest)
    deployment = question.deployment
    return CapacityAnswer(
        model=found.model,
        engine=found.engine,
        engine_version=found.engine_version,
        gpu=_gpu(question),
        kv_cache_dtype=found.kv_cache_dtype,
        block_size=found.block_size,
        block_bytes=found.block_bytes,
        max_model_len=longest,
        sequences=question.sequences,
        verdict=blocked or _verdict(question, worked, (low, middle, high), missing, fits, may_fit),
        fits=fits,
        may_fit=may_fit,
        kv_cache_bytes=middle.kv_cache_bytes,
        num_blocks=middle.num_blocks,
        kv_cache_tokens=middle.kv_cache_tokens,
        max_concurrency=middle.max_concurrency,
        max_sequences=middle.max_sequences,
        max_model_len_that_fits=middle.max_model_len_that_fits,
        needed_bytes=needed,
        missing_bytes=missing,
        bytes_per_token=grown if period == 1 else None,
        fixed_bytes=needed - grown * longest // period,
        low=low,
        high=high,
        at=_at(question, worked),
        deployment=totals(found, alone(question, found), deployment, middle),
        budget=rank_budgets(worked),
        host=found.host,
        levers=_levers(question, worked, middle) if with_levers else (),
        solutions=tuple(solve(question, setting) for setting in solve_for),
        layouts=_layouts(question, sizes_of(deployment).num_gpus) if with_layouts else (),
        suggested=_command(question.model, deployment) if suggest else None,
        log=_log(found, middle),
        notes=(*shared, *found.notes),
        unsupported=found.unsupported,
        convention=found.convention,
        source=found.source,
    )


def _shortened(question: Question, found: tuple[Figures, Figures, Figures]) -> list[Figures]:
    """Return figures with the longest length of caches that the settings size, by new plans."""
    solved = solve(question, "max-model-len")
    sure, possible = int(solved.value or 0), int(solved.possible or 0)
    return [
        figure if figure.fits else msgspec.structs.replace(figure, max_model_len_that_fits=longest)
        for figure, longest in zip(found, (sure, sure, possible), strict=True)
    ]


# What few questions ask for is imported when it is asked for: a plain one is answered sooner.


def _levers(question: Question, worked: Worked, expected: Figures) -> tuple[Lever, ...]:
    from kvcalc.sizing.levers import levers

    return levers(question, worked, expected)


def _layouts(question: Question, num_gpus: int) -> tuple[Layout, ...]:
    from kvcalc.sizing.layouts import layouts

    return layouts(question, num_gpus)


def _command(model: ModelSpec, deployment: Deployment) -> str | None:
    from kvcalc.sizing.commands import command

    return command(model, deployment)


def _gpu(question: Question) -> str | None:
    gpu = question.deployment.gpu
    return None if gpu is None else gpu if isinstance(gpu, str) else gpu.name


def _log(found: CachePlan, middle: Figures) -> tuple[str, ...]:
    if middle.kv_cache_bytes == 0:
        return ()
    return start_up_log(found, middle.kv_cache_bytes)


def _missing(worked: Worked, sequences: int, *, fits: bool) -> int:
    if fits:
        return 0
    wanted = smallest_budget(worked.plan, sequences)
    return 0 if wanted is None else max(0, wanted - (least_of(worked.low) or 0))


def _at(question: Question, worked: Worked) -> tuple[At, ...]:
    found = [at_length(worked, tokens) for tokens in question.lengths]
    if question.workload is not None:
        name, lengths = question.workload
        found.append(at_workload(worked, name, lengths))
    return tuple(found)


def _verdict(
    question: Question,
    worked: Worked,
    found: tuple[Figures, Figures, Figures],
    missing: int,
    fits: bool,
    may_fit: bool,
) -> str:
    low, middle, high = found
    plan = worked.plan
    longest = f"sequences of {format_count(plan.max_model_len)} tokens"
    if fits:
        served = _range(low.max_concurrency, high.max_concurrency)
        return f"Yes: {served} {longest} at once{_all(question)}."
    wanted = format_number_of(question.sequences, "sequence")
    what = f"{wanted} of {format_count(plan.max_model_len)} tokens"
    if may_fit:
        return (
            f"Perhaps: {what} {'fits' if question.sequences == 1 else 'fit'} if everything beside"
            f" the cache takes its least; if it takes its most {format_bytes(missing)} are missing."
        )
    least = low.max_model_len_that_fits
    cure = "no length fits"
    if middle.max_model_len_that_fits:
        cure = f"the longest that fits is {_range(least, high.max_model_len_that_fits)} tokens"
    start = ""
    if plan.start != "refuses" and middle.max_model_len_that_fits:
        start = f" {plan.engine} starts all the same, and serves no longer ones."
    return f"No: for {what} {format_bytes(missing)} are missing; {cure}.{start}"


def _all(question: Question) -> str:
    replicas = sizes_of(question.deployment).holders
    return f" on each of {replicas} replicas" if replicas > 1 else ""


def _range(low: float, high: float) -> str:
    def text(value: float) -> str:
        return format_count(value) if isinstance(value, int) else f"{value:,.2f}"

    return text(low) if text(low) == text(high) else f"{text(low)} to {text(high)}"
