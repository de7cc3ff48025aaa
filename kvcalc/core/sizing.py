"""A budget turned into states and tokens: first what is taken whole, then the rest by the token.

Engines of this kind (SGLang) give states a share of the memory, take pools of a fixed size out of
it, and divide what is left by the bytes of a token. Shares and ratios are computed in floating
point, as the engines do, so that the last unit is theirs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.units import round_up
from kvcalc.core.values import NonNegative, Positive, Value, require_range

__all__ = ["Counts", "Sized", "StateBudget", "TokenBudget"]

Sized = Literal["tokens", "window", "states", "proposed", "requests"]
"""What of a sized budget a pool's units are: pages of the tokens that are all kept; pages of the
windows' tokens; states; requests whose proposed states are kept apart; requests at once."""


class Counts(NamedTuple):
    """What a budget comes to; tokens are whole pages.

    Attributes:
        tokens: tokens of the pools that keep all of them (of the windows, where none does).
        window: tokens of the windows' pools.
        states: states, the padding one apart.
        requests: requests that can propose tokens at once, or that keep something of a fixed size;
            0 where none can.
    """

    tokens: int
    window: int
    states: int
    requests: int

    def of(self, sized: Sized) -> int:
        """Return the count of that name."""
        return {
            "tokens": self.tokens,
            "window": self.window,
            "states": self.states,
            "proposed": self.requests,
            "requests": self.requests,
        }[sized]


class StateBudget(Value, frozen=True, kw_only=True):
    """How many states a budget pays for: SGLang 0.5.23, _handle_max_mamba_cache.

    Attributes:
        charge_bytes: bytes charged for a state, by every rank the same.
        states: how many the settings ask for; None where the memory decides.
        memory_ratio: memory of the states over that of the tokens.
        per_request: states that a request can come to hold.
        proposed: tokens proposed at once, for each of which a running request has a state more.
        max_requests: the most requests that run at once; None without a limit.
        padding: slots of each pool that are paid for beyond those in use.
    """

    charge_bytes: Positive
    states: Positive | None = None
    memory_ratio: float = 0.9
    per_request: Positive = 1
    proposed: NonNegative = 0
    max_requests: Positive | None = None
    padding: NonNegative = 1

    def __post_init__(self) -> None:
        require_range(self, 1, "charge_bytes", "per_request")
        require_range(self, 0, "proposed", "padding")

    def count(self, budget: int) -> int:
        """Return the states that a budget of so many bytes pays for; 0 for none."""
        if self.states is not None:
            return self.states
        mine = budget * self.memory_ratio / (1 + self.memory_ratio)
        charge = self.charge_bytes
        if self.proposed:
            mine -= self.padding * charge * (1 + self.proposed)
            return max(0, int(mine // (charge * (1 + self.proposed / self.per_request))))
        return max(0, int((mine - self.padding * charge) // charge))

    def requests(self, states: int) -> int:
        """Return how many requests so many states serve."""
        served = states // self.per_request
        return served if self.max_requests is None else min(served, self.max_requests)

    def taken(self, states: int) -> int:
        """Return the bytes charged for so many states, the padding ones and proposals included."""
        total = (states + self.padding) * self.charge_bytes
        if self.proposed:
            total += (self.requests(states) + self.padding) * self.proposed * self.charge_bytes
        return total


class TokenBudget(Value, frozen=True, kw_only=True):
    """How a budget becomes tokens: SGLang 0.5.23, model_executor/pool_configurator.py.

    Attributes:
        page_tokens: tokens a page; pools are whole pages.
        token_bytes: bytes charged for a token by the pools that keep all tokens.
        window_bytes: bytes charged for a token by the windows' pools.
        window_ratio: window tokens for every token; None where no pool keeps all tokens, or
            window_tokens says how many there are.
        window_tokens: window tokens where requests decide and not the ratio.
        max_tokens: the most tokens that the settings allow.
        unpriced_tokens: tokens where no layer keeps any, so that none costs anything.
        states: the states that are paid for first.
        rounds_up: tokens are rounded up to pages and not down: the last page may be paid in part.
        price: bytes charged for a token, window tokens included, where entries for many tokens
            make it a fraction: the budget is divided in floating point, as the engine does.
        paid_bytes: bytes of what has a fixed size, paid for first.
        requests: the most requests at once, where each keeps something of a fixed size.
    """

    page_tokens: Positive
    token_bytes: NonNegative
    window_bytes: NonNegative = 0
    window_ratio: float | None = None
    window_tokens: NonNegative | None = None
    max_tokens: NonNegative | None = None
    unpriced_tokens: NonNegative = 0
    states: StateBudget | None = None
    rounds_up: bool = False
    price: float | None = None
    paid_bytes: NonNegative = 0
    requests: NonNegative = 0

    def __post_init__(self) -> None:
        require_range(self, 1, "page_tokens")

    @property
    def bounded(self) -> bool:
        """Whether the settings bound tokens and states, however large the budget is."""
        states = self.states is None or self.states.states is not None
        return self.max_tokens is not None and states

    def counts(self, budget: int) -> Counts:
        """Return the tokens and states that a budget of so many bytes comes to."""
        states = requests = 0
        if self.states is not None:
            states = self.states.count(budget)
            budget = max(0, budget - self.states.taken(states))
            requests = self.states.requests(states) if self.states.proposed else 0
        tokens, window = self._tokens(max(0, budget - self.paid_bytes))
        if self.states is not None and self.states.proposed:
            requests = min(requests, tokens // 2)
        if self.requests:
            requests = min(self.requests, tokens // 2)
        return Counts(tokens, window, states, requests)

    def _whole(self, tokens: int) -> int:
        if self.rounds_up:
            return round_up(tokens, self.page_tokens)
        return tokens - tokens % self.page_tokens

    def _tokens(self, budget: int) -> tuple[int, int]:
        """Return tokens of the full pools and of the windows'."""
        if self.window_tokens is not None:
            left = max(0, budget - self.window_tokens * self.window_bytes)
            tokens, window = self._whole(left // self.token_bytes), self.window_tokens
            if self.max_tokens is not None and self.max_tokens < tokens:
                tokens, window = self._whole(self.max_tokens), min(window, self.max_tokens)
            return tokens, window
        if self.price is not None:
            tokens = int(budget / self.price)
        elif self.window_ratio is None:
            cell = self.token_bytes + self.window_bytes
            tokens = budget // cell if cell else self.unpriced_tokens
        else:
            priced = self.token_bytes + self.window_ratio * self.window_bytes
            tokens = int(budget // priced)
        tokens = self._whole(tokens)
        if self.max_tokens is not None:
            tokens = self._whole(min(tokens, self.max_tokens))
        if self.window_ratio is None:
            return tokens, tokens
        return tokens, self._whole(int(tokens * self.window_ratio))
