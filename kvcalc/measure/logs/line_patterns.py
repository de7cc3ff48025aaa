r"""Patterns of log lines: templates, the kinds of figures in them, and the facts that they give.

A template is the line as the engine prints it, with

* `<name:kind>` for a figure or a word (see KINDS),
* `[...]` for a part that may be missing, `{a|b}` for one of several,
* a blank for any run of blanks, `~` for a run that may be empty, `…` for anything short,
* `¬` where no letter, digit or `_` stands before, and `\` before a sign that stands for itself.

Nothing repeats without a bound and nothing that repeats stands in a repetition, so that the time
is linear in the line.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor
from typing import Any, Literal, NamedTuple

from kvcalc.answers.logs import Fact, Unit
from kvcalc.core.tables import read_table

__all__ = [
    "KINDS",
    "Keep",
    "Reading",
    "Said",
    "Shape",
    "compiled",
    "fact_of",
    "read",
    "shape",
    "shapes_of_table",
]

Keep = Literal["least", "most", "first", "last", "sum", "latest"]
"""Which of several figures of one name counts: of ranks the least or most, else by order; or what
the lines of all devices come to, all of them or the latest of each."""

_INT = r"-?\d{1,3}(?:,\d{3}){1,8}(?!\d)|-?\d{1,20}"
_SOME = r"[1-9]\d{0,2}(?:,\d{3}){1,8}(?!\d)|[1-9]\d{0,19}"
_DEC = r"-?\d{1,15}(?:\.\d{1,12})?"
_WORD = r"[^\s,;()\[\]{}'\"]{1,200}"
_OWN = r"-?\d{1,15}(?:\.\d{1,6})?[ \t]?(?:bytes|[KMGTP]i?B|B)\b"


class Kind(NamedTuple):
    """What a figure looks like and counts.

    Attributes:
        pattern: of the text.
        unit: of the value.
        scale: units of one printed: 2^30 for GiB.
        digits: decimals that are printed at least, trailing zeros left out or not; None for a
            whole number that is exact.
        floor: the print is rounded down, not to the nearest.
    """

    pattern: str
    unit: Unit
    scale: int = 1
    digits: int | None = None
    floor: bool = False


KINDS = {
    "GiB": Kind(_DEC, "B", 2**30, 2),  # whatever it is called: every engine divides by 2^30
    "GB": Kind(_DEC, "B", 10**9, 2),
    "MiB": Kind(_DEC, "B", 2**20, 2),
    "MiB-floor": Kind(_INT, "B", 2**20, 0, floor=True),
    "MiB-own": Kind(_DEC, "B", 2**20, 0),
    "bytes": Kind(_INT, "B"),
    "bytes-2": Kind(_DEC, "B", 1, 2),
    "size": Kind(_OWN, "B", 1, 0),
    "tokens": Kind(_INT, "tokens"),
    "some": Kind(_SOME, "tokens"),
    "blocks": Kind(_INT, "blocks"),
    "count": Kind(_INT, "count"),
    "times": Kind(_DEC, "times", 1, 2),
    "share": Kind(_DEC, "share", 1, 2),
    "fraction": Kind(_DEC, "share", 1, 9),  # as it was given, every digit
    "share-4": Kind(_DEC, "share", 1, 4),
    "percent": Kind(_DEC, "count", 1, 2),
    "word": Kind(_WORD, "text"),
    "card": Kind(r"[A-Za-z][\w +./()-]{2,60}", "text"),
    "quoted": Kind(r"[^'\"\n]{1,300}", "text"),
    "name": Kind(r"[A-Za-z0-9][\w.+-]{0,120}", "text"),
    "path": Kind(r"[^\s'\"`]{1,300}", "text"),
    "rest": Kind(r"[^\n]{1,160}", "text"),
}
"""Name of a kind in a template -> what it is."""

_NAMES = {2**30: "GiB", 2**20: "MiB", 10**9: "GB"}
_SIZES = {"bytes": 1, "B": 1, "KiB": 2**10, "KB": 2**10, "MiB": 2**20, "MB": 2**20}
_SIZES |= {"GiB": 2**30, "GB": 2**30, "TiB": 2**40, "TB": 2**40, "PiB": 2**50, "PB": 2**50}


class Reading(NamedTuple):
    """A figure as it was read.

    Attributes:
        printed: the text.
        low, high: what it stands for; None for a word.
        unit: of both.
    """

    printed: str
    low: int | float | None
    high: int | float | None
    unit: Unit


class Shape(NamedTuple):
    """One shape of a line.

    Attributes:
        needle: what must be in the line; looked for before the expression is tried.
        expression: with a group for each figure.
        kinds: of the figures, by name.
        keep: which of several counts.
        opens: a start begins with it, if this start has it already and was sized.
        once: a process prints it once a start: its second is of the next, sized or not.
        changes: a start has one value of it: another, once it was sized, is of the next.
        ends: a start is sized (or has failed) with it; an opening figure after it is of the next.
        fails: the start ends with it.
        says: a flag that the line sets, where it holds no figure.
        numbered: a process prints one a cache: its second is NAME_2, and so on.
        phase: what a start does from then on (phases.PHASES).
        joins: it belongs to a start that is there, and opens none.
    """

    needle: str
    expression: re.Pattern[str]
    kinds: dict[str, str]
    keep: Keep = "last"
    opens: bool = False
    ends: bool = False
    fails: bool = False
    says: str = ""
    numbered: bool = False
    once: bool = False
    changes: bool = False
    phase: str = ""
    joins: bool = False


_PIECE = re.compile(r"<(?P<name>\w+):(?P<kind>[\w-]+)>|\\.|.", re.DOTALL)
_PLAIN = {
    " ": r"[ \t]{1,20}",
    "¬": r"(?<!\w)",
    "~": r"[ \t]{0,20}",
    "[": "(?:",
    "]": ")?",
    "{": "(?:",
    "}": ")",
}


def shape(
    needle: str,
    template: str,
    *,
    keep: Keep = "last",
    opens: bool = False,
    ends: bool = False,
    fails: bool = False,
    says: str = "",
    numbered: bool = False,
    once: bool = False,
    changes: bool = False,
    phase: str = "",
    joins: bool = False,
) -> Shape:
    """Return the shape of a template; see the module for how one is written."""
    made, kinds = compiled(template)
    return Shape(
        needle, made, kinds, keep, opens, ends, fails, says, numbered, once, changes, phase, joins
    )


def shapes_of_table() -> dict[str, tuple[Shape, ...]]:
    """Return the shapes of log_lines.tsv by engine, in their order.

    Its rows: the engine, the needle, the template, and what a line sets beside its figures, by the
    names of `shape`'s arguments. Lines in which a start is refused say the refusal's code in the
    engine's refusals.tsv. Where the rows come from:

    * vLLM 0.2 to 0.33; the files that print them are named beside the rules (engines/vllm). Words
      that a release brought or took away ("since", "until") date a log whose lines name no source
      file: v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py, gpu_model_runner.py. Phases:
      model_loader/weight_utils.py, v1/engine/core.py, entrypoints/openai/api_server.py.
    * SGLang 0.2 to 0.5.23: model_executor/model_runner.py, mem_cache/memory_pool.py. It writes GB
      and divides by 2^30; one line a rank is normal.
    * llama.cpp since 2023 (llama-context.cpp, llama-kv-cache.cpp, llama-model.cpp), ik_llama.cpp,
      and the scheduler of ollama, whose figures are estimates. A start prints one line a cache
      (base, window, indexer, draft) and one a device; the former are numbered in their order. What
      llama_memory_breakdown_print says of a buffer's owner is in whole MiB, rounded down; what is
      not accounted for wraps around below 0.
    * TensorRT-LLM: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp,
      trtGptModelInflightBatching.cpp, and the PyTorch backend's; the estimating pass prints them
      before the final one, so that the last counts.
    * LMDeploy: TurboMind's src/turbomind/models/llama/BlockManager.cc, engine/engine.cc; PyTorch
      engine 0.7 to 0.18: pytorch/engine/executor/base.py (model_agent.py before).
    * TGI 2 and 3: server models/flash_causal_lm.py, backends/v3.
    * MLC-LLM: cpp/serve/config.cc, InferForKVCache, cli/model_metadata.py; MB is 2^20.
    * ExLlamaV2, ExLlamaV3, TabbyAPI: no line about the cache, only the refusal.
    """
    found: dict[str, list[Shape]] = {}
    for engine, needle, template, sets in read_table("kvcalc.measure.logs", "log_lines.tsv")[1:]:
        pairs = (word.partition("=") for word in sets.split(", ") if word)
        given: dict[str, Any] = {name: value or True for name, _, value in pairs}
        found.setdefault(engine, []).append(shape(needle, template, **given))
    return {engine: tuple(shapes) for engine, shapes in found.items()}


def compiled(template: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return the expression of a template, and the kinds of its figures by name."""
    parts: list[str] = []
    kinds: dict[str, str] = {}
    depth = 0
    for piece in _PIECE.finditer(template):
        text = piece[0]
        if piece["name"]:
            kinds[piece["name"]] = piece["kind"]
            parts.append(f"(?P<{piece['name']}>{KINDS[piece['kind']].pattern})")
        elif text == "…":
            parts.append(r"[^\n]{0,160}?")
        elif text.startswith("\\"):
            parts.append(re.escape(text[1:]))
        elif text == "|" and depth:
            parts.append("|")
        else:
            depth += (text == "{") - (text == "}")
            parts.append(_PLAIN.get(text) or re.escape(text))
    return re.compile("".join(parts), re.ASCII), kinds


def read(text: str, kind_name: str) -> Reading:
    """Return what a printed figure stands for.

    >>> read("1,952", "blocks")
    Reading(printed='1,952', low=1952, high=1952, unit='blocks')
    >>> read("3.81", "GiB").low, read("3.81", "GiB").high
    (4085625036, 4096362455)
    """
    kind = KINDS[kind_name]
    if kind.unit == "text":
        return Reading(text, None, None, "text")
    scale, digits = kind.scale, kind.digits
    number = text.replace(",", "")
    shown = text
    if kind_name == "size":
        number, unit = _own(number)
        scale = _SIZES[unit]
    elif scale > 1:
        shown = f"{text} {_NAMES[scale]}"
    if digits is None or (kind_name == "size" and scale == 1):
        value = int(number)
        return Reading(shown, value, value, kind.unit)
    decimals = len(number.partition(".")[2])
    exact = Fraction(number)
    half = Fraction(1, 2 * 10 ** max(decimals, digits))
    if kind.floor:
        return Reading(shown, int(exact * scale), int((exact + 1) * scale) - 1, kind.unit)
    low, high = (exact - half) * scale, (exact + half) * scale
    if kind.unit == "B":
        if ceil(low) > floor(high):  # a part of a byte: an average
            low, high = Fraction(floor(low)), Fraction(ceil(high))
        return Reading(shown, ceil(low), floor(high), kind.unit)
    return Reading(shown, float(low), float(high), kind.unit)


def _own(text: str) -> tuple[str, str]:
    number = text.rstrip("bytesBKMGTPi \t")
    return number, text[len(number) :].strip()


# --------------------------------------------------------------------- facts
#
# One figure of a start, of which several processes say something each.

Said = tuple[str, int, int, Reading]
"""Process, line, how many processes said the same, and the figure."""


def fact_of(taken: list[Said], keep: str, binding: str = "") -> Fact:
    """Return a figure: of the rank that counts where ranks differ, else by order.

    Args:
        taken: what was said of it, in order.
        keep: which counts (shapes.Keep).
        binding: the rank whose figures belong together, where several have their own; "" for none.
    """
    said = sum(times for _, _, times, _ in taken)
    by_rank = {rank: entry for entry in taken if (rank := entry[0])}
    latest = list(by_rank.values()) if len(by_rank) > 1 else taken
    numbers = [entry for entry in latest if entry[3].low is not None]
    spread = None
    if numbers and keep in ("least", "most"):
        ordered = sorted(numbers, key=lambda entry: (entry[3].low or 0, entry[1]))
        end = ordered[0 if keep == "least" else -1]
        bound = [entry for entry in numbers if entry[0] == binding] if binding else []
        _, line, _, reading = _finest(bound or ordered, bound[-1] if bound else end)
        if (ordered[0][3].high or 0) < (ordered[-1][3].low or 0):
            spread = (ordered[0][3].printed, ordered[-1][3].printed)
    elif numbers and keep in ("sum", "latest"):
        parts = taken if keep == "sum" else list(by_rank.values()) or taken[-1:]
        _, line, _, reading = parts[0]
        lows = [entry[3].low or 0 for entry in parts]
        highs = [entry[3].high or 0 for entry in parts]
        text = reading.printed if len(parts) == 1 else " + ".join(e[3].printed for e in parts[:8])
        reading = Reading(text, sum(lows), sum(highs), reading.unit)
    else:
        mine = [entry for entry in taken if entry[0] == binding] if binding else []
        _, line, _, reading = (mine or taken)[0 if keep == "first" else -1]
    return Fact(
        printed=reading.printed,
        low=reading.low,
        high=reading.high,
        unit=reading.unit,
        line=line,
        said=said,
        spread=spread,
    )


def _finest(taken: list[Said], chosen: Said) -> Said:
    """Return the entry with the most digits of those that can be the same number as one."""
    low, high = chosen[3].low or 0, chosen[3].high or 0
    same = [e for e in taken if (e[3].low or 0) <= high and low <= (e[3].high or 0)]
    return min(
        same or [chosen], key=lambda entry: ((entry[3].high or 0) - (entry[3].low or 0), entry[1])
    )
