"""The engine's own commands for what is asked, and for what was solved for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec

from kvcalc.answers.capacity import Figures, Solution
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes, format_number_of
from kvcalc.engines import engine_of
from kvcalc.engines.command import Words
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.solve.searches import Solved
from kvcalc.weights.formats import weight_width

__all__ = ["command", "suggested"]


_PERHAPS = "it fits if everything beside the cache takes its least, and else it does not"
_UNKNOWN = "whether it fits is not known: no GPU is named"


def suggested(
    question: Question, ends: tuple[Figures, Figures], turned: tuple[Solved, ...]
) -> tuple[tuple[Solution, ...], str | None, tuple[str, ...]]:
    """Return the solutions with their commands, the command to take, and what to know of it.

    Each setting was solved for by itself, so that no two of them go into one command: the first
    that meets the goal is taken, else the question as it was asked. Where that is not met either
    there is no command, which is told.

    Args:
        question: what is asked.
        ends: its figures with the least and with the most that may be left for the cache.
        turned: what was solved for.
    """
    low, high = ends
    doubtful, unknown = high.fits and not low.fits, low.fits is None
    solutions, first = [], None
    notes: dict[str, None] = {}
    for one in turned:
        told = None
        if one.change is not None:
            asked = one.change.applied(question)
            if _fits(asked):
                told, lines = command(asked)
                notes.update(dict.fromkeys(lines))
                if doubtful and first is None and told is not None:
                    shown = f"{one.solution.setting} {one.solution.value}"
                    notes[f"with {shown} it surely fits; as it was asked for, {_PERHAPS}"] = None
                first = first or told
            else:
                goal = format_number_of(question.sequences, "sequence")
                shown = f"{one.solution.setting} {one.solution.value}"
                notes[f"no command with {shown}: it does not hold {goal} at once"] = None
        solutions.append(msgspec.structs.replace(one.solution, command=told))
    if first is None:
        if high.fits or unknown:
            first, lines = command(question)
            notes.update(dict.fromkeys(lines))
            if first is not None and (doubtful or unknown):
                notes[_UNKNOWN if unknown else _PERHAPS] = None
        else:
            notes[_none(turned)] = None
    return tuple(solutions), first, tuple(notes)


def _fits(question: Question) -> bool:
    """Whether the goal is surely met."""
    try:
        return work(question).meets("low")
    except KvcalcError:
        return False


def _none(turned: tuple[Solved, ...]) -> str:
    line = "no command: what is asked for does not fit"
    if not turned:
        return f"{line}; --solve SETTING looks for what would, --levers for what helps"
    return f"{line}, and nothing that was solved for changes that"


# The engine's own command for a question: what to type where the answer is yes.

_NO_MODEL = "MODEL"
"""Stands where nothing tells what the engine is to load."""


def command(question: Question) -> tuple[str | None, tuple[str, ...]]:
    """Return what starts the engine like this, and what to know of it.

    None for an engine that is a library and no server. The model is what the engine is given to
    load: the repository that a preset was read from, a folder, or a GGUF file. What was asked for
    and cannot be said in flags is told.
    """
    deployment = question.deployment
    engine = engine_of(deployment.engine)
    said = Words(engine, deployment)
    source = _source(question)
    if not engine.command(said, question.model, source):
        return None, (f"kvcalc knows no command that starts {deployment.engine}",)
    said.start(*_quantized(question))
    said.leftovers()
    words = [*(f"{name}={value}" for name, value in said.variables.items()), *said.words]
    told = (*_of_release(question), *_caveats(question, source), *said.told, *_beside(question))
    return " ".join(shlex.quote(word) for word in words), tuple(dict.fromkeys(told))


def _source(question: Question) -> str:
    model = question.model
    if not engine_of(question.deployment.engine).loads_gguf:
        return model.origin or _NO_MODEL
    if model.origin is not None and model.origin.lower().endswith(".gguf"):
        return model.origin
    named = model.origin or _NO_MODEL
    kind = (question.quantization or "f16").upper()
    return f"{named.rsplit('/', 1)[-1]}-{kind}.gguf"


_FOLDED = {"fp8_e4m3": "fp8", "bitsandbytes": "bnb-4bit"}


def _quantized(question: Question) -> tuple[str, ...]:
    wanted = question.quantization
    if wanted is None or _is_stored(question, wanted):
        return ()
    folded = wanted.strip().lower()
    on_loading = engine_of(question.deployment.engine).on_loading
    return on_loading.get(_FOLDED.get(folded, folded), ())


def _is_stored(question: Question, wanted: str) -> bool:
    """Whether the checkpoint is in a format, in whatever spelling."""
    size = question.model.size
    stored = (size.weights_dtype if size is not None else None) or question.model.dtype
    if wanted.strip().lower() == stored.lower():
        return True
    try:
        return weight_width(wanted) is weight_width(stored)
    except KvcalcError:
        return False


def _of_release(question: Question) -> Iterator[str]:
    deployment = question.deployment
    if deployment.engine_version is not None:
        yield f"of {deployment.engine} {deployment.engine_version}"


def _caveats(question: Question, source: str) -> Iterator[str]:
    """Yield what to put in, and in place of what."""
    model, engine = question.model, question.deployment.engine
    loads_gguf = engine_of(engine).loads_gguf
    wanted = question.quantization
    file = (model.origin or "").lower().endswith(".gguf")
    if loads_gguf and not file:
        yield f"{source} is to be made of {model.origin or model.name}, or found"
    elif model.origin is None:
        yield f"put in {source} what {engine} is to load: nothing tells it of {model.name}"
    if wanted is not None and not _is_stored(question, wanted) and not _quantized(question):
        if loads_gguf and not file:
            return
        yield f"weights in {wanted} are another checkpoint: put its name in place of {source}"


def _beside(question: Question) -> Iterator[str]:
    """Yield what was asked about and is no setting of the engine's."""
    if question.weights_bytes is not None:
        yield (
            f"weights of {format_bytes(question.weights_bytes)} were asked about: no flag makes"
            " them so"
        )
    if question.instances > 1:
        yield f"one of {question.instances} servers alike, each on a port of its own"
