"""What would pass: settings changed one at a time, each tried by a new plan before it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from kvcalc.answers.assertions import Assertion, Found, holds
from kvcalc.checks.sized import Load, Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import said
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.search import last_that
from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change, share_change
from kvcalc.sizing.host import host_cure, host_refusal
from kvcalc.sizing.question import Question
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve.cards import left_to_host, num_gpus
from kvcalc.sizing.solve.lengths import LEAST_LENGTH, of_length, sequences_change
from kvcalc.sizing.solve.memory import share_of_card
from kvcalc.sizing.stops import within_floor

__all__ = ["cure"]

_MOST_TOLD = 3
_MOST_RANKS = 16  # of two nodes: more tensor-parallel ranks is no usual layout
_MOST_TIMES = 8  # as many GPUs: more is no cure but another deployment
_STEP = 2048
_SEQUENCES = 16
_BLOCKS = (64, 32, 16, 8)
_WIDE = ("bfloat16", "float16", "float32")
_SHORTER = (
    *("fits", "may_fit", "missing_bytes", "needed_bytes", "max_concurrency", "max_sequences"),
    *("total_concurrency", "cost_per_sequence_hour", "kv_cache_tokens", "total_kv_cache_tokens"),
)
"""Figures that a shorter maximum may bring within a limit."""

_FIXED = ("num_gpus", "replicas", "weights_bytes", "host_bytes", "max_model_len")
"""Figures for which no setting is looked for: what would pass is plain from the limit."""


def cure(target: Target, sized: Sized, assertion: Assertion, load: Load | None) -> str:
    """Return what would make an assertion pass: settings that were tried, at most three.

    Args:
        target: what is checked: it says how settings are spelled, and which figure counts.
        sized: the deployment that fails it.
        assertion: what it fails.
        load: the workload that it is about.
    """
    metric = assertion.metric
    if metric in _FIXED or assertion.limit is False:
        return ""
    host = sized.worked.host
    if metric in ("fits", "may_fit") and host_refusal(host) is not None:
        return host_cure(host)

    def figure(one: Sized) -> bool:
        expected = Found(one.expected(metric, load))  # the ends cost as much again
        if target.figures == "expected" and not holds(assertion, expected):
            return False
        return holds(assertion, one.figure(metric, load), target.figures) is True

    def passing(change: Change) -> bool:
        tried = sized.tried(change)
        try:
            return tried is not None and figure(tried)
        except KvcalcError:
            return False

    told = (_told(target, change) for change in _passing(sized, assertion, passing))
    lines = list(islice(filter(None, told), _MOST_TOLD))
    if not lines:
        return "no single setting was found that passes"
    return "; ".join(f"{line} passes" for line in lines)


def _passing(
    sized: Sized, assertion: Assertion, passing: Callable[[Change], bool]
) -> Iterator[Change]:
    """Yield changes that pass, one a kind: first of what stands in the way itself."""
    bound = () if sized.worked.crowded is None else (_more_sequences(sized),)
    lifted = within_floor(sized.question, sized.worked)
    own = () if lifted is None else (iter((lifted,)),)
    of_memory = assertion.metric in _SHORTER
    ways = (_shares(sized), _smaller_steps(sized)) if of_memory else ()
    shorter = lifted is not None and "max_model_len" in lifted.settings
    for group in (*bound, *ways, *own) if shorter else (*bound, *own, *ways):
        yield from _first(group, passing)
    if of_memory:
        length = _longest(sized, assertion, passing)
        if length is not None:
            yield of_length(sized.question, length)
    for group in _changes(sized, assertion.metric):
        yield from _first(group, passing)
    if of_memory and sized.worked.memory:
        yield from left_to_host(sized.question, passing)
    if assertion.metric.startswith("total_"):
        yield from _first(_more_replicas(sized.question), passing)


def _first(group: Iterator[Change], passing: Callable[[Change], bool]) -> Iterator[Change]:
    """Yield the first change of a group that passes, where one does."""
    yield from islice(filter(passing, group), 1)


def _longest(sized: Sized, assertion: Assertion, passing: Callable[[Change], bool]) -> int | None:
    """Return a shorter maximum that passes while one token more does not; None: none is found."""
    high = sized.plan.max_model_len
    low = LEAST_LENGTH

    def holds(n: int) -> bool:
        return passing(of_length(sized.question, n))

    if low >= high or not holds(low):
        return None
    for likely in _likely(sized, assertion):
        if low < likely < high:  # a good guess halves the search more often than once
            low, high = (likely, high) if holds(likely) else (low, likely)
    return last_that(holds, low, high)


def _likely(sized: Sized, assertion: Assertion) -> Iterator[int]:
    """Yield lengths near which the search is likely to end."""
    if assertion.metric in ("fits", "may_fit", "missing_bytes"):
        longest = sized.low.max_model_len_that_fits
        yield from (longest, longest + 1)
    elif assertion.metric in ("max_concurrency", "total_concurrency") and assertion.limit:
        now = float(sized.expected(assertion.metric))
        length = int(sized.plan.max_model_len * now / float(assertion.limit))
        yield from (length + 64, length - 64)


def _changes(sized: Sized, metric: str) -> Iterator[Iterator[Change]]:
    """Yield groups of changes, of each of which the first that passes is told."""
    question, engine = sized.question, engine_of(sized.question.deployment.engine)
    if "waste" in metric or metric.startswith("paged_") or metric == "reserved_gain":
        now = sized.plan.block_size or 0
        yield (Change("", {"block_size": n}) for n in _BLOCKS if n < now)
        return
    if question.deployment.speculative_method is not None and engine.may_drop_speculation:
        none = {"speculative_method": None, "num_speculative_tokens": None, "draft_model": None}
        yield iter((Change("no speculation", none),))
    if question.deployment.disable_hybrid_kv_cache_manager:
        yield iter((Change("", {"disable_hybrid_kv_cache_manager": False}),))
    if sized.plan.kv_cache_dtype in _WIDE:
        yield iter((Change("", {"kv_cache_dtype": engine.eight_bit_cache}),))
    if engine.tensor_parallel:
        yield _more_ranks(question, of_memory=metric in ("fits", "may_fit", "missing_bytes"))


def _smaller_steps(sized: Sized) -> Iterator[Change]:
    """Yield smaller steps, then fewer sequences: both leave more of a share to the cache."""
    deployment = sized.question.deployment
    if not engine_of(deployment.engine).steps_in_share or not sized.worked.memory:
        return
    tokens, most = deployment.max_num_batched_tokens, deployment.max_num_seqs
    if tokens is not None and tokens > _STEP:
        yield Change("", {"max_num_batched_tokens": _STEP})
    wanted = sized.worked.each
    if most is not None and most > max(wanted, _SEQUENCES):
        yield Change("", {"max_num_seqs": max(wanted, _SEQUENCES)})


def _more_sequences(sized: Sized) -> Iterator[Change]:
    """Yield what lets as many run at once as are asked for; a server runs those of its groups."""
    groups = sizes_of(sized.question.deployment).groups
    yield sequences_change(sized.question, sized.worked.each * groups)


def _shares(sized: Sized) -> Iterator[Change]:
    """Yield other shares of the card: the nearest that surely holds the goal, then the largest.

    A share may be too large as well as too small: what lies beside it must have room.
    """
    deployment = sized.question.deployment
    engine = engine_of(deployment.engine)
    setting = engine.share
    if setting is None or not sized.worked.memory:
        return  # a cache that is given is not sized by a share
    field = setting in Deployment.__struct_fields__
    given = getattr(deployment, setting) if field else deployment.engine_args.get(setting)
    now = float(given) if isinstance(given, int | float) else None
    if engine.share_to_try is not None and (now or 0) < engine.share_to_try:
        yield share_change(setting, engine.share_to_try)
    sure = share_of_card(sized.question).solution
    if not isinstance(sure.value, float) or sure.up_to is None:
        return
    if now is not None:
        yield share_change(setting, min(max(sure.value, now), sure.up_to))
    yield share_change(setting, sure.up_to)


def _more_ranks(question: Question, *, of_memory: bool) -> Iterator[Change]:
    """Yield more tensor-parallel ranks; then the fewest GPUs in a usual layout that hold it."""
    now = question.deployment.tensor_parallel_size
    tp = now * 2
    while tp <= min(_MOST_RANKS, now * _MOST_TIMES):
        yield Change("", {"tensor_parallel_size": tp})
        tp *= 2
    if of_memory and question.deployment.gpu is not None:
        layout = num_gpus(question).change
        if layout is not None:
            yield layout


def _more_replicas(question: Question) -> Iterator[Change]:
    tp, dp = question.deployment.tensor_parallel_size, question.deployment.data_parallel_size
    if tp % 2 == 0:  # the same GPUs in another way
        yield Change("", {"tensor_parallel_size": tp // 2, "data_parallel_size": dp * 2})
    for factor in (2, 4, 8):
        yield Change("", {"data_parallel_size": dp * factor})


def _told(target: Target, change: Change) -> str:
    """Return a change in the engine's words; "" where it has none for it."""
    if change.name == "no speculation":
        return change.name
    given = {**change.settings, **change.args}
    words = [said(target, name, value) for name, value in given.items() if value is not None]
    return "" if None in words else " ".join(str(word) for word in words)
