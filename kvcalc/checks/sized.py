"""A deployment's figures, each worked out when it is asked for, and only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from kvcalc.answers.assertions import Found
from kvcalc.answers.capacity import DeploymentTotals, Figures
from kvcalc.answers.compare import compare
from kvcalc.answers.metrics import METRICS, Figure, length_of
from kvcalc.answers.results import Comparison
from kvcalc.core.capacity import binding_rank
from kvcalc.core.errors import KvcalcError
from kvcalc.core.lengths import Lengths, Over
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.rules import Slots
from kvcalc.engines.changes import Change
from kvcalc.sizing import Question
from kvcalc.sizing.figures import alone, at_length, at_workload, figures, totals
from kvcalc.sizing.question import work
from kvcalc.sizing.sharing import one_of_several
from kvcalc.sizing.worked import Worked

__all__ = ["Load", "MissingFigureError", "Sized"]

_MILLION = 10**6


class MissingFigureError(KvcalcError):
    """A figure that there is not: no memory to answer for, no price, no blocks."""


class Load:
    """Requests and what to call them; `over` says what becomes of those beyond the maximum."""

    def __init__(self, name: str, lengths: Lengths, over: Over | None = None) -> None:
        self.name = name
        self.lengths = lengths
        self.over = over


class Sized:
    """One question's figures.

    Args:
        question: what is deployed.
        copies: servers of this kind beside each other, as Kubernetes replicas are.
        price: of an hour of one GPU; None where nobody said.
    """

    def __init__(self, question: Question, *, copies: int = 1, price: float | None = None) -> None:
        self.asked = question
        self.copies = copies
        self.price = price
        self._comparisons: dict[str, Comparison] = {}
        self._tried: dict[str, Sized | None] = {}

    def tried(self, change: Change) -> Sized | None:
        """Return the same with a setting changed, worked out; None where the engine refuses it."""
        key = f"{change.settings} {change.args} {change.quantization}"
        if key not in self._tried:
            made = Sized(change.applied(self.asked), copies=self.copies, price=self.price)
            try:
                self._tried[key] = made if made.worked is not None else None
            except KvcalcError:
                self._tried[key] = None
        return self._tried[key]

    @cached_property
    def question(self) -> Question:
        """The question of one server, where several share its card."""
        return one_of_several(self.asked)[0]

    @cached_property
    def worked(self) -> Worked:
        """The question worked out: whatever the engine refuses is raised here."""
        return work(self.question)

    @property
    def plan(self) -> CachePlan:
        """What the engine makes of it."""
        return self.worked.plan

    @cached_property
    def rank(self) -> Rank:
        """The rank that binds with what is left for its cache."""
        return binding_rank(self.plan, self.worked.middle)

    @cached_property
    def low(self) -> Figures:
        """With the least that is left for the cache."""
        return figures(self.worked, "low")

    @cached_property
    def middle(self) -> Figures:
        """As expected."""
        return figures(self.worked, "middle")

    @cached_property
    def high(self) -> Figures:
        """With the most that is left for the cache."""
        return figures(self.worked, "high")

    @cached_property
    def fits(self) -> bool:
        """Whether what is asked surely fits."""
        return self.worked.meets("low")

    @cached_property
    def totals(self) -> DeploymentTotals:
        """Of all GPUs of one copy."""
        single = alone(self.question, self.plan)
        return totals(self.question, self.plan, single, self.middle)

    def comparison(self, load: Load) -> Comparison:
        """Return what paging wastes of a workload, and what contiguous reservation would."""
        if load.name not in self._comparisons:
            self._comparisons[load.name] = compare(
                self.plan, load.lengths, workload=load.name, over=load.over or "clip"
            )
        return self._comparisons[load.name]

    def figure(self, name: str, load: Load | None = None) -> Found:
        """Return a figure by its metric's name.

        Raises:
            MissingFigureError: there is none here; the hint says what it needs.
            KvcalcError: the engine refuses the question.
        """
        tokens = length_of(name)
        if tokens is not None:
            at = at_length(self.worked, tokens)
            return _between(at.max_concurrency, at.low, at.high)
        if METRICS[name].needs == "workload":
            return self._of_workload(name, load)
        if METRICS[name].needs == "price":
            return self._priced(name)
        if name in _EXPECTED:
            read = _EXPECTED[name]
            return _between(*(read(self, each) for each in (self.middle, self.low, self.high)))
        return _PLAIN[name](self)

    def expected(self, name: str, load: Load | None = None) -> Figure:
        """Return a figure as expected, without its bounds, which cost as much again."""
        if name in _EXPECTED:
            return _EXPECTED[name](self, self.middle)
        return self.figure(name, load).value

    def known(self) -> dict[str, Figure]:
        """Return every figure that there is without a workload, for a machine to compare."""
        found: dict[str, Figure] = {}
        for name, metric in METRICS.items():
            if metric.needs == "workload":
                continue
            try:
                found[name] = self.figure(name).value
            except MissingFigureError:
                continue
        return found

    def _of_workload(self, name: str, load: Load | None) -> Found:
        if load is None:
            raise MissingFigureError(
                f"{name} is about requests and no workload is named",
                hint="name one of the file's workloads: workload: chat",
            )
        if name == "workload_concurrency":
            kept = load.lengths.limited(self.plan.max_model_len, load.over or "clip")
            at = at_workload(self.worked, load.name, kept)
            return _between(at.max_concurrency, at.low, at.high)
        made = self.comparison(load)
        if name == "reserved_gain":
            if made.reserved_gain is None:
                raise MissingFigureError("nothing is reserved", hint="leave the assertion out")
            return Found(made.reserved_gain)
        side, _, waste = name.removesuffix("_ratio").partition("_")
        total = made.paged_total if side == "paged" else made.contiguous_total
        if waste == "waste":
            return Found(total.waste_ratio)
        part = getattr(total.waste, f"{waste}_bytes")
        return Found(part / total.reserved_bytes if total.reserved_bytes else 0.0)

    def _priced(self, name: str) -> Found:
        if self.price is None:
            raise MissingFigureError(
                f"{name} needs a price", hint="write price_per_gpu_hour: 2.5 beside it"
            )
        metric = _PER[name]
        found = self.figure(metric)
        hour = self.price * int(self.figure("num_gpus").value)
        unit = _MILLION if metric == "total_kv_cache_tokens" else 1
        if not found.value:
            raise MissingFigureError(f"{metric} is 0", hint="see why it does not fit")
        least = None if not found.high else hour * unit / found.high
        most = None if not found.low else hour * unit / found.low
        return Found(hour * unit / found.value, least, most)


_PER = {
    "cost_per_million_tokens_hour": "total_kv_cache_tokens",
    "cost_per_sequence_hour": "total_concurrency",
}


def _between(value: Figure, low: Figure, high: Figure) -> Found:
    return Found(value) if low == value == high else Found(value, low, high)


def _given(value: Figure | None, what: str) -> Figure:
    if value is None:
        raise MissingFigureError(f"there is no {what} here", hint="leave the assertion out")
    return value


def _holders(sized: Sized) -> int:
    return sized.question.holders * sized.copies


def _bytes_per_token(sized: Sized) -> Found:
    grown, period = sized.rank.growth(windows_open=False)
    return Found(grown if period == 1 else grown / period)


def _host(sized: Sized) -> Found:
    low = sum(part.low_bytes for part in sized.plan.host)
    highs = [part.high_bytes for part in sized.plan.host]
    high = sum(size for size in highs if size is not None)
    return Found(low) if low == high or None in highs else Found(high, low, high)


def _weights(sized: Sized) -> Found:
    if not sized.worked.memory:
        raise MissingFigureError(
            "the weights are not asked about where the cache is given",
            hint="name the card instead of kv_cache_memory_bytes",
        )
    bounds = [
        (
            sum(term.low_bytes for term in memory.terms if term.name == "weights"),
            sum(term.high_bytes for term in memory.terms if term.name == "weights"),
        )
        for memory in sized.worked.memory
    ]
    low, high = max(bounds)
    return _between((low + high) // 2, low, high)


def _missing(sized: Sized) -> Found:
    missing = 0 if sized.fits else sized.worked.missing()
    return _between(missing, 0 if sized.worked.meets("high") else missing, missing)


_EXPECTED: Mapping[str, Callable[[Sized, Figures], Figure]] = {
    "max_concurrency": lambda _, f: f.max_concurrency,
    "max_sequences": lambda _, f: f.max_sequences,
    "kv_cache_tokens": lambda _, f: f.kv_cache_tokens,
    "num_blocks": lambda _, f: _given(f.num_blocks, "number of blocks"),
    "kv_cache_bytes": lambda _, f: _given(f.kv_cache_bytes, "budget of the cache"),
    "max_model_len_that_fits": lambda _, f: f.max_model_len_that_fits,
    "total_kv_cache_tokens": lambda sized, f: f.kv_cache_tokens * _holders(sized),
    "total_concurrency": lambda sized, f: f.max_concurrency * _holders(sized),
}
"""Figures that depend on what is left for the cache."""

_PLAIN: Mapping[str, Callable[[Sized], Found]] = {
    "fits": lambda sized: _between(sized.fits, sized.fits, sized.worked.meets("high")),
    "may_fit": lambda sized: Found(sized.worked.meets("high")),
    "bytes_per_token": _bytes_per_token,
    "state_bytes": lambda sized: Found(sized.plan.fixed_bytes(Slots)),
    "needed_bytes": lambda sized: Found(sized.rank.bytes_needed(sized.plan.max_model_len)),
    "missing_bytes": _missing,
    "max_model_len": lambda sized: Found(sized.plan.max_model_len),
    "block_size": lambda sized: Found(_given(sized.plan.block_size, "block size")),
    "block_bytes": lambda sized: Found(_given(sized.middle.block_bytes, "block size")),
    "weights_bytes": _weights,
    "host_bytes": _host,
    "num_gpus": lambda sized: Found(sized.totals.num_gpus * sized.copies),
    "replicas": lambda sized: Found(_holders(sized)),
    "duplication_factor": lambda sized: Found(sized.totals.duplication_factor),
}
