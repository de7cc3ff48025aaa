"""Request lengths as a histogram: exact, small, and mergeable by addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from kvcalc.core.errors import InvalidValueError

__all__ = ["EXAMPLE_LENGTHS", "OVER_POLICIES", "Lengths", "Over"]

EXAMPLE_LENGTHS = (200, 1200, 700, 2600)
"""Four requests to draw: short, middling, short, long (tokens, prompt and output together)."""

Over = Literal["clip", "exclude", "keep"]
OVER_POLICIES: tuple[Over, ...] = ("clip", "exclude", "keep")


class Lengths:
    """How many requests there are of each total length (prompt and output tokens).

    Every static waste of a plan is a sum over requests of a function of their length, so the
    histogram loses nothing. Immutable; equal histograms are equal values.

    >>> Lengths.of([200, 1200, 700, 200]).pairs
    ((200, 2), (700, 1), (1200, 1))
    """

    __slots__ = ("pairs", "requests", "tokens")

    pairs: tuple[tuple[int, int], ...]
    """(tokens, requests), by rising tokens; no request count is 0."""
    requests: int
    """Number of requests."""
    tokens: int
    """Tokens of all requests together."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        """Take requests by length.

        Raises:
            InvalidValueError: a negative length or count.
        """
        if counts and (min(counts) < 0 or min(counts.values()) < 0):
            raise InvalidValueError("a request length or count is negative")
        pairs = tuple(sorted([pair for pair in counts.items() if pair[1]]))
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "requests", sum([c for _, c in pairs]))
        object.__setattr__(self, "tokens", sum([n * c for n, c in pairs]))

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Lengths:
        """Count single lengths."""
        return cls(Counter(lengths))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Lengths is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lengths) and self.pairs == other.pairs

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __reduce__(self) -> tuple[type[Lengths], tuple[dict[int, int]]]:
        # Copies and pickles are made anew, as fields cannot be set.
        return Lengths, (dict(self.pairs),)

    def __repr__(self) -> str:
        return f"Lengths({self.requests} requests, {self.tokens} tokens)"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.pairs)

    def __add__(self, other: Lengths) -> Lengths:
        counts = Counter(dict(self.pairs))
        counts.update(dict(other.pairs))
        return Lengths(counts)

    @property
    def longest(self) -> int:
        """The longest length, 0 when there is no request."""
        return self.pairs[-1][0] if self.pairs else 0

    def requests_over(self, max_model_len: int) -> int:
        """Number of requests longer than the maximum."""
        return sum(c for n, c in self.pairs if n > max_model_len)

    def map(self, function: Callable[[int], int]) -> Lengths:
        """Return the histogram of function(length)."""
        counts: Counter[int] = Counter()
        for n, c in self.pairs:
            counts[function(n)] += c
        return Lengths(counts)

    def limited(self, max_model_len: int, over: Over) -> Lengths:
        """Apply the policy for requests that are longer than `max_model_len`.

        `clip` cuts them to the maximum, as an engine that stops generating there; `exclude`
        drops them, as an engine that refuses them; `keep` leaves them as they are.
        """
        if over == "keep" or self.longest <= max_model_len:
            return self
        if over == "exclude":
            return Lengths({n: c for n, c in self.pairs if n <= max_model_len})
        return self.map(lambda n: min(n, max_model_len))

    def percentile(self, percent: int) -> int:
        """Return the smallest length that at least `percent` % of the requests do not exceed."""
        seen, wanted = 0, percent * self.requests
        for n, c in self.pairs:
            seen += c
            if 100 * seen >= wanted:
                return n
        return 0
