"""The figures that a check can hold a deployment to: what each is, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.units import UnitSystem, format_bytes, format_count, parse_bytes, parse_tokens
from kvcalc.core.waste import WASTE_NAMES

__all__ = ["METRICS", "Figure", "Kind", "Metric", "length_of", "metric_of", "read_figure", "shown"]

Kind = Literal["bool", "count", "bytes", "number", "ratio", "price"]
Better = Literal["more", "less"]
Figure = bool | int | float
"""A value of a metric."""

_MOST = 2**63  # bytes, tokens, blocks: what a limit may say
_LONGEST_AT = 2**31 - 1
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,12})?) ?%", re.ASCII)
_PLAIN = re.compile(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)


class Metric(NamedTuple):
    """A figure of a deployment.

    Attributes:
        kind: bool, count (a whole number), bytes, number, ratio (0 to 1) or price.
        better: which way is better; None where neither is.
        meaning: in words.
        needs: what must be known beside the deployment: `workload`, `price`.
    """

    kind: Kind
    better: Better | None
    meaning: str
    needs: Literal["workload", "price"] | None = None


def _wastes(side: str) -> dict[str, Metric]:
    """Return the wastes of one way to reserve, over a workload."""
    whole = {
        f"{side}_waste_ratio": Metric(
            "ratio", "less", f"{side}: share of what is reserved that is wasted", "workload"
        )
    }
    named = {
        f"{side}_{name}_ratio": Metric("ratio", "less", f"{side}: {meaning}", "workload")
        for name, meaning in WASTE_NAMES.items()
    }
    return whole | named


METRICS: dict[str, Metric] = {
    "fits": Metric("bool", "more", "as many sequences of the maximum as asked for surely fit"),
    "may_fit": Metric("bool", "more", "they fit if what is beside the cache takes its least"),
    "max_concurrency": Metric("number", "more", "sequences of the maximum at once, a replica"),
    "max_sequences": Metric("count", "more", "whole sequences of the maximum at once, a replica"),
    "kv_cache_tokens": Metric("count", "more", "tokens of the cache as the engine logs them"),
    "num_blocks": Metric("count", None, "blocks of the cache"),
    "kv_cache_bytes": Metric("bytes", "more", "the cache of the GPU that decides"),
    "bytes_per_token": Metric("bytes", "less", "what a token adds on a GPU"),
    "state_bytes": Metric("bytes", "less", "what a sequence keeps whatever its length"),
    "needed_bytes": Metric("bytes", "less", "what one sequence of the maximum needs on a GPU"),
    "missing_bytes": Metric("bytes", "less", "what a GPU lacks for what is asked"),
    "max_model_len": Metric("count", None, "the longest sequence that is served"),
    "max_model_len_that_fits": Metric("count", "more", "the longest sequence that fits"),
    "block_size": Metric("count", None, "tokens a block"),
    "block_bytes": Metric("bytes", None, "bytes a block"),
    "weights_bytes": Metric("bytes", "less", "the weights on the fullest GPU"),
    "host_bytes": Metric("bytes", "less", "what the engine takes of the host's memory"),
    "num_gpus": Metric("count", "less", "GPUs of all replicas"),
    "replicas": Metric("count", None, "servers with a cache of their own"),
    "total_kv_cache_tokens": Metric("count", "more", "tokens of the caches of all replicas"),
    "total_concurrency": Metric("number", "more", "sequences of the maximum on all replicas"),
    "duplication_factor": Metric("number", "less", "how many times a byte of the cache is kept"),
    "workload_concurrency": Metric("number", "more", "requests of the workload at once",
                                   "workload"),
    "reserved_gain": Metric("number", "more", "contiguous over paged reserved bytes", "workload"),
    **_wastes("paged"),
    **_wastes("contiguous"),
    "cost_per_million_tokens_hour": Metric(
        "price", "less", "an hour of a million tokens of cache", "price"
    ),
    "cost_per_sequence_hour": Metric(
        "price", "less", "an hour of one sequence of the maximum at once", "price"
    ),
}  # fmt: skip
"""Name of a figure -> what it is. `concurrency_at_N` is a family beside them."""

_AT = "concurrency_at_"


def metric_of(name: str) -> Metric | None:
    """Return a metric by name; None for no such.

    >>> metric_of("concurrency_at_4096").meaning
    'sequences of 4,096 tokens at once, a replica'
    """
    if name.startswith(_AT):
        tokens = length_of(name)
        if tokens is None:
            return None
        meaning = f"sequences of {format_count(tokens)} tokens at once, a replica"
        return Metric("number", "more", meaning)
    return METRICS.get(name)


def length_of(name: str) -> int | None:
    """Return the length that `concurrency_at_N` asks for; None for another metric."""
    digits = name.removeprefix(_AT)
    plain = digits != name and digits.isascii() and digits.isdigit() and digits[0] != "0"
    if not plain or len(digits) > len(str(_LONGEST_AT)) or int(digits) > _LONGEST_AT:
        return None
    return int(digits)


def read_figure(kind: Kind, given: object) -> Figure:
    """Read a limit as it is written in a file or behind an option.

    Sizes have units (40GiB; without one they are bytes); a bare 40G or 32k is refused with both
    readings, as everywhere.

    Raises:
        InvalidValueError: no value of that kind.

    >>> read_figure("bytes", "40GiB"), read_figure("ratio", "4 %")
    (42949672960, 0.04)
    """
    return _READERS[kind](given)


def _bool(given: object) -> bool:
    if isinstance(given, bool):
        return given
    if given in ("true", "false"):
        return given == "true"
    raise InvalidValueError(f"{given!r:.40} is neither true nor false", hint="write true or false")


def _count(given: object) -> int:
    if isinstance(given, str):
        return parse_tokens(given, minimum=0)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _MOST:
        return given
    raise InvalidValueError(
        f"{given!r:.40} is not a whole number from 0", hint="write a number such as 8192"
    )


def _bytes(given: object) -> int:
    if isinstance(given, str):
        return parse_bytes(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= _MOST:
        return given
    raise InvalidValueError(
        f"{given!r:.40} is not a size", hint="write bytes, or a number with a unit: 15GiB, 40GB"
    )


def _number(given: object) -> int | float:
    if isinstance(given, str) and _PLAIN.fullmatch(given.strip()):
        number = float(given)
        return int(number) if number.is_integer() and "." not in given else number
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given <= _MOST:
        return given
    raise InvalidValueError(
        f"{given!r:.40} is not a number from 0", hint="write a number such as 32 or 1.5"
    )


def _ratio(given: object) -> int | float:
    if isinstance(given, str) and (match := _PERCENT.fullmatch(given.strip())):
        number: int | float = float(f"{match[1]}e-2")  # in decimals: 4 % is 0.04 exactly as written
    else:
        number = _number(given)
    if number > 1:
        raise InvalidValueError(
            f"{given!r:.40} is no ratio from 0 to 1", hint="write a ratio such as 0.04, or 4 %"
        )
    return number


_READERS: dict[Kind, Callable[[object], Figure]] = {
    "bool": _bool,
    "count": _count,
    "bytes": _bytes,
    "number": _number,
    "ratio": _ratio,
    "price": _number,
}


def shown(kind: Kind, value: Figure, units: UnitSystem = "binary") -> str:
    """Print a figure for people.

    >>> shown("ratio", 0.04), shown("number", 17.256), shown("bytes", 42949672960)
    ('4.00 %', '17.26', '40 GiB')
    """
    if kind == "bool":
        return "true" if value else "false"
    if kind == "bytes":
        return format_bytes(int(value), units=units)
    if kind == "ratio":
        return f"{100 * value:.2f} %"
    if kind == "price":
        return f"{value:,.4f}"
    if kind == "count" or isinstance(value, int):
        return format_count(int(value))
    return f"{value:,.2f}"
