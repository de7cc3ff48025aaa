"""Request lengths as a histogram: exact, small, and mergeable by addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import index
from typing import Any, Literal, SupportsIndex

from kvcalc.core.errors import InvalidValueError, UnknownNameError
from kvcalc.core.units import parse_tokens

__all__ = ["EXAMPLE_LENGTHS", "OVER_POLICIES", "Lengths", "Over", "parse_lengths", "whole_number"]


EXAMPLE_LENGTHS = (200, 1200, 700, 2600)
"""Four requests to draw: short, middling, short, long (tokens, prompt and output together)."""
Over = Literal["clip", "exclude", "keep"]
OVER_POLICIES: tuple[Over, ...] = ("clip", "exclude", "keep")
_ENDLESS = 10**60
_CHUNK = 2**16  # lengths looked at together, so that an endless iterator needs no endless list
_HINT = (
    "give whole numbers of tokens: a list of ints, an array of integers, or kvcalc.Lengths, such as"
    " the .lengths of a trace"
)
_BY_LENGTH = "kvcalc.Lengths({200: 50}) takes requests by length: fifty of 200 tokens"


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

        Args:
            counts: length in tokens -> number of requests.

        Raises:
            InvalidValueError: not a mapping; a length or count that is negative or not a whole
                number.
        """
        if not isinstance(counts, Mapping):
            raise InvalidValueError(
                f"requests by length are {_told(counts)}, not a mapping",
                hint="kvcalc.Lengths.of([200, 1200]) counts single lengths",
            )
        if not set(map(type, counts)) | set(map(type, counts.values())) <= {int}:
            counts = {
                whole_number(n, "a request length", _HINT): whole_number(
                    c, "a number of requests", _BY_LENGTH
                )
                for n, c in counts.items()
            }
        if counts and (min(counts) < 0 or min(counts.values()) < 0):
            raise InvalidValueError("a request length or count is negative")
        pairs = tuple(sorted([pair for pair in counts.items() if pair[1]]))
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "requests", sum([c for _, c in pairs]))
        object.__setattr__(self, "tokens", sum([n * c for n, c in pairs]))

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Lengths:
        """Count single lengths.

        Args:
            lengths: tokens of each request: ints, or one dimension of an array of any integer
                dtype.

        Raises:
            InvalidValueError: something else (a mapping, a text, an array of floats), or a length
                that is negative or not a whole number.
        """
        counts: Counter[int] = Counter()
        place = 0
        for chunk in _chunks(lengths):
            # Before they are counted: 1, 1.0 and True would be one key.
            if set(map(type, chunk)) == {int}:
                counts.update(chunk)
            else:
                counts.update(
                    whole_number(n, f"request {i}", _HINT) for i, n in enumerate(chunk, place)
                )
            place += len(chunk)
        return cls(counts)

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

        Raises:
            UnknownNameError: no such policy.
        """
        if over not in OVER_POLICIES:
            raise UnknownNameError("value of over", f"{over!s:.60}", OVER_POLICIES)
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


def whole_number(value: object, what: str, hint: str = "") -> int:
    """Return the plain int of an int or of another type of integers, such as numpy's.

    Args:
        value: what was given.
        what: what an error calls it.
        hint: what an error says to do.

    Raises:
        InvalidValueError: a float (bytes and tokens are exact), a bool, or no number at all.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        try:
            return index(value)
        except TypeError:  # an array has the method whatever its size
            pass
    raise InvalidValueError(f"{what} is {_told(value)}, not a whole number", hint=hint)


def _told(value: object) -> str:
    """Return how a message calls a value that was given: on one line, however large it is."""
    kind = type(value).__name__
    if isinstance(value, int) and abs(value) >= _ENDLESS:  # Python prints no thousands of digits
        return f"of type {kind}"
    return f"{value!r:.60} ({kind})" if isinstance(value, (str, int, float)) else f"of type {kind}"


def _chunks(lengths: object) -> Iterator[list[Any]]:
    """Return what was given as lengths in lists; only of arrays is the type of all known."""
    if isinstance(lengths, Mapping):
        raise InvalidValueError(
            f"request lengths are {_told(lengths)}, not a list of them", hint=_BY_LENGTH
        )
    if isinstance(lengths, (str, bytes, bytearray)) or not isinstance(lengths, Iterable):
        raise InvalidValueError(
            f"request lengths are {_told(lengths)}, not a list of whole numbers", hint=_HINT
        )
    # By what arrays have, as numpy takes longer to import than most calls to run.
    dimensions = getattr(lengths, "ndim", 1)
    if dimensions != 1:
        raise InvalidValueError(
            f"request lengths are an array of {dimensions} dimensions, not of one",
            hint="give one length a request: array.ravel(), or the column that holds them",
        )
    kind = getattr(getattr(lengths, "dtype", None), "kind", "O")
    return _listed(lengths) if kind == "O" else _array_chunks(lengths, kind)


def _listed(lengths: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(lengths)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _array_chunks(array: Any, kind: str) -> Iterator[list[Any]]:
    size = len(array)
    if size and kind not in "iu":  # an empty list becomes an array of floats
        raise InvalidValueError(
            f"request lengths are an array of {array.dtype}, not of integers",
            hint="tokens are whole: array.astype(int) if these are",
        )
    for start in range(0, size, _CHUNK):
        yield array[start : start + _CHUNK].tolist()  # plain ints, not numpy's


# Request lengths as people list them: `200,1200,700`, or `50x200` for fifty of 200.

MAX_LISTED = 100_000
"""Lengths in one list."""
_MOST_REQUESTS = 100_000_000_000_000_000_000  # of one length
_MAX_DIGITS = 21
_MAX_SHOWN = 40


def parse_lengths(text: str) -> Lengths:
    """Read `200,1200,700` or `3x200,1200`: a request each, or as many as the factor says.

    Raises:
        InvalidValueError: no length, or more than MAX_LISTED of them.

    >>> parse_lengths("50x200,1200").pairs
    ((200, 50), (1200, 1))
    """
    counts: dict[int, int] = {}
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_LISTED:
        raise InvalidValueError(
            f"{len(parts)} lengths in one list", hint="write them to a file and use a trace"
        )
    for part in parts:
        factor, times, length = part.rpartition("x")
        if not length or (times and not factor):
            raise InvalidValueError(
                f"{_cut(part)!r} is no length", hint="write lengths such as 200,1200 or 50x700"
            )
        n = parse_tokens(length)
        counts[n] = counts.get(n, 0) + (_requests(factor) if times else 1)
    return Lengths(counts)


def _requests(text: str) -> int:
    digits = text.strip()
    plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not plain or not 1 <= int(digits) <= _MOST_REQUESTS:
        raise InvalidValueError(
            f"{_cut(text)!r} is not a whole number from 1 to {_MOST_REQUESTS}",
            hint="write a number such as 16",
        )
    return int(digits)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
