"""A start of a log as it is asked for: which of several, its figures, its plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple

import msgspec

from kvcalc.answers.logs import Fact, Named
from kvcalc.core.errors import InputError, InvalidValueError, KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_number_of
from kvcalc.engines import ENGINES, engine_of, plan
from kvcalc.measure.logs.engine_settings import DRAFTED
from kvcalc.measure.logs.errors import shortened
from kvcalc.measure.logs.lines import file_name, lines_of
from kvcalc.measure.logs.predict import derived
from kvcalc.measure.logs.resolve import NOTHING, Given, Resolved, preset_of, resolved
from kvcalc.measure.logs.starts import BY_ENGINE, NO_ENGINE, Start, starts_of
from kvcalc.models.presets import load_model_preset

__all__ = ["ReadStart", "chosen", "read_start", "with_derived"]


def _numbers(count: int) -> str:
    return "leave --start out: the log has one" if count == 1 else f"give 1 to {count}"


class ReadStart(NamedTuple):
    """A start that was read from a file: which of how many, and what it was of.

    Attributes:
        file: the log's name.
        number, starts: which of how many.
        start: its lines.
        facts: its figures.
        asked: what it was of, as its lines and the user say.
        resolved: the same, with what the figures say of its settings.
        plan: of it; None where there is none.
        notes: what was assumed or could not be read.
    """

    file: str
    number: int
    starts: int
    start: Start
    facts: dict[str, Fact]
    asked: Resolved
    resolved: Resolved
    plan: CachePlan | None
    notes: tuple[str, ...]


def chosen(
    source: str, number: int | None = None, stdin: BinaryIO | None = None
) -> tuple[Start, int, int]:
    """Return a start of a log, its number from 1, and how many there are.

    Args:
        source: a path, or `-`.
        number: which; the last when None.
        stdin: the stream for `-`.
    """
    found = starts_of(lines_of(source, stdin))
    if not found:
        engines = ", ".join(name for name in BY_ENGINE if name != "exllamav2")
        raise InputError(
            "no start-up line of a known engine is in it",
            hint=f"recognised are lines of {engines} (llama-server, ollama, LM Studio and koboldcpp"
            " among them) and out-of-memory texts of PyTorch",
            where=file_name(source),
        )
    told = [start for start in found if start.facts() or start.oom or start.ending.text] or found
    if number is None:
        return told[-1], len(told), len(told)
    if not 1 <= number <= len(told):
        raise InvalidValueError(
            f"there is no start {number}: the log has {format_number_of(len(told), 'start')}",
            hint=_numbers(len(told)),
            where=file_name(source),
        )
    return told[number - 1], number, len(told)


def read_start(
    source: str,
    given: Given = NOTHING,
    number: int | None = None,
    stdin: BinaryIO | None = None,
) -> ReadStart:
    """Return a start of a log with the plan that kvcalc makes of it."""
    start, which, count = chosen(source, number, stdin)
    preset_of.cache_clear()
    _engines_agree(start, given, file_name(source))
    facts = _with_settings(start)
    found = resolved(start, facts, given)
    notes = list(found.notes)
    if count > 1:
        notes.insert(
            0,
            f"the log holds {count} starts: this is number {which} (lines {start.first:,} to"
            f" {start.last:,}); --start N takes another",
        )
    made = None
    model, asked = found.model, found
    if model is not None and found.deployment.engine != "none":
        found = _with_draft(found, model, given, notes)
        found = with_derived(found, model, facts)
        try:
            made = plan(model, found.deployment)
        except KvcalcError as error:
            notes.append(
                f"no plan of it: {error.message}" + (f" ({error.hint})" if error.hint else "")
            )
    return ReadStart(
        file_name(source), which, count, start, facts, asked, found, made, tuple(notes)
    )


def _with_draft(found: Resolved, model: ModelSpec, given: Given, notes: list[str]) -> Resolved:
    """Return a deployment with the draft model that its log names; without one that is not known.

    The target's own cache is the same either way.
    """
    name, args = found.deployment.draft_model, found.deployment.engine_args
    if isinstance(name, str):
        for text in (name, name.rstrip("/").rsplit("/", 1)[-1]):
            try:
                draft = load_model_preset(text, given.folders).spec
            except KvcalcError:
                continue
            return _but(found, draft_model=draft)
        told = f"the draft {shortened(name, 60)!r} is no preset"
    elif name is None and not model.draft_layers and args.get("speculative_algorithm") in DRAFTED:
        told = f"the log names no draft, and {model.name} has none of its own"
    else:
        return found
    notes.append(f"{told}: what it keeps is not predicted (--draft-model NAME)")
    rest = {key: value for key, value in args.items() if "speculative" not in key}
    return _but(
        found,
        draft_model=None,
        speculative_method=None,
        num_speculative_tokens=None,
        engine_args=rest,
    )


def _but(found: Resolved, **settings: Any) -> Resolved:
    return found._replace(deployment=msgspec.structs.replace(found.deployment, **settings))


def _engines_agree(start: Start, given: Given, file: str) -> None:
    """Refuse an engine that is given and whose log it is not."""
    asked = given.engine
    if asked is None or asked == start.engine:
        return
    if start.engine in NO_ENGINE and asked == "none":
        return
    if asked in ENGINES and engine_of(asked).prints_as == start.engine:
        return
    raise InputError(
        f"these are lines of {start.engine}, and --engine says {asked}",
        hint="leave --engine out: a log tells its own",
        where=file,
    )


def _with_settings(start: Start) -> dict[str, Fact]:
    """Return the figures of a start, with one that stands among its arguments alone."""
    facts = start.facts()
    swap = start.settings.text("swap_space")
    if swap is not None and "swap_space_bytes" not in facts:
        facts |= _swap_space(swap, start.settings["swap_space"].line)
    share = start.settings.part("mem_fraction_static")
    if share is not None and "mem_fraction_static" not in facts:
        said = start.settings["mem_fraction_static"]
        facts["mem_fraction_static"] = Fact(
            printed=said.value, low=share, high=share, unit="share", line=said.line
        )
    return facts


def _swap_space(text: str, line: int) -> dict[str, Fact]:
    """Return V0's swap space in bytes: its argument counts GiB (config.py, CacheConfig)."""
    if not re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", text):
        return {}
    size = int(Fraction(text) * 2**30)
    return {
        "swap_space_bytes": Fact(printed=f"{text} GiB", low=size, high=size, unit="B", line=line)
    }


def with_derived(found: Resolved, model: ModelSpec, facts: Mapping[str, Fact]) -> Resolved:
    """Return a deployment with what the figures say of its settings."""
    more = derived(model, found.deployment, facts)
    if more is None:
        return found
    deployment = found.deployment
    if more.argument:
        args = {**deployment.engine_args, more.name: more.value}
        deployment = msgspec.structs.replace(deployment, engine_args=args)
    else:
        if engine_of(found.deployment.engine).kernels_set_blocks:
            deployment = msgspec.structs.replace(deployment, block_size=None)
        deployment = msgspec.structs.replace(deployment, **{more.name: more.value})
    named = Named(name=more.name, value=str(more.value), source=more.source)
    return found._replace(deployment=deployment, named=(*found.named, named))
