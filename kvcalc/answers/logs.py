"""What a start-up log says, what kvcalc says to it, and where the two differ."""

from __future__ import annotations

from typing import Literal

from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers.capacity import Lever, RankBudget
from kvcalc.core.values import Value

__all__ = [
    "Changed",
    "Difference",
    "Fact",
    "Fix",
    "LogAnswer",
    "LogComparison",
    "LoggedTerm",
    "Named",
    "Outcome",
    "Predicted",
    "Unit",
]

Outcome = Literal["started", "sized", "unknown", "refused", "died", "died_later"]
"""How a start ended: it serves; its cache was sized and the log ends; the log ends before; the
engine refused it for want of room or by its settings; it died as it started; it served and died."""

Unit = Literal["B", "tokens", "blocks", "times", "share", "count", "text"]
"""What a figure counts: `times` are sequences at once, `share` a part of a card's memory."""


class Fact(Value, frozen=True, kw_only=True):
    """A figure or word as it was logged.

    Attributes:
        printed: as it stood in the line.
        low, high: what the printed digits stand for (2.18 GiB: any size that rounds to it), in
            bytes, tokens, ...; equal where every digit was printed, None for a word.
        unit: of low and high.
        line: where it stands in the file, from 1.
        said: how many lines (ranks) gave it.
        spread: (least, most) printed, where ranks differed and one of them counts.
    """

    printed: str
    low: int | float | None
    high: int | float | None
    unit: Unit
    line: int
    said: int = 1
    spread: tuple[str, str] | None = None


class Named(Value, frozen=True, kw_only=True):
    """A setting that a prediction was made with, and where it comes from."""

    name: str
    value: str
    source: str


class Predicted(Value, frozen=True, kw_only=True):
    """A figure of kvcalc's: everything from low to high is consistent with what was logged."""

    text: str
    low: int | float
    high: int | float
    unit: Unit
    basis: str


class Difference(Value, frozen=True, kw_only=True):
    """A figure that was logged as something else than what kvcalc says.

    Attributes:
        explained_by: the cause by name; None where kvcalc knows none.
        why: the cause in a sentence.
    """

    name: str
    logged: str
    predicted: str
    explained_by: str | None
    why: str = ""


class LoggedTerm(Value, frozen=True, kw_only=True):
    """A part of a card's memory: as logged, and as kvcalc would have said without the log.

    Attributes:
        logged: [low, high] bytes; None where the log does not tell it.
        predicted: [low, high] bytes; None where the card or the model is not known.
        agrees: the two intervals meet; None where one is missing.
    """

    name: str
    logged: tuple[int, int] | None
    predicted: tuple[int, int] | None
    agrees: bool | None
    source: str


class Fix(Value, frozen=True, kw_only=True):
    """A change with which a start succeeds by its own memory: a plan of it says so.

    Attributes:
        flags: the engine's own; empty where it is no flag's.
        text: the same in a sentence, with what it gives and costs.
        kv_cache_bytes, kv_cache_tokens, max_concurrency: with it, at least.
    """

    flags: tuple[str, ...]
    text: str
    kv_cache_bytes: int | None
    kv_cache_tokens: int
    max_concurrency: float


class LogAnswer(Value, frozen=True, kw_only=True):
    """One start of a server, read from its log.

    Attributes:
        file: the log's name.
        start, starts: which of the file's starts this is, and how many there are.
        lines: first and last line that it was read from.
        failure: what ended the start, with the arithmetic, or the server later; None where
            nothing did.
        code: of the refusal that ended the start, as findings are coded; None where it is none
            that is known.
        outcome: how the start ended, in a word.
        verdict: the answer in a sentence.
        facts: figures by name.
        settings: what the prediction was made with.
        predicted: kvcalc's figures by the same names.
        agrees: names of figures that agree, and that could have disagreed: what is read from the
            log and told back agrees for any model.
        differences: those that do not.
        total_bytes: the card's memory that the terms share; None where it is not known.
        terms: the memory of one GPU, logged against predicted.
        budget: the same as a capacity answer tells it; empty where no card is known.
        fixes: what makes the start succeed, the cheapest first, each confirmed by a plan.
        cures: what to change, the fixes first.
        levers: what each setting would buy with the logged memory.
        oom: an out-of-memory text in the log, judged; None where there is none.
    """

    file: str
    start: int
    starts: int
    lines: tuple[int, int]
    engine: str
    engine_version: str | None
    model: str | None
    gpu: str | None
    outcome: Outcome
    verdict: str
    failure: str | None
    facts: dict[str, Fact]
    settings: tuple[Named, ...]
    predicted: dict[str, Predicted]
    agrees: tuple[str, ...]
    differences: tuple[Difference, ...]
    total_bytes: int | None
    terms: tuple[LoggedTerm, ...]
    budget: tuple[RankBudget, ...]
    fixes: tuple[Fix, ...]
    cures: tuple[str, ...]
    levers: tuple[Lever, ...]
    oom: OutOfMemory | None
    notes: tuple[str, ...]
    unsupported: tuple[str, ...]
    code: str | None = None


class Changed(Value, frozen=True, kw_only=True):
    """A setting or figure that differs between two starts.

    Attributes:
        first, second: as they stood; None where one log does not tell it.
        tokens: tokens that the change brought (below 0: cost); None where that cannot be said.
        why: how the tokens are counted.
    """

    name: str
    first: str | None
    second: str | None
    tokens: int | None
    why: str = ""


class LogComparison(Value, frozen=True, kw_only=True):
    """Two starts side by side.

    Attributes:
        tokens: tokens that each of the two logged; None where it did not.
        tokens_gained: of the second over the first; the changes' tokens add up to it where each
            could be counted.
        changed: what differs, the dearest first.
    """

    files: tuple[str, str]
    engines: tuple[str, str]
    verdict: str
    tokens: tuple[int | None, int | None]
    tokens_gained: int | None
    changed: tuple[Changed, ...]
    notes: tuple[str, ...]
