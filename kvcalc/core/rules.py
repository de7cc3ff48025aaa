"""How an engine hands out cache for one sequence: one class a rule, all in whole units.

A unit is what the allocator hands out at once: a block of tokens, one entry, one state. A unit
holds `slots_per_unit` slots; a slot holds the rows of one token (of one entry of a compressed
cache, of one state). A rule never takes the maximum length or the engine: it says, for a sequence
of n cached tokens, how many units it holds, how many admission asks for, and how its slots split
into those in use and the named wastes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.units import cdiv
from kvcalc.core.values import NonNegative, Positive, Value, require_range

__all__ = [
    "Chunk",
    "Compressed",
    "Fixed",
    "Form",
    "Grow",
    "Ring",
    "Rule",
    "Slots",
    "Stepped",
    "Tally",
    "Whole",
    "Window",
]


class Tally(NamedTuple):
    """Units and slots of one sequence, or of many added up.

    `units x slots_per_unit == used + reservation + tail + retention` always.
    """

    units: int
    used: int
    reservation: int
    tail: int
    retention: int


def _read(n: int, limit: int, *, restarts: bool) -> int:
    """Slots that the newest of n tokens reads of a window, or of a chunk that restarts."""
    if restarts:
        return (n - 1) % limit + 1 if n else 0
    return min(n, limit)


def _readable(n: int, limit: int, *, restarts: bool) -> int:
    """Slots that a token still to come can read of them."""
    return n % limit if restarts else min(n, limit - 1)


class RuleBase(Value, frozen=True, kw_only=True, tag_field="rule"):
    """What every rule answers. n is the number of cached tokens on this rank."""

    @property
    def slots_per_unit(self) -> int:
        """Slots in one unit."""
        raise NotImplementedError

    def held(self, n: int) -> int:
        """Units that a sequence of n cached tokens holds now."""
        raise NotImplementedError

    def peak(self, n: int) -> int:
        """Units that admission reserves for a sequence on its way to n tokens; rises with n."""
        return self.held(n)

    def used(self, n: int) -> int:
        """Slots that the newest of n tokens reads, its own included."""
        raise NotImplementedError

    def most_used(self, n: int) -> int:
        """The most slots in use at once on the way to n tokens; rises with n."""
        return self.used(n)

    def readable(self, n: int) -> int:
        """Slots that a token still to come can read: a window's oldest is already out of reach."""
        return self.used(n)

    def tail(self, n: int) -> int:
        """Slots of the last unit that no token has reached yet."""
        return 0

    @property
    def most_tail(self) -> int:
        """The most slots that a last unit can leave empty: all but the first."""
        return self.slots_per_unit - 1

    def split(self, n: int) -> Tally:
        """Split what is held now."""
        return self._split(n, self.held(n))

    def split_peak(self, n: int) -> Tally:
        """Split what admission reserves."""
        return self._split(n, self.peak(n))

    def _split(self, n: int, units: int) -> Tally:
        slots = units * self.slots_per_unit
        used = self.used(n)
        tail = min(self.tail(n), slots - used)
        return Tally(units, used, 0, tail, slots - used - tail)

    def tally(self, lengths: Lengths) -> Tally:
        """Split what all requests hold at their full length, added up."""
        sums = [0, 0, 0, 0, 0]
        for n, count in lengths:
            for i, value in enumerate(self.split(n)):
                sums[i] += count * value
        return Tally(*sums)

    def contiguous(self, max_model_len: int) -> Rule:
        """Return the rule of the same cache reserved in one piece for `max_model_len` tokens."""
        raise NotImplementedError


class Grow(RuleBase, frozen=True, kw_only=True, tag="grow"):
    """Blocks handed out as the sequence grows; nothing is ever given back.

    `lookahead` slots beyond the cached tokens are held for tokens being proposed (speculation);
    admission does not ask for them (vLLM 0.33 FullAttentionSpec.max_memory_usage_bytes).

    Attributes:
        limit: the most tokens that are ever read (a window or chunk) where all are kept all the
            same; None where all are read.
        restarts: the limit is a chunk's: reading starts anew at its multiples.
    """

    block_tokens: Positive
    lookahead: NonNegative = 0
    limit: Positive | None = None
    restarts: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "block_tokens")
        require_range(self, 0, "lookahead")
        require_range(self, 1, "limit", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return self.block_tokens

    def held(self, n: int) -> int:
        return cdiv(n + self.lookahead, self.block_tokens) if n else 0

    def peak(self, n: int) -> int:
        return cdiv(n, self.block_tokens)

    def used(self, n: int) -> int:
        return n if self.limit is None else _read(n, self.limit, restarts=self.restarts)

    def most_used(self, n: int) -> int:
        return n if self.limit is None else min(n, self.limit)

    def readable(self, n: int) -> int:
        return n if self.limit is None else _readable(n, self.limit, restarts=self.restarts)

    def tail(self, n: int) -> int:
        return -n % self.block_tokens

    def tally(self, lengths: Lengths) -> Tally:
        # One pass of plain arithmetic: traces of millions of requests come through here.
        block = self.block_tokens
        if self.lookahead or self.limit is not None:
            return super().tally(lengths)
        used = sum([n * count for n, count in lengths.pairs])
        tail = sum([-n % block * count for n, count in lengths.pairs])
        return Tally((used + tail) // block, used, 0, tail, 0)

    def contiguous(self, max_model_len: int) -> Rule:
        if self.limit is None:
            return Whole(slots=max_model_len)
        slots = min(max_model_len, self.limit)
        return Whole(slots=slots, limit=self.limit, restarts=self.restarts)


class Window(RuleBase, frozen=True, kw_only=True, tag="window"):
    """Blocks of the last `window` tokens.

    Admission asks for window - 1 tokens, those in flight in one step, and `extra_blocks`. Blocks
    lie at multiples of the block size in the sequence, so the window may begin and end inside
    one; with `ring` they lie in a ring of their own and only as many are held as the window needs.

    Attributes:
        restarts: the window is a chunk's, which the engine keeps as a window: reading starts anew
            at its multiples.
    """

    block_tokens: Positive
    window: Positive
    in_flight: Positive = 1
    extra_blocks: NonNegative = 0
    ring: bool = False
    restarts: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "block_tokens", "window", "in_flight")
        require_range(self, 0, "extra_blocks")

    @property
    def slots_per_unit(self) -> int:
        return self.block_tokens

    def held(self, n: int) -> int:
        if self.ring:
            return cdiv(min(n, self.window), self.block_tokens)
        return cdiv(n, self.block_tokens) - max(0, n - self.window) // self.block_tokens

    def peak(self, n: int) -> int:
        if not n:
            return 0
        tokens = min(self.window - 1 + self.in_flight, n)
        return cdiv(tokens, self.block_tokens) + self.extra_blocks

    def used(self, n: int) -> int:
        return _read(n, self.window, restarts=self.restarts)

    def most_used(self, n: int) -> int:
        return min(n, self.window)

    def readable(self, n: int) -> int:
        return _readable(n, self.window, restarts=self.restarts)

    def tail(self, n: int) -> int:
        return -(min(n, self.window) if self.ring else n) % self.block_tokens

    def contiguous(self, max_model_len: int) -> Rule:
        slots = min(max_model_len, self.window)
        return Whole(slots=slots, limit=self.window, restarts=self.restarts)


class Chunk(RuleBase, frozen=True, kw_only=True, tag="chunk"):
    """Blocks of the current chunk of `chunk` tokens; `ring` as in Window."""

    block_tokens: Positive
    chunk: Positive
    in_flight: NonNegative = 0
    ring: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "block_tokens", "chunk")
        require_range(self, 0, "in_flight")

    @property
    def slots_per_unit(self) -> int:
        return self.block_tokens

    def _first(self, n: int) -> int:
        return max(0, n - 1) // self.chunk * self.chunk

    def held(self, n: int) -> int:
        if self.ring:
            return cdiv(self.used(n), self.block_tokens)
        return cdiv(n, self.block_tokens) - self._first(n) // self.block_tokens

    def peak(self, n: int) -> int:
        return cdiv(min(self.chunk + self.in_flight, n), self.block_tokens)

    def used(self, n: int) -> int:
        return n - self._first(n)

    def most_used(self, n: int) -> int:
        return min(n, self.chunk)

    def readable(self, n: int) -> int:
        return n % self.chunk

    def tail(self, n: int) -> int:
        return -(self.used(n) if self.ring else n) % self.block_tokens

    def contiguous(self, max_model_len: int) -> Rule:
        return Whole(slots=min(max_model_len, self.chunk), limit=self.chunk, restarts=True)


class Compressed(RuleBase, frozen=True, kw_only=True, tag="compressed"):
    """Blocks of `block_entries` entries, one entry for every `ratio` tokens.

    A block is handed out with the first token of its block_entries x ratio tokens.

    Attributes:
        on_demand: a block is handed out with its first entry instead, when the ratio tokens that
            it stands for are complete.
    """

    block_entries: Positive
    ratio: Positive
    on_demand: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "block_entries", "ratio")

    @property
    def slots_per_unit(self) -> int:
        return self.block_entries

    def held(self, n: int) -> int:
        if self.on_demand:
            return cdiv(n // self.ratio, self.block_entries)
        return cdiv(n, self.block_entries * self.ratio)

    def used(self, n: int) -> int:
        return n // self.ratio

    def tail(self, n: int) -> int:
        return self.held(n) * self.block_entries - self.used(n)

    @property
    def most_tail(self) -> int:
        # The block comes with the first token, the first entry with the ratio-th.
        return self.block_entries - (1 if self.ratio == 1 or self.on_demand else 0)

    def contiguous(self, max_model_len: int) -> Rule:
        return Whole(slots=max_model_len // self.ratio, ratio=self.ratio)


class Slots(RuleBase, frozen=True, kw_only=True, tag="slots"):
    """`count` states a sequence, whatever its length; one of them is live.

    Attributes:
        every: one more is kept for each further so many tokens begun (a prefix can then be taken
            up at each of them).
        beside: not so many a sequence, but one beside each block that this window hands out
            (SGLang's entries that wait to be folded).
    """

    count: Positive = 1
    every: Positive | None = None
    beside: Window | None = None

    def __post_init__(self) -> None:
        require_range(self, 1, "count")
        require_range(self, 1, "every", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return 1

    def held(self, n: int) -> int:
        if self.beside is not None:
            return self.beside.held(n)
        if self.every is None:
            return self.count
        return self.count + max(0, cdiv(n, self.every) - 1)

    def peak(self, n: int) -> int:
        return self.held(n) if self.beside is None else self.beside.peak(n)

    def used(self, n: int) -> int:
        return 1 if self.beside is None else min(n, 1)

    def contiguous(self, max_model_len: int) -> Rule:
        return Slots()


class Fixed(RuleBase, frozen=True, kw_only=True, tag="fixed"):
    """`tokens` rows written once a sequence (an encoder's output), in whole blocks.

    Admission asks for blocks of `declared` tokens where an engine declares more than are written.
    """

    block_tokens: Positive
    tokens: Positive
    declared: Positive | None = None

    def __post_init__(self) -> None:
        require_range(self, 1, "block_tokens", "tokens")
        require_range(self, 1, "declared", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return self.block_tokens

    def held(self, n: int) -> int:
        return cdiv(self.tokens, self.block_tokens)

    def peak(self, n: int) -> int:
        return max(self.held(n), cdiv(self.declared or 0, self.block_tokens))

    def used(self, n: int) -> int:
        return self.tokens

    def tail(self, n: int) -> int:
        return -self.used(n) % self.block_tokens

    def split_peak(self, n: int) -> Tally:
        units, used, _, tail, undeclared = super().split_peak(n)
        return Tally(units, used, undeclared, tail, 0)

    def contiguous(self, max_model_len: int) -> Rule:
        return Fixed(block_tokens=self.tokens, tokens=self.tokens)


class Whole(RuleBase, frozen=True, kw_only=True, tag="whole"):
    """`slots` slots reserved in one piece when the sequence starts, whatever it will write.

    Attributes:
        slots: the region, in slots; a longer sequence gets a region of its own length.
        limit: the most slots a token ever reads (a window or chunk); room beyond it is there for
            tokens in flight.
        restarts: the limit is a chunk's: reading starts anew at its multiples.
        ratio: tokens a slot (a compressed cache).
        spares_last: the last token of the longest sequence is never written, as no further one
            reads it.
    """

    slots: NonNegative
    limit: Positive | None = None
    restarts: bool = False
    ratio: Positive = 1
    spares_last: bool = False

    def __post_init__(self) -> None:
        require_range(self, 0, "slots")
        require_range(self, 1, "ratio")
        require_range(self, 1, "limit", optional=True)
        if self.limit is not None and self.ratio != 1:
            raise InvalidValueError("a region has a limit in tokens or a ratio, not both")

    @property
    def slots_per_unit(self) -> int:
        return 1

    def _written(self, n: int) -> int:
        entries = n // self.ratio
        if self.spares_last:
            entries = min(entries, max(self.slots, entries - 1))
        return entries if self.limit is None else min(entries, self.limit)

    def held(self, n: int) -> int:
        return max(self.slots, self._written(n))

    def used(self, n: int) -> int:
        if self.restarts and self.limit is not None:
            return _read(n, self.limit, restarts=True)
        return self._written(n)

    def most_used(self, n: int) -> int:
        return self._written(n)

    def readable(self, n: int) -> int:
        if self.limit is None:
            return self._written(n)
        return _readable(n, self.limit, restarts=self.restarts)

    def _split(self, n: int, units: int) -> Tally:
        used = self.used(n)
        usable = units if self.limit is None else min(units, self.limit)
        reservation = usable - self._written(n)
        return Tally(units, used, reservation, 0, units - used - reservation)

    def tally(self, lengths: Lengths) -> Tally:
        if self.limit is not None or self.ratio != 1:
            return super().tally(lengths)
        slots, written = self.slots, lengths.pairs
        if self.spares_last:
            written = tuple((min(n, max(slots, n - 1)), count) for n, count in lengths.pairs)
        used = sum([n * count for n, count in written])
        units = sum([max(n, slots) * count for n, count in written])
        return Tally(units, used, units - used, 0, 0)

    def contiguous(self, max_model_len: int) -> Rule:
        slots = max_model_len // self.ratio
        if self.limit is not None:
            slots = min(slots, self.limit)
        return Whole(slots=slots, limit=self.limit, restarts=self.restarts, ratio=self.ratio)


class Stepped(RuleBase, frozen=True, kw_only=True, tag="stepped"):
    """Rows kept in two forms: `first` tokens and then whole steps in one, the rest in the other.

    transformers' quantised caches quantise the prompt at once and later tokens whenever `step` of
    them have come together (transformers 5.24 cache_utils.py, QuantizedLayer.update).

    Attributes:
        first: tokens that are settled when the sequence starts.
        step: tokens that are settled together after those.
        rest: this is the form of the tokens that are not settled yet.
        slots: slots reserved in one piece; None where slots come as they are needed.
    """

    first: NonNegative
    step: Positive
    rest: bool = False
    slots: NonNegative | None = None

    def __post_init__(self) -> None:
        require_range(self, 0, "first")
        require_range(self, 1, "step")
        require_range(self, 0, "slots", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return 1

    def held(self, n: int) -> int:
        return max(self.slots or 0, self.used(n))

    def peak(self, n: int) -> int:
        return max(self.slots or 0, self.most_used(n))

    def used(self, n: int) -> int:
        later = max(0, n - self.first)
        if self.rest:
            return later % self.step
        return n - later % self.step

    def most_used(self, n: int) -> int:
        if self.rest:
            return min(max(0, n - self.first), self.step - 1)
        return self.used(n)

    def _split(self, n: int, units: int) -> Tally:
        used = self.used(n)
        spare = units - used
        if self.slots is None:
            return Tally(units, used, 0, 0, spare)
        return Tally(units, used, spare, 0, 0)

    def contiguous(self, max_model_len: int) -> Rule:
        slots = self.most_used(max_model_len)
        return Stepped(first=self.first, step=self.step, rest=self.rest, slots=slots)


class Ring(RuleBase, frozen=True, kw_only=True, tag="ring"):
    """Rows of the last `window` tokens in a buffer that grows by whole steps until it is full.

    mlx-lm's rotating caches: the prompt, all but its last token, is written as it is; single tokens
    then extend the buffer by `step` rows, and overwrite the oldest once it has `window` (mlx-lm
    0.32 models/cache.py, RotatingKVCache). What a step of the prompt brings lies beside the rows
    before it until the next step.

    Attributes:
        window: rows of the full buffer, and the most that a token reads.
        step: rows that the buffer grows by.
        first: tokens of the prompt without its last; None where a sequence is all prompt.
        in_flight: tokens of one step of the prompt.
        spare: rows beyond the window once the sequence is longer, where the buffer is cut to the
            window and extended anew with every token (ChunkedKVCache); steps then are whole from
            the start, and a prompt's too.
        restarts: the window is a chunk's: reading starts anew at its multiples.
    """

    window: Positive
    step: Positive
    first: NonNegative | None = None
    in_flight: Positive = 1
    spare: NonNegative = 0
    restarts: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "window", "step", "in_flight")
        require_range(self, 0, "spare")
        require_range(self, 0, "first", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return 1

    def _first(self, n: int) -> int:
        """Tokens of the prompt that come in steps; a step of one token is like any later one."""
        first = max(0, n - 1 if self.first is None else min(self.first, n - 1))
        return first - (first % self.in_flight == 1) if self.in_flight > 1 else 0

    def held(self, n: int) -> int:
        if n > self.window:
            return self.window + self.spare
        first = 0 if self.spare or not n else self._first(n)
        return min(self.window, first + cdiv(n - first, self.step) * self.step)

    def peak(self, n: int) -> int:
        most, first = self.held(n), self._first(n)
        # The last step of the prompt and the one before it: earlier ones find fewer rows.
        last = max(0, first - 1) // self.in_flight * self.in_flight
        for before in (max(0, last - self.in_flight), last):
            rows = max(0, min(self.in_flight, first - before))
            if self.spare:
                rows = min(before, self.window) + cdiv(rows, self.step) * self.step
            else:
                rows += min(before, self.window - 1)
            most = max(most, rows)
        return most

    def used(self, n: int) -> int:
        return _read(n, self.window, restarts=self.restarts)

    def most_used(self, n: int) -> int:
        return min(n, self.window)

    def readable(self, n: int) -> int:
        return _readable(n, self.window, restarts=self.restarts)

    def tail(self, n: int) -> int:
        return self.held(n) - n if n <= self.window else max(0, self.spare - 1)

    @property
    def most_tail(self) -> int:
        return max(self.step, self.spare) - 1

    def contiguous(self, max_model_len: int) -> Rule:
        slots = min(max_model_len, self.window)
        return Whole(slots=slots, limit=self.window, restarts=self.restarts)


class Form(RuleBase, frozen=True, kw_only=True, tag="form"):
    """Blocks of a sequence that is kept in this form only at some lengths.

    mlx-lm quantises a whole sequence once it has so many tokens; before, it is kept plain (mlx-lm
    0.32 generate.py, maybe_quantize_kv_cache).

    Attributes:
        block_tokens: tokens a block.
        since: tokens of the shortest sequence that is kept so.
        until: tokens of the shortest longer one that is not any more; None where all are.
        reach: most tokens that are written in this form on the way (a step of the prompt ends
            before it is looked at); the blocks of `until` tokens where it is not given.
        slots: slots reserved in one piece; None where blocks come as they are needed.
    """

    block_tokens: Positive
    since: NonNegative = 0
    until: NonNegative | None = None
    reach: NonNegative | None = None
    slots: NonNegative | None = None

    def __post_init__(self) -> None:
        require_range(self, 1, "block_tokens")
        require_range(self, 0, "since")
        require_range(self, 0, "until", "reach", "slots", optional=True)

    @property
    def slots_per_unit(self) -> int:
        return self.block_tokens if self.slots is None else 1

    def _kept(self, n: int) -> bool:
        return n >= self.since and (self.until is None or n < self.until)

    def held(self, n: int) -> int:
        if self.slots is not None:
            return max(self.slots, self.most_used(n))
        return cdiv(n, self.block_tokens) if self._kept(n) else 0

    def peak(self, n: int) -> int:
        if self.slots is not None:
            return self.held(n)
        if n < self.since:
            return 0
        most = n if self.until is None else min(n, max(self.until, self.reach or 0))
        return cdiv(most, self.block_tokens)

    def used(self, n: int) -> int:
        return n if self._kept(n) else 0

    def most_used(self, n: int) -> int:
        if n < self.since:
            return 0
        return n if self.until is None else min(n, max(0, self.until - 1))

    def tail(self, n: int) -> int:
        return -n % self.block_tokens if self._kept(n) and self.slots is None else 0

    def _split(self, n: int, units: int) -> Tally:
        if self.slots is None:
            return super()._split(n, units)
        used = self.used(n)
        return Tally(units, used, units - used, 0, 0)

    def contiguous(self, max_model_len: int) -> Rule:
        slots = self.most_used(max_model_len)
        return Form(block_tokens=1, since=self.since, until=self.until, slots=slots)


Rule = Grow | Window | Chunk | Compressed | Slots | Fixed | Whole | Stepped | Ring | Form
"""Every rule; a test compares this list with the classes above."""
