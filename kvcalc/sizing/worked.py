"""A question worked out: the plan and memory that every answer to it is read from."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.capacity import Budgets, holds, least_of, short_of, smallest_budget
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.memory import End, HostBudget, MemoryBudget
from kvcalc.core.plan import CachePlan, Floor
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of
from kvcalc.sizing.host import host_budget, host_refusal
from kvcalc.sizing.sharing import Refusal, refused

__all__ = ["Worked", "too_many"]


class Worked(NamedTuple):
    """A question worked out as far as every answer needs it.

    Attributes:
        plan: what the engine makes of it.
        memory: of each rank of the plan; empty where the cache is given.
        low, middle, high: bytes of the cache of each rank.
        each: sequences of the goal that every server (or group of ranks) must hold at once.
        cards: the memory of each kind of GPU with all that is taken of it, the cache too where it
            is given; empty where no card is named.
        gpu: the card.
        barred: why it cannot run, whatever a card holds; None where it can.
        too_long: why the engine refuses its maximum; None where it does not.
        longest: the longest maximum that it does not refuse; None where it refuses none.
        host_bytes: host memory that the servers may have; None where nobody says.
        servers: of this kind on the host.
    """

    plan: CachePlan
    memory: tuple[MemoryBudget, ...]
    low: Budgets
    middle: Budgets
    high: Budgets
    each: int
    cards: tuple[MemoryBudget, ...] = ()
    gpu: GpuSpec | None = None
    barred: Refusal | None = None
    too_long: Refusal | None = None
    longest: int | None = None
    host_bytes: int | None = None
    servers: int = 1

    @property
    def host(self) -> HostBudget:
        """What the servers take of their host's memory, and what they may have of it."""
        return host_budget(
            self.plan,
            self.cards,
            (self.low, self.high),
            self.gpu,
            limit_bytes=self.host_bytes,
            servers=self.servers,
        )

    @property
    def barred_anyway(self) -> Refusal | None:
        """Why it cannot run whatever a GPU holds; None where it can."""
        return self.barred or host_refusal(self.host)

    @property
    def memory_is_known(self) -> bool:
        """Whether a GPU or the bytes of the cache are given: else nothing says that it fits."""
        return self.gpu is not None or bool(self.memory) or self.low is not None

    def budgets(self, end: End) -> Budgets:
        """Bytes of the cache of each rank: least, expected, or most."""
        return {"low": self.low, "middle": self.middle, "high": self.high}[end]

    def runs(self, end: End) -> bool:
        """Whether there is room at an end for all that is taken of the cards, whatever it holds.

        What is expected is told of a start that succeeds, wherever one may.
        """
        sure: End = "low" if end == "low" else "high"
        return self.barred_anyway is None and all(one.shortfall(sure) <= 0 for one in self.cards)

    def cache_holds(self, end: End) -> bool:
        """Whether the caches hold the goal at an end, whatever lies beside them."""
        return self.too_long is None and holds(self.plan, self.budgets(end), self.each)

    def meets(self, end: End) -> bool:
        """Whether the goal is met at an end: surely where everything takes its most (`low`)."""
        return self.runs(end) and self.cache_holds(end)

    def fits(self, end: End) -> bool | None:
        """Whether the goal is met at an end; None where that hangs on a memory nobody named."""
        if self.memory_is_known:
            return self.meets(end)
        return None if self.cache_holds(end) else False

    def refusal(self, end: End = "high") -> Refusal | None:
        """Return why it does not start at an end; None where it does."""
        found = self.too_long or self.barred_anyway
        if found is not None or self.gpu is None:
            return found
        gpu = self.gpu
        sure: End = "low" if end == "low" else "high"
        return next(filter(None, (refused(one, gpu, sure) for one in self.cards)), None)

    def stopped(self, end: End) -> tuple[Floor, int] | None:
        """Return the floor that alone is in the way at an end, and the units that there are.

        Where a maximum is shortened to what fits, what does not fit is not in the way.
        """
        floors, budgets = self.plan.floors, self.budgets(end)
        if not floors or (isinstance(budgets, tuple) and min(b or 1 for b in budgets) < 1):
            return None
        least = least_of(budgets)
        bare = self._replace(plan=msgspec.structs.replace(self.plan, floors=()))
        if (least is not None and least < 1) or not bare.runs(end):
            return None
        if self.plan.start != "shortens" and not bare.meets(end):
            return None
        return short_of(self.plan, budgets)

    @property
    def crowded(self) -> str | None:
        """Why the goal is not met whatever the memory; None where that is not so."""
        return too_many(self.plan, self.each)

    def missing(self) -> int:
        """Bytes that one GPU lacks for the goal at the low end; 0: no memory would do, or enough.

        What the cache lacks of what it must hold, and what the card lacks for all beside it.
        """
        wanted = None if self.too_long else smallest_budget(self.plan, self.each)
        if wanted is None:
            return 0
        if self.barred is not None:
            return self.barred.missing_bytes
        if self.barred_anyway is not None:
            return 0  # of a GPU, nothing
        given = not self.memory
        lacks = [max(0, wanted - (least_of(self.low) or 0))] if given or not self.cards else []
        lacks += [max(0, wanted - one.cache_bytes[0]) for one in self.cards if not given]
        beside = [one.shortfall("low") for one in self.cards]
        if given:  # a larger cache takes its own from the card
            (cache,) = lacks
            grown = (
                lack + cache * one.servers for one, lack in zip(self.cards, beside, strict=True)
            )
            return max(cache, *grown, 0)
        return max(cache + max(0, lack) for cache, lack in zip(lacks, beside or (0,), strict=True))


def too_many(found: CachePlan, sequences: int) -> str | None:
    """Return that so many sequences are never run at once; None where they may be."""
    places = found.places
    if places is None or sequences <= places:
        return None
    setting = engine_of(found.engine).running
    return f"no more than {format_count(places)} run at once ({setting}), whatever the memory"
